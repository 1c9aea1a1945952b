"""The proof of a repair: before and after on images that nobody trained, chose or searched with.

Every figure is a share of failures or errors, compared image by image, so that above 0 always means
worse. A repair must show less excess risk and lose nothing elsewhere: under conditions and
corruptions that were not trained on, on outside data, in any class.

A repaired network may only hide its failures from the search that it was trained with. So random
draws, gradients from several starts and a search by queries are joined, and what breaks one network
is tried on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from hardcase.campaign.claims import Claims, asking
from hardcase.conditions import (
    PROFILES,
    ConditionBox,
    Conditions,
    WorstCase,
    condition_box,
    measure_risk,
    measure_worst,
)
from hardcase.conditions.declared import DECLARABLE, parse_range, profile
from hardcase.corruptions import CORRUPTIONS, corrupt
from hardcase.data.files import ImageSet
from hardcase.errors import Problem, choice
from hardcase.models.health import answers
from hardcase.randomness import keys_of
from hardcase.statistics import bounded_mean_interval
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.types import Images, Model

__all__ = [
    "SIZES",
    "AttackResult",
    "AttackSize",
    "Proof",
    "ProofRow",
    "ProofSize",
    "ProofValues",
    "Verdict",
    "attack_all",
    "measure_values",
    "proof_size",
    "prove",
    "untrained",
]

Shares = NDArray[np.float64]
"""One number between 0 and 1 per image."""
Verdict = Literal["repaired", "moved elsewhere", "worse", "cannot tell"]
SEVERITY = 3.0
"""Of corruptions that no declaration asks for; the middle of the published five."""
UNTRAINED = "what was not trained on"
"""The mean over conditions that were not declared and families of corruptions."""
SHIFTED = 0.01
"""What doubling an attack may add before its worst case says nothing: a point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSize:
    """How hard networks are attacked.

    Args:
        seeds: Images, at most.
        restarts: Searches, each with other random numbers; an even number.
        gradients: Gradients per image and box of each search.
        queries: Queries per image and box of the search without gradients.
        draws: Random draws per image.
    """

    seeds: int = 100
    restarts: int = 2
    gradients: int = 20
    queries: int = 40
    draws: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofSize:
    """How much a proof measures.

    Args:
        seeds: Images, at most.
        draws: Random conditions per image.
        alone: Draws per image of each condition alone, trained on or not.
        attack: How hard both networks are attacked.
    """

    seeds: int = 1000
    draws: int = 64
    alone: int = 4
    attack: AttackSize = field(default_factory=AttackSize)


SIZES: Mapping[str, ProofSize] = {
    "quick": ProofSize(
        seeds=400,
        draws=8,
        alone=1,
        attack=AttackSize(seeds=30, restarts=2, gradients=6, queries=10, draws=32),
    ),
    "usual": ProofSize(),
    "full": ProofSize(
        seeds=2000,
        attack=AttackSize(seeds=1000, restarts=10, gradients=30, queries=60, draws=10_000),
    ),
}
"""By the names of ``--proof``; ``full`` is for a GPU."""


def proof_size(given: str | ProofSize) -> ProofSize:
    """Return a size of a proof by its name, with some of its numbers changed."""
    if isinstance(given, ProofSize):
        return given
    name, _, words = given.partition(":")
    if name not in SIZES:
        raise choice("size of a proof", name, list(SIZES))
    size = SIZES[name]
    numbers = {key: value for key, value in asdict(size).items() if key != "attack"}
    attack = {f"attack.{key}": value for key, value in asdict(size.attack).items()}
    for word in filter(None, words.split(",")):
        key, _, value = word.partition("=")
        if key not in numbers | attack:
            raise choice("number of a proof", key, [*numbers, *attack])
        if not value.isdecimal() or int(value) < 1:
            raise Problem(f"{key} of a proof is {value!r}.", fix=f"--proof {name}:{key}=10")
        (numbers if key in numbers else attack)[key] = int(value)
    inner = {key.removeprefix("attack."): value for key, value in attack.items()}
    return ProofSize(**numbers, attack=AttackSize(**inner))


