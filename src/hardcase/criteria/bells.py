"""Normal shapes fitted to traces: what likelihood and Mahalanobis distance are measured in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Bell:
    """A normal shape: its centre, the whitening of its covariance, the logarithm of its size, and whitened traces.

    `half` is half the squared length of each trace.
    """

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "d d"]
    size: float
    ridged: bool
    traces: Float[Tensor, "n d"]
    half: Float[Tensor, " n"]

    @staticmethod
    def of(values: Float[Tensor, "n d"], factor: float = 1.0, unbiased: bool = True) -> Bell:
        """The shape of some traces, its spread times `factor`."""
        exact, count = values.double(), len(values)
        centre = exact.mean(0)
        covariance = (exact - centre).t() @ (exact - centre) / max(1, count - unbiased)
        root, ridged = _root(covariance * factor**2)
        whiten = torch.linalg.solve_triangular(root, torch.eye(len(root), dtype=torch.float64), upper=False)
        traces = ((exact - centre) @ whiten.t()).float()
        half = traces.square().sum(1) / 2
        return Bell(centre, whiten, float(root.diagonal().log().sum()), ridged, traces, half)

    def standard(self, values: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """Values in whitened coordinates: where the spread is 1 in every direction."""
        return ((values.double() - self.centre.to(values.device)) @ self.whiten.to(values.device).t()).float()


def _root(covariance: Float[Tensor, "d d"]) -> tuple[Float[Tensor, "d d"], bool]:
    """The Cholesky factor. Directions without spread, as float32 sees it, get a ridge of 1e-7 of the mean variance."""
    least = 1e-7 * max(float(covariance.diagonal().mean()), 1e-12)
    ridged = float(torch.linalg.eigvalsh(covariance)[0]) < least
    ridge = least * torch.eye(len(covariance), dtype=covariance.dtype)
    return torch.linalg.cholesky(covariance + ridge * ridged), ridged
