"""ARGUS's manual evaluation (RQ1): are its images more like their originals, to people, than those of other methods?

B. Duan, M. Dwyer, G. Yang, 2025. Makes everything a rating page needs: for each of ten originals one failing image of each of
seven methods, without a sign of who made it; with ``--ratings FILE`` analyses what people answered. ``--set joint=true``
trains ARGUS's generator jointly at each share, as the paper does; ``fill=true`` shows an image that does not fail where a method
has none that does; ``model=… raters=… partners=… rival_queries=…`` as elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.statistics import ssim
from hardcase.suite import figures
from hardcase.suite.tables import Bench, Cell, Outcome, Table, finite_mean
from hardcase.tensors import from_bytes
from hardcase.types import KINDS, Images
from hardcase_studies.argus import quantised
from hardcase_studies.argus_measure import RIVALS, Measured, equal, interpolated, rival, weights
from hardcase_studies.lab import labs
from hardcase_studies.people import (
    Exhibition,
    friedman,
    pairs,
    raters,
    read_answers,
    read_table,
    shuffled,
)

MIXES = (0.1, 0.2, 0.3)
METHODS = (*(f"ARGUS {mix}" for mix in MIXES), *RIVALS)
COLUMNS = ("rater", "item", "rank", "score")
KEY = ("item", "original", "method")
SCORES = {4: "excellent", 3: "good", 2: "fair", 1: "poor"}
NAME = "argus-ratings"
RATERS = 10
PAPER = {
    "ARGUS 0.1": ("near 1", "the highest"), "ARGUS 0.2": ("second", "second"), "ARGUS 0.3": ("third", "above 3"),
    **dict.fromkeys(RIVALS, ("5 to 7", "mostly below 2")),
}  # fmt: skip
"""What the text says of Figure 3; it prints no numbers."""


def run(bench: Bench) -> Outcome:
    """Export the study, or analyse its ratings."""
    if "ratings" in bench.options:
        path = Path(str(bench.options["ratings"]))
        key = Path(str(bench.options.get("key", path.parent / "key.csv")))
        return analyse(by_original(read(path, key), METHODS), bench)
    study, notes = made(bench)
    people = bench.size("raters", RATERS, RATERS)
    exhibition(study, people=people, seed=bench.seed).write(bench.out)
    rows = [_described(study, i, name) for i, name in enumerate(METHODS)]
    notes += [
        f"{len(study.originals)} originals, one failing image of each method where there is one, chosen at random"
        + ("; where there is none, one that does not fail" if bench.options.get("fill") else ""),
        f"study: {people} raters; images/, items.csv, assignments.csv, study.json for the page; key.csv, which names methods, for nobody but the analysis",
        f"ratings come back as CSV with the columns {', '.join(COLUMNS)}; then: hardcase reproduce {NAME} --ratings FILE --set key={bench.out / 'key.csv'}",
    ]
    shown = {
        "original": study.originals.x,
        **{name: study.x[:, i] for i, name in enumerate(METHODS)},
    }
    sheet = figures.images(bench.out / "methods.png", shown)
    columns = ["method", "images", "of these failing", "SSIM", "MSE"]
    return Outcome(NAME, [Table("Images to be rated", columns, rows, notes)], [sheet])


def made(bench: Bench) -> tuple[Study, list[str]]:
    """An image of every method for each of the originals of the first repeat."""
    named = [str(bench.options["model"])] if "model" in bench.options else []
    (here,) = labs(bench, named, most=1).values()
    notes = here.notes
    seeds = here.originals()[0]
    joint = bool(bench.options.get("joint", False))
    found: list[Measured] = []
    for mix in MIXES:
        kind = str(bench.options.get("kind", "gradient"))
        own = quantised(here, kind=kind, mix=mix, **weights(bench)) if joint else quantised(here)
        notes += [own.note] if own.note not in notes else []
        bench.say(f"ARGUS {mix}")
        found.append(interpolated(here, own, mix, [seeds]))
    for name in RIVALS:
        bench.say(name)
        found.append(rival(here, name, [seeds], equal(bench)))
    return chosen(seeds, found, bench.seed, fill=bool(bench.options.get("fill", False))), notes


@dataclass(frozen=True, slots=True)
class Study:
    """For every original and method an image, or none (`there` is false); methods in the order of `METHODS`. `predicted` is -1
    where an image does not fail."""

    originals: Images
    x: UInt8[Tensor, "o m c h w"]
    predicted: Int[Tensor, "o m"]
    there: Bool[Tensor, "o m"]


def chosen(seeds: Images, found: Sequence[Measured], seed: int, *, fill: bool = False) -> Study:
    """Of the failing images of each original and method one at random; with `fill`, of all images where none fails."""
    size = (len(seeds), len(found))
    x = torch.zeros(*size, *seeds.x.shape[1:], dtype=torch.uint8)
    predicted = torch.full(size, -1)
    there = torch.zeros(size, dtype=torch.bool)
    for m, done in enumerate(found):
        failing = done.findings.kind == KINDS.index("label")
        for o in range(len(seeds)):
            rng = stream(seed, "ratings", m, o)
            rows = (failing & (done.findings.seed == o)).nonzero().squeeze(1)
            others = done.sample[o][done.there[o]]
            if len(rows):
                pick = int(rows[torch.randint(len(rows), (1,), generator=rng)])
                x[o, m] = done.findings.x[pick]
                predicted[o, m] = done.findings.predicted[pick]
                there[o, m] = True
            elif fill and len(others):
                x[o, m] = others[int(torch.randint(len(others), (1,), generator=rng))]
                there[o, m] = True
    return Study(seeds, x, predicted, there)


def exhibition(study: Study, *, people: int, seed: int) -> Exhibition:
    """``images/``, ``items.csv``, ``assignments.csv``, ``study.json`` and ``key.csv``. Names of files and items tell nothing."""
    items: list[list[object]] = [["item", "original", "image", "original_image", "label"]]
    key: list[list[object]] = [["item", "original", "method", "fails", "predicted", "seed"]]
    classes = study.originals.classes
    images: dict[str, Tensor] = {}
    shown: dict[int, list[str]] = {}
    for o, label in enumerate(study.originals.y.tolist()):
        original = f"o{o:02d}"
        images[original] = study.originals.x[o]
        there = study.there[o].nonzero().squeeze(1).tolist()
        order = shuffled(there, stream(seed, "ratings", "blind", o))
        shown[o] = [f"{original}-{chr(ord('a') + i)}" for i in range(len(order))]
        for name, m in zip(shown[o], order, strict=True):
            images[name] = study.x[o, m]
            files = [f"images/{name}.png", f"images/{original}.png"]
            items.append([name, original, *files, classes[label]])
            wrong = int(study.predicted[o, m])
            answer = ["yes", classes[wrong]] if wrong >= 0 else ["no", classes[label]]
            key.append([name, original, METHODS[m], *answer, study.originals.id[o]])
    head: list[list[object]] = [["rater", "position", "original", "items"]]
    orders = head + assign(shown, people, seed)
    tables = {"items": items, "key": key, "assignments": orders}
    return Exhibition(images, tables, _instructions(people))


def assign(shown: Mapping[int, list[str]], people: int, seed: int) -> list[list[object]]:
    """Everyone sees every original; originals and their images come in an order of the rater's own."""
    rows: list[list[object]] = []
    for rater, rng in raters(people, seed, "ratings", "rater").items():
        for position, o in enumerate(torch.randperm(len(shown), generator=rng).tolist()):
            rows.append([rater, position, f"o{o:02d}", " ".join(shuffled(shown[o], rng))])
    return rows


