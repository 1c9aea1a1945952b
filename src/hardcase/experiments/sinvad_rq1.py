"""SINVAD's RQ1: are images between two classes for the network also between them for people?

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023. Makes everything a rating page needs; with
``--ratings FILE`` computes Figures 9 to 11 and Tables 1 and 2 from what people answered.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch

from hardcase import statistics, tensors
from hardcase.cache import make_folder, write_atomically
from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.quadruples import METHODS, Quadruples, quadruples
from hardcase.experiments.ratings import (
    COLUMNS,
    Rating,
    by_image,
    by_method,
    inattentive,
    read,
    winners,
)
from hardcase.experiments.saying import csv_text
from hardcase.experiments.searching import probabilities
from hardcase.experiments.world import World, world
from hardcase.randomness import stream

RATERS, OF_EACH, REAL = 300, 10, 3
_MNIST: dict[str, dict[str, float]] = {
    "acceptability": {"real": 6.24, "cw": 6.24, "fgsm": 6.15, "sinvad": 6.12},
    "seconds": {"real": 6.13, "cw": 6.69, "fgsm": 6.90, "sinvad": 7.20},
    "winner": {"sinvad": 0.55},
    "delta": {"fgsm": 0.259},
}
_EMNIST: dict[str, dict[str, float]] = {
    "acceptability": {"real": 6.44, "cw": 6.49, "fgsm": 6.38, "sinvad": 6.55},
    "seconds": {"real": 6.64, "cw": 6.93, "fgsm": 7.19, "sinvad": 7.35},
    "winner": {"sinvad": 0.58},
    "delta": {"fgsm": 0.297},
}
_NOTHING: dict[str, dict[str, float]] = {
    "acceptability": {},
    "seconds": {},
    "winner": {},
    "delta": {},
}
PAPER = {"mnist5k": _MNIST, "mnist": _MNIST, "emnist": _EMNIST}


def run(bench: Bench) -> Outcome:
    """Export the study, or analyse its ratings."""
    if "ratings" in bench.options:
        return analyse(read(Path(str(bench.options["ratings"]))), bench)
    here = world(bench)
    count = int(bench.options.get("quadruples", 100 if bench.full else 20))
    made = quadruples(here, count, seed=bench.seed)
    bench.say(f"{len(made)} quadruples from {made.tried} seeds")
    raters = int(bench.options.get("raters", RATERS))
    write_study(here, made, bench.out, raters=raters, seed=bench.seed)
    said = probabilities(here.subject, made.x.flatten(0, 1)).reshape(len(made), len(METHODS), -1)
    own = said.gather(2, made.source[:, None, None].expand(-1, len(METHODS), 1)).squeeze(2)
    goal = said.gather(2, made.target[:, None, None].expand(-1, len(METHODS), 1)).squeeze(2)
    rows: list[list[Cell]] = [
        [
            name,
            len(made),
            float((own - goal)[:, i].abs().mean()),
            float((goal > own)[:, i].float().mean()),
        ]
        for i, name in enumerate(METHODS)
    ]
    notes = [
        *here.notes,
        f"{len(made)} complete quadruples (paper: 100) from {made.tried} seeds; FGSM with the smallest strength that reaches the target",
        f"study: {raters} raters, {OF_EACH} images of each method and {REAL} real ones each; images/, items.csv, assignments.csv, study.json",
        f"ratings come back as CSV with the columns {', '.join(COLUMNS)}; then: hardcase reproduce sinvad-rq1 --ratings FILE",
    ]
    columns = ["method", "images", "mean |p(source) − p(target)|", "share on the target's side"]
    shown = [
        figures.images(
            bench.out / "quadruples.png", {n: made.x[:12, i] for i, n in enumerate(METHODS)}
        )
    ]
    return Outcome(
        "sinvad-rq1",
        [Table("Images on the boundary of the same two classes", columns, rows, notes)],
        shown,
    )


def write_study(here: World, made: Quadruples, folder: Path, *, raters: int, seed: int) -> None:
    """``images/``, ``items.csv``, ``assignments.csv`` and ``study.json``: all that a rating page needs."""
    make_folder(folder / "images")
    classes, items = here.test.classes, list[list[object]]()
    for q in range(len(made)):
        for m, method in enumerate(METHODS):
            name = f"q{q:03d}-{method}"
            write_atomically(folder / "images" / f"{name}.png", tensors.encode(made.x[q, m]))
            items.append([name, q, method, f"images/{name}.png", classes[made.source[q]], classes[made.target[q]], made.seed[q]])  # fmt: skip
    head: list[object] = ["item", "quadruple", "method", "image", "source", "target", "seed"]
    write_atomically(folder / "items.csv", csv_text([head, *items]))
    write_atomically(
        folder / "assignments.csv",
        csv_text([["rater", "position", "item"], *assign(len(made), raters, seed)]),
    )
    study = {
        "questions": [
            "How much does this image look like {source}?",
            "How much does this image look like {target}?",
        ],
        "scale": [1, 2, 3, 4, 5],
        "order": "the two questions in random order; never show the method or the file name",
        "ratings": list(COLUMNS),
        "raters": raters,
        "images_per_method": OF_EACH,
        "real_checks": REAL,
    }
    write_atomically(folder / "study.json", (json.dumps(study, indent=2) + "\n").encode())


def assign(count: int, raters: int, seed: int) -> list[list[object]]:
    """Who rates what, in which order: of each method other seeds, so that nobody sees a seed twice while there are enough."""
    rows: list[list[object]] = []
    for rater in range(raters):
        rng = stream(seed, "study", rater)
        order = torch.randperm(count, generator=rng).tolist()
        wanted = [("fgsm", OF_EACH), ("cw", OF_EACH), ("sinvad", OF_EACH), ("real", REAL)]
        names = [method for method, number in wanted for _ in range(min(number, count))]
        items = [f"q{order[i % count]:03d}-{method}" for i, method in enumerate(names)]
        shuffled = torch.randperm(len(items), generator=rng).tolist()
        rows += [[f"r{rater:03d}", position, items[i]] for position, i in enumerate(shuffled)]
    return rows


def analyse(ratings: list[Rating], bench: Bench) -> Outcome:
    """Figures 9 to 11, Tables 1 and 2."""
    careless, paper = inattentive(ratings), PAPER.get(bench.data, _NOTHING)
    if bench.options.get("exclude"):
        ratings = [rating for rating in ratings if rating.rater not in careless]
    confusing, leaning = (
        by_image(ratings, lambda r: r.confusion),
        by_image(ratings, lambda r: r.leaning),
    )
    shown = [
        figures.boxes(
            bench.out / "confusion.png", {"confusion score": confusing}, y="mean of an image"
        ),
        figures.boxes(
            bench.out / "leaning.png", {"source minus target": leaning}, y="mean of an image"
        ),
    ]
    won = winners(ratings)
    counts, sure = Counter(w.method for w in won), Counter(w.method for w in won if w.sure)
    times, accepted = (
        by_method(ratings, lambda r: r.seconds),
        by_method(ratings, lambda r: r.acceptability),
    )
    rows: list[list[Cell]] = [
        [name, len(confusing[name]), _mean(confusing[name]), _mean(leaning[name]), _mean(accepted[name]),
         paper["acceptability"].get(name), _mean(times[name]), paper["seconds"].get(name),
         counts[name] / len(won), paper["winner"].get(name), sure[name]]
        for name in confusing
    ]  # fmt: skip
    columns = ["method", "images", "confusion (Fig. 9)", "source − target (Fig. 10)", "acceptability", "paper", "seconds", "paper ",
               "most confusing", "paper  ", "of these, p < 0.05"]  # fmt: skip
    raters = {rating.rater for rating in ratings}
    notes = [
        f"{len(ratings)} ratings by {len(raters)} people; {len(careless)} of them failed most of their real images"
        + (", left out" if bench.options.get("exclude") else ", kept"),
        "paper: about 300 people for each of MNIST and EMNIST",
    ]
    return Outcome(
        "sinvad-rq1",
        [Table("What people saw", columns, rows, notes), _tests(ratings, paper)],
        shown,
    )


def _tests(ratings: list[Rating], paper: dict[str, dict[str, float]]) -> Table:
    """SINVAD against each other method: confusion, acceptability and time, answer by answer."""
    rows: list[list[Cell]] = []
    measures = {"confusion": lambda r: r.confusion, "acceptability": lambda r: r.acceptability, "seconds": lambda r: r.seconds}  # fmt: skip
    for measure, value in measures.items():
        groups = by_method(ratings, value)
        for other in [name for name in groups if name != "sinvad" and "sinvad" in groups]:
            if min(len(groups["sinvad"]), len(groups[other])) < 2:
                continue
            test, delta = statistics.welch(groups["sinvad"], groups[other]), statistics.cliffs_delta(groups["sinvad"], groups[other])  # fmt: skip
            published = paper["delta"].get(other) if measure == "confusion" else None
            rows.append(
                [
                    measure,
                    other,
                    test.difference,
                    f"{test.p:.2g}",
                    delta,
                    statistics.magnitude(delta),
                    published,
                ]
            )
    columns = [
        "measure",
        "sinvad minus",
        "difference of means",
        "Welch p",
        "Cliff's delta",
        "size",
        "paper",
    ]
    return Table("SINVAD against the others", columns, rows)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
