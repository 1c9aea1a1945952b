"""A model held against others: models of the same data, and stored runs, beside whose risk its own
stands, seed by seed; and its earlier version, of which it may have broken what was right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from hardcase.cache import named_path
from hardcase.conditions.risk import rate_of
from hardcase.errors import HardcaseError
from hardcase.objectives import joint
from hardcase.oracles import MIN_MARGIN
from hardcase.runs.measured import Measured
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.statistics import Interval, Rate, mcnemar, newcombe_paired
from hardcase.tensors import margin
from hardcase.types import Kind, Method, Objective, Oracle, Probe


def beside_runs(run: Run, measured: Measured, folders: Sequence[str]) -> list[dict[str, Any]]:
    """Return how the failure rate of a run compares with those of stored runs, image by image.

    Raises:
        HardcaseError: If one of them was measured under other conditions, or on other images.
    """
    rows = list[dict[str, Any]]()
    for folder in folders:
        other = Run(named_path(folder))
        mine, theirs = common_samples(run, measured, other)
        rows.append(
            {
                "name": f"{other.record['model']} in {other.folder.name}",
                **rate_of(theirs.shares, theirs.clusters),
                "unmodified": rate_of(theirs.wrong.astype(float), theirs.clusters),
                "difference": mine.difference(theirs.shares),
                "unmodified_difference": rate_of(
                    mine.wrong * 1.0 - theirs.wrong, mine.clusters, low=-1.0
                ),
                "images": len(mine),
            }
        )
    return rows


def common_samples(run: Run, measured: Measured, other: Run) -> tuple[Measured, Measured]:
    """Return what two runs measured on the same samples of the same images.

    Raises:
        HardcaseError: If there is nothing that both measured.
    """
    if not other.record.get("risk"):
        raise HardcaseError(
            f"{other.folder} was not measured, so failure rates cannot be compared.",
            fix=f"hardcase resume {other.folder}",
        )
    here, there = (each.record.get("conditions") or {} for each in (run, other))
    lines = [
        f"{key}: {here.get(key)}, there {there.get(key)}"
        for key in {**here, **there}
        if here.get(key) != there.get(key)
    ]
    if run.record["seed"] != other.record["seed"]:
        lines.append(f"seed: {run.record['seed']}, there {other.record['seed']}")
    elif run.record.get("conditions_digest") == other.record.get("conditions_digest"):
        lines = []  # what is drawn is the same, whatever it is called
    elif not lines:
        lines.append("a table or a sampler of conditions gives other values there")
    if lines:
        raise HardcaseError(
            f"{other.folder} was measured under other conditions, so failure rates cannot be"
            " compared.",
            *lines,
            fix="a run of that model with the same conditions and --seed",
        )
    return measured.same_samples(measured_rows(other.store))


def paired_differences(run: Run, other: Run) -> NDArray[np.float64]:
    """Return the failure rate of one run less that of another, image by image."""
    mine, theirs = common_samples(run, measured_rows(run.store), other)
    return mine.shares - theirs.shares


def rate_difference(run: Run, other: Run) -> dict[str, Any]:
    """Return by how much the failure rates of two runs differ, with the interval and the number of
    common images.
    """
    mine, theirs = common_samples(run, measured_rows(run.store), other)
    return {**mine.difference(theirs.shares), "images": len(mine)}


# What a new version of a model broke: stored inputs told apart, an oracle to search with, and what
# exceeds chance.
#
# Two trainings of one recipe differ on many inputs, and a search finds such inputs easily, in the
# end for every seed. So what counts is how *near* to its image the new version fails where the old
# one does not, held against nulls with the same seeds and budget: the same search between the old
# version and retrainings of it, and with the roles swapped (new right, old wrong). Only the excess
# over the largest null within one limit of severity is called regression; the limit is chosen on
# other seeds.


@dataclass(frozen=True, slots=True)
class Regression:
    """The model (the new version) leaves the original's label; the old version, which is the first
    peer, and all others keep it."""

    min_margin: float = MIN_MARGIN
    kind: ClassVar[Kind] = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        if not probe.peers:
            raise HardcaseError(
                "there is no old version among the comparison models.", fix="--baseline MODEL"
            )
        wrong = margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin
        peer_margins = [
            margin(peer.softmax(1), probe.origin.y) <= -self.min_margin for peer in probe.peers
        ]
        return wrong & torch.stack(peer_margins).all(0)


@dataclass(frozen=True, slots=True)
class KeptBefore:
    """An objective that also asks the old version to keep the original's label."""

    objective: Objective
    oracle: Oracle
    least: float = 1.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        joined = replace(probe, witnesses=(*probe.witnesses, probe.peers[0]))
        return joint(self.objective, self.oracle, self.least)(joined)


def regressing(method: Method) -> Method:
    """A method as a search for regressions: the first peer is the baseline.

    Its failures are inputs that the model gets wrong and all peers right; its objective is less
    where the old version does not keep the label. A targeted method loses its target.
    """
    return replace(
        method, oracle=Regression(), objective=KeptBefore(method.objective, method.oracle)
    )


