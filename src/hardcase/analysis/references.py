"""A model held against others: models of the same data, and stored runs, beside whose risk its own
stands, seed by seed; and its earlier version, of which it may have broken what was right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from hardcase.cache import named_path
from hardcase.conditions import Conditions, compare_risk
from hardcase.conditions.risk import DRAWS, RiskComparison
from hardcase.config import is_run
from hardcase.data.files import ImageSet
from hardcase.errors import Problem
from hardcase.models.fetching import fetched_classifiers
from hardcase.models.load import is_stated
from hardcase.models.names import COUNT as IMAGENET
from hardcase.models.subject import Subject
from hardcase.models.witnesses import LARGEST
from hardcase.models.zoo import cached_classifiers, trained_classifier
from hardcase.objectives import joint
from hardcase.oracles import MIN_MARGIN
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_beside
from hardcase.statistics import Bounds, Interval, Rate, mcnemar, newcombe_paired
from hardcase.tensors import chunks, margin
from hardcase.types import Images, Kind, Method, Model, Objective, Oracle, Probe

MOST = 2
"""References that nobody named: each is asked a quarter as much as the subject."""
ROWS = 64
"""Images that are compared at once."""


@dataclass(frozen=True, slots=True)
class ReferenceModel:
    """A model beside whose risk that of the subject stands."""

    model: Model
    training: str = ""

    @property
    def name(self) -> str:
        return self.model.name


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A stored run beside whose risk that of the subject stands: its model is not asked again."""

    run: Run
    training: str = ""

    @property
    def name(self) -> str:
        return f"{self.run.record['model']} in {self.run.folder.name}"

    def rows(self) -> list[dict[str, Any]]:
        """What happened to every seed, as `conditions.json` keeps it."""
        rows: list[dict[str, Any]] = _kept(self.run)["seeds"]
        return rows

    def check(self, conditions: Conditions, seeds: ImageSet, seed: int) -> None:
        """Refuse a run that was measured otherwise."""
        facts = {"conditions": conditions.to_record(), "draws": DRAWS, "seed": seed}
        _same_figures(self.run, facts)
        rows = {name: row for row, name in enumerate(seeds.id)}
        common = _common(rows, _shares(self.run), self.run)

        def own(names: list[str]) -> UInt8[Tensor, "r c h w"]:
            return seeds.take(torch.tensor([rows[name] for name in names])).images().x

        if seeds.hash != self.run.record["hashes"]["data"]:
            _same_images(own, self.run, common)


Reference = ReferenceModel | ReferenceRun


def named_references(
    baseline: str | None, names: Sequence[str], load: Callable[[str], Model]
) -> list[Reference]:
    """Return the models that a user named, the version before first."""
    found = list[Reference]()
    if baseline is not None:
        found.append(ReferenceModel(load(baseline), "the version before"))
    for name in names:
        if is_run(name):
            found.append(ReferenceRun(Run(named_path(name)), "measured before"))
            continue
        own = name.startswith("zoo:") and not is_stated(name)
        found.append(ReferenceModel(load(name), "trained here by its recipe" if own else ""))
    return found


def usual_references(
    subject: Model,
    shape: Sequence[int],
    classes: int,
    images: Callable[[str], Images],
    load: Callable[[str], Model],
) -> list[ReferenceModel]:
    """Return plain networks of the same data that are at hand: nothing is trained or fetched.

    Witnesses are none: they learned half of the data, and to read it bent."""
    if classes == IMAGENET:
        named = fetched_classifiers()[: MOST + 1]
        training = "trained by others on ImageNet"
        models = [load(f"zoo:{name}") for name in named]
    elif max(shape[1:]) <= LARGEST:
        try:
            train, test = images("train"), images("test")
            named = cached_classifiers(train, test)[: MOST + 1]
        except Problem:  # images without a training split have no such networks
            return []
        training = f"trained on all {len(train):,} training images"
        models = [_plain(name, train, test, subject.device) for name in named]
    else:
        return []
    others = [ReferenceModel(one, training) for one in models if one.hash != subject.hash]
    return others[:MOST]


