"""ARGUS's manual evaluation (RQ1): are its images more like their originals, to people, than those of other methods?

B. Duan, M. Dwyer, G. Yang, 2025. Makes everything a rating page needs: for each of ten originals one failing image of each of
seven methods, without a sign of who made it; with ``--ratings FILE`` analyses what people answered. ``--set joint=true``
trains ARGUS's generator jointly at each share, as the paper does; ``model=… raters=… partners=… rival_queries=…`` as elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from hardcase import png
from hardcase.cache import make_folder, write_atomically
from hardcase.experiments import figures
from hardcase.experiments.argus_answers import COLUMNS, SCORES, Ratings, by_original, friedman, pairs, read
from hardcase.experiments.argus_methods import RIVALS, equal, interpolated, rival, weights
from hardcase.experiments.argus_world import interval, networks, originals, painter
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.metrics import ssim
from hardcase.randomness import stream
from hardcase.tensors import from_bytes
from hardcase.types import KINDS, Findings, Images

NAME, RATERS, MIXES = "argus-ratings", 10, (0.1, 0.2, 0.3)
METHODS = (*(f"ARGUS {mix}" for mix in MIXES), *RIVALS)
PAPER = {
    "ARGUS 0.1": ("near 1", "the highest"), "ARGUS 0.2": ("second", "second"), "ARGUS 0.3": ("third", "above 3"),
    **dict.fromkeys(RIVALS, ("5 to 7", "mostly below 2")),
}  # fmt: skip
"""What the text says of Figure 3; it prints no numbers."""


@dataclass(frozen=True, slots=True)
class Study:
    """For every original and method an image, or none (`there` is false); methods in the order of `METHODS`."""

    originals: Images
    x: UInt8[Tensor, "o m c h w"]
    predicted: Tensor
    there: Bool[Tensor, "o m"]


def run(bench: Bench) -> Outcome:
    """Export the study, or analyse its ratings."""
    if "ratings" in bench.options:
        path = Path(str(bench.options["ratings"]))
        key = Path(str(bench.options.get("key", path.parent / "key.csv")))
        return analyse(by_original(read(path, key), METHODS), bench)
    study, notes = made(bench)
    raters = int(bench.options.get("raters", RATERS))
    write_study(study, bench.out, raters=raters, seed=bench.seed)
    rows = [_described(study, i, name) for i, name in enumerate(METHODS)]
    notes += [
        f"{len(study.originals)} originals, one failing image of each method where there is one, chosen at random",
        f"study: {raters} raters; images/, items.csv, assignments.csv, study.json for the page; key.csv, which names methods, for nobody but the analysis",
        f"ratings come back as CSV with the columns {', '.join(COLUMNS)}; then: hardcase reproduce {NAME} --ratings FILE --set key={bench.out / 'key.csv'}",
    ]
    shown = {"original": study.originals.x, **{name: study.x[:, i] for i, name in enumerate(METHODS)}}
    sheet = figures.images(bench.out / "methods.png", shown)
    columns = ["method", "images", "SSIM", "MSE"]
    return Outcome(NAME, [Table("Images to be rated", columns, rows, notes)], [sheet])


def made(bench: Bench) -> tuple[Study, list[str]]:
    """An image of every method for each of the originals of the first repeat."""
    named = [str(bench.options["model"])] if "model" in bench.options else []
    train, test, subjects, notes = networks(bench, named, most=1)
    subject = next(iter(subjects.values()))
    seeds = originals(bench, subject, test)[0]
    joint = bool(bench.options.get("joint", False))
    found: list[Findings] = []
    for mix in MIXES:
        options = {"kind": str(bench.options.get("kind", "gradient")), "mix": mix, **weights(bench)} if joint else {}
        own = painter(bench, train, test, subject, **options)
        notes += [own.note] if own.note not in notes else []
        bench.say(f"ARGUS {mix}")
        found.append(interpolated(bench, subject, own, mix, [seeds]).findings)
    for name in RIVALS:
        bench.say(name)
        found.append(rival(bench, name, subject, test, [seeds], equal(bench)).findings)
    return _chosen(seeds, found, bench.seed), notes


def _chosen(seeds: Images, found: Sequence[Findings], seed: int) -> Study:
    """Of the failing images of each original and method, one at random."""
    x = torch.zeros(len(seeds), len(found), *seeds.x.shape[1:], dtype=torch.uint8)
    predicted, there = torch.full((len(seeds), len(found)), -1), torch.zeros(len(seeds), len(found), dtype=torch.bool)
    for m, findings in enumerate(found):
        failing = findings.kind == KINDS.index("label")
        for o in range(len(seeds)):
            rows = (failing & (findings.seed == o)).nonzero().squeeze(1)
            if len(rows):
                pick = rows[torch.randint(len(rows), (1,), generator=stream(seed, "ratings", m, o))]
                x[o, m], predicted[o, m], there[o, m] = findings.x[pick][0], findings.predicted[pick][0], True
    return Study(seeds, x, predicted, there)


def write_study(study: Study, folder: Path, *, raters: int, seed: int) -> None:
    """``images/``, ``items.csv``, ``assignments.csv``, ``study.json`` and ``key.csv``. Names of files and items tell nothing."""
    make_folder(folder / "images")
    items, key = [["item", "original", "image", "original_image", "label"]], [["item", "original", "method", "predicted", "seed"]]  # fmt: skip
    classes, shown = study.originals.classes, dict[int, list[str]]()
    for o, label in enumerate(study.originals.y.tolist()):
        first = f"images/o{o:02d}.png"
        write_atomically(folder / first, png.encode(study.originals.x[o]))
        there = study.there[o].nonzero().squeeze(1)
        order = there[torch.randperm(len(there), generator=stream(seed, "ratings", "blind", o))].tolist()
        shown[o] = [f"o{o:02d}-{chr(ord('a') + i)}" for i in range(len(order))]
        for name, m in zip(shown[o], order):
            write_atomically(folder / f"images/{name}.png", png.encode(study.x[o, m]))
            items.append([name, f"o{o:02d}", f"images/{name}.png", first, classes[label]])
            key.append([name, f"o{o:02d}", METHODS[m], classes[int(study.predicted[o, m])], study.originals.id[o]])
    order_rows = [["rater", "position", "original", "items"], *assign(shown, raters, seed)]
    for name, rows in (("items", items), ("key", key), ("assignments", order_rows)):
        write_atomically(folder / f"{name}.csv", _csv(rows))
    write_atomically(folder / "study.json", (json.dumps(_instructions(raters), indent=2) + "\n").encode())


def assign(shown: dict[int, list[str]], raters: int, seed: int) -> list[list[str]]:
    """Everyone sees every original; originals and their images come in an order of the rater's own."""
    rows = []
    for rater in range(raters):
        rng = stream(seed, "ratings", "rater", rater)
        for position, o in enumerate(torch.randperm(len(shown), generator=rng).tolist()):
            order = torch.randperm(len(shown[o]), generator=rng).tolist()
            rows.append([f"r{rater:03d}", str(position), f"o{o:02d}", " ".join(shown[o][i] for i in order)])
    return rows


