"""Do the conditions that a field's images tell hold, and the accuracy that is expected there?

``hardcase reproduce field``. What is decided before any trial runs stands here.

**The world.** Half of the training images train the network and the readout of the fit; the fields are made of the other half, so
nobody has seen them; the labelled images are the test images. A field has `FIELD` images. Its true accuracy is that of the network on
`TRUTHS` renderings of each image that fields are made of, under the field's conditions and classes.

**Trials.** Two of eight are nulls: other images as they are, and another mix of classes alone. The others have one to three hidden
conditions, scaled until the accuracy falls by 2 to 20 points. Every other one is rendered by a program that shares no code with ours
(Pillow's and SciPy's resampling, blur, noise). One of four is a mixture: two of five images stay as they are. One of four lets the
conditions go together. The trial is the unit. Trials follow from their number, so that 40 are the first 40 of 200.

Numbers begin at `FIRST`: seven trials, 0 to 6, showed that whatever a fit moved it also blurred, since it read images bilinearly, so that
a field which somebody else's program had turned was not explained by turning. That was mended, and these trials count nowhere.

**Widths.** The width of a condition is the root mean square of the change. It is recovered where the fitted one lies within a quarter
of it. Conditions whose width lies below what the fit says it can show do not count. A planted condition that was not found counts as
not recovered, whatever was found in its place.

**Real shifts** are exploratory: their labels were known when this was written.

What fitted conditions are good for, an order of networks and a repair, is in `field_uses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import process_time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from hardcase.conditions.declared import Conditions
from hardcase.conditions.fitting.accuracy import logits_of
from hardcase.conditions.fitting.coordinates import FIGURES, Spread
from hardcase.conditions.fitting.evidence import width
from hardcase.conditions.fitting.fit import fitted, prepared
from hardcase.conditions.fitting.render import Candidate, Renderer
from hardcase.corruptions import corrupt
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.randomness import keys_of
from hardcase.statistics import mean_interval, wilson_interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes, to_bytes, to_grid
from hardcase.types import Images
from hardcase_studies import field_uses as uses
from hardcase_studies.bench import Bench
from hardcase_studies.decides import _centred, optdigits, printed

FIELD = 1_000
"""Images of a field."""
TRUTHS = 5
"""Renderings of each of the 2,000 images that fields are made of: 10,000 labels of a truth."""
FIRST = 1_000
"""Number of the first trial."""
ENOUGH = 200
"""Trials from which on a goal is reached or missed; with fewer it is inconclusive, or missed."""
WITHIN = 0.25
DROPS = (0.02, 0.20)
LABELS = 100
"""Labels of the field that one baseline is given."""
UNSEEN = (
    *("fog", "snow", "contrast", "zoom_blur", "pixelate", "jpeg_compression", "motion_blur"),
    "speckle_noise",
)
"""Corruptions that neither the coordinates nor the synthetic fields have."""
REAL = 3
"""Fields of images that others have made: USPS, optdigits, printed digits."""
SEVERITY = 3.0
OURS = tuple(FIGURES)
THEIRS = ("rotation", "scale", "shift", "shear", "fading", "defocus", "resolution", "noise")
"""Conditions that the independent program can do."""
ESTIMATES = ("unmodified", "confidence", "atc", "doc", "fitted", "scanner", "labels")
"""Estimates of the accuracy that a trial keeps beside the expected one."""
HEAD = ("kind", "truth", "value", "low", "high", "refused", "unexplained", "seconds", *ESTIMATES)
EACH = ("planted", "found", "low", "high", "detectable")
"""What is kept of every condition, 0 where it was not planted, or not found."""


Work = dict[str, Callable[[], list[float]]]
"""What is measured, by name."""
SIZES = ("trials", "shifts", "networks", "repairs", "part", "usps")
"""Options that only say which of it."""


# Hidden conditions, and two programs that render them.


@dataclass(frozen=True, slots=True)
class Hidden:
    """What happened to the images of a field.

    Args:
        candidate: The conditions.
        share: The share of images that have them.
        independent: Whether the independent program renders them.
        classes: The share of each class.
        conditions: Whether there are any: a null has none.
    """

    candidate: Candidate
    share: float = 1.0
    independent: bool = False
    classes: tuple[float, ...] = (0.1,) * 10
    conditions: bool = True

    def scaled(self, factor: float) -> Hidden:
        """Return the same with every width so many times as large."""
        spreads = dict[str, Spread]()
        for name, spread in self.candidate.spreads.items():
            centre, deviation = spread.in_sizes(FIGURES[name])
            spreads[name] = Spread.of(
                FIGURES[name], centre * factor, deviation * factor, spread.even
            )
        candidate = Candidate(spreads, self.candidate.together)
        return Hidden(candidate, self.share, self.independent, self.classes)

    def widths(self) -> dict[str, float]:
        """Return the root mean square of every change, in its unit."""
        found = dict[str, float]()
        for name, spread in self.candidate.spreads.items():
            row = FIGURES[name]
            rms = width(row, *spread.in_sizes(row), spread.even) * abs(row.size)
            found[name] = rms * math.sqrt(self.share)
        return found

    def render(self, images: Images, stream: str) -> Float[Tensor, "n c h w"]:
        """Return the images as they look in the field."""
        if not self.candidate.spreads:
            return from_bytes(images.x)
        renderer = Renderer(images, 7, stream)
        if self.independent:
            values = renderer.values(self.candidate)
            changed = independent_render(images.x, values, int(keys_of((stream,))) % 2**31)
        else:
            changed = renderer(self.candidate)
        chance = np.random.default_rng([int(keys_of((stream,))) % 2**31, 1])
        same = torch.from_numpy(chance.random(len(images)) >= self.share)
        return torch.where(same[:, None, None, None], from_bytes(images.x), changed)


def hidden(number: int) -> Hidden:
    """Return what happens in a trial, before its widths are scaled."""
    chance = np.random.default_rng([48, number])
    kind = number % 8
    if kind == 0:
        return Hidden(Candidate(), conditions=False)
    if kind == 1:
        return Hidden(
            Candidate(), classes=tuple(chance.dirichlet(np.full(10, 3.0))), conditions=False
        )
    independent = number % 2 == 0
    known = THEIRS if independent else OURS
    names = chance.choice(known, int(chance.integers(1, 4)), replace=False).tolist()
    spreads = dict[str, Spread]()
    for name in names:
        row = FIGURES[name]
        size = float(chance.uniform(0.5, 1.0))
        # a side that is not neutral: from nothing to so much, as often as each other
        centre = size if row.one_sided else 0.0
        spreads[name] = Spread.of(
            row, centre, size / (math.sqrt(3) if row.one_sided else 1), even=True
        )
    plain = [name for name in names if not FIGURES[name].centred and name != "bend"]
    together = {(plain[0], plain[1]): 0.8} if kind in (2, 7) and len(plain) > 1 else {}
    share = 0.6 if kind in (3, 6) else 1.0
    return Hidden(Candidate(spreads, together), share, independent)


def independent_render(
    x: UInt8[Tensor, "n 1 h w"], values: Mapping[str, Float[Tensor, " n"]], seed: int
) -> Float[Tensor, "n 1 h w"]:
    """Return digits under conditions, by Pillow and SciPy alone.

    Args:
        x: Light figures on a dark ground.
        values: The value of every condition, in its unit, image by image.
        seed: What noise and the direction of a shift follow from.
    """
    chance = np.random.default_rng(seed)
    given = {name: value.double().numpy() for name, value in values.items()}
    found = []
    for i, image in enumerate(x[:, 0].numpy()):
        found.append(_one(image, {name: float(value[i]) for name, value in given.items()}, chance))
    return torch.from_numpy(np.stack(found)).float()[:, None] / 255


def _one(
    image: NDArray[np.uint8], given: Mapping[str, float], chance: np.random.Generator
) -> NDArray[np.uint8]:
    side = image.shape[0]
    picture = Image.fromarray(image).convert("F")
    angle = math.radians(given.get("rotation", 0.0))
    zoom = 1 + given.get("scale", 0.0) / 100
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    back = np.linalg.inv(turn @ np.array([[1, -given.get("shear", 0.0) / 100], [0, 1]]) * zoom)
    move = np.array([given.get("shift", 0.0), 0.0])
    if "shift" in given:  # each axis has its own value: the second one is drawn here
        move[1] = given["shift"] * (1 if chance.random() < 0.5 else -1)
    middle = side / 2  # where Pillow has the origin of pixels
    offset = middle - back @ (middle + move * side / 100)
    matrix = (*back[0], offset[0], *back[1], offset[1])
    moved = picture.transform(
        (side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC
    )
    pixels = np.asarray(moved, dtype=np.float64)
    pixels = pixels * (1 - given.get("fading", 0.0) / 100)
    if given.get("defocus", 0.0) > 0:  # a Gaussian as wide as an even disc of that radius
        pixels = ndimage.gaussian_filter(pixels, given["defocus"] / 100 * side / 2)
    wider = given.get("resolution", 1.0)
    if wider > 1:
        small = Image.fromarray(pixels.astype(np.float32)).resize(
            (round(side / wider),) * 2, Image.Resampling.BOX
        )
        pixels = np.asarray(small.resize((side, side), Image.Resampling.BILINEAR), dtype=np.float64)
    level = given.get("noise", 0.0) * np.sqrt(0.4 + 0.6 * pixels.clip(0, 255) / 255)
    pixels = pixels + level * chance.standard_normal(pixels.shape)
    bytes_: NDArray[np.uint8] = np.rint(pixels.clip(0, 255)).astype(np.uint8)
    return bytes_


# A trial.


def scanner() -> Candidate:
    """Return the `scanner` profile as a candidate."""
    return Candidate(
        {
            name: Spread((one.low + one.high) / 2, (one.high - one.low) / math.sqrt(12), even=True)
            for name, one in Conditions.load("scanner").ranges.items()
        }
    )


@dataclass(frozen=True)
class World:
    """A network, the labelled images, and the images that fields are made of."""

    bench: Bench

    @cached_property
    def train(self) -> Images:
        whole = load(self.bench.data, split="train")
        return whole.take(torch.arange(0, len(whole), 2))

    @cached_property
    def others(self) -> Images:
        whole = load(self.bench.data, split="train")
        return whole.take(torch.arange(1, len(whole), 2))

    @cached_property
    def labelled(self) -> Images:
        return load(self.bench.data, split="test")

    @cached_property
    def model(self) -> Subject:
        net, _ = trained_classifier("lenet5", self.train, self.labelled)
        return Subject(net, classes=self.labelled.classes, name="lenet5 of half")

    @cached_property
    def logits(self) -> Float[Tensor, "n k"]:
        return logits_of(self.model, from_bytes(self.labelled.x))

    @cached_property
    def scanner(self) -> float:
        """The accuracy under the `scanner` profile, which knows nothing of the field."""
        return self.accuracy(Renderer(self.labelled, 3)(scanner()), self.labelled.y)

    def accuracy(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"]) -> float:
        """Return the share of images that the network reads."""
        return float((logits_of(self.model, x).argmax(1) == y).double().mean())

    def truth(self, what: Hidden, renderings: int = TRUTHS) -> float:
        """Return the accuracy in a field of very many images."""
        right = list[Tensor]()
        for number in range(renderings):
            x = what.render(self.others, f"truth {number}")
            right.append(logits_of(self.model, x).argmax(1) == self.others.y)
        each = torch.stack(right).double().mean(0)
        shares = [float(each[self.others.y == k].mean()) for k in range(10)]
        return float(np.dot(what.classes, shares))

    def settled(self, number: int) -> Hidden:
        """Return what happens in a trial, at widths that cost 2 to 20 points."""
        what = hidden(number)
        if not what.conditions:
            return what
        clean = self.truth(Hidden(Candidate(), classes=what.classes), 1)
        wanted = float(np.random.default_rng([49, number]).uniform(*DROPS))
        low, high = 0.1, 2.4
        for _ in range(6):  # by halving, on a logarithmic scale
            middle = math.sqrt(low * high)
            if clean - self.truth(what.scaled(middle), 1) < wanted:
                low = middle
            else:
                high = middle
        return what.scaled(math.sqrt(low * high))

    def field(
        self, what: Hidden, number: int
    ) -> tuple[Float[Tensor, "n c h w"], Int[Tensor, " n"]]:
        """Return the images of a trial's field, and labels that only one baseline sees."""
        chance = np.random.default_rng([50, number])
        weights = np.array(what.classes)[self.others.y.numpy()]
        rows = chance.choice(len(weights), FIELD, replace=False, p=weights / weights.sum())
        images = self.others.take(torch.from_numpy(rows))
        return what.render(images, f"field {number}"), images.y


