"""Inputs that a new version broke: a search less its nulls, beside a replay of real images at equal queries.

The old version is a LeNet-5; so is every new version and every null, trained by one recipe. *Spoilt* learned a wrong label
for half of the training digits that lean to the right, *forgetful* learned on with hardly any 8 and 9, *pruned* lost the
smaller half of its weights, *retrained* is another training of the same recipe. The search asks for inputs that the old
version and every witness get right and the new one wrong. Its null is the same search with clean retrainings in place of the
new version: a version regressed if it exceeds all 19 of them (p = 1/20), or, with fewer, their t prediction interval. The unit
is a training, not a seed. What the nulls ask is counted as cost. The replay shows all test images to both versions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor, nn

from hardcase.analysis.semantics import figure_measures
from hardcase.campaign.in_memory import search_campaign
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.randomness import stream
from hardcase.suite.tables import Outcome
from hardcase.tensors import from_bytes
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import classify, fit
from hardcase.types import Budget, Images
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.lab import Lab, read_rightly

WRONG = 0.5
"""The share of training digits leaning right that the spoilt version learned under another label."""
RARE = (8, 9)
"""Classes of which the forgetful version learned on with one image in `SCARCE` only."""
SCARCE = 20
PRUNED = 0.5
"""The share of each layer's weights that the pruned version lost, the smallest ones."""
TEACHING = TrainingRecipe(epochs=12, batch=64, lr=2e-3)
MORE = TrainingRecipe(epochs=3, batch=64, lr=1e-3)
ARCHITECTURE = "lenet5"
"""Of the old version, of all new ones and of all nulls, whatever the sizes are."""
APART = 100
"""Between the random seeds of the versions and those of the nulls."""
NULLS = 19
"""Clean retrainings from which on exceeding all of them is significant at 5 %."""
WITHIN = 0.1
"""A finding counts within the severity at which this share of all searched seeds, new version and nulls alike, has one."""
VERSIONS = ("spoilt", "forgetful", "pruned", "retrained")
GOAL = 5
"""Times the newly failing inputs of a replay that an excess should come to."""


def run(bench: Bench) -> Outcome:
    """``--set seeds=200``, ``nulls=19``, ``gradients=100`` and ``versions=spoilt`` are the sizes; ``--full`` has 19 nulls."""
    lab = Lab(bench)
    old = _trained(lab, lab.train, bench.seed, "the old version")
    count = bench.size("nulls", 4, NULLS)
    if count < 2:
        raise HardcaseError(
            "a null distribution needs two clean retrainings or more.", fix="--set nulls=4"
        )
    clean = {
        f"clean retraining {i + 1}": _trained(
            lab, lab.train, bench.seed + APART + i, f"clean {i + 1}"
        )
        for i in range(count)
    }
    versions = {name: _version(name, lab, old) for name in bench.names("versions", VERSIONS)}
    right = {
        name: read_rightly(net, lab.test) for name, net in {"old": old, **clean, **versions}.items()
    }
    usable = torch.stack(list(right.values())).all(0).nonzero().squeeze(1)
    seeds = lab.test.take(usable).sample(
        count=min(bench.size("seeds", 100, 2000), len(usable)), seed=bench.seed
    )
    gradients = bench.size("gradients", 100, 100)
    null: list[Tensor] = []
    cost = 0
    for name, net in clean.items():
        bench.say(f"null: {name}, {len(seeds)} seeds")
        near, spent = _searched(lab, net, old, seeds, gradients)
        null.append(near)
        cost += spent
    by_chance = [float((right["old"] & ~right[name]).sum()) for name in clean]
    rows = []
    for name, new in versions.items():
        bench.say(f"{name}: {len(seeds)} seeds")
        near, spent = _searched(lab, new, old, seeds, gradients)
        newly = float((right["old"] & ~right[name]).sum())
        accuracy = float(right[name].double().mean())
        found = against_clean(near, null)
        replayed = Replay(newly, sum(by_chance) / count, len(lab.test))
        first = {"new version": name, "test images right": f"{accuracy:.1%}"}
        rows.append({**first, **_cells(found, replayed, spent, spent + cost)})
    notes = [
        f"{ARCHITECTURE}, one recipe, for the old version, every new one and {count} clean retrainings",
        f"a seed counts within the severity at which {WITHIN:.0%} of all searched seeds have a finding",
        "excess: seeds above the mean of the clean retrainings; brackets: a 95 % t prediction interval for one more clean retraining, "
        f"turned around. With {NULLS} nulls or more the rank among them decides",
        "the replay asks about every test image there is, or about as many as search and nulls have queries, if those are fewer",
        "retrained is the control: nothing got worse",
        *lab.notes,
    ]
    return Outcome("what a new version broke", [table_of("search and replay", rows, notes)])


@dataclass(frozen=True, slots=True)
class AgainstClean:
    """Seeds with a finding of a new version beside those of clean retrainings.

    Args:
        found: Share of the new version's seeds within the limit.
        nulls: The same of each clean retraining.
        limit: The severity within which a finding counts.
        seeds: How many were searched.
    """

    found: float
    nulls: tuple[float, ...]
    limit: float
    seeds: int

    @property
    def p(self) -> float:
        """The rank of the new version among the clean retrainings, as a permutation test."""
        return (1 + sum(null >= self.found for null in self.nulls)) / (1 + len(self.nulls))

    @property
    def predicted(self) -> tuple[float, float]:
        """The 95 % t prediction interval for the share of one more clean retraining."""
        count = len(self.nulls)
        values = torch.tensor(self.nulls, dtype=torch.float64)
        reach = float(stats.t.ppf(0.975, count - 1) * values.std() * math.sqrt(1 + 1 / count))
        return float(values.mean()) - reach, float(values.mean()) + reach

    @property
    def shown(self) -> bool:
        """Whether the new version is worse than clean retrainings are."""
        if len(self.nulls) >= NULLS:
            return self.p <= 0.05
        return self.found > self.predicted[1]


