"""The distance of two sets of images, a sliced energy distance; and the nearest mix of classes.

What is measured of an image is a point. The energy distance of two distributions (G. J. Székely,
M. L. Rizzo 2013) on a line is twice the integral of the squared difference of their distribution
functions; averaged over directions it is an energy distance in the plane. Directions are the axes
and sparse random combinations of them, and each distribution function is read at fixed
thresholds. So a set of images is a vector, its *embedding*, and a squared distance is the square
of a difference of two of them. An embedding is a mean over images: that of another mix of classes
is a weighted sum, and its chance variation is that of a mean. Parts of it that hardly vary by
chance count more, as they do where moments are matched (L. P. Hansen 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from hardcase.conditions.fitting.traits import RandomNetwork, image_traits
from hardcase.randomness import stream
from hardcase.types import Images

__all__ = ["Embedding", "Vector", "class_directions", "class_mix"]

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

COMBINATIONS = 40
"""Random directions in addition to the axes."""
AXES_TOGETHER = 3
"""Statistics that a random direction combines."""
THRESHOLDS = 15
"""At how many places a distribution function is read."""
FIRM = 0.3
"""Chance variation that is added to every part of an embedding, as a share of the mean variation:
no part counts for more than its precision."""
MOST_CLASSES = 30
"""Classes up to which their mix is fitted."""
LEAST_PER_CLASS = 5
PRIOR = 1e-3
"""Prior weight of the labelled images' mix of classes, where the field does not determine it."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """Makes of images the vectors whose squared differences are distances.

    Args:
        network: A network whose features count in addition to the statistics.
        centre: The middle of each statistic.
        scale: The unit of each statistic.
        directions: Along which lines distributions are compared.
        thresholds: Where their distribution functions are read, for each direction.
        weight: The root of what each reading counts.
        metric: What makes parts that vary less by chance count more.
    """

    network: RandomNetwork
    centre: Float[Tensor, " t"]
    scale: Float[Tensor, " t"]
    directions: Float[Tensor, "t d"]
    thresholds: Float[Tensor, "d q"]
    weight: Float[Tensor, "d q"]
    metric: Float[Tensor, "e e"]

    @classmethod
    def fit(
        cls,
        images: Float[Tensor, "n c h w"],
        field: Float[Tensor, "m c h w"],
        others: Float[Tensor, "o c h w"],
        network: RandomNetwork,
    ) -> Embedding:
        """Return the embedding whose units and thresholds suit two sets of images.

        Args:
            images: Labelled images.
            field: The field's images.
            others: Images of both kinds that are not compared: how embeddings vary by chance is
                not learned from those whose difference is then held against it.
            network: A network whose features count in addition to the statistics.
        """
        points = torch.cat([_points(images, network), _points(field, network)])
        centre = points.median(0).values
        low, high = (points.quantile(share, dim=0) for share in (0.1, 0.9))
        scale = torch.maximum((high - low) / 2, points.std(0) / 2).clamp_min(1e-6)
        directions = _directions(points.shape[1])
        # A sliced energy distance integrates squared differences of distribution functions along
        # directions. Here the integral is a sum over quantiles, weighted by the gaps between them:
        # so it becomes a Euclidean distance of vectors of fixed length.
        along = ((points - centre) / scale) @ directions
        shares = (torch.arange(THRESHOLDS) + 0.5) / THRESHOLDS
        thresholds = along.quantile(shares, dim=0).T.contiguous()
        # what a reading stands for: half the way to its neighbours on either side
        gaps = thresholds.diff(dim=1).clamp_min(0)  # quantiles of equal numbers may fall by a bit
        ends = torch.cat([gaps[:, :1], gaps, gaps[:, -1:]], 1)
        weight = ((ends[:, :-1] + ends[:, 1:]) / 2 / directions.shape[1]).sqrt()
        blank = torch.eye(thresholds.numel(), dtype=torch.float64)
        plain = cls(network, centre, scale, directions, thresholds, weight, blank)
        return replace(plain, metric=_metric(plain.rows(others)))

    def points(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n t"]:
        """Return what is measured of each image, in its units."""
        return (_points(x, self.network) - self.centre) / self.scale

    def rows(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n e"]:
        """Return the embedding of each single image before `measured`."""
        along = self.points(x) @ self.directions
        below = along[:, :, None] <= self.thresholds
        return (below * self.weight).flatten(1)

    def of(self, x: Float[Tensor, "n c h w"]) -> Vector:
        """Return the embedding of a set of images."""
        return self.measured(self.rows(x).double().mean(0).numpy())

    def measured(self, means: Matrix) -> Matrix:
        """Return what means of rows are as embeddings."""
        projected: Matrix = means @ self.metric.numpy()
        return projected


def _metric(rows: Float[Tensor, "n e"]) -> Float[Tensor, "e e"]:
    """The inverse root of how embeddings vary by chance."""
    centred = rows.double() - rows.double().mean(0)
    spread = centred.T @ centred / len(rows)
    # Whitening by the chance covariance, with a floor: directions that hardly vary by chance count
    # more, but never without limit.
    sizes, axes = torch.linalg.eigh(spread)
    mean = sizes.mean().clamp_min(1e-12)
    root = ((sizes.clamp_min(0) / mean) + FIRM).rsqrt()
    inverse: Tensor = (axes * root) @ axes.T
    return inverse


def _points(x: Float[Tensor, "n c h w"], network: RandomNetwork) -> Float[Tensor, "n t"]:
    return torch.cat([image_traits(x), network(x)], 1)


def _directions(axes: int) -> Float[Tensor, "t d"]:
    """The axes, and sparse random combinations of them."""
    chance = stream(0, "directions of a fit")
    columns = [torch.eye(axes)]
    for _ in range(COMBINATIONS):
        column = torch.zeros(axes, 1)
        chosen = torch.randperm(axes, generator=chance)[:AXES_TOGETHER]
        column[chosen, 0] = torch.randn(AXES_TOGETHER, generator=chance)
        columns.append(column / column.norm())
    return torch.cat(columns, 1)


def class_embeddings(rows: Float[Tensor, "n e"], groups: Int[Tensor, " n"], count: int) -> Matrix:
    """Return the embedding of each group of images."""
    sums = torch.zeros(count, rows.shape[1], dtype=torch.float64)
    sums.index_add_(0, groups, rows.double())
    counts = torch.bincount(groups, minlength=count).clamp_min(1)
    means: Matrix = (sums / counts[:, None]).numpy()
    return means


def mixed_groups(images: Images) -> Int[Tensor, " n"]:
    """Return the group of each image whose share is fitted: its class, or a single group.

    With very many classes, or with very small classes, shares cannot be estimated.
    """
    counts = torch.bincount(images.y, minlength=len(images.classes))
    present = counts.nonzero().flatten()
    if len(present) > MOST_CLASSES or counts[present].min() < LEAST_PER_CLASS:
        return torch.zeros_like(images.y)
    return torch.searchsorted(present, images.y)


def class_mix(field: Vector, classes: Matrix, usual: Vector) -> Vector:
    """Return the shares of classes whose mixture lies nearest to the field.

    Args:
        field: The embedding of the field.
        classes: The embedding of each class.
        usual: The shares of the labelled images, where nothing tells.
    """
    if len(usual) == 1:
        return usual
    firm = 1e3  # that shares add up to 1
    pull = (PRIOR * float(np.square(classes).sum(1).mean())) ** 0.5
    system = np.vstack([classes.T, firm * np.ones(len(usual)), pull * np.eye(len(usual))])
    wanted = np.concatenate([field, [firm], pull * usual])
    # Non-negative least squares on the triangular factor: the same minimum as on the tall system,
    # at the size of the number of classes.
    gram = np.linalg.cholesky(system.T @ system).T
    shares: Vector = nnls(gram, np.linalg.solve(gram.T, system.T @ wanted))[0]
    total: float = shares.sum()
    mixed: Vector = shares / total
    return mixed


def class_directions(classes: Matrix, shares: Vector) -> Sequence[Vector]:
    """Return the directions in which another mix of classes moves an embedding."""
    mixture = shares @ classes
    return [row - mixture for row in classes[:-1]] if len(classes) > 1 else []
