"""Class escape: which classes border on which, as the subject sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.bench import Cell, Outcome, Table
from hardcase.experiments.searching import probabilities, search, usable, walk
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.boundary import Codes, Exits, lengths
from hardcase.statistics import interval
from hardcase.tensors import chunks, to_bytes
from hardcase.types import OFFERS, Budget, Images, Method, Model, Space, State

# --- Class escape: which classes border on which, as the subject sees them.
#
# Kang, Feldt and Yoo (TOSEM 2023, RQ3) count how often a genetic search from images of one class reaches another. Ours
# asks a tenth of the questions for all classes together: random walks leave a seed's class, are halved to the border, and
# what counts is the class they enter there. In a network trained on mixed labels the second most likely class is the
# same all over a class, so the walks enter it all around.

SHARD = 64


@dataclass(frozen=True, slots=True)
class Escapes:
    """`attempts` from each class, and how many of them ended in each other class (n classes by n classes)."""

    attempts: Int[Tensor, " k"]
    entered: Int[Tensor, "k k"]
    queries: int
    seeds: int

    @property
    def rate(self) -> Float[Tensor, "k k"]:
        """Share of the attempts from each class (row) that end in each other class (column); NaN where none was made."""
        rate = self.entered / self.attempts[:, None].where(self.attempts[:, None] > 0, torch.nan)
        return rate.fill_diagonal_(torch.nan)


@dataclass(frozen=True, slots=True)
class Walks:
    """Where every walk started, what it entered (-1: nothing), how long it is and the code where it crosses."""

    seed: Int[Tensor, " w"]
    entered: Int[Tensor, " w"]
    length: Float[Tensor, " w"]
    code: Float[Tensor, "w *code"]


def ways_out(space: Space, codes: Codes | None, *, walks: int = 10, halvings: int = 6) -> Method:
    """Random walks out of a seed's class; see `Exits`."""
    return Method(
        name="exits",
        space=space,
        search=Exits(codes=codes, walks=walks, halvings=halvings),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


def measure(
    subject: Model, method: Method, images: Images, *, seed: int = 0
) -> tuple[Escapes, Walks, Images]:
    """Walks from all usable `images`, counted by class; also the walks themselves and the seeds they started from."""
    seeds, kinds = usable(subject, images), len(images.classes)
    parts, spent = [_nowhere()], 0
    for number, rows in enumerate(chunks(len(seeds), SHARD)):
        some = seeds.take(torch.arange(len(seeds))[rows])
        state, queries = walk(subject, method, some, seed=seed, number=number)
        parts.append(_walks(state, rows.start))
        spent += int(queries.sum())
    parts[0] = replace(parts[0], code=parts[-1].code[:0])
    joined = Walks(
        *(torch.cat([getattr(p, name) for p in parts]) for name in Walks.__dataclass_fields__)
    )
    out = joined.entered >= 0
    own = seeds.y[joined.seed]
    entered = (
        (own[out] * kinds + joined.entered[out])
        .bincount(minlength=kinds * kinds)
        .reshape(kinds, kinds)
    )
    return Escapes(own[out].bincount(minlength=kinds), entered, spent, len(seeds)), joined, seeds


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
    """The paper's count: `method` (``sinvad_paper`` with a target) is asked for one class after the other; a seed stops there."""
    seeds, kinds = usable(subject, images), len(images.classes)
    attempts, entered, spent = (
        torch.zeros(kinds, dtype=torch.int64),
        torch.zeros(kinds, kinds, dtype=torch.int64),
        0,
    )
    for target in targets or range(kinds):
        others = seeds.take((seeds.y != target).nonzero().squeeze(1))
        if not len(others):
            continue
        done = search(subject, replace(method(target), until="first"), others, seed=seed)
        entered[:, target] = done.findings.expected.bincount(minlength=kinds)
        attempts = attempts.maximum(others.y[done.attempted].bincount(minlength=kinds))
        spent += int(done.queries.sum())
    return Escapes(attempts, entered, spent, len(seeds))


def confusion(subject: Model, images: Images) -> Int[Tensor, "k k"]:
    """How often images of each class (row) are given to each class (column)."""
    kinds = len(images.classes)
    said = probabilities(subject, images.x).argmax(1)
    return (images.y * kinds + said).bincount(minlength=kinds * kinds).reshape(kinds, kinds)


def floor(subject: Model, images: Images) -> Float[Tensor, "k k"]:
    """The median probability that images of each class (row) are given for each other class (column).

    Few hard images do not move it; mixed labels do: with a share of them mixed, every image gets about that probability.
    NaN where the subject offers labels only, and for classes without images.
    """
    kinds = len(images.classes)
    middle = torch.full((kinds, kinds), torch.nan)
    if OFFERS.index(subject.offers) < OFFERS.index("scores"):
        return middle
    said = probabilities(subject, images.x)
    for c in set(images.y.tolist()):
        middle[c] = said[images.y == c].median(0).values
    return middle.fill_diagonal_(torch.nan)


# --- What class escapes mean for a user: two matrices, the suspicious pairs in plain words, and examples.

EXAMPLES = 8
LEAST, TIMES, UNSURE = 0.005, 4.0, 0.02
"""A pair is suspicious where half the images of one class get `LEAST` or more for the other, `TIMES` as much as nine tenths
of all pairs; where already nine tenths of all pairs get `UNSURE`, the network is unsure of everything."""


@dataclass(frozen=True, slots=True)
class Escaped:
    """All that was measured of one network. `floor` is NaN where the subject gives no scores."""

    classes: tuple[str, ...]
    escapes: Escapes
    walks: Walks
    seeds: Images
    confusion: Int[Tensor, "k k"]
    floor: Float[Tensor, "k k"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A border between two classes, seen from the first."""

    source: int
    goal: int
    entered: int
    walks: int
    floor: float
    confused: int
    images: int
    suspicious: bool

    @property
    def rate(self) -> float:
        return self.entered / max(self.walks, 1)


def usual_floor(floor: Float[Tensor, "k k"]) -> float:
    """What nine tenths of all pairs stay below."""
    known = floor[floor.isfinite()]
    return float(known.quantile(0.9)) if len(known) else float("nan")


def pairs(told: Escaped) -> list[Pair]:
    """All pairs: suspicious ones first, by their floor, then by how many ways out lead there."""
    limit = max(LEAST, TIMES * usual_floor(told.floor))
    rows = [
        Pair(
            a, b, int(told.escapes.entered[a, b]), int(told.escapes.attempts[a]), float(told.floor[a, b]),
            int(told.confusion[a, b]), int(told.confusion[a].sum()), float(told.floor[a, b]) >= limit,
        )
        for a, b in (~torch.eye(len(told.classes), dtype=torch.bool)).nonzero().tolist()
        if int(told.escapes.attempts[a])
    ]  # fmt: skip
    return sorted(
        rows, key=lambda p: (not p.suspicious, -p.floor if p.suspicious else 0.0, -p.rate)
    )


def answer(told: Escaped, ranked: Sequence[Pair]) -> str:
    """Plain sentences."""
    odd, usual = [pair for pair in ranked if pair.suspicious], usual_floor(told.floor)
    if odd:
        named = ", ".join(
            f"{_named(p, told.classes)} ({p.floor:.1%} on half of the images, {p.rate:.0%} of the ways out)"
            for p in odd[:10]
        )
        return (
            f"These class pairs look mislabelled or under-trained: {named}. The model keeps the second class in mind for "
            "nearly every image of the first, which hard images alone do not explain; look at the training labels of both."
        )
    named = ", ".join(f"{_named(p, told.classes)} ({p.rate:.0%})" for p in ranked[:3])
    if usual >= UNSURE:
        return f"The model is unsure between many classes (under-trained?). Most ways out lead from {named}."
    return f"No class pair looks mislabelled. Most ways out of a class lead from {named}."


def outcome(told: Escaped, paint: Callable[[Tensor], Tensor], folder: Path) -> Outcome:
    """Tables and pictures; `paint` turns codes into images."""
    ranked, escapes = pairs(told), told.escapes
    share = told.confusion / told.confusion.sum(1, keepdim=True).clamp_min(1)
    drawn = {"ways out that enter, %": escapes.rate, "test images given to, %": share}
    shown = [
        figures.matrices(folder / "escape.png", drawn, told.classes),
        _examples(told, ranked, paint, folder / "examples.png"),
    ]
    notes = [
        answer(told, ranked),
        f"{escapes.seeds} seeds, {int(escapes.attempts.sum())} walks that left their class, "
        f"{escapes.queries / max(escapes.seeds, 1):.0f} questions a seed for all classes together",
        "ways out: of all random walks out of the first class, those that enter the second where they cross the border",
        f"floor: half of the first class's images get at least this probability for the second; usual here: {usual_floor(told.floor):.2g}",
    ]
    columns = [
        "from",
        "to",
        "ways out",
        "95 % interval",
        "floor",
        "confused in the test set",
        "suspicious",
    ]
    rows: list[list[Cell]] = [
        [told.classes[p.source], told.classes[p.goal], p.rate, _interval(p), p.floor,
         f"{p.confused} of {p.images}", "yes" if p.suspicious else "no"]
        for p in ranked[:15]
    ]  # fmt: skip
    return Outcome(
        "class escape", [Table("Class pairs, suspicious ones first", columns, rows, notes)], shown
    )


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
            {"from": told.classes[p.source], "to": told.classes[p.goal], "rate": p.rate,
             "interval": list(interval(p.entered, p.walks)), "floor": p.floor, "confused": p.confused, "images": p.images}
            for p in ranked if p.suspicious
        ],
    }  # fmt: skip


def _named(pair: Pair, classes: Sequence[str]) -> str:
    return f"{classes[pair.source]} → {classes[pair.goal]}"


def _interval(pair: Pair) -> str:
    low, high = interval(pair.entered, pair.walks)
    return f"{low:.3f} to {high:.3f} of {pair.walks}"


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[value if value == value else None for value in row] for row in matrix.tolist()]


def _examples(
    told: Escaped, ranked: Sequence[Pair], paint: Callable[[Tensor], Tensor], path: Path
) -> str:
    """For the four first pairs the shortest ways across: the seed above, the image on the border below."""
    own, rows = told.seeds.y[told.walks.seed], dict[str, Tensor]()
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
