"""Probes: from features of a frozen network to classes, fitted in seconds.

`LogisticProbe` is a multinomial regression by L-BFGS, `MahalanobisProbe` a Gaussian for each class
with one shrunk covariance (after K. Lee et al., NeurIPS 2018; shrinkage after O. Ledoit, M. Wolf,
2004, with a fixed share), `NearestProbe` the distance to the nearest training images of a class.
All are tempered on images they were not fitted to, so that their probabilities mean something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.errors import Problem
from hardcase.judges.panel import Neighbours, keep

PER_CLASS = 200
"""Training images of a class that are kept as neighbours."""
SHRINK = 0.1


@dataclass(frozen=True, slots=True)
class LogisticProbe:
    """Scores are linear in standardised features."""

    centre: Float[Tensor, " f"]
    width: Float[Tensor, " f"]
    weight: Float[Tensor, "f k"]
    bias: Float[Tensor, " k"]

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        return (features - self.centre) / self.width @ self.weight + self.bias


@dataclass(frozen=True, slots=True)
class MahalanobisProbe:
    """Means of the classes in coordinates in which the shrunk covariance within classes is the
    identity.
    """

    whitening: Float[Tensor, "f d"]
    means: Float[Tensor, "k d"]
    present: Float[Tensor, " k"]

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Squared distances to the classes, per coordinate; infinite for a class without images."""
        gaps = torch.cdist(features @ self.whitening, self.means).square() / self.means.shape[1]
        return gaps.masked_fill(self.present[None] == 0, torch.inf)

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        return -self.distances(features).clamp_max(1e6)


@dataclass(frozen=True, slots=True)
class NearestProbe:
    """Unit features of training images, sorted by class."""

    references: Float[Tensor, "r f"]
    counts: Int[Tensor, " k"]

    def distances(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        """Mean distance (1 - cosine) to the nearest images of every class."""
        return Neighbours(self.references, self.counts).distances(features)

    def logits(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m k"]:
        return -self.distances(features)


@dataclass(frozen=True, slots=True)
class HeadProbe:
    """The network's own last layer: `outputs` are those of its scores that mean the classes."""

    outputs: Int[Tensor, " k"]

    def logits(self, scores: Float[Tensor, "m o"]) -> Float[Tensor, "m k"]:
        return scores[:, self.outputs]


Probe = LogisticProbe | MahalanobisProbe | NearestProbe | HeadProbe


def logistic(
    features: Float[Tensor, "n f"],
    y: Int[Tensor, " n"],
    classes: int,
    *,
    pull: float = 1e-2,
    steps: int = 100,
) -> LogisticProbe:
    """A multinomial regression; `pull` is the weight of the squared coefficients beside the mean
    loss of an image.
    """
    centre = features.mean(0)
    width = features.std(0, correction=0).clamp_min(1e-6) * features.shape[1] ** 0.5
    inputs = ((features - centre) / width).detach()
    weight = torch.zeros(features.shape[1], classes, device=features.device, requires_grad=True)
    bias = torch.zeros(classes, device=features.device, requires_grad=True)
    search = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = (
            functional.cross_entropy(inputs @ weight + bias, y)
            + pull * weight.square().sum() / classes
        )
        value.backward()  # type: ignore[no-untyped-call]  # torch leaves it bare
        return value

    with torch.enable_grad():
        search.step(loss)  # type: ignore[no-untyped-call]  # torch leaves it bare
    return LogisticProbe(centre, width, weight.detach(), bias.detach())


def mahalanobis(
    features: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int, *, most: int = 256
) -> MahalanobisProbe:
    """Class means and one covariance within classes, shrunk towards its mean variance,
    in its `most` widest directions.
    """
    counts = y.bincount(minlength=classes)
    sums = torch.zeros(classes, features.shape[1], device=features.device).index_add_(
        0, y, features
    )
    means = sums / counts.clamp_min(1)[:, None]
    within = features - means[y]
    covariance = within.T @ within / max(len(y) - int((counts > 0).sum()), 1)
    level = covariance.diagonal().mean().clamp_min(1e-12)
    shrunk = (1 - SHRINK) * covariance + SHRINK * level * torch.eye(
        len(covariance), device=features.device
    )
    variance, directions = torch.linalg.eigh(shrunk.double())
    order = _telling(directions, variance, means[counts > 0].double())[:most]
    whitening = (directions[:, order] / variance[order].sqrt()).to(features.dtype)
    return MahalanobisProbe(whitening, means @ whitening, (counts > 0).to(features.dtype))


def _telling(directions: Tensor, variance: Tensor, means: Tensor) -> Int[Tensor, " f"]:
    """Directions in the order in which the classes lie apart along them, in units of their own
    spread; with one class only, in the order of their width.
    """
    if len(means) < 2:
        return variance.argsort(descending=True, stable=True)
    spread = ((means - means.mean(0)) @ directions).square().mean(0) / variance
    return spread.argsort(descending=True, stable=True)


def nearest(features: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int) -> NearestProbe:
    """The first `PER_CLASS` images of every class as neighbours."""
    kept, counts = keep(features, y, classes, most=PER_CLASS)
    return NearestProbe(kept, counts)


FITS: dict[str, Callable[..., Probe]] = {
    "logistic": logistic,
    "mahalanobis": mahalanobis,
    "nearest": nearest,
}
KINDS: dict[str, type[Probe]] = {
    "logistic": LogisticProbe,
    "mahalanobis": MahalanobisProbe,
    "nearest": NearestProbe,
    "head": HeadProbe,
}


def tempered(logits: Float[Tensor, "m k"], y: Int[Tensor, " m"]) -> float:
    """What to multiply the scores by so that their probabilities fit these labels best,
    between 1/100 and 1,000.
    """
    if not len(y):
        raise Problem("a probe is tempered on images that it was not fitted to; there are none.")
    grid = torch.logspace(-2, 3, 101, device=logits.device, dtype=torch.float64)
    scaled = grid[:, None, None] * logits.double()[None]
    losses = torch.stack([functional.cross_entropy(each, y) for each in scaled])
    return float(grid[losses.argmin()])
