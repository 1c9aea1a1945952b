"""The proof of a repair: what it may claim, decided by images that no training and no search saw.

*Primary* is the failure rate under the declared conditions, image by image, after minus before. A
network is repaired if that is certainly lower and nothing else is worse by more than a margin: the
error on unmodified images, the mean over conditions and corruptions that were not trained on, data
of other origin. The margins are those that the number of images can show, and they are logged
before the training begins. Single conditions, corruption families and classes are many and their
intervals hold together; each of them decides only where it is certainly worse.

The result of an attack is a lower bound of the worst case: it is reported, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, prod
from typing import Any, Literal, NamedTuple

import numpy as np

from hardcase.conditions import ConditionBox
from hardcase.data.files import ImageSet
from hardcase.environment import duration
from hardcase.repair.measures import (
    HELD,
    AttackSize,
    ProofSize,
    ProofValues,
    Shares,
    attack_all,
    measure_values,
    proof_queries,
    seconds_per_query,
)
from hardcase.statistics import (
    NORMAL,
    NORMAL_POWER,
    ImagesNeeded,
    bounded_mean_interval,
    images_to_decide,
)
from hardcase.types import Images, Model

__all__ = [
    *(
        "FAILURE_RATE",
        "UNMODIFIED",
        "UNTRAINED",
        "Before",
        "ProofMargin",
        "Proof",
        "ProofRow",
        "Verdict",
    ),
    *("compare_values", "measure_before", "prove", "shown_margin"),
]

Verdict = Literal["repaired", "not repaired", "regressed elsewhere", "inconclusive"]
"""The first word of a repair, in capitals there."""
FAILURE_RATE = "failure rate"
UNMODIFIED = "error on unmodified images"
UNTRAINED = "conditions not trained on"
"""The mean over conditions that were not declared and families of corruptions."""
LEAST_MARGIN = 0.01
"""No figure must be closer than a point to what it was, however many images there are."""
ALIKE = 0.7
"""The correlation, image by image, of networks before and after a repair, for which is planned."""
CERTAIN = NORMAL + NORMAL_POWER
"""Normal quantiles of an interval of 95 % that excludes the margin in nine of ten cases."""
IMAGINED = 3.7
"""What an image at the end of the range adds to a bound of `n` images, times `n`."""
WORTHWHILE = 0.25
"""Share of the failures that a repair takes away, at least: less is no reason for other weights."""
SHIFTED = 0.01
"""What the second half of an attack may add before its worst case is called a bound."""


@dataclass(frozen=True, slots=True)
class ProofRow:
    """A figure before and after the repair.

    Args:
        group: ``declared``, ``elsewhere``, ``outside``, ``condition``, ``class``, ``attack`` or
            ``stored``.
        name: What is counted.
        before: Its mean before.
        after: Its mean after.
        low: The lower end of the interval of the mean difference, after minus before.
        high: The upper end.
        units: Images.
        margin: By how much it may be worse; of the failure rate, by how much a repair lowers it at
            least.
        decides: Whether a repair must show that it is not worse.
        planned: The margin that so many images can show; of a part, that of its whole.
        needed: How many images would decide it, where these do not.
        at_least: Whether that is only a bound.
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
    planned: float = LEAST_MARGIN
    needed: int | None = None
    at_least: bool = False

    @property
    def outcome(self) -> Literal["better", "not worse", "worse", "unclear"]:
        """What the interval says."""
        if self.low > self.margin:
            return "worse"
        if self.high < 0:
            return "better"
        return "not worse" if self.high <= self.margin else "unclear"

    @property
    def informs(self) -> bool:
        """Whether the figure is reported and decides nothing."""
        return self.group in ("attack", "stored")

    def with_margin(self, margin: float) -> ProofRow:
        """Return the same figure held against another margin."""
        return replace(self, margin=margin)

    def in_points(self) -> str:
        """Return before, after and the interval of the change in words."""
        change = 100 * (self.after - self.before)
        return (
            f"{100 * self.before:.1f} % before, {100 * self.after:.1f} % after:"
            f" {change:+.1f} pp ({100 * self.low:+.1f} to {100 * self.high:+.1f})"
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """All figures before and after, and what follows.

    Args:
        rows: The figures.
        images: Images that were measured.
        attacked: Images that were attacked.
        added: By network, the share of images that only the second half of the attack broke.
        least: By network, the lower tenth and the median of the least scale that fails.
    """

    rows: tuple[ProofRow, ...]
    images: int
    attacked: int = 0
    added: Mapping[str, float] = field(default_factory=dict)
    least: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def row(self, name: str) -> ProofRow:
        """Return the first figure of that name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def primary(self) -> ProofRow:
        """The failure rate under the declared conditions."""
        return self.row(FAILURE_RATE)

    @property
    def worse(self) -> list[ProofRow]:
        """What is certainly worse than its margin allows, but for the primary figure."""
        return [
            row
            for row in self.rows
            if row.outcome == "worse" and row.name != FAILURE_RATE and not row.informs
        ]

    @property
    def unclear(self) -> list[ProofRow]:
        """What must be shown, and is not."""
        failing_rows = [self.primary] if self.primary.outcome != "better" else []
        must = [row for row in self.rows if row.decides and row is not self.primary]
        return [*failing_rows, *(row for row in must if row.outcome == "unclear")]

    @property
    def verdict(self) -> Verdict:
        """What the figures come to; what is certain goes before what is open."""
        primary = self.primary
        if not primary.before or (primary.high >= 0 and primary.low > -primary.margin):
            return "not repaired"
        if self.worse:
            return "regressed elsewhere"
        return "inconclusive" if self.unclear else "repaired"

    @property
    def needed(self) -> ImagesNeeded | None:
        """How many images would decide all that is open; None where nothing is."""
        open_rows = [row for row in self.unclear if row.needed is not None]
        if not open_rows:
            return None
        most = max(open_rows, key=lambda row: row.needed or 0)
        return ImagesNeeded(most.needed or 0, any(row.at_least for row in open_rows))

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not *repaired*, in words; nothing where it is."""
        verdict = self.verdict
        if verdict == "not repaired":
            return [self._not_lower]
        if verdict == "regressed elsewhere":
            return [
                f"{row.name} is worse by more than {100 * row.margin:.1f} pp: {row.in_points()}"
                for row in self.worse
            ]
        return [self._open(row) for row in self.unclear]

    @property
    def _not_lower(self) -> str:
        """Why the failure rate is not lower, in words."""
        primary = self.primary
        if not primary.before:
            return f"there is nothing to repair: no sample of {self.images:,} images failed before"
        if primary.low > 0:
            return f"the failure rate is higher: {primary.in_points()}"
        most = -100 * primary.low
        return f"the failure rate fell by no more than {most:.1f} pp: {primary.in_points()}"

    def _open(self, row: ProofRow) -> str:
        """What is not shown of a figure, and how many images would show it."""
        wanted = "lower"
        if row is not self.primary:
            wanted = f"at most {100 * row.margin:.1f} pp higher"
        sentence = f"{row.name} is not shown to be {wanted}: {row.in_points()}"
        if row.needed is None:
            return sentence
        return f"{sentence}; {ImagesNeeded(row.needed, row.at_least)} would tell"

    @property
    def bound(self) -> str:
        """The result of the attack, in words; empty without an attack."""
        if not self.attacked:
            return ""
        row = self.row("worst case")
        more = "a longer attack still finds more"
        if self.added and max(self.added.values()) <= SHIFTED:
            more = "an attack half as long finds hardly less"
        return (
            f"worst case: at least {row.before:.0%} before, {row.after:.0%} after, of"
            f" {self.attacked} images; {more}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return what repair.json keeps."""
        return {
            "verdict": self.verdict,
            "reasons": self.reasons,
            "images": self.images,
            "bound": self.bound,
            "needed": None if self.needed is None else str(self.needed),
            "attacked": self.attacked,
            "attack_added": dict(self.added),
            "least_scale": {name: list(pair) for name, pair in self.least.items()},
            "rows": [{**asdict(row), "outcome": row.outcome} for row in self.rows],
        }


# --- margins


class ProofMargin(NamedTuple):
    """By how much a figure may be worse.

    Args:
        held: The margin of comparison: the requested margin, or else the planned margin.
        planned: What so many images can show.
    """

    held: float
    planned: float


def shown_margin(before: Shares) -> float:
    """Return the margin within which so many images show that nothing is worse, if nothing is.

    Planned for networks whose figures correlate by `ALIKE` image by image, so that an interval of
    95 % lies below the margin in nine of ten cases; rounded up to a tenth of a point.

    Args:
        before: The figure of every image before the repair.

    Example:
        >>> round(shown_margin(np.array([1.0] * 9 + [0.0] * 494)), 3)
        0.023
    """
    count = max(len(before), 2)
    spread = float(before.std()) * (2 * (1 - ALIKE)) ** 0.5
    margin = CERTAIN * spread / count**0.5 + IMAGINED / count
    return float(max(LEAST_MARGIN, ceil(1000 * margin - 1e-9) / 1000))


@dataclass(frozen=True, slots=True)
class Before:
    """The network before a repair, measured before the training begins.

    Args:
        images: The images of the proof.
        values: What the network does with each.
        margins: By how much each figure may be worse, by name; data of other origin by its name.
            A part, such as a class, has the margin of the figure that it belongs to.
    """

    images: Images
    values: ProofValues
    margins: Mapping[str, ProofMargin]

    def __str__(self) -> str:
        """What the images can show, in words."""
        shown = [
            f"{name} at most {100 * margin.held:.1f} pp higher"
            for name, margin in self.margins.items()
            if name != FAILURE_RATE
        ]
        return f"{len(self.images):,} images prove the repair. They can show: {', '.join(shown)}"


def measure_before(
    model: Model,
    images: ImageSet,
    box: ConditionBox,
    size: ProofSize,
    *,
    margin: float | None,
    seed: int,
    outside: Mapping[str, Images] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Before:
    """Measure the network before a repair, and say which margins the images can show.

    Args:
        model: The network before.
        images: Images that no training and no search saw.
        box: The declared conditions.
        size: The size of the proof.
        margin: By how much no figure may be worse; None: what this number of images can show.
        seed: Everything random follows from it and from the names of the images.
        outside: Images of other origin, by name.
        log: Called with the forecast time, and with what the images can show.
    """
    most = max(1, HELD // prod(images.shape))
    sample = images.sample(count=min(size.images, most, len(images)), seed=seed).images()
    queries = len(sample) * proof_queries(box, size)
    seconds = queries * seconds_per_query(model, sample, box, seed=seed)
    log(
        f"proof: {len(sample):,} images, {queries:,} queries of each network, about"
        f" {duration(seconds)} each, and an attack on both"
    )
    values = measure_values(model, sample, box, size, seed=seed, outside=outside)
    figures = {FAILURE_RATE: values.risk, UNMODIFIED: values.clean, **values.outside}
    if values.untrained is not None:
        figures[UNTRAINED] = values.untrained
    margins = dict[str, ProofMargin]()
    for name, figure in figures.items():
        planned = shown_margin(figure)
        margins[name] = ProofMargin(planned if margin is None else margin, planned)
    before = Before(sample, values, margins)
    log(str(before))
    return before


# --- before and after


def prove(
    before: Before,
    networks: tuple[Model, Model],
    box: ConditionBox,
    size: ProofSize,
    *,
    seed: int,
    outside: Mapping[str, Images] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Compare a network before and after its repair.

    Args:
        before: The network before, measured on the images of the proof.
        networks: The networks before and after.
        box: The declared conditions.
        size: The size of the proof.
        seed: Everything random follows from it and from the names of the images.
        outside: Images of other origin, by name.
        log: Called with a line per step.
    """
    images = before.images
    log(f"proof: measuring the repaired network on the same {len(images):,} images")
    after = measure_values(networks[1], images, box, size, seed=seed, outside=outside)
    rows = compare_values(before.values, after, images.classes, before.margins)
    attacked = images.first(min(size.attack.images, len(images)))
    log(f"proof: attacking both networks on {len(attacked)} of them")
    proof = Proof(tuple(rows), len(images))
    return _attacked(proof, networks, attacked, box, size.attack, seed, log)


def _attacked(
    proof: Proof,
    networks: tuple[Model, Model],
    images: Images,
    box: ConditionBox,
    size: AttackSize,
    seed: int,
    log: Callable[[str], None],
) -> Proof:
    """The proof with what the same attack finds in both networks."""
    named = dict(zip(("before", "after"), networks))
    attacks = attack_all(named, images, box, size, seed=seed, log=log)
    least = {name: attack.least.double().clamp_max(1) for name, attack in attacks.items()}
    rows = tuple(
        _row("attack", name, figure["before"], figure["after"], ProofMargin(1.0, 1.0))
        for name, figure in (
            (
                "worst case",
                {name: attack.failing.double().numpy() for name, attack in attacks.items()},
            ),
            ("1 - least scale", {name: (1 - attack).numpy() for name, attack in least.items()}),
        )
    )
    # the lower tenth and the median; 1 stands for images that nothing in the box breaks
    quantiles = {
        name: (float(attack.quantile(0.1)), float(attack.quantile(0.5)))
        for name, attack in least.items()
    }
    return replace(
        proof,
        rows=(*proof.rows, *rows),
        attacked=len(images),
        added={name: attack.added for name, attack in attacks.items()},
        least=quantiles,
    )


def compare_values(
    before: ProofValues,
    after: ProofValues,
    classes: Sequence[str],
    margins: Mapping[str, ProofMargin],
) -> list[ProofRow]:
    """Compare what two networks do with the same images, figure by figure.

    Single conditions, families and classes are many, so their intervals hold together (Bonferroni);
    each has the margin of the figure that it is a part of.
    """
    units = before.image
    fall = WORTHWHILE * float(before.risk.mean())
    least = ProofMargin(fall, fall)
    rows = [
        _row(
            *("declared", FAILURE_RATE, before.risk, after.risk, least),
            decides=True,
            limit=0.0,
            clusters=units,
        ),
        _row(
            *("declared", UNMODIFIED, before.clean, after.clean, margins[UNMODIFIED]),
            decides=True,
            clusters=units,
        ),
    ]
    change, two = before.untrained, after.untrained
    if change is not None and two is not None:
        how: dict[str, Any] = {"decides": True, "clusters": units}
        rows.append(_row("elsewhere", UNTRAINED, change, two, margins[UNTRAINED], **how))
    for name, share in before.outside.items():
        rows.append(_row("outside", name, share, after.outside[name], margins[name], decides=True))
    parts = _parts(before, after, classes, margins)
    level = 1 - 0.05 / max(len(parts), 1)
    return rows + [_row(*change, level=level, clusters=within) for change, within in parts]


Part = tuple[tuple[str, str, Shares, Shares, ProofMargin], tuple[str, ...]]
"""Group, name, both networks' figures and the margin; and the images of claims."""


def _parts(
    before: ProofValues,
    after: ProofValues,
    classes: Sequence[str],
    margins: Mapping[str, ProofMargin],
) -> list[Part]:
    """Figures of which each decides only where it is certainly worse."""
    units = before.image
    parts = list[Part]()
    for name, share in before.conditions.items():
        parts.append(
            (("condition", name, share, after.conditions[name], margins[FAILURE_RATE]), units)
        )
    for name, share in before.elsewhere.items():
        parts.append((("elsewhere", name, share, after.elsewhere[name], margins[UNTRAINED]), units))
    for name, share in before.corruptions.items():
        title = f"{name} corruptions"
        parts.append(
            (("elsewhere", title, share, after.corruptions[name], margins[UNTRAINED]), units)
        )
    for label in np.unique(before.label):
        of_label = before.label == label
        within = tuple(np.asarray(units)[of_label].tolist()) if units else ()
        for name, first, second, margin in (
            ("error", before.clean, after.clean, margins[UNMODIFIED]),
            (FAILURE_RATE, before.risk, after.risk, margins[FAILURE_RATE]),
        ):
            title = f"{classes[label]}: {name}"
            parts.append((("class", title, first[of_label], second[of_label], margin), within))
    return parts


def _row(
    group: str,
    name: str,
    before: Shares,
    after: Shares,
    margin: ProofMargin,
    *,
    decides: bool = False,
    level: float = 0.95,
    limit: float | None = None,
    clusters: tuple[str, ...] = (),
) -> ProofRow:
    """A figure with the interval of its change, and how many images would decide it."""
    change = after - before
    low, high = bounded_mean_interval(change, -1.0, 1.0, level=level, clusters=clusters)
    means = (float(before.mean()), float(after.mean()))
    row = ProofRow(
        *(group, name, *means, low, high, len(before)),
        margin=margin.held,
        decides=decides,
        planned=margin.planned,
    )
    if not decides:
        return row
    aim = margin.held if limit is None else limit
    if high <= aim or low > aim:
        return row
    needed = images_to_decide(change, aim, -1.0, 1.0)
    return replace(row, needed=needed.count, at_least=needed.at_least)
