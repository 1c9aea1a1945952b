"""How good a set of generated images is, by the measures of ARGUS: MSE, SSIM, LD, ER, SR.

Axes: `n` seeds, `k` classes, `t` images that fail. Distances compare an image with the seed it came from, in [0, 1] units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.tensors import chunks, flat, from_bytes
from hardcase.types import KINDS, Findings


def mse(x: Float[Tensor, "t c h w"], seed: Float[Tensor, "t c h w"]) -> Float[Tensor, " t"]:
    """Mean squared difference of the pixels of each image and its seed."""
    return flat(x - seed).square().mean(1)


def ssim(x: Float[Tensor, "t c h w"], seed: Float[Tensor, "t c h w"]) -> Float[Tensor, " t"]:
    """Structural similarity of each image and its seed (Wang et al., 2004): 1 for equal images."""
    from torchmetrics.functional.image import structural_similarity_index_measure as index

    parts = [index(x[rows], seed[rows], data_range=1.0, reduction="none") for rows in chunks(len(x), 1024)]
    return torch.cat([part.reshape(-1) for part in parts]) if parts else x.new_empty(0)


def label_diversity(owner: Int[Tensor, " t"], label: Int[Tensor, " t"], seeds: int) -> Float[Tensor, " n"]:
    """LD: how many different wrong labels the failing images of each seed are given."""
    given = torch.zeros(seeds, int(label.max()) + 1 if len(label) else 1, device=label.device)
    given[owner, label] = 1
    return given.sum(1)


def error_rate(failing: Int[Tensor, " n"], looked: Int[Tensor, " n"]) -> float:
    """ER: the share of all generated images that are given another label than their seed's."""
    return int(failing.sum()) / max(int(looked.sum()), 1)


def success_rate(failing: Int[Tensor, " n"], attempted: Bool[Tensor, " n"]) -> float:
    """SR: the share of attempted seeds with at least one such image."""
    return int((failing[attempted] > 0).sum()) / max(int(attempted.sum()), 1)


@dataclass(frozen=True, slots=True)
class PerSeed:
    """The measures of each seed. `mse` and `ssim` are means over its kept failing images, NaN where there is none."""

    mse: Float[Tensor, " n"]
    ssim: Float[Tensor, " n"]
    ld: Float[Tensor, " n"]
    er: Float[Tensor, " n"]
    sr: Float[Tensor, " n"]

    def take(self, rows: Bool[Tensor, " n"]) -> PerSeed:
        return PerSeed(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def join(parts: Sequence[PerSeed]) -> PerSeed:
        return PerSeed(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(PerSeed)))


def per_seed(
    findings: Findings,
    seeds: UInt8[Tensor, "n c h w"],
    *,
    failing: Int[Tensor, " n"],
    looked: Int[Tensor, " n"],
) -> PerSeed:
    """The measures of label failures. `failing` and `looked` count the candidates of each seed, whether kept or not."""
    found = findings.take((findings.kind == KINDS.index("label")).nonzero().squeeze(1))
    x, origin = from_bytes(found.x), from_bytes(seeds[found.seed])
    return PerSeed(
        _means(mse(x, origin), found.seed, len(seeds)),
        _means(ssim(x, origin), found.seed, len(seeds)),
        label_diversity(found.seed, found.predicted, len(seeds)),
        failing / looked.clamp_min(1),
        (failing > 0).float(),
    )


def _means(values: Float[Tensor, " t"], owner: Int[Tensor, " t"], seeds: int) -> Float[Tensor, " n"]:
    total = values.new_zeros(seeds).index_add_(0, owner, values)
    return total / owner.bincount(minlength=seeds)
