"""What class escapes mean for a user: two matrices, the suspicious pairs in plain words, and examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.bench import Cell, Outcome, Table
from hardcase.experiments.escape import Escapes, Walks
from hardcase.funnel import interval
from hardcase.tensors import to_bytes
from hardcase.types import Images

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
    return sorted(rows, key=lambda p: (not p.suspicious, -p.floor if p.suspicious else 0.0, -p.rate))


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
    columns = ["from", "to", "ways out", "95 % interval", "floor", "confused in the test set", "suspicious"]
    rows: list[list[Cell]] = [
        [told.classes[p.source], told.classes[p.goal], p.rate, _interval(p), p.floor,
         f"{p.confused} of {p.images}", "yes" if p.suspicious else "no"]
        for p in ranked[:15]
    ]  # fmt: skip
    return Outcome("class escape", [Table("Class pairs, suspicious ones first", columns, rows, notes)], shown)


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


def _examples(told: Escaped, ranked: Sequence[Pair], paint: Callable[[Tensor], Tensor], path: Path) -> str:
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
