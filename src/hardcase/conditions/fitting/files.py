"""The files of a fit: the declaration, all figures, and images of the field next to fitted
images."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from hardcase.cache import write_atomically
from hardcase.errors import HardcaseError
from hardcase.tensors import to_bytes
from hardcase.wording.field import field_sentences

if TYPE_CHECKING:
    from hardcase.conditions.fitting.fit import FieldFit

__all__ = ["save"]

ACROSS = 12
"""Images in a row of the sheet."""
SIDE = 64
"""Pixels of an image on the sheet, at least for those that are smaller."""
GAP = 4


def save(fit: FieldFit, path: Path) -> Path:
    """Write the declaration and what goes with it; returns the declaration's path.

    Args:
        fit: The result of a fit.
        path: A path that ends in ``.toml``.
    """
    if path.suffix != ".toml":
        raise HardcaseError(f"{path} is no TOML file.", fix=f"--out {path.with_suffix('.toml')}")
    record = json.dumps(fit.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path.with_suffix(".json"), f"{record}\n".encode())
    write_atomically(path.with_suffix(".png"), _sheet(fit))
    if fit.rows:
        write_atomically(path.with_suffix(".csv"), _table(fit))
    return write_atomically(path, _declaration(fit, path).encode())


def _declaration(fit: FieldFit, path: Path) -> str:
    """The TOML file: a table of conditions, and what the fit says."""
    lines = ["[conditions]", 'name = "field"']
    if not fit.found:
        lines.append("# no condition was found: there is nothing to declare")
    tied = {name for pair in fit.candidate.together for name in pair}
    if tied:
        lines.append(f'table = "{path.with_suffix(".csv").name}"')
    for row in fit.to_json()["conditions"]:
        if row["condition"] not in tied:
            lines.append(f'{row["condition"]} = "{row["declared"]}"')
    sentences = [json.dumps(text, ensure_ascii=False) for text in field_sentences(fit.to_json())]
    lines += ["", "[field]", f'sheet = "{path.with_suffix(".png").name}"']
    lines += ["sentences = [", *(f"  {text}," for text in sentences), "]"]
    return "\n".join(lines) + "\n"


def _table(fit: FieldFit) -> bytes:
    """Conditions that go together, a row for each image."""
    text = io.StringIO()
    table = csv.DictWriter(text, [*fit.rows[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(fit.rows)
    return text.getvalue().encode()


def _sheet(fit: FieldFit) -> bytes:
    """A picture: images of the field, labelled ones under the conditions, the least explained."""
    fitted = to_bytes(fit.shown)
    step = max(len(fit.field) // ACROSS, 1)
    rows = [
        fit.field.x[::step][:ACROSS],
        fitted[:: max(len(fitted) // ACROSS, 1)][:ACROSS],
        fit.field.x[torch.tensor(fit.least_explained[:ACROSS])],
    ]
    lines = [_line(row) for row in rows]
    width = max(line.shape[1] for line in lines)
    sheet = np.full((sum(len(line) + GAP for line in lines), width, 3), 255, dtype=np.uint8)
    top = 0
    for line in lines:
        sheet[top : top + len(line), : line.shape[1]] = line
        top += len(line) + GAP
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "PNG", optimize=True)
    return file.getvalue()


def _line(images: UInt8[Tensor, "n c h w"]) -> np.ndarray:
    """Images side by side, of equal size."""
    parts = list[np.ndarray]()
    for image in images:
        pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
        height, width = pixels.shape[:2]
        scale = max(SIDE / min(height, width), 0.0)
        size = (max(round(width * scale), 1), max(round(height * scale), 1))
        resample = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
        parts.append(np.asarray(Image.fromarray(pixels).resize(size, resample)))
        parts.append(np.full((size[1], GAP, 3), 255, dtype=np.uint8))
    return np.concatenate(parts[:-1], 1)
