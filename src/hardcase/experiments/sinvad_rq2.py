"""SINVAD's RQ2: how close to the decision boundary found images lie (Table 3, Figure 13), and what that costs.

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase import statistics
from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.searching import Searched, probabilities, search, top_two_gap, usable
from hardcase.experiments.world import World, world
from hardcase.methods.sinvad import sinvad, sinvad_paper
from hardcase.models.subject import Subject
from hardcase.statistics import interval
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Budget, Images, Method


@dataclass(frozen=True, slots=True)
class Published:
    """A row of the paper's Table 3."""

    data: str
    found: float
    test: float
    delta: float


PAPER = {
    "mnist5k": Published("MNIST", 0.0638, 0.9957, -0.98),
    "mnist": Published("MNIST", 0.0638, 0.9957, -0.98),
    "fashion": Published("Fashion-MNIST", 0.1330, 0.9186, -0.92),
    "cifar10": Published("ImageNet-32", 0.0423, 0.1953, -0.56),
}
BUDGETS = {
    "sinvad": (8, 16, 24, 32, 48, 64, 123),
    "sinvad@paper": (51, 111, 231, 471, 951, 1911, 3051),
}


def run(bench: Bench) -> Outcome:
    """Search from test images with our method and the paper's; compare gaps with the test set's, and costs with each other."""
    here = world(bench)
    seeds = usable(
        here.subject, here.test.sample(count=_count(bench, "seeds", 200, 1000), seed=bench.seed)
    )
    few = seeds.first(_count(bench, "paper_seeds", 48, 500))
    bench.say(f"sinvad on {len(seeds)} seeds")
    ours = search(here.subject, _ours(here), seeds, seed=bench.seed)
    bench.say(f"sinvad@paper on {len(few)} seeds")
    theirs = search(here.subject, _theirs(here), few, seed=bench.seed)
    done = {"sinvad": ours, "sinvad@paper": theirs}
    bench.say("the same with less to spend")
    costs = {name: _curve(here, name, few, bench) for name in done}
    shown = [
        _spread(here, ours, bench),
        figures.curves(
            bench.out / "cost.png",
            {"top-two gap": {n: (c.queries, c.gap) for n, c in costs.items()},
             "latent L1": {n: (c.queries, c.distance) for n, c in costs.items()},
             "success": {n: (c.queries, c.success) for n, c in costs.items()}},
            x="questions a seed", y="mean over seeds", log=True,
        ),
    ]  # fmt: skip
    return Outcome("sinvad-rq2", [_gaps(here, done), _costs(here, done), _budgets(costs)], shown)


def _count(bench: Bench, name: str, quick: int, full: int) -> int:
    return int(bench.options.get(name, full if bench.full else quick))


def _ours(here: World) -> Method:
    return sinvad(space=here.space, partners=here.codes)


def _theirs(here: World) -> Method:
    return sinvad_paper(space=here.space)


def gaps(subject: Subject, done: Searched) -> Float[Tensor, " t"]:
    """U(x) of every finding."""
    return top_two_gap(probabilities(subject, done.findings.x))


def _gaps(here: World, done: dict[str, Searched]) -> Table:
    test = top_two_gap(probabilities(here.subject, here.test.x))
    paper = PAPER.get(here.test.name)
    rows: list[list[Cell]] = []
    for name, some in done.items():
        gap = gaps(here.subject, some)
        if len(gap) < 2:
            rows.append([name, len(gap), None, None, None, None, None, None, None, None])
            continue
        compared, delta = statistics.welch(gap, test), statistics.cliffs_delta(gap, test)
        rows.append(
            [name, len(gap), float(gap.mean()), paper.found if paper else None, float(gap.median()), float(test.mean()),
             paper.test if paper else None, f"{compared.p:.1e}", delta, paper.delta if paper else None]
        )  # fmt: skip
    columns = ["method", "images", "mean gap", "paper", "median gap", "test set", "paper ", "Welch p", "Cliff's delta", "paper  "]  # fmt: skip
    notes = [
        *here.notes,
        "gap: greatest minus second greatest probability (Eq. 3); found images are 8-bit",
    ]
    if paper and paper.data == "ImageNet-32":
        notes.append(
            "stands in for ImageNet-32 with AlexNet and a very deep VAE; ten classes instead of a thousand"
        )
    return Table(
        f"Table 3: top-two gap, {here.test.name} (the paper's {paper.data if paper else 'data has none'})",
        columns,
        rows,
        notes,
    )


