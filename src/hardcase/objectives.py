"""Which way is better: scores of candidates, row by row.

Each is a value, so recipes and configurations can name it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.oracles import MARGIN, LeavesLabel, Witnessed
from hardcase.registry import part
from hardcase.tensors import flat, margin, total
from hardcase.types import Method, Objective, Oracle, Probe

__all__ = [
    *("Competitors", "ConfidenceFalls", "CrossEntropy", "Differential"),
    *("KeptByWitnesses", "LabelFalls", "Margin", "NearestFailing", "NearestSplit", "Pushed", "Sum"),
    *("Surprise", "TargetMargin", "joint", "nearest", "with_witnesses"),
]


def __dir__() -> list[str]:
    return __all__


@part("objective", "margin", needs="scores")
@dataclass(frozen=True, slots=True)
class Margin:
    """Best wrong logit minus the original's label: positive where the model fails.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> method = hc.Method(
        ...     space=hc.spaces.Pixels(),
        ...     search=hc.searches.GradientAscent(step_size=0.05),
        ...     objective=hc.objectives.Margin(),
        ...     oracle=hc.oracles.LeavesLabel(),
        ...     needs="gradients",
        ... )
        >>> budget = hc.Budget(gradients=30)
        >>> failures = hc.search(toy_subject(), toy_images(2), method=method, budget=budget)
        >>> len(failures)
        2
    """

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return margin(probe.logits, probe.origin.y)


@part("objective", "confidence-falls", needs="scores", paper="Dunn et al., ISSTA 2021")
@dataclass(frozen=True, slots=True)
class ConfidenceFalls:
    """Minus the confidence in the top class, whichever it is (feature perturbation's L = max f_y).

    While the seed's label leads this is `LabelFalls` on probabilities; once another class leads,
    the probability of that class falls.
    """

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return -probe.logits.softmax(1).amax(1)


@part("objective", "target-margin", needs="scores")
@dataclass(frozen=True, slots=True)
class TargetMargin:
    """The target's logit minus the best other logit.

    Args:
        target: The class to reach.
    """

    target: int

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return -margin(probe.logits, torch.full_like(probe.origin.y, self.target))


@part("objective", "cross-entropy", needs="scores")
@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """The loss of the original's label; raising it leads away from the label."""

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.nn.functional.cross_entropy(probe.logits, probe.origin.y, reduction="none")


UNFIT = torch.finfo(torch.float32).max
"""Equation 1's infinity: no distance is as long, and it is still ahead of a candidate that was not
evaluated (-inf).
"""


def nearest(fit: Bool[Tensor, " m"], distance: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Minus the distance where `fit`, and less than any of these elsewhere, however many
    coordinates a code has.

    Args:
        fit: Which candidates count.
        distance: Distance of each from its seed.
    """
    return torch.where(fit, -distance.clamp(max=UNFIT / 2), -UNFIT)


@part("objective", "nearest-failing", needs="scores", paper="Kang et al., TOSEM 2023")
@dataclass(frozen=True, slots=True)
class NearestFailing:
    """Among failing candidates the nearest to the original's code in L1; any failing candidate
    beats all others (SINVAD, Eq. 1).

    Args:
        oracle: Says which candidates fail.
        encode: Gives the code of a candidate's image, as Equation 1 measures it; by default what
            the search holds, as in the authors' code.
    """

    oracle: Oracle
    encode: Callable[[Probe], Tensor] | None = None

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        code = probe.z
        if self.encode is not None:
            code = self.encode(probe)
        distance = total(flat(code - probe.origin.z).abs())
        return nearest(self.oracle(probe), distance)


@part("objective", "kept-by-witnesses", needs="witnesses", paper="ours")
@dataclass(frozen=True, slots=True)
class KeptByWitnesses:
    """Another objective, less what the witnesses lack to keep the original's label by `margin`
    logits.

    A witness's missing margin counts by its square, so that a nearly sure witness gives way and a
    witness that is about to lose the label does not. Where the model fails already, and leaves its
    label by `enough` logits, the other objective's gradient ends, so that it cannot drown the
    witnesses.

    Args:
        objective: What the method climbs without witnesses.
        oracle: What the method calls a failure.
        margin: By how many logits every witness must keep the label.
        weight: Of what a witness lacks, by its slope where it has lost the label.
        enough: By how many logits the model must leave the label before it counts as done.
    """

    objective: Objective
    oracle: Oracle = field(default_factory=LeavesLabel)
    margin: float = MARGIN
    weight: float = 0.8
    enough: float = 0.5

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        score = self.objective(probe)
        if not probe.witnesses:
            return score
        done = self.oracle(probe)
        if self.oracle.kind == "label":
            done = done & (margin(probe.logits, probe.origin.y) >= self.enough)
        leads = [margin(logits, probe.origin.y).nan_to_num(torch.inf) for logits in probe.witnesses]
        lacking = total(torch.relu(self.margin + torch.stack(leads)).square(), 0)
        share = self.weight / (2 * max(self.margin, 1.0))
        return torch.where(done, score.detach(), score) - share * lacking


def joint(objective: Objective, oracle: Oracle, least: float) -> Objective:
    """Return the objective of a method that fails by `oracle`, with witnesses beside it.

    Args:
        objective: What the method climbs without witnesses.
        oracle: What the method calls a failure.
        least: By how many logits every witness must keep the label.
    """
    if isinstance(objective, NearestFailing):
        return replace(objective, oracle=Witnessed(objective.oracle, least))
    return KeptByWitnesses(objective, oracle, least)


def targeted_objective(target: int | None, untargeted: Objective) -> Objective:
    """Return the objective of a targeted search, or `untargeted` where there is no target."""
    if target is None:
        return untargeted
    return TargetMargin(target)


def with_witnesses(method: Method, margin: float = MARGIN) -> Method:
    """Return the method as a search for failures on which every witness keeps the label.

    A run asks its witnesses about every candidate; whether the search learns what they say is
    part of the method.

    Args:
        method: A method that knows nothing of witnesses.
        margin: Logits by which each of them must keep the label, unless the method asks for more.

    Example:
        >>> import hardcase as hc
        >>> hc.objectives.with_witnesses(hc.methods.pgd(), margin=1.0)
        Method('pgd', space=Pixels, search=GradientAscent, objective=KeptByWitnesses, \
oracle=Witnessed)
    """
    least = max(margin, method.target_margin)
    return replace(
        method,
        objective=joint(method.objective, method.oracle, least),
        oracle=Witnessed(method.oracle, least),
    )


@part("objective", "label-falls", needs="scores")
@dataclass(frozen=True, slots=True)
class LabelFalls:
    """Minus the answer for the original's label: its logit, or its probability.

    Args:
        probabilities: Use softmax probabilities in place of logits.
    """

    probabilities: bool = False

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        answer = _answer(probe.logits, self.probabilities)
        return -answer.gather(1, probe.origin.y[:, None]).squeeze(1)


@part("objective", "differential", needs="peers", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Differential:
    """The original's label rises in all models but the deviating model, in which it falls `weight`
    times as much (DeepXplore, obj1).

    The row's target ``deviating`` names that model (0 the model, then the peers); without
    it, the model. Without peers the model alone remains, and its label falls.

    Args:
        weight: Weight of the deviating network's fall.
        probabilities: Use softmax probabilities in place of logits.
    """

    weight: float = 1.0
    probabilities: bool = False

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        answers = _answer(torch.stack([probe.logits, *probe.peers], 1), self.probabilities)  # m p k
        label = probe.origin.y[:, None, None].expand(-1, answers.shape[1], 1)
        at_label = answers.gather(2, label).squeeze(2)
        deviating = probe.targets.get("deviating", torch.zeros_like(probe.origin.y))
        return total(at_label) - (1 + self.weight) * at_label.gather(1, deviating[:, None]).squeeze(
            1
        )


@part(
    "objective",
    "competitors",
    needs="scores",
    paper="Guo et al., ESEC/FSE 2018",
)
@dataclass(frozen=True, slots=True)
class Competitors:
    """`weight` times the answers for the `k` best other classes,
    minus that for the original's label (DLFuzz).

    Args:
        k: Number of rival classes.
        weight: Weight of the rivals.
        probabilities: Use softmax probabilities in place of logits.
    """

    k: int = 4
    weight: float = 0.5
    probabilities: bool = False

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        answer = _answer(probe.logits, self.probabilities)
        label = probe.origin.y[:, None]
        rivals = min(self.k, answer.shape[1] - 1)
        others = answer.scatter(1, label, -torch.inf).topk(rivals, dim=1).values
        return self.weight * total(others) - answer.gather(1, label).squeeze(1)


def _answer(logits: Tensor, probabilities: bool) -> Tensor:
    if probabilities:
        return logits.softmax(-1)
    return logits


@part("objective", "pushed", needs="a guide", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Pushed:
    """The sum of the units that the row's targets name, each with the sign they give it (up, if it
    gives none).

    A row without targets scores 0.

    Args:
        read: Gives the units of a probe, a row per candidate.
        name: The target that names the units.
    """

    read: Callable[[Probe], Tensor]
    name: str

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        unit = probe.targets.get(f"{self.name}/unit")
        if unit is None:
            return torch.zeros(len(probe.logits), device=probe.logits.device)
        values = self.read(probe).gather(1, unit.unsqueeze(1).flatten(1))  # one unit, or several
        sign = probe.targets.get(f"{self.name}/sign")
        if sign is not None:
            values = values * sign
        return total(values)


@part("objective", "sum", needs="scores")
@dataclass(frozen=True, slots=True)
class Sum:
    """A weighted sum of objectives.

    Args:
        terms: Pairs of a weight and an objective.
    """

    terms: tuple[tuple[float, Objective], ...]

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return total(torch.stack([weight * term(probe) for weight, term in self.terms]), 0)


@part("objective", "nearest-split", needs="peers", paper="Kang, Feldt and Yoo, SBST 2020")
@dataclass(frozen=True, slots=True)
class NearestSplit:
    """Where the model gives the original's label at most half: minus the L1 distance of codes,
    longer the less the first peer keeps the label; elsewhere less than any of these (SINVAD's
    search between two networks).
    """

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        label = probe.origin.y[:, None]
        subject_margin, peer = (
            logits.softmax(1).gather(1, label).squeeze(1)
            for logits in (probe.logits, probe.peers[0])
        )
        distance = total(flat(probe.z - probe.origin.z).abs())
        return nearest(subject_margin <= 0.5, distance * (2 + subject_margin - peer))


@part("objective", "surprise", needs="activations", paper="Kim, Feldt and Yoo, ICSE 2019")
@dataclass(frozen=True, slots=True)
class Surprise:
    """How surprising the outputs of `layer` are: the more the better, or the nearer to `goal` the
    better.

    What has no surprise (not a number) scores -inf.

    Args:
        surprise: Surprise of traces under the predicted classes.
        layer: The layer whose outputs are the traces.
        goal: Surprise to come near to; by default the more the better.
    """

    surprise: Callable[[Tensor, Tensor], Tensor]
    layer: str
    goal: float | None = None

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        value = self.surprise(probe.activations[self.layer], probe.logits.argmax(1))
        if self.goal is not None:
            value = -(value - self.goal).abs()
        return value.nan_to_num(-torch.inf, torch.inf, -torch.inf)
