"""The greatest units of every layer, row by row: ties to the lower number, wide layers by blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

WIDE = 1024
"""Layers with more units are handled one by one; narrower ones together."""


def strongest(layers: list[Tensor], starts: Sequence[int], k: int, *, clean: bool) -> Int[Tensor, "m l k"]:
    """The numbers of each layer's `k` greatest units, greatest first; -1 where there is none.

    `starts` is the number of each layer's first unit; `clean` says that every value is a number.
    """
    found: list[Tensor | None] = [None] * len(layers)
    layers = [
        values.detach() if clean else values.detach().masked_fill(values.isnan(), -torch.inf) for values in layers
    ]
    narrow = [i for i, values in enumerate(layers) if values.shape[1] <= WIDE]
    if narrow:
        together = _greatest(_padded([layers[i] for i in narrow], k), k)
        for position, i in enumerate(narrow):
            found[i] = together[:, position]
    for i, values in enumerate(layers):
        if values.shape[1] > WIDE:
            found[i] = _greatest_of_many(values, k)
    index = torch.stack([f for f in found if f is not None], 1)
    return torch.where(index < 0, index, index + torch.tensor(starts, device=index.device)[:, None])


def _padded(layers: list[Tensor], k: int) -> Float[Tensor, "m l w"]:
    """Layers of different widths side by side, filled up with -inf."""
    width = max(k, *(values.shape[1] for values in layers))
    padded = layers[0].new_full((len(layers[0]), len(layers), width), -torch.inf)
    for i, values in enumerate(layers):
        padded[:, i, : values.shape[1]] = values
    return padded


def _greatest(values: Float[Tensor, "m l w"], k: int) -> Int[Tensor, "m l k"]:
    """Where the `k` greatest values are, ties to the lower index; -1 where only -inf is left. Writes over `values`."""
    if k > 4:
        best, index = (part[..., :k] for part in values.sort(dim=2, descending=True, stable=True))
        return torch.where(best > -torch.inf, index, -1)
    found = []
    for _ in range(k):
        best, index = values.max(2, keepdim=True)
        values.scatter_(2, index, -torch.inf)
        found.append(torch.where(best > -torch.inf, index, -1))
    return torch.cat(found, 2)


def _greatest_of_many(values: Float[Tensor, "m w"], k: int, block: int = 32) -> Int[Tensor, "m k"]:
    """The same for one wide layer: the `k` blocks with the greatest maxima hold the `k` greatest values."""
    width, spare = values.shape[1], values.shape[1] % block
    whole = values[:, : width - spare]
    if values.stride(0) == 1:  # units lie together: reduce along them
        most = torch.unflatten(whole.t(), 0, (-1, block)).amax(1).t().contiguous()
    else:
        most = torch.unflatten(whole, 1, (-1, block)).amax(2)
    if spare:
        most = torch.cat([most, values[:, width - spare :].amax(1, keepdim=True)], 1)
    blocks = _greatest(most[:, None], min(k, most.shape[1])).squeeze(1).sort(1).values
    places = (blocks[:, :, None] * block + torch.arange(block, device=values.device)).flatten(1)
    picked = values.gather(1, places.clamp(0, width - 1))
    if spare or bool((blocks < 0).any()):
        picked.masked_fill_((places < 0) | (places >= width), -torch.inf)
    index = _greatest(picked[:, None], k).squeeze(1)
    return torch.where(index < 0, index, places.gather(1, index.clamp_min(0)))
