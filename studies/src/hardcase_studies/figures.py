"""Figures that experiments write: grids of images, matrices,
curves and clouds of points. matplotlib is imported when used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.cache import make_folder

Series = tuple[Sequence[float], Sequence[float]]


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
        axis.set(
            title=title,
            xlabel="seen as",
            ylabel="is",
            xticks=range(len(columns)),
            yticks=range(len(classes)),
        )
        axis.set_xticklabels(columns, rotation=45 if max(map(len, columns)) > 2 else 0, fontsize=7)
        axis.set_yticklabels(classes, fontsize=7)
        limit = float(shown.nan_to_num(0).max()) / 2
        for (i, j), value in _cells(shown):
            axis.text(
                j,
                i,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=6,
                color="w" if value < limit else "k",
            )
    return _saved(figure, path)


def heat(
    path: Path,
    values: Float[Tensor, "r c"],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
) -> str:
    """A table as colours with its numbers; each column has a scale of its own."""
    figure = _figure(0.7 * len(columns) + 2.5, 0.35 * len(rows) + 1.5)
    axis = figure.subplots()
    low = values.amin(0)
    high = values.amax(0)
    shade = (values - low) / (high - low).clamp_min(1e-12)
    axis.imshow(shade.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axis.set(title=title, xticks=range(len(columns)), yticks=range(len(rows)))
    axis.set_xticklabels(columns, rotation=30, ha="right", fontsize=8)
    axis.set_yticklabels(rows, fontsize=8)
    for (i, j), value in _cells(values):
        axis.text(
            j,
            i,
            f"{value:.2g}",
            ha="center",
            va="center",
            fontsize=7,
            color="w" if shade[i, j] < 0.6 else "k",
        )
    return _saved(figure, path)


def curves(
    path: Path, panels: Mapping[str, Mapping[str, Series]], *, x: str, y: str, log: bool = False
) -> str:
    """One panel beside the other, each with named lines."""
    figure = _figure(4.2 * len(panels), 3.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels.items()):
        for name, (across, up) in lines.items():
            axis.plot(across, up, marker="o", markersize=3, label=name)
        axis.set(title=title, xlabel=x, ylabel=y, xscale="log" if log else "linear")
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    return _saved(figure, path)


def clouds(path: Path, panels: Mapping[str, Mapping[str, Float[Tensor, "n 2"]]]) -> str:
    """Points in the plane, one panel beside the other."""
    figure = _figure(4.0 * len(panels), 3.8)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, groups) in zip(axes, panels.items()):
        for name, points in groups.items():
            axis.scatter(points[:, 0].numpy(), points[:, 1].numpy(), s=8, alpha=0.6, label=name)
        axis.set(title=title)
        axis.legend(fontsize=7)
    return _saved(figure, path)


def histograms(
    path: Path, panels: Mapping[str, Mapping[str, Float[Tensor, " n"]]], *, y: str
) -> str:
    """Histograms on common bins, one panel beside the other; what is empty is left out.

    Args:
        path: The figure.
        panels: For each panel named samples.
        y: What is counted.
    """
    figure = _figure(4.6 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, groups) in zip(axes, panels.items()):
        some = {name: values.cpu() for name, values in groups.items() if len(values)}
        if some:
            every = torch.cat(list(some.values()))
            ends = (float(every.min()), float(every.max()) + 1e-6)
            for name, values in some.items():
                axis.hist(values.numpy(), bins=30, range=ends, alpha=0.5, label=name)
            axis.legend(fontsize=7)
        axis.set(title=title, xlabel=title, ylabel=y)
    return _saved(figure, path)


def boxes(
    path: Path, panels: Mapping[str, Mapping[str, Sequence[float]]], *, y: str, log: bool = False
) -> str:
    """Boxplots, one panel beside the other."""
    widest = max((len(groups) for groups in panels.values()), default=1)
    figure = _figure(max(4.2, 0.4 * widest) * len(panels), 3.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, groups) in zip(axes, panels.items()):
        axis.boxplot(list(groups.values()), tick_labels=list(groups))
        if len(groups) > 5:
            axis.set_xticks(axis.get_xticks(), list(groups), rotation=45, ha="right", fontsize=8)
        axis.set(title=title, ylabel=y, yscale="log" if log else "linear")
        axis.grid(alpha=0.3, axis="y")
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