def _instructions(raters: int) -> dict[str, object]:
    return {
        "questions": ["Rank these images from the most to the least like the original.", "How good is each as an image of the original?"],
        "rank": "1 is the most like the original; every rank once for each original",
        "score": {str(points): word for points, word in SCORES.items()},
        "order": "as in assignments.csv; show original_image beside them; never show key.csv",
        "ratings": list(COLUMNS),
        "raters": raters,
    }  # fmt: skip


def analyse(ratings: Ratings, bench: Bench) -> Outcome:
    """Figure 3 as numbers, and tests of the differences."""
    rows: list[list[Cell]] = [
        [name, int(ratings.rank[:, i].isfinite().sum()), str(interval(ratings.rank[:, i])), PAPER.get(name, ("", ""))[0],
         str(interval(ratings.score[:, i])), PAPER.get(name, ("", ""))[1]]
        for i, name in enumerate(ratings.methods)
    ]  # fmt: skip
    notes = [
        "means over people for each original, then over originals; 95 % intervals by bootstrap over originals",
        "rank: 1 is the most like the original; score: 4 excellent, 3 good, 2 fair, 1 poor",
        "paper: ten people, Figure 3 only; it prints no numbers, so what its text says stands here",
        *(_overall(name, values) for name, values in (("rank", ratings.rank), ("score", ratings.score))),
    ]
    columns = ["method", "originals", "mean rank", "paper", "mean score", "paper "]
    panels = {
        what: {name: values[:, i][values[:, i].isfinite()].tolist() for i, name in enumerate(ratings.methods)}
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
        [what, pair.one, pair.two, pair.count, pair.difference, f"{pair.p:.2g}", f"{pair.corrected:.2g}"]
        for what, values in (("rank", ratings.rank), ("score", ratings.score))
        for pair in pairs(values, ratings.methods)
    ]
    columns = ["of", "method", "minus", "originals", "difference of means", "Wilcoxon p", "p, Holm"]
    return Table("Methods two by two", columns, rows, ["Holm's correction over all pairs of ranks, and of scores"])


def _described(study: Study, m: int, name: str) -> list[Cell]:
    there = study.there[:, m]
    x, origin = from_bytes(study.x[there, m]), from_bytes(study.originals.x[there])
    if not len(x):
        return [name, 0, "", ""]
    return [name, len(x), float(ssim(x, origin).mean()), f"{float((x - origin).square().mean()):.4f}"]


def _csv(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