@dataclass(frozen=True, slots=True)
class Changed:
    """Inputs by what two versions make of them, one count for inputs and one for groups of them."""

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
    stored failures of the old version only `fixed` and `still` mean anything.

    Args:
        before: Where the old version fails.
        after: Where the new version fails.
        group: Which inputs belong together (one seed, near-duplicates); None: each stands alone.

    Example:
        >>> found = changed(torch.tensor([True, True, False]), torch.tensor([False, True, True]))
        >>> (found.fixed, found.still, found.newly, found.p)
        (1, 1, 1, 1.0)
    """
    fixed, still, newly, right = (
        int(rows.sum())
        for rows in (before & ~after, before & after, ~before & after, ~before & ~after)
    )
    names = [str(i) for i in range(len(before))] if group is None else list(group)
    if len(names) != len(before):
        raise HardcaseError(f"{len(names)} groups are named for {len(before)} inputs.")
    balance = dict.fromkeys(names, 0)
    for name, worse in zip(names, (after.long() - before.long()).tolist()):
        balance[name] += worse
    better = sum(value < 0 for value in balance.values())
    worse = sum(value > 0 for value in balance.values())
    groups = (better, worse, len(balance) - better - worse)
    p_groups = mcnemar(worse, better).p
    return Changed(fixed, still, newly, right, mcnemar(newly, fixed).p, groups, p_groups)


Nearest = Mapping[str, float]
"""The severity of the nearest input that was found, for each attempted seed by its id; infinity
where there was none.
"""


@dataclass(frozen=True, slots=True)
class Excess:
    """Seeds on which the new version is worse, beside what the same search finds where nothing got
    worse."""

    found: float
    nulls: Mapping[str, float]
    value: Interval
    p: float
    seeds: int
    limits: tuple[float, float]

    @property
    def shown(self) -> bool:
        """Whether the interval of the excess lies above 0: only then is it called regression."""
        return self.value.low > 0

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {
            "found": self.found,
            "nulls": dict(self.nulls),
            "limits": list(self.limits),
            "excess": self.value.value,
            "low": self.value.low,
            "high": self.value.high,
            "p": self.p,
            "seeds": self.seeds,
            "shown": self.shown,
            "sentence": str(self),
        }

    def __str__(self) -> str:
        nulls = " and ".join(f"{value:.1%} with {name}" for name, value in self.nulls.items())
        word = "a regression" if self.shown else "no regression shown"
        within = " or ".join(dict.fromkeys(f"{limit:.2f}" for limit in self.limits))
        return (
            f"{self.found:.1%} of {self.seeds} images within severity {within}, {nulls}: excess "
            f"{self.value.value:+.1%} ({self.value.low:+.1%} to {self.value.high:+.1%}), {word}"
        )


def excess(found: Nearest, nulls: Mapping[str, Nearest], *, rng: torch.Generator) -> Excess:
    """How far a search for regressions exceeds its nulls, on the images that all of them attempted.

    The images are halved at random. Of each half those count whose nearest input lies within the
    severity at which the *other* half exceeds its nulls most: no seed helps to choose its own
    limit.

    Args:
        found: The severity of the nearest input with old right and new wrong.
        nulls: The same of searches between versions of which neither is known to be worse.
        rng: Draws the halves.

    Example:
        >>> near = {str(i): 0.1 + i / 100 for i in range(40)}
        >>> far = {str(i): 0.6 + i / 100 for i in range(40)}
        >>> excess(near, {"the roles swapped": far}, rng=torch.Generator().manual_seed(0)).shown
        True
    """
    if not nulls:
        raise HardcaseError(
            "regressions found by a search mean nothing without a null.",
            "Two trainings of one recipe also differ on inputs that are searched for.",
            fix="the same search with a retraining of the old version, and with the roles swapped",
        )
    seeds = [seed for seed in found if all(seed in null for null in nulls.values())]
    if len(seeds) < 4:
        raise HardcaseError(
            f"{len(seeds)} images were searched by all methods; at least 4 are needed.",
            "Two versions that are the same network disagree on no image.",
        )
    near = torch.tensor(
        [[float(severities[seed]) for seed in seeds] for severities in (found, *nulls.values())],
        dtype=torch.float64,
    )
    first = torch.randperm(len(seeds), generator=rng, device=rng.device).cpu() * 2 < len(seeds)
    limits = (_limit(near[:, ~first]), _limit(near[:, first]))
    hit = (near <= torch.where(first, *limits)).double()

    before = hit[0]
    largest = hit[1:][hit[1:].mean(1).argmax()]
    value = newcombe_paired(before > 0, largest > 0)
    only = int((before > largest).sum()), int((before < largest).sum())
    shares = dict(zip(nulls, hit[1:].mean(1).tolist()))
    return Excess(float(before.mean()), shares, value, mcnemar(*only).p, len(seeds), limits)


def _limit(near: Float[Tensor, "searches n"]) -> float:
    """The severity within which the first search has most failures beyond the largest of the
    others; the smallest of those that are equal."""
    steps = near[near.isfinite()].sort().values
    if not len(steps):
        return 0.0
    within = (near[:, None] <= steps[:, None]).double().mean(2)
    return float(steps[(within[0] - within[1:].amax(0)).argmax()])
