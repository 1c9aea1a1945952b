"""Class escape: which classes border on which, as the subject sees them.

Kang, Feldt and Yoo (TOSEM 2023, RQ3) count how often a genetic search from images of one class reaches another. Ours needs a
tenth of the queries for all classes together: random walks leave a seed's class, are halved to the border, and what counts is
the class they enter there. In a network trained on mixed labels the second most likely class is the same all over a class, so
the walks enter it all around.

Axes: `k` classes of the data, `w` outputs of the network, of which the first `k` are those classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign.in_memory import search, walk
from hardcase.models.health import probabilities, usable
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.boundary import BoundaryWalks, Partners, lengths
from hardcase.statistics import Rate
from hardcase.suite.tables import Cell, Outcome
from hardcase.tensors import chunks, to_bytes
from hardcase.types import OFFERS, Budget, ClassNames, Images, Method, Model, Space, State
from hardcase_studies import figures
from hardcase_studies.bench import table_of

SHARD = 64


@dataclass(frozen=True, slots=True)
class Escapes:
    """`attempts` from each class, and how many of them ended in each output."""

    attempts: Int[Tensor, " k"]
    entered: Int[Tensor, "k w"]
    queries: int
    seeds: int

    @property
    def rate(self) -> Float[Tensor, "k w"]:
        """Share of the attempts from each class (row) that end in each other class (column);
        NaN where none was made.
        """
        rate = self.entered / self.attempts[:, None].where(self.attempts[:, None] > 0, torch.nan)
        return rate.fill_diagonal_(torch.nan)


@dataclass(frozen=True, slots=True)
class Walks:
    """Where every walk started, what it entered (-1: nothing),
    how long it is and the code where it crosses.
    """

    seed: Int[Tensor, " w"]
    entered: Int[Tensor, " w"]
    length: Float[Tensor, " w"]
    code: Float[Tensor, "w *code"]


def ways_out(space: Space, codes: Partners | None, *, walks: int = 10, halvings: int = 6) -> Method:
    """Random walks out of a seed's class; see `BoundaryWalks`."""
    return Method(
        name="exits",
        space=space,
        search=BoundaryWalks(codes=codes, walks=walks, halvings=halvings),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


def measure(
    subject: Model, method: Method, images: Images, *, seed: int = 0
) -> tuple[Escapes, Walks, Images]:
    """Walks from all usable `images`, counted by class; also the walks themselves and the seeds
    they started from.
    """
    seeds = usable(subject, images)
    kinds = len(images.classes)
    parts = [_nowhere()]
    spent = 0
    for rows in chunks(len(seeds), SHARD):
        some = seeds.take(torch.arange(len(seeds))[rows])
        state, queries = walk(subject, method, some, seed=seed)
        parts.append(_walks(state, rows.start))
        spent += int(queries.sum())
    parts[0] = replace(parts[0], code=parts[-1].code[:0])
    joined = Walks(
        *(torch.cat([getattr(p, name) for p in parts]) for name in Walks.__dataclass_fields__)
    )
    out = joined.entered >= 0
    own = seeds.y[joined.seed]
    entered = _counted(own[out], joined.entered[out], kinds)
    return Escapes(own[out].bincount(minlength=kinds), entered, spent, len(seeds)), joined, seeds


def _counted(own: Int[Tensor, " m"], said: Int[Tensor, " m"], kinds: int) -> Int[Tensor, "k w"]:
    """How often rows of each class (row) got each output (column): one for every class,
    and for further outputs seen.
    """
    width = max(kinds, int(said.max()) + 1 if len(said) else 0)
    return (own * width + said).bincount(minlength=kinds * width).reshape(kinds, width)


def _nowhere() -> Walks:
    whole = torch.zeros(0, dtype=torch.int64)
    return Walks(whole, whole, torch.zeros(0), torch.zeros(0, 0))


def _walks(state: State, first: int) -> Walks:
    code = state["seed"][state["row"]] + state["end"][:, None] * state["far"]
    code = code.reshape(-1, *state["shape"].tolist())
    return Walks(
        (state["row"] + first).cpu(), state["entered"].cpu(), lengths(state).cpu(), code.cpu()
    )


def measure_as_published(
    subject: Model,
    method: Callable[[int], Method],
    images: Images,
    *,
    seed: int = 0,
    targets: tuple[int, ...] = (),
) -> Escapes:
    """The paper's count: `method` (``sinvad_code`` with a target) is asked for one class after the
    other; a seed stops there.
    """
    seeds = usable(subject, images)
    kinds = len(images.classes)
    attempts = torch.zeros(kinds, dtype=torch.int64)
    entered = torch.zeros(kinds, kinds, dtype=torch.int64)
    spent = 0
    for target in targets or range(kinds):
        others = seeds.take((seeds.y != target).nonzero().squeeze(1))
        if not len(others):
            continue
        done = search(subject, replace(method(target), until="first"), others, seed=seed)
        entered[:, target] = done.findings.expected.bincount(minlength=kinds)
        attempts = attempts.maximum(others.y[done.attempted].bincount(minlength=kinds))
        spent += int(done.queries.sum())
    return Escapes(attempts, entered, spent, len(seeds))


def confusion(subject: Model, images: Images) -> Int[Tensor, "k w"]:
    """How often images of each class (row) are given to each output (column)."""
    said = probabilities(subject, images.x).argmax(1)
    return _counted(images.y, said, len(images.classes))


def floor(subject: Model, images: Images) -> Float[Tensor, "k w"]:
    """The median probability that images of each class (row) are given for each other output
    (column).

    Few hard images do not move it; mixed labels do: with a share of them mixed, every image gets
    about that probability. NaN where the subject offers labels only, and for classes without
    images.
    """
    kinds = len(images.classes)
    if OFFERS.index(subject.offers) < OFFERS.index("scores"):
        return torch.full((kinds, kinds), torch.nan)
    said = probabilities(subject, images.x)
    middle = torch.full((kinds, said.shape[1]), torch.nan)
    for c in set(images.y.tolist()):
        middle[c] = said[images.y == c].median(0).values
    return middle.fill_diagonal_(torch.nan)


CLEAN = 10
"""Clean retrainings from which on ways out alone can make a pair suspicious."""
LEVEL = 0.1
"""With ten clean retrainings no p-value is below 1 in 11."""
MEDIAN = "median probability"
WALKS = "ways out"
"""The two kinds of evidence against a pair: on test images, and against clean retrainings."""
EXAMPLES = 8
LEAST = 0.005
TIMES = 4.0
UNSURE = 0.02
"""A pair is suspicious where half the images of one class get `LEAST` or more for the other,
`TIMES` as much as nine tenths of all pairs; where already nine tenths of all pairs get `UNSURE`,
the network is unsure of everything.
"""


@dataclass(frozen=True, slots=True)
class Escaped:
    """All that was measured of one network. `floor` is NaN where the subject gives no scores.

    `null` are the rates of networks retrained on clean labels, walked from the same images.
    """

    classes: ClassNames
    escapes: Escapes
    walks: Walks
    seeds: Images
    confusion: Int[Tensor, "k w"]
    floor: Float[Tensor, "k w"]
    null: tuple[Tensor, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether there is anything that could make a pair suspicious."""
        return bool(self.floor.isfinite().any()) or len(self.null) >= CLEAN

    @staticmethod
    def of(
        measured: tuple[Escapes, Walks, Images],
        confused: Int[Tensor, "k a"],
        floor: Float[Tensor, "k b"],
        null: Sequence[Escapes] = (),
    ) -> Escaped:
        """What `measure`, `confusion` and `floor` gave, as matrices of equal width."""
        escapes, walks, seeds = measured
        width = max(escapes.entered.shape[1], confused.shape[1], floor.shape[1])
        return Escaped(
            ClassNames(seeds.classes),
            replace(escapes, entered=_widened(escapes.entered, width, 0)),
            walks,
            seeds,
            _widened(confused, width, 0),
            _widened(floor, width, torch.nan),
            tuple(clean.rate for clean in null),
        )

    @property
    def shown(self) -> list[int]:
        """The columns worth drawing: the data's classes, and other outputs that were given or
        entered.
        """
        kinds = len(self.classes)
        met = (self.escapes.entered.sum(0) + self.confusion.sum(0)).nonzero().squeeze(1).tolist()
        return [*range(kinds), *(output for output in met if output >= kinds)]


def _widened(matrix: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, width - matrix.shape[1]), value=value)


@dataclass(frozen=True, slots=True)
class Pair:
    """A border between two classes, seen from the first.

    `p` is the share of clean retrainings whose most unusual pair is as unusual, None without a null
    distribution. `evidence` names each kind of evidence that makes the pair suspicious; it is None
    where neither kind was measured.
    """

    source: int
    goal: int
    entered: int
    walks: int
    floor: float
    confused: int
    images: int
    evidence: frozenset[str] | None
    p: float | None = None

    @property
    def suspicious(self) -> bool | None:
        """Whether any kind of evidence speaks against the pair; None where none was measured."""
        return None if self.evidence is None else bool(self.evidence)

    @property
    def rate(self) -> float:
        return self.entered / max(self.walks, 1)


def unusual(
    rate: Float[Tensor, "k w"], null: Sequence[Float[Tensor, "k v"]]
) -> Float[Tensor, "k w"]:
    """For each pair, the share of clean retrainings whose most unusual pair is as unusual.

    A pair's excess is its rate minus the mean of the clean ones; a clean retraining is compared
    with the other clean ones. Taking each one's largest excess corrects for the number of pairs.
    """
    width = rate.shape[1]
    clean = torch.stack([_widened(one, width, 0.0)[:, :width] for one in null]).nan_to_num(0.0)
    excess = rate.nan_to_num(0.0) - clean.mean(0)
    others = (clean.sum(0) - clean) / max(len(clean) - 1, 1)
    largest = (clean - others).flatten(1).amax(1)
    beaten = (largest[:, None, None] >= excess).sum(0)
    return (1 + beaten) / (1 + len(clean))


def usual_floor(floor: Float[Tensor, "k w"]) -> float:
    """What nine tenths of all pairs stay below."""
    known = floor[floor.isfinite()]
    return float(known.quantile(0.9)) if len(known) else float("nan")


def pairs(told: Escaped) -> list[Pair]:
    """All pairs: suspicious ones first, by their floor, then by how many ways out lead there."""
    limit = max(LEAST, TIMES * usual_floor(told.floor))
    p = unusual(told.escapes.rate, told.null) if len(told.null) >= CLEAN else None

    def evidence(a: int, b: int) -> frozenset[str] | None:
        # clean retrainings add evidence: they never take away what test images show by themselves
        floor = float(told.floor[a, b])
        if p is None and math.isnan(floor):
            return None
        kinds = {MEDIAN} if floor >= limit else set()
        if p is not None and float(p[a, b]) <= LEVEL:
            kinds.add(WALKS)
        return frozenset(kinds)

    rows = [
        Pair(
            a,
            b,
            int(told.escapes.entered[a, b]),
            int(told.escapes.attempts[a]),
            float(told.floor[a, b]),
            int(told.confusion[a, b]),
            int(told.confusion[a].sum()),
            evidence(a, b),
            None if p is None else float(p[a, b]),
        )
        for a in told.escapes.attempts.nonzero().squeeze(1).tolist()
        for b in range(told.floor.shape[1])
        if a != b
    ]

    def order(pair: Pair) -> tuple[bool, float, float]:
        known = 0.0
        if pair.suspicious and not math.isnan(pair.floor):
            known = pair.floor
        return not pair.suspicious, -known, -pair.rate

    return sorted(rows, key=order)


def answer(told: Escaped, ranked: Sequence[Pair]) -> str:
    """Plain sentences."""
    odd = [pair for pair in ranked if pair.suspicious]
    usual = usual_floor(told.floor)
    most = ", ".join(f"{_named(p, told.classes)} ({p.rate:.0%})" for p in ranked[:3])
    if not told.measured:
        return (
            "Not measured: whether a class pair looks mislabelled. The model gives labels only, and"
            f" ways out are compared with no network trained on clean labels; --clean takes {CLEAN}"
            f" or more. Most ways out of a class lead from {most}."
        )
    by_median = _by_median([pair for pair in odd if MEDIAN in (pair.evidence or ())], told.classes)
    if len(told.null) >= CLEAN:
        return f"{by_median}{_against_clean(told, odd, most)}"
    if by_median:
        return f"{by_median}{FLOOR_ONLY}"
    if usual >= UNSURE:
        return (
            "The model is unsure between many classes (under-trained?). Most ways out lead from"
            f" {most}."
        )
    return (
        "No class pair looks mislabelled by the median probability on test images. Most ways out of"
        f" a class lead from {most}. {FLOOR_ONLY}"
    )


FLOOR_ONLY = (
    "This is read from test images, not from the search; whether clean retrainings look the same"
    " was not measured."
)


def _by_median(odd: Sequence[Pair], classes: ClassNames) -> str:
    """What test images show without a search; nothing where they show no pair."""
    if not odd:
        return ""
    named = ", ".join(
        f"{_named(pair, classes)} ({pair.floor:.1%} on half of the images, {pair.rate:.0%} of the"
        " ways out)"
        for pair in odd[:10]
    )
    return (
        f"These class pairs look mislabelled or under-trained: {named}. The model keeps the"
        " second class in mind for nearly every image of the first, which hard images alone do"
        " not explain; look at the training labels of both. "
    )


def _against_clean(told: Escaped, odd: Sequence[Pair], most: str) -> str:
    """What the ways out show beside those of networks trained on clean labels."""
    clean = len(told.null)
    walked = [pair for pair in odd if WALKS in (pair.evidence or ())]
    if not walked:
        return (
            f"No class pair has more ways out than {clean} networks trained on clean labels would"
            f" explain. Most lead from {most}."
        )
    named = ", ".join(
        f"{_named(pair, told.classes)} ({pair.rate:.0%} of the ways out, p {pair.p:.2f})"
        for pair in walked[:10]
    )
    return (
        f"These class pairs have more ways out than {clean} networks trained on clean labels:"
        f" {named}. Look at the training labels of both."
    )


def word(suspicious: bool | None) -> str:
    """How a verdict is told."""
    if suspicious is None:
        return "not measured"
    return "yes" if suspicious else "no"


def outcome(told: Escaped, paint: Callable[[Tensor], Tensor], folder: Path) -> Outcome:
    """Tables and figures; `paint` turns codes into images."""
    ranked = pairs(told)
    escapes = told.escapes
    share = told.confusion / told.confusion.sum(1, keepdim=True).clamp_min(1)
    drawn = {
        "ways out that enter, %": escapes.rate[:, told.shown],
        "test images given to, %": share[:, told.shown],
    }
    columns = [told.classes[output] for output in told.shown]
    shown = [
        figures.matrices(folder / "escape.png", drawn, told.classes, columns),
        _examples(told, ranked, paint, folder / "examples.png"),
    ]
    notes = [
        answer(told, ranked),
        (
            f"{escapes.seeds} seeds, {int(escapes.attempts.sum())} walks that left their class,"
            f" {escapes.queries / max(escapes.seeds, 1):.0f} queries per seed for all classes"
            " together"
        ),
        (
            "ways out: of all random walks out of the first class, those that enter the second"
            " where they cross the border"
        ),
        (
            "median probability: half of the first class's test images get at least this for the"
            f" second, no search involved; usual here: {usual_floor(told.floor):.2g}"
        ),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "from": told.classes[p.source],
            "to": told.classes[p.goal],
            WALKS: p.rate,
            "95 % interval": _interval(p),
            MEDIAN: p.floor if p.floor == p.floor else "not measured",
            "confused in the test set": f"{p.confused} of {p.images}",
            "suspicious": word(p.suspicious),
        }
        for p in ranked[:15]
    ]
    table = table_of("Class pairs, suspicious ones first", rows, notes)
    return Outcome("class escape", [table], shown)


def as_json(told: Escaped) -> dict[str, Any]:
    """Every number, for scripts."""
    ranked = pairs(told)
    return {
        "classes": list(told.classes),
        "answer": answer(told, ranked),
        "seeds": told.escapes.seeds,
        "queries": told.escapes.queries,
        "walks": told.escapes.attempts.tolist(),
        "escape": _plain(told.escapes.rate),
        "floor": _plain(told.floor),
        "confusion": told.confusion.tolist(),
        "suspicious": [
            {
                "from": told.classes[p.source],
                "to": told.classes[p.goal],
                "rate": p.rate,
                "interval": list(_bounds(p)),
                "floor": p.floor,
                "p": p.p,
                "evidence": sorted(p.evidence or ()),
                "confused": p.confused,
                "images": p.images,
            }
            for p in ranked
            if p.suspicious
        ],
    }


def _named(pair: Pair, classes: ClassNames) -> str:
    return classes.pair(pair.source, pair.goal)


def _bounds(pair: Pair) -> tuple[float, float]:
    rate = Rate(pair.entered, pair.walks)
    return rate.low, rate.high


def _interval(pair: Pair) -> str:
    low, high = _bounds(pair)
    return f"{low:.3f} to {high:.3f} of {pair.walks}"


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[value if value == value else None for value in row] for row in matrix.tolist()]


def _examples(
    told: Escaped, ranked: Sequence[Pair], paint: Callable[[Tensor], Tensor], path: Path
) -> str:
    """For the four first pairs the shortest ways across: the seed above,
    the image on the border below.
    """
    own = told.seeds.y[told.walks.seed]
    rows = dict[str, Tensor]()
    for pair in ranked[:4]:
        of = ((own == pair.source) & (told.walks.entered == pair.goal)).nonzero().squeeze(1)
        near = _one_each(of[told.walks.length[of].argsort(stable=True)], told.walks.seed)[:EXAMPLES]
        if len(near):
            rows[f"seeds, {_named(pair, told.classes)}"] = told.seeds.x[told.walks.seed[near]]
            rows[_named(pair, told.classes)] = to_bytes(paint(told.walks.code[near]))
    return figures.images(path, rows or {"nothing crossed": told.seeds.x[:1]})


def _one_each(rows: Int[Tensor, " w"], seed: Int[Tensor, " v"]) -> Int[Tensor, " x"]:
    """The first of `rows` for every seed, in their order."""
    first = {int(seed[row]): row for row in reversed(rows.tolist())}
    return rows[[row in first.values() for row in rows.tolist()]]
