"""How far two sets of images lie apart as wholes, in the features of a network that took no part.

M. Heusel, H. Ramsauer, T. Unterthiner, B. Nessler, S. Hochreiter, "GANs trained by a two time-scale
update rule converge to a local Nash equilibrium", NeurIPS 2017 (FID); M. Bińkowski, D. Sutherland,
M. Arbel, A. Gretton, "Demystifying MMD GANs", ICLR 2018 (KID). Difference: the features are the
judge's, not Inception's, so that numbers of two judges are not compared. FID grows where images are
few; KID does not.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

MOST = 2000
"""Images of a set that are looked at."""
FEWEST = 4
"""Images of a set below which nothing is said."""


def frechet(a: Float[Tensor, "n f"], b: Float[Tensor, "m f"]) -> float:
    """The Fréchet distance between normal laws fitted to two sets of features (FID).

    Args:
        a: Features of one set, a row an image.
        b: Features of the other.

    Example:
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> round(frechet(x, x + 2), 3)
        12.0
    """
    a = a.double()
    b = b.double()
    apart = (a.mean(0) - b.mean(0)).square().sum()
    x = (a - a.mean(0)) / (len(a) - 1) ** 0.5
    y = (b - b.mean(0)) / (len(b) - 1) ** 0.5
    shared = torch.linalg.svdvals(
        x @ y.T
    ).sum()  # the trace of the root of the covariances' product
    return float((apart + x.square().sum() + y.square().sum() - 2 * shared).clamp_min(0))


def kernel_distance(a: Float[Tensor, "n f"], b: Float[Tensor, "m f"]) -> float:
    """The squared maximum mean discrepancy under KID's cubic kernel, without bias: about 0, above
    or below, for two sets of one law.

    Args:
        a: Features of one set, a row an image.
        b: Features of the other.

    Example:
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> kernel_distance(x[:25], x[25:]) < 0.5 < kernel_distance(x[:25], x[25:] + 2)
        True
    """
    a = a.double()
    b = b.double()
    within = sum(_others(_kernel(x, x)) for x in (a, b))
    return float(within - 2 * _kernel(a, b).mean())


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.T / a.shape[1] + 1) ** 3


def _others(k: Float[Tensor, "n n"]) -> Tensor:
    """The mean over pairs of different rows."""
    count = len(k)
    return (k.sum() - k.diagonal().sum()) / (count * (count - 1))


def apart(
    found: Float[Tensor, "n f"], seeds: Float[Tensor, "m f"], rng: torch.Generator
) -> dict[str, Any] | None:
    """What a run says of its findings beside its seeds: both distances, and KID between two halves
    of the seeds as what chance alone gives. None of fewer than four findings or eight seeds.

    Args:
        found: Features of findings.
        seeds: Features of the seeds.
        rng: Draws what is looked at, and the halves.
    """
    if len(found) < FEWEST or len(seeds) < 2 * FEWEST:
        return None
    some, real = (x[torch.randperm(len(x), generator=rng)[:MOST]].cpu() for x in (found, seeds))
    half = len(real) // 2
    return {
        "findings": len(some),
        "seeds": len(real),
        "fid": frechet(some, real),
        "kid": kernel_distance(some, real),
        "kid_halves_of_seeds": kernel_distance(real[:half], real[half:]),
    }