def _instructions(people: int) -> dict[str, object]:
    return {
        "questions": [
            "Rank these images from the most to the least like the original.",
            "How good is each as an image of the original?",
        ],
        "rank": "1 is the most like the original; every rank once for each original",
        "score": {str(points): word for points, word in SCORES.items()},
        "order": "as in assignments.csv; show original_image beside them; never show key.csv",
        "ratings": list(COLUMNS),
        "raters": people,
    }


@dataclass(frozen=True, slots=True)
class Opinion:
    """One person on one image: its rank among those made from the same original (1 is best), and a score of 4 to 1."""

    rater: str
    original: str
    method: str
    rank: int
    score: int


def read(path: Path, key: Path) -> list[Opinion]:
    """Opinions from a CSV file with the columns `COLUMNS`; `key` is the study's ``key.csv``, which says what an item is."""
    rows = read_table(key, KEY, "the key")
    items = {row["item"]: (row["original"], row["method"]) for row in rows}

    def opinion(row: Mapping[str, str]) -> Opinion:
        if row["item"] not in items:
            raise LookupError(f"the key knows no item {row['item']!r}.")
        rank = int(row["rank"])
        score = int(row["score"])
        if not row["rater"] or rank < 1 or score not in SCORES:
            raise ValueError
        return Opinion(row["rater"], *items[row["item"]], rank, score)

    fix = (
        f"columns {', '.join(COLUMNS)}: an item of this study's key.csv, its rank among the images "
        "of its original (1: most like it), a score of 4 to 1"
    )
    found = read_answers(path, COLUMNS, opinion, fix=fix)
    _refuse_bad_rankings(found, path)
    return found