def trial(world: World, number: int) -> list[float]:
    """Return everything that is kept of a trial: `HEAD`, then `EACH` of every condition."""
    what = world.settled(number)
    x, y = world.field(what, number)
    kind = 0.0 if not what.conditions else 1.0 + what.independent
    return measured(world, x, y, world.truth(what), number, kind, what.widths())


def measured(
    world: World,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    truth: float,
    number: int,
    kind: float = 3.0,
    planted: Mapping[str, float] | None = None,
) -> list[float]:
    """Return what a fit of a field says, beside the truth."""
    began = process_time()
    ready = prepared(world.labelled, to_bytes(x), train=world.train, seed=number)
    found = fitted(ready, model=world.model)
    seconds = process_time() - began
    expected = found.accuracy
    assert expected is not None
    chosen = np.random.default_rng([51, number]).choice(len(x), min(LABELS, len(x)), replace=False)
    known = {
        **expected.to_json(),
        "scanner": world.scanner,
        "labels": world.accuracy(x[chosen], y[chosen]),
    }
    said = [
        math.nan if one is None else one for one in (expected.value, expected.low, expected.high)
    ]
    numbers = [kind, truth, *said, float(bool(expected.refused)), found.unexplained.share, seconds]
    numbers += [float(known[name]) for name in ESTIMATES]
    fits = {one.name: one for one in found.found}
    for name in OURS:
        one = fits.get(name)
        numbers.append((planted or {}).get(name, 0.0))
        numbers += [one.width, one.low, one.high] if one else [0.0, 0.0, 0.0]
        numbers.append(found.smallest.get(name, 0.0))
    return [min(value, 1e9) for value in numbers]