@dataclass(frozen=True, slots=True)
class ProofValues:
    """What one network does with each image.

    Args:
        label: The classes of the images.
        clean: Whether it misreads the image as it is.
        risk: The share of random draws of the declared conditions that fail.
        conditions: The same with one declared condition at a time.
        elsewhere: The same with conditions that were not declared.
        corruptions: The share of standard corruptions that it misreads, by family.
        outside: Whether it misreads images of other data, by its name.
    """

    label: NDArray[np.int64]
    clean: Shares
    risk: Shares
    conditions: Mapping[str, Shares] = field(default_factory=dict)
    elsewhere: Mapping[str, Shares] = field(default_factory=dict)
    corruptions: Mapping[str, Shares] = field(default_factory=dict)
    outside: Mapping[str, Shares] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProofRow:
    """One figure before and after.

    Args:
        group: ``declared``, ``condition``, ``elsewhere``, ``outside`` or ``class``.
        name: What is counted.
        before: Its mean before.
        after: Its mean after.
        low: The lower end of the interval of the mean difference, after minus before.
        high: The upper end.
        units: Images.
        margin: By how much it may be worse.
        decides: Whether a repair must show that it is not worse; others only must not be worse.
    """

    group: str
    name: str
    before: float
    after: float
    low: float
    high: float
    units: int
    margin: float
    decides: bool = False

    @property
    def outcome(self) -> Literal["better", "not worse", "worse", "cannot tell"]:
        """What the interval says."""
        if self.low > self.margin:
            return "worse"
        if self.high < 0:
            return "better"
        return "not worse" if self.high <= self.margin else "cannot tell"


@dataclass(frozen=True, slots=True)
class Proof:
    """All figures before and after, and what follows.

    Args:
        rows: The figures.
        added: By network, the share of images that the second half of the attack broke.
        least: By network, the lower tenth and the median of the least scale that fails.
        seeds: Images that were measured.
    """

    rows: tuple[ProofRow, ...]
    added: Mapping[str, float]
    least: Mapping[str, tuple[float, float]]
    seeds: int

    def row(self, name: str) -> ProofRow:
        """Return the declared figure of that name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def verdict(self) -> Verdict:
        """Repaired, moved elsewhere, worse, or cannot tell."""
        declared = [row for row in self.rows if row.group == "declared"]
        if any(row.outcome == "worse" for row in declared):
            return "worse"
        if any(row.outcome == "worse" for row in self.rows):
            return "moved elsewhere"
        must = [row for row in self.rows if row.decides]
        unclear = any(row.outcome == "cannot tell" for row in must)
        if unclear or max(self.added.values()) > SHIFTED:
            return "cannot tell"
        return "repaired" if self.row("risk").outcome == "better" else "cannot tell"

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not *repaired*, in words."""
        told = [
            f"{row.name} ({row.group}) is worse: {row.before:.2%} before, {row.after:.2%} after"
            for row in self.rows
            if row.outcome == "worse"
        ]
        told += [
            f"{row.name} ({row.group}) may be worse by up to {row.high:.2%}, margin"
            f" {row.margin:.2%}: more images would tell"
            for row in self.rows
            if row.decides and row.outcome == "cannot tell"
        ]
        told += [
            f"doubling the attack on the network {name} broke {share:.1%} more images: its worst"
            " case is not known"
            for name, share in self.added.items()
            if share > SHIFTED
        ]
        if not told and self.verdict != "repaired":
            told.append("the risk is not certainly lower")
        return told

    def to_json(self) -> dict[str, Any]:
        """Return what repair.json keeps."""
        return {
            "verdict": self.verdict,
            "reasons": self.reasons,
            "seeds": self.seeds,
            "attack_added": dict(self.added),
            "least_scale": {name: list(pair) for name, pair in self.least.items()},
            "rows": [{**asdict(row), "outcome": row.outcome} for row in self.rows],
        }


