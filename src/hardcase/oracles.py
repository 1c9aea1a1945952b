"""What counts as a failure. An oracle names the kind of finding it makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.tensors import margin
from hardcase.types import Kind, Objective, Oracle, Probe

LEAD = 1e-4
"""By how much a wrong class must lead in probability: boundary images otherwise flip with the batch
they are in.
"""


@dataclass(frozen=True, slots=True)
class LeavesLabel:
    """The subject no longer answers the seed's label, and leads by at least `lead` in
    probability.
    """

    lead: float = LEAD
    kind: Kind = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return margin(probe.logits.softmax(1), probe.origin.y) >= self.lead


@dataclass(frozen=True, slots=True)
class Reaches:
    """The subject answers one given class instead of the seed's."""

    target: int
    lead: float = LEAD
    kind: Kind = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        target = torch.full_like(probe.origin.y, self.target)
        return (margin(probe.logits.softmax(1), target) <= -self.lead) & (
            probe.origin.y != self.target
        )


@dataclass(frozen=True, slots=True)
class Confident:
    """The subject answers a wrong class (or `target`) and its logit leads by at least
    `confidence`.
    """

    confidence: float = 0.0
    target: int | None = None
    kind: Kind = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        plain = LeavesLabel() if self.target is None else Reaches(self.target)
        label = (
            probe.origin.y if self.target is None else torch.full_like(probe.origin.y, self.target)
        )
        lead = margin(probe.logits, label) * (1 if self.target is None else -1)
        return plain(probe) & (lead >= self.confidence)


@dataclass(frozen=True, slots=True)
class Disagree:
    """The subject and at least one peer answer differently."""

    kind: Kind = "disagreement"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        own = probe.logits.argmax(1)
        differs = [peer.argmax(1) != own for peer in probe.peers]
        return torch.stack(differs).any(0) if differs else torch.zeros_like(own, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The subject answers NaN or infinity."""

    kind: Kind = "non_finite"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return ~probe.logits.isfinite().all(1)


@dataclass(frozen=True, slots=True)
class Anything:
    """Every image counts: a run then stores all it generates, as a study of people may need.

    Those on which the subject leaves the label are findings of the kind ``label`` as ever.
    """

    kind: Kind = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return torch.ones(len(probe.x), dtype=torch.bool, device=probe.x.device)


@dataclass(frozen=True, slots=True)
class Splits:
    """The subject leaves the seed's label, and every peer keeps it."""

    lead: float = LEAD
    kind: Kind = "disagreement"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        wrong = margin(probe.logits.softmax(1), probe.origin.y) >= self.lead
        right = [margin(peer.softmax(1), probe.origin.y) <= -self.lead for peer in probe.peers]
        return wrong & torch.stack(right).all(0) if right else torch.zeros_like(wrong)


@dataclass(frozen=True, slots=True)
class Surprising:
    """An objective about surprise scores `least` or more."""

    objective: Objective
    least: float
    kind: Kind = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return self.objective(probe) >= self.least


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A failure by another oracle on which every witness keeps the seed's label by `margin`
    logits.
    """

    oracle: Oracle
    margin: float = 2.0

    @property
    def kind(self) -> Kind:
        return self.oracle.kind

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return self.oracle(probe) & (witness_margin(probe) >= self.margin)


def witness_margin(probe: Probe) -> Float[Tensor, " m"]:
    """The least logit margin by which a witness keeps the seed's label; infinite without any."""
    kept = [-margin(logits, probe.origin.y) for logits in probe.witnesses]
    if not kept:
        return torch.full_like(probe.logits[:, 0], torch.inf)
    return torch.stack(kept).amin(0)