def _plain(name: str, train: Images, test: Images, device: torch.device) -> Model:
    """A network of the zoo as its recipe trains it: it wants its images as they are."""
    net, _ = trained_classifier(name, train, test, device=device)
    return Subject(net, classes=test.classes, name=f"zoo:{name}", device=device)


def beside_references(record: Mapping[str, Any], *, margin: float) -> dict[str, RiskComparison]:
    """Return how a run's risk compares with that of each reference it was measured beside."""
    return {
        one["name"]: RiskComparison(
            one["difference"], Bounds(one["low"], one["high"]), one["seeds"], margin
        )
        for one in (record.get("risk") or {}).get("references", ())
    }


def against(run: Run, baseline: Run, *, margin: float) -> RiskComparison:
    """Compare the risks of two runs seed by seed, under the same conditions."""
    if not run.record.get("risk"):
        _same_figures(run, {})
    facts = {**run.record, "draws": _kept(run)["draws"]}
    _same_figures(baseline, {name: facts[name] for name in ("conditions", "draws", "seed")})
    first, second = _shares(run), _shares(baseline)
    common = _common(first, second, baseline)
    if run.record["hashes"]["data"] != baseline.record["hashes"]["data"]:
        _same_images(partial(_stored_images, run), baseline, common)
    claims = bool(run.record.get("claims"))
    return compare_risk(first, second, margin=margin, claims=claims)