def untrained(trained: Conditions, shape: tuple[int, ...]) -> dict[str, Conditions]:
    """Return each condition that was not declared, alone, by its usual range."""
    found = dict[str, Conditions]()
    usual = {
        name: declared
        for known in reversed(PROFILES)
        for name, declared in profile(known).ranges.items()
    }
    for name, row in DECLARABLE.items():
        if name in trained.ranges or (row.colour and shape[0] == 1):
            continue
        if name in usual:
            found[name] = Conditions({name: usual[name]}, name=name)
        elif row.unit in ("%", "deg"):
            lower = "±5" if row.least < 0 else "0..5"
            found[name] = Conditions({name: parse_range(name, f"{lower} {row.unit}")}, name=name)
    return found


def measure_values(
    model: Model,
    images: Images,
    box: ConditionBox,
    size: ProofSize,
    *,
    seed: int,
    outside: Mapping[str, Images] | None = None,
) -> ProofValues:
    """Measure one network on unseen images; the draws are the same for every network."""
    whole = measure_risk(model, images, box, draws=size.draws, seed=seed, costs=False)
    declared = box.conditions

    def alone(conditions: Conditions) -> Shares:
        own = condition_box(conditions, images.shape)
        table = measure_risk(model, images, own, draws=size.alone, seed=seed, costs=False)
        return table.shares

    return ProofValues(
        label=images.y.numpy(),
        clean=whole.clean.double().numpy(),
        risk=whole.shares,
        conditions={
            name: alone(Conditions({name: one}, name=name)) for name, one in declared.ranges.items()
        },
        elsewhere={name: alone(one) for name, one in untrained(declared, images.shape).items()},
        corruptions=_corruption_errors(model, images),
        outside={
            name: (answers(model, own).argmax(1) != own.y).double().numpy()
            for name, own in (outside or {}).items()
        },
    )


def _corruption_errors(model: Model, images: Images) -> dict[str, Shares]:
    """The share of the corruptions of each family that the model misreads, per image."""
    if images.shape[0] not in (1, 3) or min(images.shape[1:]) < 8:
        return {}
    wrong = dict[str, list[Shares]]()
    claims = Claims.of(images, model.device)
    for name, kind in ((name, one.kind) for name, one in CORRUPTIONS.items()):
        parts = list[torch.Tensor]()
        for part in chunks(len(images), 256):
            x = from_bytes(images.x[part]).to(model.device)
            keys = keys_of(images.id[part]).to(model.device)
            severity = torch.full((len(x),), SEVERITY, device=model.device)
            with torch.no_grad():
                changed = to_grid(corrupt(x, name, severity, keys))
                logits = asking(model, claims and claims.take(part))(changed).logits
            parts.append(logits.argmax(1).cpu() != images.y[part])
        wrong.setdefault(kind, []).append(torch.cat(parts).double().numpy())
    return {kind: np.mean(shares, axis=0) for kind, shares in wrong.items()}


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What the union of all searches found for each image.

    Args:
        least: The smallest scale at which a failure is known; infinite where none is.
        half: Which images the first half of the searches had broken.
    """

    least: Float[Tensor, " n"]
    half: Bool[Tensor, " n"]

    @property
    def failing(self) -> Bool[Tensor, " n"]:
        """Which images fail somewhere in the box."""
        return self.least <= 1

    @property
    def added(self) -> float:
        """The share of images that only the second half of the searches broke."""
        return float((self.failing & ~self.half).double().mean())


def attack_all(
    models: Mapping[str, Model],
    images: Images,
    box: ConditionBox,
    size: AttackSize,
    *,
    seed: int,
) -> dict[str, AttackResult]:
    """Attack several networks on the same images, and each with what breaks the others."""
    tables = {
        name: measure_risk(model, images, box, draws=size.draws, seed=seed + 1, costs=False)
        for name, model in models.items()
    }
    least = {name: torch.full((len(images),), torch.inf) for name in models}
    known = dict[str, WorstCase]()

    def search(name: str, number: int, gradients: int, queries: int) -> None:
        """One search, which is given the last failures of all networks."""
        found = measure_worst(
            models[name],
            images,
            box,
            table=tables[name],
            others=list(known.values()),
            seed=seed + number,
            gradients=gradients,
            queries=queries,
            alone=False,
        )
        known[name] = found
        least[name] = torch.minimum(least[name], found.least_scale.float())

    half = dict[str, Tensor]()
    for number in range(max(size.restarts, 2)):
        if number == max(size.restarts, 2) // 2:
            half = {name: one <= 1 for name, one in least.items()}
        for name in models:
            search(name, number, size.gradients, size.queries)
    for name in models:  # what the last search found in the networks after it
        search(name, 0, 1, 0)
    return {name: AttackResult(least[name], half[name]) for name in models}


def prove(
    before: Model,
    after: Model,
    images: ImageSet,
    box: ConditionBox,
    size: ProofSize,
    *,
    margin: float,
    seed: int,
    outside: Mapping[str, Images] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Compare a network before and after its repair on images that neither has seen."""
    some = images.sample(count=min(size.seeds, len(images)), seed=seed).images()
    both = {"before": before, "after": after}
    values = dict[str, ProofValues]()
    for name, model in both.items():
        say(f"measuring the network {name} on {len(some)} unseen images")
        values[name] = measure_values(model, some, box, size, seed=seed, outside=outside)
    few = some.first(min(size.attack.seeds, len(some)))
    say(f"attacking both networks on {len(few)} of them")
    attacked = attack_all(both, few, box, size.attack, seed=seed)
    rows = compare_values(values["before"], values["after"], images.classes, margin)
    least = {name: one.least.clamp_max(1) for name, one in attacked.items()}
    broken = {name: one.failing.double().numpy() for name, one in attacked.items()}
    near = {name: (1 - one).double().numpy() for name, one in least.items()}
    for figure, shares in (("worst case", broken), ("1 - least scale", near)):
        rows.append(_row("declared", figure, shares["before"], shares["after"], margin))
    # the lower tenth and the median; 1 stands for images that nothing in the box breaks
    return Proof(
        tuple(rows),
        {name: one.added for name, one in attacked.items()},
        {
            name: (float(one.double().quantile(0.1)), float(one.double().quantile(0.5)))
            for name, one in least.items()
        },
        len(some),
    )


