"""Figures of what tables cannot hold: grids of images and matrices. matplotlib is imported when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.cache import make_folder


def images(path: Path, rows: Mapping[str, Tensor], *, titles: Sequence[Sequence[str]] = ()) -> str:
    """Rows of images (n c h w, 8-bit or in [0, 1]) with a name before each row and a title over
    each image.
    """
    figure = _figure(
        0.9 * max(len(row) for row in rows.values()) + 1.2, (1.15 if titles else 1.0) * len(rows)
    )
    columns = max(len(row) for row in rows.values())
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for i, (name, row) in enumerate(rows.items()):
        for j in range(columns):
            axes[i][j].axis("off")
            if j < len(row):
                axes[i][j].imshow(_shown(row[j]), cmap="gray", vmin=0, vmax=1)
                axes[i][j].set_title(titles[i][j] if titles else "", fontsize=7, pad=1)
        axes[i][0].text(
            -0.1, 0.5, name, transform=axes[i][0].transAxes, ha="right", va="center", fontsize=8
        )
    return _saved(figure, path)


def matrices(
    path: Path,
    named: Mapping[str, Float[Tensor, "k w"]],
    classes: Sequence[str],
    columns: Sequence[str] | None = None,
) -> str:
    """Matrices side by side, in percent; the diagonal is left out.

    `columns` are `classes` unless given.
    """
    columns = classes if columns is None else columns
    figure = _figure(5.2 * len(named), 4.8)
    axes = figure.subplots(1, len(named), squeeze=False)[0]
    for axis, (title, values) in zip(axes, named.items()):
        shown = (100 * values.clone()).fill_diagonal_(torch.nan)
        axis.imshow(shown.numpy(), cmap="viridis")
        axis.set(title=title, xlabel="seen as", ylabel="is")
        axis.set(xticks=range(len(columns)), yticks=range(len(classes)))
        axis.set_xticklabels(columns, rotation=45 if max(map(len, columns)) > 2 else 0, fontsize=7)
        axis.set_yticklabels(classes, fontsize=7)
        limit = float(shown.nan_to_num(0).max()) / 2
        for (i, j), value in _cells(shown):
            colour = "w" if value < limit else "k"
            axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6, color=colour)
    return _saved(figure, path)


def scatter(path: Path, panels: Mapping[str, Mapping[str, Float[Tensor, "n 2"]]]) -> str:
    """Clouds of points in the plane, a panel beside the other."""
    figure = _figure(4.0 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, clouds) in zip(axes, panels.items(), strict=True):
        for name, points in clouds.items():
            axis.scatter(points[:, 0].numpy(), points[:, 1].numpy(), s=6, label=name)
        axis.set_title(title)
        axis.legend(fontsize=6, frameon=False)
    return _saved(figure, path)


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, path: Path) -> str:
    make_folder(path.parent)
    figure.savefig(path, dpi=120)
    return path.name


def _shown(image: Tensor) -> Any:
    values = image.float() / 255 if image.dtype == torch.uint8 else image
    return values.cpu().permute(1, 2, 0).squeeze(-1).clamp(0, 1).numpy()


def _cells(values: Float[Tensor, "r c"]) -> list[tuple[tuple[int, int], float]]:
    return [((i, j), float(values[i, j])) for i, j in values.isfinite().nonzero().tolist()]
