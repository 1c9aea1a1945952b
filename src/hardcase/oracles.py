"""What counts as a failure. An oracle names the kind of failure it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import HardcaseError, choice
from hardcase.registry import part
from hardcase.tensors import margin
from hardcase.types import Kind, Model, Objective, Oracle, Probe

__all__ = [
    *("MARGIN", "MIN_MARGIN", "NAMED", "Anything", "Confident", "Disagree", "LeavesLabel"),
    *("NonFinite", "Reaches", "Splits", "Surprising", "Witnessed"),
    *("wanted_oracle", "witness_margin"),
]


def __dir__() -> list[str]:
    return __all__


MIN_MARGIN = 1e-4
"""Least lead in probability of a wrong class: boundary images otherwise flip with the batch
they are in.
"""


@part("oracle", "label", needs="label")
@dataclass(frozen=True, slots=True)
class LeavesLabel:
    """The model no longer answers the original's label, and leads by at least `min_margin` in
    probability.

    Args:
        min_margin: Least margin in probability of the wrong class.
    """

    min_margin: float = MIN_MARGIN
    kind: ClassVar[Kind] = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin


@part("oracle", "target", needs="label")
@dataclass(frozen=True, slots=True)
class Reaches:
    """The model answers the target class instead of the original's.

    Args:
        target: The class to reach.
        min_margin: Least margin in probability of the wrong class.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> from dataclasses import replace
        >>> strict = replace(hc.methods.pgd(), oracle=hc.oracles.Reaches(3))
        >>> len(hc.search(toy_subject(), toy_images(3), method=strict)) > 0
        True
    """

    target: int
    min_margin: float = MIN_MARGIN
    kind: ClassVar[Kind] = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        target = torch.full_like(probe.origin.y, self.target)
        return (margin(probe.logits.softmax(1), target) <= -self.min_margin) & (
            probe.origin.y != self.target
        )


@part("oracle", "confident", needs="scores")
@dataclass(frozen=True, slots=True)
class Confident:
    """The model answers a wrong class (or `target`) and its logit leads by at least
    `confidence`.

    Args:
        confidence: Logit margin by which the wrong class must lead.
        target: The class to reach; by default any wrong class.
    """

    confidence: float = 0.0
    target: int | None = None
    kind: ClassVar[Kind] = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        if self.target is None:
            ahead = margin(probe.logits, probe.origin.y)
            return LeavesLabel()(probe) & (ahead >= self.confidence)
        ahead = -margin(probe.logits, torch.full_like(probe.origin.y, self.target))
        return Reaches(self.target)(probe) & (ahead >= self.confidence)


@part("oracle", "disagreement", needs="peers")
@dataclass(frozen=True, slots=True)
class Disagree:
    """The model and a comparison model answer differently."""

    kind: ClassVar[Kind] = "disagreement"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        predicted = probe.logits.argmax(1)
        differs = torch.zeros_like(predicted, dtype=torch.bool)
        for peer in probe.peers:
            differs = differs | (peer.argmax(1) != predicted)
        return differs


@part("oracle", "non-finite", needs="scores")
@dataclass(frozen=True, slots=True)
class NonFinite:
    """The model answers NaN or infinity."""

    kind: ClassVar[Kind] = "non_finite"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return ~probe.logits.isfinite().all(1)


@part("oracle", "any", needs="label")
@dataclass(frozen=True, slots=True)
class Anything:
    """Every image counts: a run then stores all it generates, as a study of people may need.

    Those on which the model leaves the label are failures of the kind ``label`` as ever.
    """

    kind: ClassVar[Kind] = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return torch.ones(len(probe.x), dtype=torch.bool, device=probe.x.device)


@part("oracle", "splits", needs="peers")
@dataclass(frozen=True, slots=True)
class Splits:
    """The model leaves the original's label, and every comparison model keeps it.

    Args:
        min_margin: Least margin in probability of the wrong class.
    """

    min_margin: float = MIN_MARGIN
    kind: ClassVar[Kind] = "disagreement"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        splits = margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin
        if not probe.peers:
            return torch.zeros_like(splits)
        for peer in probe.peers:
            splits = splits & (margin(peer.softmax(1), probe.origin.y) <= -self.min_margin)
        return splits


@part("oracle", "surprising", needs="activations")
@dataclass(frozen=True, slots=True)
class Surprising:
    """An objective about surprise scores `least` or more.

    Args:
        objective: An objective about surprise.
        least: Score from which a candidate counts.
    """

    objective: Objective
    least: float
    kind: ClassVar[Kind] = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return self.objective(probe) >= self.least


MARGIN = 2.0
"""Logits by which every witness must keep the label, unless a run says otherwise."""


@part("oracle", "witnessed", needs="witnesses")
@dataclass(frozen=True, slots=True)
class Witnessed:
    """A failure by another oracle on which every witness keeps the original's label by `margin`
    logits.

    Args:
        oracle: Says which candidates fail.
        margin: Logits by which every witness must keep the label.
    """

    oracle: Oracle
    margin: float = MARGIN

    @property
    def kind(self) -> Kind:
        return self.oracle.kind

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return self.oracle(probe) & (witness_margin(probe) >= self.margin)


def witness_margin(probe: Probe) -> Float[Tensor, " m"]:
    """The least logit margin by which a witness keeps the original's label; infinite without any.

    A witness whose answer is not a number keeps nothing.

    Args:
        probe: The networks' answers to a query.
    """
    margins = [
        (-margin(logits, probe.origin.y)).nan_to_num(-torch.inf) for logits in probe.witnesses
    ]
    if not margins:
        return torch.full_like(probe.logits[:, 0], torch.inf)
    return torch.stack(margins).amin(0)


NAMED: Mapping[str, Callable[[], Oracle]] = {
    "label": LeavesLabel,
    "disagreement": Disagree,
    "non-finite": NonFinite,
    "any": Anything,
}
"""Oracles that ``--oracle`` puts in the place of a method's own."""


def failure_oracle(target: int | None = None, peers: Sequence[Model] = ()) -> Oracle:
    """Return what counts as a failure: `target` reached, peers contradicted, or the label left."""
    if target is not None:
        return Reaches(target)
    if peers:
        return Disagree()
    return LeavesLabel()


def wanted_oracle(wanted: str | None, own: Oracle, *, peers: bool, regressions: bool) -> Oracle:
    """The requested oracle, or that of the method.

    Args:
        wanted: A name of `NAMED`, ``regression``, or None for the method's.
        own: The method's oracle.
        peers: Whether there is a network to disagree with.
        regressions: Whether the search looks for regressions against a baseline.
    """
    if wanted == "regression" and not regressions:
        raise HardcaseError("a regression needs the baseline.", fix="--baseline MODEL")
    if wanted not in (None, "regression") and regressions:
        raise HardcaseError(
            f"--baseline searches for regressions; the oracle is to be {wanted!r}.",
            fix="leave out --oracle or --baseline",
        )
    if wanted is None or wanted == "regression":
        return own
    if wanted not in NAMED:
        raise choice("oracle for this method", wanted, list(NAMED))
    if wanted == "disagreement" and not peers:
        raise HardcaseError(
            "disagreement needs a model to disagree with, and no comparison model was given.",
            fix="--peer MODEL",
        )
    wanted_oracle_part = NAMED[wanted]()
    if wanted_oracle_part.kind == own.kind:
        return own
    return wanted_oracle_part
