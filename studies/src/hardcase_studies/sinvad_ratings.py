"""SINVAD's RQ1: are images between two classes for the network also between them for people?

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023. Makes everything a rating page needs; with
``--ratings FILE`` computes Figures 9 to 11 and Tables 1 and 2 from what people answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from hardcase import statistics
from hardcase.campaign.in_memory import search
from hardcase.methods.pgd import cw, fgsm
from hardcase.methods.sinvad import sinvad
from hardcase.models.health import probabilities, usable
from hardcase.suite import figures
from hardcase.suite.tables import Bench, Cell, Outcome, Table
from hardcase.types import Images, Method
from hardcase_studies.lab import Lab
from hardcase_studies.people import Exhibition, grouped, raters, read_answers, shuffled

METHODS = ("real", "fgsm", "cw", "sinvad")
EPSILONS = tuple(level / 255 for level in (*range(1, 41), *range(44, 129, 4)))
COLUMNS = ("rater", "item", "source_score", "target_score", "seconds")
RATERS = 300
OF_EACH = 10
"""Images of each method that a rater sees."""
REAL = 3
"""Real images among them, to notice who does not look."""
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
    here = Lab(bench)
    made = quadruples(here, bench.size("quadruples", 20, 100), seed=bench.seed)
    bench.say(f"{len(made)} quadruples from {made.tried} seeds")
    people = bench.size("raters", RATERS, RATERS)
    shown = exhibition(made, here.test.classes, people=people, seed=bench.seed)
    shown.write(bench.out)
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
        f"study: {people} raters, {OF_EACH} images of each method and {REAL} real ones each; images/, items.csv, assignments.csv, study.json",
        f"ratings come back as CSV with the columns {', '.join(COLUMNS)}; then: hardcase reproduce sinvad-rq1 --ratings FILE",
    ]
    columns = ["method", "images", "mean |p(source) − p(target)|", "share on the target's side"]
    rowed = {name: made.x[:12, i] for i, name in enumerate(METHODS)}
    sheet = figures.images(bench.out / "quadruples.png", rowed)
    return Outcome(
        "sinvad-rq1",
        [Table("Images on the boundary of the same two classes", columns, rows, notes)],
        [sheet],
    )


@dataclass(frozen=True, slots=True)
class Quadruples:
    """For each seed: source class, target class, and the four images in the order of `METHODS`."""

    seed: tuple[str, ...]
    source: Int[Tensor, " q"]
    target: Int[Tensor, " q"]
    x: UInt8[Tensor, "q 4 c h w"]
    tried: int

    def __len__(self) -> int:
        return len(self.seed)


def quadruples(here: Lab, count: int, *, seed: int = 0) -> Quadruples:
    """`count` complete quadruples; seeds from which one method does not reach the target are left out and counted."""
    pool = usable(here.subject, here.test.sample(count=min(2 * count, len(here.test)), seed=seed))
    found = search(
        here.subject, sinvad(space=here.space, partners=here.codes), pool, seed=seed
    ).findings
    seeds = pool.take(found.seed)
    target = found.predicted
    made = [
        _attacked(
            here,
            seeds,
            target,
            [[fgsm(epsilon=e, target=t) for e in EPSILONS] for t in _classes(seeds)],
            seed,
        ),
        _attacked(here, seeds, target, [[cw(target=t)] for t in _classes(seeds)], seed),
    ]
    complete = torch.stack([got for got, _ in made]).all(0).nonzero().squeeze(1)[:count]
    x = torch.stack([seeds.x, *(image for _, image in made), found.x], 1)[complete]
    ids = tuple(seeds.id[i] for i in complete.tolist())
    return Quadruples(ids, seeds.y[complete], target[complete], x, len(pool))


def _attacked(
    here: Lab, seeds: Images, target: Tensor, methods: Sequence[Sequence[Method]], seed: int
) -> tuple[Tensor, Tensor]:
    """For each seed the image of the first method (weakest first) that reaches its target, and whether one did."""
    got = torch.zeros(len(seeds), dtype=torch.bool)
    images = torch.zeros_like(seeds.x)
    for goal, growing in enumerate(methods):
        for method in growing:
            left = ((target == goal) & ~got).nonzero().squeeze(1)
            if not len(left):
                break
            found = search(here.subject, method, seeds.take(left), seed=seed).findings
            got[left[found.seed]] = True
            images[left[found.seed]] = found.x
    return got, images


def _classes(images: Images) -> range:
    return range(len(images.classes))


def exhibition(made: Quadruples, classes: Sequence[str], *, people: int, seed: int) -> Exhibition:
    """``images/``, ``items.csv``, ``assignments.csv`` and ``study.json``."""
    images = {}
    items: list[list[object]] = []
    for q in range(len(made)):
        pair = [classes[int(made.source[q])], classes[int(made.target[q])]]
        for m, method in enumerate(METHODS):
            name = f"q{q:03d}-{method}"
            images[name] = made.x[q, m]
            items.append([name, q, method, f"images/{name}.png", *pair, made.seed[q]])
    head: list[object] = ["item", "quadruple", "method", "image", "source", "target", "seed"]
    tables: dict[str, list[list[object]]] = {
        "items": [head, *items],
        "assignments": [["rater", "position", "item"], *assign(len(made), people, seed)],
    }
    instructions = {
        "questions": [
            "How much does this image look like {source}?",
            "How much does this image look like {target}?",
        ],
        "scale": [1, 2, 3, 4, 5],
        "order": "the two questions in random order; never show the method or the file name",
        "ratings": list(COLUMNS),
        "raters": people,
        "images_per_method": OF_EACH,
        "real_checks": REAL,
    }
    return Exhibition(images, tables, instructions)


def assign(count: int, people: int, seed: int) -> list[list[object]]:
    """Who rates what, in which order: of each method other seeds, so that nobody sees a seed twice while there are enough."""
    wanted = {"fgsm": OF_EACH, "cw": OF_EACH, "sinvad": OF_EACH, "real": REAL}
    methods = [method for method, number in wanted.items() for _ in range(min(number, count))]
    rows: list[list[object]] = []
    for rater, rng in raters(people, seed, "study").items():
        order = torch.randperm(count, generator=rng).tolist()
        items = [f"q{order[i % count]:03d}-{method}" for i, method in enumerate(methods)]
        rows += [[rater, position, item] for position, item in enumerate(shuffled(items, rng))]
    return rows


@dataclass(frozen=True, slots=True)
class Rating:
    """One answer: how much the image looks like the source and like the target class (1 to 5), and how long that took."""

    rater: str
    quadruple: int
    method: str
    source: int
    target: int
    seconds: float

    @property
    def confusion(self) -> int:
        """Eq. 2: 5 where both classes are equally likely, 1 where one is certain."""
        return 5 - abs(self.target - self.source)

    @property
    def leaning(self) -> int:
        """Positive where the image still looks more like its source."""
        return self.source - self.target

    @property
    def acceptability(self) -> int:
        return self.source + self.target


def read(path: Path) -> list[Rating]:
    """Ratings from a CSV file with the columns `COLUMNS`; an item is ``q012-fgsm``."""
    fix = "item q012-fgsm, scores 1 to 5, seconds a number"
    return read_answers(path, COLUMNS, _rating, fix=fix)


def _rating(row: Mapping[str, str]) -> Rating:
    quadruple, _, method = row["item"].partition("-")
    source = int(row["source_score"])
    target = int(row["target_score"])
    known = quadruple.startswith("q") and method
    if not known or not 1 <= source <= 5 or not 1 <= target <= 5:
        raise ValueError
    number = int(quadruple.removeprefix("q"))
    return Rating(row["rater"], number, method, source, target, float(row["seconds"]))


def by_method(
    ratings: Sequence[Rating], value: Callable[[Rating], float]
) -> dict[str, list[float]]:
    """All values by method, in the order in which methods first occur."""
    return grouped(ratings, lambda rating: rating.method, value)


def by_image(ratings: Sequence[Rating], value: Callable[[Rating], float]) -> dict[str, list[float]]:
    """The mean of each image, by method."""
    sums: dict[tuple[str, int], list[float]] = {}
    for rating in ratings:
        sums.setdefault((rating.method, rating.quadruple), []).append(value(rating))
    groups: dict[str, list[float]] = {}
    for (method, _), values in sorted(sums.items()):
        groups.setdefault(method, []).append(sum(values) / len(values))
    return groups


@dataclass(frozen=True, slots=True)
class Winner:
    """The most confusing method of a quadruple; `sure` where Welch's test against the next one gives p < 0.05."""

    quadruple: int
    method: str
    sure: bool


