"""Nearest training images in the features of the panel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

NEAREST = 5


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Unit features of real images, sorted by class; `counts` says how many of each class there are."""

    features: Float[Tensor, "n f"]
    counts: Int[Tensor, " k"]

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """The mean distance (1 - cosine) to the nearest images of every class."""
        likeness = functional.normalize(features, dim=1) @ self.features.T
        parts = torch.split(likeness, self.counts.tolist(), dim=1)
        return (1 - torch.stack([_nearest(part) for part in parts], 1)).clamp_min(1e-6)


def _nearest(likeness: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """The mean of the largest few; a class without images is as far away as can be."""
    if not likeness.shape[1]:
        return torch.full_like(likeness[:, :1].sum(1), -1.0)
    return likeness.topk(min(NEAREST, likeness.shape[1]), dim=1).values.mean(1)


def closer(distances: Float[Tensor, "m k"], label: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Logarithm of how much nearer the label's images are than those of any other class; above 0: nearer."""
    own = distances.gather(1, label[:, None])
    others = distances.scatter(1, label[:, None], torch.inf)
    return (others.amin(1, keepdim=True) / own).log().squeeze(1)


def keep(
    features: Float[Tensor, "n f"], labels: Int[Tensor, " n"], classes: int, *, most: int
) -> tuple[Float[Tensor, "r f"], Int[Tensor, " k"]]:
    """Up to `most` features of each class in the order given, made unit length and sorted by class."""
    rows = [(labels == label).nonzero().squeeze(1)[:most] for label in range(classes)]
    kept = functional.normalize(features[torch.cat(rows)], dim=1)
    return kept, torch.tensor([len(part) for part in rows], device=features.device)
