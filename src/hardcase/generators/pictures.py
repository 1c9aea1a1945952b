"""Contact sheets: what a generator paints, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from hardcase import png
from hardcase.cache import write_atomically
from hardcase.generators.quality import reconstructions
from hardcase.randomness import stream
from hardcase.tensors import to_bytes
from hardcase.types import Images

GAP, PAPER = 2, 64
"""Pixels between pictures, and their grey."""


def sheet(rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> UInt8[Tensor, "c y x"]:
    """Rows of images of one size, one row below the other, each pixel `zoom` wide; missing ones are left grey."""
    first = rows[0]
    count, (channels, height, width) = max(map(len, rows)), first.shape[1:]
    paper = torch.full((channels, len(rows) * (height + GAP), count * (width + GAP)), PAPER, dtype=torch.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row.cpu()):
            top, left = i * (height + GAP), j * (width + GAP)
            paper[:, top : top + height, left : left + width] = image
    return paper.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)


def write(path: Path, rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> Path:
    return write_atomically(path, png.encode(sheet(rows, zoom=zoom)))


def draw_reconstructions(folder: Path, net: nn.Module, images: Images, *, count: int = 20) -> Path:
    """``reconstructions.png``: images in the first row, what the generator gives back in the second."""
    some = images.sample(count=count, seed=0)
    painted = reconstructions(net, some, device=next(net.parameters()).device)
    return write(folder / "reconstructions.png", [some.x, painted.x])


@torch.no_grad()
def draw_samples(folder: Path, net: nn.Module, classes: int, *, each: int = 10) -> Path:
    """``samples.png``: a row of fresh samples for each of the first twenty classes."""
    device = next(net.parameters()).device
    label = torch.arange(min(classes, 20), device=device).repeat_interleave(each)
    made = to_bytes(net.sample(label, stream(0, "picture", device=device))[1])  # type: ignore[operator]  # a family's own method
    return write(folder / "samples.png", list(made.reshape(-1, each, *made.shape[1:])))