def _refuse_bad_rankings(found: Sequence[Opinion], path: Path) -> None:
    """The images that a person saw of one original have the ranks 1, 2, 3 ... once each."""
    groups: dict[tuple[str, str], list[Opinion]] = {}
    for opinion in found:
        groups.setdefault((opinion.rater, opinion.original), []).append(opinion)
    for (rater, original), some in groups.items():
        ranks = sorted(opinion.rank for opinion in some)
        if len({opinion.method for opinion in some}) < len(some):
            raise Problem(f"{path}: rater {rater} has rated an image of original {original} twice.")
        if ranks != list(range(1, len(some) + 1)):
            raise Problem(
                f"{path}: rater {rater} has given the {len(some)} images of original {original} the ranks {ranks}.",
                fix=f"every rank from 1 to {len(some)} once",
            )


@dataclass(frozen=True, slots=True)
class Ratings:
    """Means over the people: one row an original, one column a method, NaN where a method had no image."""

    methods: tuple[str, ...]
    rank: Float[Tensor, "o m"]
    score: Float[Tensor, "o m"]


def by_original(found: Sequence[Opinion], methods: Sequence[str]) -> Ratings:
    """`found` as tables, methods in the given order, then any other."""
    names = [*methods, *dict.fromkeys(o.method for o in found if o.method not in methods)]
    known = tuple(name for name in names if any(o.method == name for o in found))
    rows = {name: i for i, name in enumerate(dict.fromkeys(opinion.original for opinion in found))}
    place = torch.tensor([rows[o.original] * len(known) + known.index(o.method) for o in found])
    count = place.bincount(minlength=len(rows) * len(known))

    def means(values: Sequence[int]) -> Tensor:
        total = torch.zeros(len(count), dtype=torch.float64).index_add_(
            0, place, torch.tensor(values).double()
        )
        return (total / count).reshape(len(rows), len(known))

    return Ratings(known, means([o.rank for o in found]), means([o.score for o in found]))


def analyse(ratings: Ratings, bench: Bench) -> Outcome:
    """Figure 3 as numbers, and tests of the differences."""
    partly = bool(ratings.rank.isnan().any())
    rows: list[list[Cell]] = [
        [name, int(ratings.rank[:, i].isfinite().sum()), str(finite_mean(ratings.rank[:, i])), PAPER.get(name, ("", ""))[0],
         str(finite_mean(ratings.score[:, i])), PAPER.get(name, ("", ""))[1]]
        for i, name in enumerate(ratings.methods)
    ]  # fmt: skip
    notes = [
        "means over people for each original, then over originals; 95 % intervals by bootstrap over originals",
        "rank: 1 is the most like the original; score: 4 excellent, 3 good, 2 fair, 1 poor",
        "paper: ten people, Figure 3 only; it prints no numbers, so what its text says stands here",
        *(
            [
                "ranks are among the images shown: originals of which methods have no image have fewer ranks"
            ]
            if partly
            else []
        ),
        *(
            _overall(name, values)
            for name, values in (("rank", ratings.rank), ("score", ratings.score))
        ),
    ]
    columns = ["method", "originals", "mean rank", "paper", "mean score", "paper "]
    panels = {
        what: {
            name: values[:, i][values[:, i].isfinite()].tolist()
            for i, name in enumerate(ratings.methods)
        }
        for what, values in (("rank", ratings.rank), ("score", ratings.score))
    }
    shown = [figures.boxes(bench.out / "ratings.png", panels, y="mean of an original")]
    return Outcome(NAME, [Table("What people saw", columns, rows, notes), _tests(ratings)], shown)


def _overall(name: str, values: Tensor) -> str:
    test = friedman(values)
    if test is None:
        return f"{name}: no Friedman test; it needs two originals with an image of each of three methods that differ"
    return f"{name}: Friedman χ² {test.statistic:.2f}, p {test.p:.2g}, Kendall's W {test.w:.2f}, over {test.blocks} complete originals"


def _tests(ratings: Ratings) -> Table:
    rows: list[list[Cell]] = [
        [
            what,
            pair.one,
            pair.two,
            pair.count,
            pair.difference,
            f"{pair.p:.2g}",
            f"{pair.corrected:.2g}",
        ]
        for what, values in (("rank", ratings.rank), ("score", ratings.score))
        for pair in pairs(values, ratings.methods)
    ]
    columns = ["of", "method", "minus", "originals", "difference of means", "Wilcoxon p", "p, Holm"]
    return Table(
        "Methods two by two",
        columns,
        rows,
        ["Holm's correction over all pairs of ranks, and of scores"],
    )


def _described(study: Study, m: int, name: str) -> list[Cell]:
    there = study.there[:, m]
    x = from_bytes(study.x[there, m])
    origin = from_bytes(study.originals.x[there])
    if not len(x):
        return [name, 0, 0, "", ""]
    return [
        name,
        len(x),
        int((study.predicted[:, m] >= 0).sum()),
        float(ssim(x, origin).mean()),
        f"{float((x - origin).square().mean()):.4f}",
    ]