def compare_values(
    before: ProofValues, after: ProofValues, classes: Sequence[str], margin: float
) -> list[ProofRow]:
    """Compare what two networks do with the same images, figure by figure.

    Single conditions, families and classes are many, so their intervals hold together (Bonferroni).
    """
    rows = [
        _row("declared", "error", before.clean, after.clean, margin, decides=True),
        _row("declared", "risk", before.risk, after.risk, margin, decides=True),
        _row(
            "declared",
            "excess risk",
            before.risk - before.clean,
            after.risk - after.clean,
            margin,
            most=2.0,
        ),
    ]
    groups = {
        "condition": (before.conditions, after.conditions),
        "elsewhere": (
            {**before.elsewhere, **_corrupted(before)},
            {**after.elsewhere, **_corrupted(after)},
        ),
    }
    several = list[tuple[str, str, Shares, Shares]]()
    for group, (one, two) in groups.items():
        if group == "elsewhere" and one:
            mean, after_mean = (np.mean(list(each.values()), axis=0) for each in (one, two))
            rows.append(_row(group, UNTRAINED, mean, after_mean, margin, decides=True))
        several += [(group, name, one[name], two[name]) for name in one]
    for name in before.outside:
        rows.append(
            _row("outside", name, before.outside[name], after.outside[name], margin, decides=True)
        )
    for label in np.unique(before.label):
        own = before.label == label
        several.append(("class", f"{classes[label]}: error", before.clean[own], after.clean[own]))
        several.append(("class", f"{classes[label]}: risk", before.risk[own], after.risk[own]))
    level = 1 - 0.05 / max(len(several), 1)
    return rows + [_row(*one, margin, level=level) for one in several]


def _corrupted(values: ProofValues) -> dict[str, Shares]:
    return {f"{kind} corruptions": shares for kind, shares in values.corruptions.items()}


def _row(
    group: str,
    name: str,
    before: Shares,
    after: Shares,
    margin: float,
    *,
    decides: bool = False,
    level: float = 0.95,
    most: float = 1.0,
) -> ProofRow:
    low, high = bounded_mean_interval(after - before, -most, most, level=level)
    means = (float(before.mean()), float(after.mean()))
    return ProofRow(group, name, *means, low, high, len(before), margin, decides)
