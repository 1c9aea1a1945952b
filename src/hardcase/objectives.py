"""Which way is better: scores of candidates, row by row. Each is a value, so recipes and configurations can name it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.tensors import flat, margin
from hardcase.types import Oracle, Probe


@dataclass(frozen=True, slots=True)
class Margin:
    """Best wrong logit minus the seed's own label: positive where the subject fails."""

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return margin(probe.logits, probe.origin.y)


@dataclass(frozen=True, slots=True)
class TargetMargin:
    """The target's logit minus the best other one."""

    target: int

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return -margin(probe.logits, torch.full_like(probe.origin.y, self.target))


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """The loss of the seed's own label; raising it leads away from the label."""

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.nn.functional.cross_entropy(probe.logits, probe.origin.y, reduction="none")


@dataclass(frozen=True, slots=True)
class NearestFailing:
    """Among failing candidates the nearest to the seed's code in L1; one that does not fail scores `-unfit` (SINVAD, Eq. 1)."""

    oracle: Oracle
    unfit: float = 999.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        distance = flat(probe.z - probe.origin.z).abs().sum(1)
        return torch.where(self.oracle(probe), -distance, torch.full_like(distance, -self.unfit))