def _costs(here: World, done: dict[str, Searched]) -> Table:
    common = set.intersection(*(set(some.findings.seed.tolist()) for some in done.values()))
    rows: list[list[Cell]] = []
    for name, some in done.items():
        found, attempted = some.findings, int(some.attempted.sum())
        low, high = interval(some.succeeded, attempted)
        both = [i for i, seed in enumerate(found.seed.tolist()) if seed in common]
        spent = int(some.queries[some.attempted].sum())
        rows.append(
            [name, f"{some.succeeded} of {attempted}", some.success, f"{low:.3f} to {high:.3f}", _mean(found.distance),
             _mean(found.distance[both]), _mean(gaps(here.subject, some)), spent / max(some.succeeded, 1),
             1000 * some.seconds / max(some.succeeded, 1)]
        )  # fmt: skip
    columns = ["method", "found", "success", "95 % interval", "latent L1", f"L1 on {len(common)} common seeds", "mean gap",
               "questions an image", "ms an image"]  # fmt: skip
    notes = [
        "one finding a seed, the nearest; times include everything but training and encoding the library",
        f"threads {torch.get_num_threads()}, device {here.subject.device}",
    ]
    return Table("Cost and quality", columns, rows, notes)


@dataclass(frozen=True, slots=True)
class _Curve:
    queries: list[float]
    success: list[float]
    gap: list[float]
    distance: list[float]


def _curve(here: World, name: str, seeds: Images, bench: Bench) -> _Curve:
    """Success, gap and distance of the nearest finding under growing budgets, over the seeds that succeed."""
    method = _ours(here) if name == "sinvad" else _theirs(here)
    points = []
    for budget in BUDGETS[name]:
        done = search(here.subject, method, seeds, budget=Budget(queries=budget), seed=bench.seed)
        spent = float(done.queries[done.attempted].float().mean())
        points.append(
            (spent, done.success, _mean(gaps(here.subject, done)), _mean(done.findings.distance))
        )
    queries, success, gap, distance = (list(column) for column in zip(*points))
    return _Curve(queries, success, gap, distance)


def _budgets(costs: dict[str, _Curve]) -> Table:
    rows: list[Sequence[Cell]] = [
        [name, queries, success, gap, distance]
        for name, curve in costs.items()
        for queries, success, gap, distance in zip(
            curve.queries, curve.success, curve.gap, curve.distance
        )
    ]
    notes = ["same seeds for both methods; gap and L1 are means over the seeds that succeed"]
    return Table(
        "Queries against gap and distance",
        ["method", "questions a seed", "success", "mean gap", "latent L1"],
        rows,
        notes,
    )


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _spread(here: World, done: Searched, bench: Bench) -> str:
    """Figure 13: test images of a class pair and found images between them, in the plane of the pair's greatest variance."""
    found = done.findings
    sides = [tuple(sorted(pair)) for pair in zip(found.expected.tolist(), found.predicted.tolist())]
    panels = {}
    for one, two in [pair for pair, _ in Counter(sides).most_common(3)]:
        of = {
            here.test.classes[c]: activations(here.subject, here.test.x[here.test.y == c])
            for c in (one, two)
        }
        both = torch.cat(list(of.values()))
        plane = torch.linalg.svd(both - both.mean(0), full_matrices=False).Vh[:2].T
        between = torch.tensor([side == (one, two) for side in sides])
        of["found"] = activations(here.subject, found.x[between])
        panels[f"{here.test.classes[one]} and {here.test.classes[two]}"] = {
            name: (some - both.mean(0)) @ plane for name, some in of.items()
        }
    return figures.clouds(bench.out / "boundary.png", panels) if panels else "boundary.png"


@torch.no_grad()
def activations(subject: Subject, x: Tensor) -> Float[Tensor, "n u"]:
    """What enters the last layer."""
    names = list(subject.layers())
    tap = {names[-2]: lambda value: value.flatten(1).clone()}
    parts = [
        subject(from_bytes(x[rows].to(subject.device)), tap).activations[names[-2]]
        for rows in chunks(len(x), 256)
    ]
    return torch.cat(parts).cpu()