def against_clean(near: Tensor, null: Sequence[Tensor]) -> AgainstClean:
    """Compare the nearest finding of each seed with those of clean retrainings.

    The limit of severity is a quantile of all of them together, so that no network has a part in it
    that another has not: only then is the rank test exact.
    """
    every = torch.stack([near, *null]).double()
    limit = float(every.flatten().quantile(WITHIN, interpolation="lower"))
    within = every <= limit if math.isfinite(limit) else every.isfinite()
    shares = within.double().mean(1).tolist()
    return AgainstClean(shares[0], tuple(shares[1:]), limit, len(near))


@dataclass(frozen=True, slots=True)
class Replay:
    """Test images that fail newly on a version, and on a clean retraining on average, of so many."""

    newly: float
    by_chance: float
    images: int


def _cells(found: AgainstClean, replay: Replay, search: int, cost: int) -> dict[str, str]:
    asked = min(1.0, cost / replay.images)  # the replay may ask as often as search and nulls do
    newly = replay.newly * asked
    low, high = (found.seeds * (found.found - end) for end in reversed(found.predicted))
    value = found.seeds * (found.found - sum(found.nulls) / len(found.nulls))
    word = "" if found.shown else ", none shown"
    most = max(newly, 1)
    clean = f"{min(found.nulls):.1%} to {max(found.nulls):.1%} in {len(found.nulls)}"
    return {
        "seeds within the limit": f"{found.found:.1%} of {found.seeds}",
        "clean retrainings": clean,
        "limit of severity": f"{found.limit:.3f}",
        "p": f"{found.p:.3f}",
        "excess, in seeds": f"{value:.1f} [{low:.1f}, {high:.1f}]{word}",
        "queries of the search": f"{search:,}",
        "queries with its nulls": f"{cost:,}",
        "newly failing in a replay": f"{newly:.0f} of {replay.images * asked:,.0f}",
        "of a clean retraining": f"{replay.by_chance * asked:.0f}",
        f"excess over the replay's (goal {GOAL})": f"{value / most:.2f} [{low / most:.2f}, {high / most:.2f}]",
    }


def _searched(
    lab: Lab, subject: Subject, old: Subject, seeds: Images, gradients: int
) -> tuple[Tensor, int]:
    """The severity of the nearest witnessed input of each seed that `subject` gets wrong and `old` right, and the queries."""
    ready = Context.of(
        subject, seeds, "natural", options={"gradients": gradients}, peers=(old,), baseline=old.name,
        witnesses="default", train=lab.train, data=lab.bench.data, seed=lab.bench.seed,
    )  # fmt: skip
    done = search_campaign(ready.campaign, seeds, Budget(), shard=256)
    near = torch.full((len(seeds),), math.inf, dtype=torch.float64)
    kept = done.findings.witnessed.cpu()
    near.scatter_reduce_(
        0, done.findings.seed.cpu()[kept], done.findings.distance.cpu()[kept].double(), "amin"
    )
    return near, int(done.queries.sum())


def _version(name: str, lab: Lab, old: Subject) -> Subject:
    seed = lab.bench.seed
    if name == "spoilt":
        return _trained(lab, _spoilt(lab.train, seed), seed + 2, name)
    if name == "retrained":
        return _trained(lab, lab.train, seed + 3, name)
    net = copy.deepcopy(old.net).requires_grad_(True)
    if name == "pruned":
        _prune(net, PRUNED)
    else:
        _teach(lab, net, _poor(lab.train), MORE, seed + 4, name)
    return _subject(lab, net, name)


def _trained(lab: Lab, train: Images, seed: int, name: str) -> Subject:
    shape = {"channels": train.x.shape[1], "size": train.x.shape[2], "classes": len(train.classes)}
    net = build_classifier(ARCHITECTURE, **shape, seed=seed)
    _teach(lab, net, train, TEACHING, seed, name)
    return _subject(lab, net, name)


def _teach(
    lab: Lab, net: nn.Module, train: Images, recipe: TrainingRecipe, seed: int, name: str
) -> None:
    task = classify(len(train.classes))
    fit(net, train, task, recipe, seed=seed, name=name, device=lab.bench.device)


def _subject(lab: Lab, net: nn.Module, name: str) -> Subject:
    return Subject(net, classes=lab.train.classes, name=name, device=lab.bench.device)


@torch.no_grad()
def _prune(net: nn.Module, share: float) -> None:
    """Set the smallest weights of every layer to 0."""
    for weight in net.parameters():
        if weight.ndim > 1:
            weight.mul_(weight.abs() > weight.abs().flatten().quantile(share))


def _poor(train: Images) -> Images:
    """Training images with hardly any of the rare classes."""
    kept = ~torch.isin(train.y, torch.tensor(RARE))
    for rare in RARE:
        kept[(train.y == rare).nonzero().squeeze(1)[::SCARCE]] = True
    return train.take(kept.nonzero().squeeze(1))


def _spoilt(train: Images, seed: int) -> Images:
    """Training digits, half of those that lean to the right under another label."""
    slant: Tensor = figure_measures(from_bytes(train.x))["slant"]
    rng = stream(seed, "spoilt")
    other = (train.y + torch.randint(1, len(train.classes), (len(train),), generator=rng)) % len(
        train.classes
    )
    wrong = (slant > slant.quantile(2 / 3)) & (torch.rand(len(train), generator=rng) < WRONG)
    return replace(train, y=torch.where(wrong, other, train.y))
