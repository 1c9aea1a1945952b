"""What a new version of a model broke: stored inputs told apart, an oracle to search with, and what
exceeds chance.

Two trainings of one recipe differ on many inputs, and a search finds such inputs easily. So what a
search finds between the old and the new version is held against two nulls with the same seeds and
budget: the same search between the old version and a retraining of it, and with the roles swapped
(new right, old wrong). Only the excess over the larger of the two is called regression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.objectives import joint
from hardcase.oracles import LEAD
from hardcase.statistics import Interval, Rate, bootstrap, mcnemar
from hardcase.tensors import margin
from hardcase.types import Kind, Method, Objective, Oracle, Probe


@dataclass(frozen=True, slots=True)
class Regression:
    """The subject (the new version) leaves the seed's label, the old version and every witness keep
    it.

    Args:
        old: Position of the old version among the peers; all other peers are witnesses.
        lead: By how much in probability a class must lead, wrong or right.
    """

    old: int = 0
    lead: float = LEAD
    kind: Kind = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        if not 0 <= self.old < len(probe.peers):
            raise Problem(
                f"the old version should be peer {self.old}; there are {len(probe.peers)} peers.",
                fix="--was MODEL",
            )
        wrong = margin(probe.logits.softmax(1), probe.origin.y) >= self.lead
        kept = [margin(peer.softmax(1), probe.origin.y) <= -self.lead for peer in probe.peers]
        return wrong & torch.stack(kept).all(0)


@dataclass(frozen=True, slots=True)
class KeptBefore:
    """An objective that also asks the old version to keep the seed's label.

    Args:
        objective: The objective it is built on.
        oracle: What the method it belongs to calls a failure.
        least: By how many logits the old version is asked to keep it.
        old: Position of the old version among the peers.
    """

    objective: Objective
    oracle: Oracle
    least: float = 1.0
    old: int = 0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        asked = replace(probe, witnesses=(*probe.witnesses, probe.peers[self.old]))
        return joint(self.objective, self.oracle, self.least)(asked)


def regressing(method: Method) -> Method:
    """A method as a search for regressions: the first peer is the version before.

    Its failures are inputs that the subject gets wrong and all peers right; its objective is less
    where the old version does not keep the label. A targeted method loses its target.
    """
    return replace(
        method, oracle=Regression(), objective=KeptBefore(method.objective, method.oracle)
    )


@dataclass(frozen=True, slots=True)
class Changed:
    """Inputs by what two versions make of them, one count for inputs and one for groups of them.

    Args:
        fixed: Failed before, right now.
        still: Failing before and now.
        newly: Right before, failing now.
        right: Right before and now.
        p: McNemar's exact test on the inputs.
        groups: How many groups got better, worse, or neither on balance.
        p_groups: The sign test over groups: what to read where inputs of one group stand and fall
            together.
    """

    fixed: int
    still: int
    newly: int
    right: int
    p: float
    groups: tuple[int, int, int]
    p_groups: float

    def record(self) -> dict[str, Any]:
        """Counts with denominators and 95 % intervals."""
        before = self.fixed + self.still
        after = self.newly + self.right
        return {
            "fixed": Rate(self.fixed, before).to_json(),
            "still_failing": Rate(self.still, before).to_json(),
            "newly_failing": Rate(self.newly, after).to_json(),
            "mcnemar_p": self.p,
            "groups": dict(zip(("better", "worse", "neither"), self.groups)),
            "groups_p": self.p_groups,
        }


def changed(
    before: Bool[Tensor, " n"], after: Bool[Tensor, " n"], group: Sequence[str] | None = None
) -> Changed:
    """Tell inputs apart by where the old version (`before`) and the new one (`after`) fail.

    McNemar's test needs inputs that were *not* chosen because the old version fails on them; of
    stored findings of the old version only `fixed` and `still` mean anything.

    Args:
        before: Where the old version fails.
        after: Where the new version fails.
        group: Which inputs belong together (one seed, near-duplicates); None: each stands alone.

    Example:
        >>> found = changed(torch.tensor([True, True, False]), torch.tensor([False, True, True]))
        >>> (found.fixed, found.still, found.newly, found.p)
        (1, 1, 1, 1.0)
    """
    fixed = int((before & ~after).sum())
    newly = int((~before & after).sum())
    names = [str(i) for i in range(len(before))] if group is None else list(group)
    if len(names) != len(before):
        raise Problem(f"{len(names)} groups are named for {len(before)} inputs.")
    balance = dict.fromkeys(names, 0)
    for name, worse in zip(names, (after.long() - before.long()).tolist()):
        balance[name] += worse
    better = sum(value < 0 for value in balance.values())
    worse = sum(value > 0 for value in balance.values())
    return Changed(
        fixed,
        int((before & after).sum()),
        newly,
        int((~before & ~after).sum()),
        mcnemar(newly, fixed).p,
        (better, worse, len(balance) - better - worse),
        mcnemar(worse, better).p,
    )


@dataclass(frozen=True, slots=True)
class Excess:
    """Seeds on which the new version is worse, beside what the same search finds where nothing got
    worse.

    Args:
        found: Share of seeds with a finding: old right, new wrong.
        retrained: The same between the old version and a retraining of it.
        swapped: The same with the roles of old and new swapped.
        value: `found` less the larger null, with its interval over seeds.
        p: McNemar's exact test against the larger null, two-sided.
        seeds: How many seeds all three searches attempted.
    """

    found: float
    retrained: float | None
    swapped: float | None
    value: Interval
    p: float
    seeds: int

    @property
    def shown(self) -> bool:
        """Whether the interval of the excess lies above 0: only then is it called regression."""
        return self.value.low > 0

    def __str__(self) -> str:
        nulls = {
            "a retraining of the old version": self.retrained,
            "the roles swapped": self.swapped,
        }
        told = " and ".join(
            f"{value:.1%} with {name}" for name, value in nulls.items() if value is not None
        )
        word = "a regression" if self.shown else "no regression shown"
        return (
            f"{self.found:.1%} of {self.seeds} seeds, {told}: excess {self.value.value:+.1%} "
            f"({self.value.low:+.1%} to {self.value.high:+.1%}), {word}"
        )


def excess(
    found: Mapping[str, bool],
    *,
    retrained: Mapping[str, bool] | None = None,
    swapped: Mapping[str, bool] | None = None,
    rng: torch.Generator,
    repeats: int = 2000,
) -> Excess:
    """How far a search for regressions exceeds its nulls, on the seeds that all of them attempted.

    Args:
        found: For each attempted seed by id, whether old right and new wrong was found.
        retrained: The same search between the old version and a retraining of it.
        swapped: The same search with the roles swapped.
        rng: For the bootstrap over seeds.
        repeats: Of the bootstrap.
    """
    nulls = {
        name: null
        for name, null in (("retrained", retrained), ("swapped", swapped))
        if null is not None
    }
    if not nulls:
        raise Problem(
            "regressions found by a search mean nothing without a null.",
            "Two trainings of one recipe also differ on inputs that are searched for.",
            fix="the same search with a retraining of the old version, and with the roles swapped",
        )
    seeds = [seed for seed in found if all(seed in null for null in nulls.values())]
    if len(seeds) < 2:
        raise Problem(f"{len(seeds)} seeds were attempted by all searches; at least 2 are needed.")
    own = _column(found, seeds)
    columns = {name: _column(null, seeds) for name, null in nulls.items()}
    larger = max(columns.values(), key=lambda column: float(column.mean()))
    samples = [own, *columns.values()]

    def gap(first: Tensor, *rest: Tensor) -> Tensor:
        return first.mean(-1) - torch.stack([column.mean(-1) for column in rest]).amax(0)

    value = bootstrap(gap, samples, rng=rng, repeats=repeats)
    only = int(((own == 1) & (larger == 0)).sum()), int(((own == 0) & (larger == 1)).sum())
    share = {name: float(column.mean()) for name, column in columns.items()}
    return Excess(
        float(own.mean()),
        share.get("retrained"),
        share.get("swapped"),
        value,
        mcnemar(*only).p,
        len(seeds),
    )


def _column(said: Mapping[str, bool], seeds: Sequence[str]) -> Tensor:
    return torch.tensor([float(said[seed]) for seed in seeds], dtype=torch.float64)