def winners(ratings: Sequence[Rating]) -> list[Winner]:
    """Figure 11: per seed, whose image was the most confusing."""
    per: dict[int, dict[str, list[float]]] = {}
    for rating in ratings:
        per.setdefault(rating.quadruple, {}).setdefault(rating.method, []).append(rating.confusion)
    return [_winner(quadruple, methods) for quadruple, methods in sorted(per.items())]


def _winner(quadruple: int, methods: Mapping[str, list[float]]) -> Winner:
    ranked = sorted(methods.items(), key=lambda item: (-sum(item[1]) / len(item[1]), item[0]))
    if len(ranked) < 2 or min(len(ranked[0][1]), len(ranked[1][1])) < 2:
        return Winner(quadruple, ranked[0][0], False)
    return Winner(quadruple, ranked[0][0], statistics.welch(ranked[0][1], ranked[1][1]).p < 0.05)


def inattentive(ratings: Sequence[Rating]) -> set[str]:
    """Raters who saw, in most of their real images, no more of the true class than of the other."""
    seen: dict[str, list[bool]] = {}
    for rating in ratings:
        if rating.method == "real":
            seen.setdefault(rating.rater, []).append(rating.source > rating.target)
    return {rater for rater, right in seen.items() if 2 * sum(right) <= len(right)}