# Real shifts.


def real_shifts(world: World) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    """Return fields whose labels are known, by name; each is made when it is asked for."""
    found: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}
    place = world.bench.options.get("usps")
    if place:
        found["USPS"] = lambda: usps(str(place), "test")
    found["optdigits"] = lambda: _floats(optdigits())
    found["printed"] = lambda: _floats(printed())
    for name in UNSEEN:
        found[name] = lambda name=name: _corrupted(world, name)  # type: ignore[misc]
    return found


def _floats(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return from_bytes(pair[0]), pair[1]


def _corrupted(world: World, name: str) -> tuple[Tensor, Tensor]:
    images = world.others.sample(count=FIELD, seed=0)
    severity = torch.full((len(images),), SEVERITY)
    return to_grid(corrupt(from_bytes(images.x), name, severity, keys_of(images.id))), images.y


def usps(path: str, split: str) -> tuple[Tensor, Tensor]:
    """Return USPS's digits as MNIST shows digits: 20 of 28 pixels, centred by mass."""
    with np.load(path) as arrays:
        x = torch.from_numpy(arrays[f"{split}_images"]).float()[:, None] / 255
        y = torch.from_numpy(arrays[f"{split}_labels"]).long()
    small = functional.interpolate(x, (20, 20), mode="bicubic", antialias=False).clamp(0, 1)
    return from_bytes(to_bytes(_centred(small, 28))), y


# The tables.


@dataclass(frozen=True)
class Trials:
    """Trials as columns."""

    rows: NDArray[np.float64]

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.rows[:, HEAD.index(name)]
        return found

    def each(self, name: str) -> NDArray[np.float64]:
        """One column of `EACH`, a row per trial and a column per condition."""
        found: NDArray[np.float64] = self.rows[:, len(HEAD) + EACH.index(name) :: len(EACH)]
        return found

    def where(self, mask: NDArray[np.bool_]) -> Trials:
        return Trials(self.rows[mask])


def run(bench: Bench) -> Outcome:
    """``--set trials=40`` (200 with ``--full``), ``shifts=["USPS"]`` (all), ``networks=0`` (56), ``repairs=0`` (5); ``usps=FILE.npz``,
    without which nothing is repaired and no order is measured; ``part=3/14``: of several processes that fill one folder, one.
    """
    world = World(bench)
    count = bench.size("trials", 40, 200)
    numbers = range(FIRST, FIRST + count)
    planted: Work = {f"trial {number}": partial(trial, world, number) for number in numbers}
    every: Work = {
        name: partial(_shift, world, make, number)
        for number, (name, make) in enumerate(real_shifts(world).items())
    }
    wanted = bench.names("shifts", tuple(every))
    if unknown := [name for name in wanted if name not in every]:
        raise HardcaseError(f"no images of {unknown[0]} are known.", fix="--set usps=FILE.npz")
    shifts: Work = {name: every[name] for name in wanted}
    orders, repairs = _uses(bench)
    part, parts = map(int, str(bench.options.get("part", "0/1")).split("/"))
    found = dict[str, list[float]]()
    for number, (name, measure) in enumerate({**planted, **shifts, **orders, **repairs}.items()):
        if number % parts == part:
            bench.say(name)
            found[name] = bench.cell(name, measure, but=SIZES)
    if parts > 1:
        raise HardcaseError(
            f"part {part} of {parts} is kept in {bench.out}.", fix="the command without part"
        )
    trials = Trials(np.array([found[name] for name in planted]))
    real = {name: found[name] for name in shifts}
    tables = [goals(trials, real), estimates(trials), real_table(real)]
    further: list[tuple[Table, list[Cell]]] = []
    if orders:
        further.append(uses.order([found[name] for name in orders]))
    if repairs:
        further.append(uses.repair([found[name] for name in repairs]))
    reached = [row for _, row in further]
    tables[0] = with_rows(tables[0], [*reached, *not_run([str(row[0]) for row in reached])])
    return Outcome("conditions from the field", [*tables, *(table for table, _ in further)])


def _uses(bench: Bench) -> tuple[Work, Work]:
    """The networks to be ordered and the repairs, where the digits of USPS are at hand."""
    place = bench.options.get("usps")
    if not place:
        return {}, {}
    digits = usps(str(place), "train"), usps(str(place), "test")
    elsewhere = uses.Elsewhere(bench, digits, scanner())
    networks = range(bench.size("networks", 0, 56))
    trainings = range(bench.size("repairs", 0, uses.SEEDS))
    return (
        {f"network {n}": partial(uses.network, elsewhere, n) for n in networks},
        {f"repair {n}": partial(uses.repaired, elsewhere, n) for n in trainings},
    )


def _shift(world: World, make: Callable[[], tuple[Tensor, Tensor]], number: int) -> list[float]:
    x, y = make()
    truth = world.accuracy(x, y)
    if len(x) > FIELD:
        rows = np.random.default_rng(number).choice(len(x), FIELD, replace=False)
        x, y = x[rows], y[rows]
    return measured(world, x, y, truth, 10_000 + number)


def recovered(trials: Trials) -> tuple[int, int]:
    """Return how many planted widths were recovered, and of how many that could be shown."""
    planted, found, least = (trials.each(name) for name in ("planted", "found", "detectable"))
    counts = (planted > 0) & ((found > 0) | (planted >= least))
    close = np.abs(found - planted) <= WITHIN * planted
    return int((counts & close).sum()), int(counts.sum())


def goals(trials: Trials, shifts: Mapping[str, Sequence[float]]) -> Table:
    """The figures of the study beside their goals."""
    planted = trials.where(trials["kind"] > 0)
    nulls = trials.where(trials["kind"] == 0)
    right, shown = recovered(planted)
    absent = trials.each("planted") == 0
    silent = int((absent & (trials.each("found") == 0)).sum())
    not_there = int(absent.sum())
    claimed = int((nulls.each("found") > 0).any(1).sum())
    said = planted.where(planted["refused"] == 0)
    error = np.abs(said["value"] - said["truth"])
    covered = int(((said["low"] <= said["truth"]) & (said["truth"] <= said["high"])).sum())
    best, name = (
        min((float(np.abs(said[n] - said["truth"]).mean()), n) for n in ESTIMATES)
        if len(said.rows)
        else (0.0, "")
    )
    refused = int(planted["refused"].sum())
    few = len(trials.rows) < ENOUGH
    rows: list[list[Cell]] = [
        [
            "widths within 25 %, of those that can be shown",
            "≥ 80 %",
            _share(right, shown),
            _verdict(right >= 0.8 * shown, few),
        ],
        [
            "coordinates not needed called so",
            "≥ 90 %",
            _share(silent, not_there),
            _verdict(silent >= 0.9 * not_there, few),
        ],
        [
            "nulls in which a condition is claimed",
            "≤ 8 %",
            _share(claimed, len(nulls.rows)),
            _verdict(claimed <= 0.08 * len(nulls.rows), few),
        ],
        [
            "expected accuracy, mean absolute error in points",
            "≤ 1.5",
            _points(error),
            _verdict(bool(error.mean() <= 0.015), few),
        ],
        [
            f"... below the best baseline ({name})",
            "below",
            f"{100 * best:.2f}",
            _verdict(bool(error.mean() < best), few),
        ],
        [
            "its interval covers",
            "≥ .90",
            _share(covered, len(said.rows)),
            _verdict(covered >= 0.9 * len(said.rows), few),
        ],
        [
            "planted fields without an expected accuracy",
            "≤ 25 %",
            _share(refused, len(planted.rows)),
            _verdict(refused <= 0.25 * len(planted.rows), few),
        ],
        [
            "seconds of processor time for 1,000 digits, median",
            "≤ 120",
            f"{np.median(trials['seconds']):.0f}",
            _verdict(bool(np.median(trials["seconds"]) <= 120), False),
        ],
    ]
    rows += (
        [
            [
                "real shifts: below the best baseline without labels, or refused",
                "all, below on two",
                *_against(shifts, REAL + len(UNSEEN)),
            ]
        ]
        if shifts
        else []
    )
    notes = [
        f"{len(trials.rows)} trials: {len(nulls.rows)} nulls, {int((trials['kind'] == 1).sum())} by our renderer, {int((trials['kind'] == 2).sum())} by the independent one",
        f"with fewer than {ENOUGH} trials a goal is inconclusive, or missed",
    ]
    return Table("Goals", ["figure", "goal", "reached", "verdict"], rows, notes)


NOT_RUN = (
    (uses.ORDER, uses.ORDER_GOAL),
    (uses.REPAIR, uses.REPAIR_GOAL),
    ("photographs, planted", "as above"),
    ("agreement on the line", "a baseline"),
)
"""Figures of the study that a run may be without, with their goals."""


def not_run(had: Sequence[str]) -> list[list[Cell]]:
    """Return a row for each figure that a run is without."""
    return [[what, goal, None, "not run"] for what, goal in NOT_RUN if what not in had]


def with_rows(table: Table, rows: Sequence[Sequence[Cell]]) -> Table:
    """Return a table with further rows."""
    return replace(table, rows=[*table.rows, *rows])


def _verdict(holds: bool, few: bool) -> str:
    if not holds:
        return "missed"
    return "inconclusive: too few trials" if few else "reached"


def _share(hits: int, total: int) -> str:
    if not total:
        return "none"
    low, high = wilson_interval(hits, total)
    return f"{hits} of {total} = {100 * hits / total:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _points(error: NDArray[np.float64]) -> str:
    if len(error) < 2:
        return "too few"
    return mean_interval(torch.from_numpy(error)).scaled(100).text(".2f")


def estimates(trials: Trials) -> Table:
    """The error of every estimate of the accuracy, over planted fields."""
    planted = trials.where(trials["kind"] > 0)
    said = planted.where(planted["refused"] == 0)
    rows: list[list[Cell]] = []
    for name in ("value", *ESTIMATES):
        label = "expected accuracy" if name == "value" else name
        everywhere = None if name == "value" else _points(np.abs(planted[name] - planted["truth"]))
        rows.append([label, _points(np.abs(said[name] - said["truth"])), everywhere])
    columns = [
        "estimate",
        "error where one is given, points",
        "error in all planted fields, points",
    ]
    return Table("Mean absolute errors", columns, rows)


def real_table(shifts: Mapping[str, Sequence[float]]) -> Table:
    """Each real shift."""
    rows: list[list[Cell]] = []
    for name, numbers in shifts.items():
        one = Trials(np.array([numbers]))
        value = (
            None
            if one["refused"][0]
            else f"{100 * one['value'][0]:.1f} [{100 * one['low'][0]:.1f}, {100 * one['high'][0]:.1f}]"
        )
        widths = one.each("found")[0]
        told = ", ".join(f"{n} {w:.2g}" for n, w in zip(OURS, widths) if w > 0)
        row: list[Any] = [name, f"{100 * one['truth'][0]:.1f}", value or "refused"]
        row += [f"{100 * one[n][0]:.1f}" for n in ("unmodified", "atc", "doc", "confidence")]
        rows.append([*row, f"{100 * one['unexplained'][0]:.0f} %", told])
    columns = [
        "field",
        "accuracy",
        "expected",
        "unmodified",
        "ATC",
        "DoC",
        "confidence",
        "unexplained",
        "widths found",
    ]
    return Table("Real shifts (exploratory)", columns, rows)


def _against(shifts: Mapping[str, Sequence[float]], every: int) -> tuple[str, str]:
    """How often the expected accuracy is nearer than every baseline without labels, and refused; and the verdict."""
    below = refused = 0
    for numbers in shifts.values():
        one = Trials(np.array([numbers]))
        if one["refused"][0]:
            refused += 1
            continue
        rivals = [
            abs(one[n][0] - one["truth"][0]) for n in ("unmodified", "confidence", "atc", "doc")
        ]
        below += bool(abs(one["value"][0] - one["truth"][0]) < min(rivals))
    count = f"{below} below, {refused} refused, of {len(shifts)}"
    none_worse = below + refused == len(shifts)
    if none_worse and len(shifts) < every:
        return count, "inconclusive: not all were run"
    return count, _verdict(none_worse and below >= 2, False)