def _same_figures(run: Run, wanted: Mapping[str, Any]) -> None:
    """Refuse a run whose conditions, draws or seed of the draws are others."""
    if not run.record.get("risk"):
        raise Problem(
            f"{run.folder} has no risk: it was run without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    seen = {**run.record, "draws": _kept(run)["draws"]}
    lines = list[str]()
    for name, value in wanted.items():
        if seen[name] == value:
            continue
        if name == "conditions":
            keys = [key for key in {**value, **seen[name]} if value.get(key) != seen[name].get(key)]
            lines += [f"{key}: {value.get(key)}, there {seen[name].get(key)}" for key in keys]
        else:
            lines.append(f"{name}: {value}, there {seen[name]}")
    if lines:
        raise Problem(
            f"{run.folder} was measured under other conditions, so risks cannot be compared.",
            *lines,
            fix="a run of that model with the same conditions and --seed",
        )


def _common(own: Mapping[str, Any], theirs: Mapping[str, Any], run: Run) -> list[str]:
    """The seeds that both have; a Problem where there are none."""
    common = [name for name in own if name in theirs]
    if not common:
        raise Problem(
            f"{run.folder} has no seed in common with this run, so risks cannot be compared.",
            f"data there: {run.record['data']}",
        )
    return common


def _stored_images(run: Run, names: list[str]) -> UInt8[Tensor, "r c h w"]:
    return run.seed_images([run.seed_rows[name] for name in names])


def _same_images(
    own: Callable[[list[str]], UInt8[Tensor, "r c h w"]], run: Run, names: list[str]
) -> None:
    """Refuse a run whose seeds of the same name are other images."""
    for part in chunks(len(names), ROWS):
        first, second = own(names[part]), _stored_images(run, names[part])
        other = [0]
        if first.shape == second.shape:
            other = (first != second).flatten(1).any(1).nonzero().flatten().tolist()
        if other:
            raise Problem(
                f"{run.folder} has other images, so risks cannot be compared.",
                f"{names[part][other[0]]} is another image there",
                f"data there: {run.record['data']}",
            )


def paired_differences(run: Run, baseline: Run) -> NDArray[np.float64]:
    """Return the share of failing draws in one run less that in another, by common seed."""
    first, second = _shares(run), _shares(baseline)
    return np.array([first[name] - second[name] for name in first if name in second])


def _kept(run: Run) -> dict[str, Any]:
    """What a run keeps of every seed under its conditions."""
    kept = read_beside(run.store, CONDITIONS)
    if kept is None:
        raise Problem(f"{run.folder / CONDITIONS} is missing, damaged or of another run.")
    return kept


def _shares(run: Run) -> dict[str, float]:
    """The share of failing draws by seed."""
    kept = _kept(run)
    return {row["id"]: row["failing"] / kept["draws"] for row in kept["seeds"]}


# What a new version of a model broke: stored inputs told apart, an oracle to search with, and what
# exceeds chance.
#
# Two trainings of one recipe differ on many inputs, and a search finds such inputs easily, in the
# end for every seed. So what counts is how *near* to its seed the new version fails where the old
# one does not, held against nulls with the same seeds and budget: the same search between the old
# version and retrainings of it, and with the roles swapped (new right, old wrong). Only the excess
# over the largest null within one limit of severity is called regression; the limit is chosen on
# other seeds.


@dataclass(frozen=True, slots=True)
class Regression:
    """The subject (the new version) leaves the seed's label; the old version, which is the first
    peer, and all others keep it."""

    min_margin: float = MIN_MARGIN
    kind: ClassVar[Kind] = "label"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        if not probe.peers:
            raise Problem("there is no old version among the peers.", fix="--baseline MODEL")
        wrong = margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin
        kept = [margin(peer.softmax(1), probe.origin.y) <= -self.min_margin for peer in probe.peers]
        return wrong & torch.stack(kept).all(0)


@dataclass(frozen=True, slots=True)
class KeptBefore:
    """An objective that also asks the old version to keep the seed's label."""

    objective: Objective
    oracle: Oracle
    least: float = 1.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        asked = replace(probe, witnesses=(*probe.witnesses, probe.peers[0]))
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
    fixed, still, newly, right = (
        int(rows.sum())
        for rows in (before & ~after, before & after, ~before & after, ~before & ~after)
    )
    names = [str(i) for i in range(len(before))] if group is None else list(group)
    if len(names) != len(before):
        raise Problem(f"{len(names)} groups are named for {len(before)} inputs.")
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
        told = " and ".join(f"{value:.1%} with {name}" for name, value in self.nulls.items())
        word = "a regression" if self.shown else "no regression shown"
        within = " or ".join(dict.fromkeys(f"{limit:.2f}" for limit in self.limits))
        return (
            f"{self.found:.1%} of {self.seeds} seeds within severity {within}, {told}: excess "
            f"{self.value.value:+.1%} ({self.value.low:+.1%} to {self.value.high:+.1%}), {word}"
        )


def excess(found: Nearest, nulls: Mapping[str, Nearest], *, rng: torch.Generator) -> Excess:
    """How far a search for regressions exceeds its nulls, on the seeds that all of them attempted.

    The seeds are halved at random. Of each half those count whose nearest input lies within the
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
        raise Problem(
            "regressions found by a search mean nothing without a null.",
            "Two trainings of one recipe also differ on inputs that are searched for.",
            fix="the same search with a retraining of the old version, and with the roles swapped",
        )
    seeds = [seed for seed in found if all(seed in null for null in nulls.values())]
    if len(seeds) < 4:
        raise Problem(f"{len(seeds)} seeds were attempted by all searches; at least 4 are needed.")
    near = torch.tensor(
        [[float(said[seed]) for seed in seeds] for said in (found, *nulls.values())],
        dtype=torch.float64,
    )
    first = torch.randperm(len(seeds), generator=rng, device=rng.device).cpu() * 2 < len(seeds)
    limits = (_limit(near[:, ~first]), _limit(near[:, first]))
    hit = (near <= torch.where(first, *limits)).double()

    own = hit[0]
    largest = hit[1:][hit[1:].mean(1).argmax()]
    value = newcombe_paired(own > 0, largest > 0)
    only = int((own > largest).sum()), int((own < largest).sum())
    shares = dict(zip(nulls, hit[1:].mean(1).tolist()))
    return Excess(float(own.mean()), shares, value, mcnemar(*only).p, len(seeds), limits)


def _limit(near: Float[Tensor, "searches n"]) -> float:
    """The severity within which the first search has most findings beyond the largest of the
    others; the smallest of those that are equal."""
    steps = near[near.isfinite()].sort().values
    if not len(steps):
        return 0.0
    within = (near[:, None] <= steps[:, None]).double().mean(2)
    return float(steps[(within[0] - within[1:].amax(0)).argmax()])