def analyse(ratings: list[Rating], bench: Bench) -> Outcome:
    """Figures 9 to 11, Tables 1 and 2."""
    careless = inattentive(ratings)
    paper = PAPER.get(bench.data, _NOTHING)
    if bench.options.get("exclude"):
        ratings = [rating for rating in ratings if rating.rater not in careless]
    confusing = by_image(ratings, lambda r: r.confusion)
    leaning = by_image(ratings, lambda r: r.leaning)
    shown = [
        figures.boxes(
            bench.out / "confusion.png", {"confusion score": confusing}, y="mean of an image"
        ),
        figures.boxes(
            bench.out / "leaning.png", {"source minus target": leaning}, y="mean of an image"
        ),
    ]
    won = winners(ratings)
    counts = Counter(w.method for w in won)
    sure = Counter(w.method for w in won if w.sure)
    times = by_method(ratings, lambda r: r.seconds)
    accepted = by_method(ratings, lambda r: r.acceptability)
    rows: list[list[Cell]] = [
        [name, len(confusing[name]), _mean(confusing[name]), _mean(leaning[name]), _mean(accepted[name]),
         paper["acceptability"].get(name), _mean(times[name]), paper["seconds"].get(name),
         counts[name] / len(won), paper["winner"].get(name), sure[name]]
        for name in confusing
    ]  # fmt: skip
    columns = ["method", "images", "confusion (Fig. 9)", "source − target (Fig. 10)", "acceptability", "paper", "seconds", "paper ",
               "most confusing", "paper  ", "of these, p < 0.05"]  # fmt: skip
    people = {rating.rater for rating in ratings}
    notes = [
        f"{len(ratings)} ratings by {len(people)} people; {len(careless)} of them failed most of their real images"
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
            test = statistics.welch(groups["sinvad"], groups[other])
            delta = statistics.cliffs_delta(groups["sinvad"], groups[other])
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
