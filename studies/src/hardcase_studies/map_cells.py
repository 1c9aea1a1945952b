"""How many cells of a map hold an accepted failure: the map's search beside the same search without a map.

All arms start from the same seeds, have the same witnesses and ask subject and witnesses as often; methods that end early
are run again with other random numbers until they have asked as often. The primary comparison is with "natural, again and
again", the arm that differs by the map alone; the others differ in space or search too. Of every arm the finding of each seed and cell
that is witnessed and nearest to its seed is judged. The judge took no part in any search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hardcase.analysis.maps import cells_of, grid_of
from hardcase.campaign.in_memory import on_cpu, search_campaign
from hardcase.campaign.record import Campaign
from hardcase.context import Context
from hardcase.guides.archive import CellGrid
from hardcase.judges.panel import for_data
from hardcase.randomness import Rng
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import (
    Budget,
    Evaluator,
    Findings,
    ImagePairs,
    Images,
    Judge,
    Model,
    Seeds,
    State,
)
from hardcase_studies.bench import Bench, finite_mean, table_of
from hardcase_studies.lab import Lab, read_by_all

MOST = 20
"""Repeats of a method that ends early."""


@dataclass(frozen=True, slots=True)
class RandomCodes:
    """Codes around the seed's own, of any size up to `spread`, without a memory."""

    spread: float = 0.5
    children: int = 4

    def init(self, seeds: Seeds, rng: Rng) -> State:
        return {"z": seeds.z.clone()}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        z = state["z"][rows]
        noise = rng.normal(rows, (self.children, *z.shape[1:]))
        size = self.spread * 2 ** (-4.0 * rng.uniform(rows, (self.children,)))
        size = size.reshape(*size.shape, *[1] * (z.ndim - 1))
        asked = (z[:, None] + size * noise).flatten(0, 1)
        evaluate(asked, rows.repeat_interleave(self.children))
        return state


def run(bench: Bench) -> Outcome:
    """``--repeats 10``, ``--set queries=400``, ``seeds=32`` and ``map="stroke:12,slant:12"`` are the sizes; processes with
    ``only=[0, 1]`` and so on and one ``--out`` share the repeats."""
    repeats = bench.repeats or 10
    queries = bench.size("queries", 400, 1000)
    count = bench.size("seeds", 32, 100)
    text = str(bench.options.get("map", "stroke:12,slant:12"))
    lab = Lab(bench)
    grid = grid_of(text, lab.test)
    judge = for_data(bench.data, device=bench.device)
    witnesses = _context(lab, lab.test, "natural", bench.seed).witnesses
    arms = {arm: ARMS[arm] for arm in bench.names("arms", tuple(ARMS))}
    cells: dict[str, list[float]] = {arm: [] for arm in arms}
    asked: dict[str, list[float]] = {arm: [] for arm in arms}
    only = [int(number) for number in bench.options.get("only", range(repeats))]
    for number in only:
        seed = bench.seed + number
        images = _usable(lab, witnesses, count, seed)
        for arm, (method, mapped) in arms.items():
            bench.say(f"{arm}, {number + 1} of {repeats}")

            def measured(
                arm: str = arm,
                method: str = method,
                named: str | None = text if mapped else None,
                images: Images = images,
                seed: int = seed,
            ) -> list[float]:
                spent, found = 0, set[int]()
                for again in range(MOST):
                    left = queries - spent // len(images)
                    if left < 0.05 * queries:
                        break
                    turn = seed + 1000 * again
                    campaign = _campaign(lab, images, arm, method, named, grid, witnesses, turn)
                    most = Budget(queries=left)
                    done = search_campaign(campaign, images, most, shard=1024, rounds=1)
                    spent += int(done.queries.sum())
                    found |= _accepted(judge, grid, images, done.findings)
                return [float(len(found)), spent / len(images)]

            filled, each = bench.cell(f"{arm} {number}", measured, but=("arms", "only"))
            cells[arm].append(filled)
            asked[arm].append(each)
    return Outcome(
        "cells of a map with an accepted failure",
        [_table(cells, asked, text, len(grid), count, lab.notes)],
    )


ARMS: Mapping[str, tuple[str, bool]] = {
    "map (natural)": ("natural", True),
    "map (codes of a VAE)": ("sinvad", True),
    "sinvad": ("sinvad", False),
    "natural, again and again": ("natural", False),
    "random (natural)": ("natural", False),
}
"""The method whose space each arm searches, and whether the map steers."""
MAP = "map (natural)"
PRIMARY = "natural, again and again"
"""The arm that differs from `MAP` by the map alone."""
GOAL = 2.0
"""How many times the cells of `PRIMARY` the map should fill."""


def _context(
    lab: Lab,
    images: Images,
    method: str,
    seed: int,
    text: str | None = None,
    witnesses: tuple[Model, ...] | str = "default",
) -> Context:
    return Context.of(
        lab.subject, images, method, witnesses=witnesses, train=lab.train, data=lab.bench.data, seed=seed, map=text, allow_low_accuracy=True
    )  # fmt: skip


def _campaign(
    lab: Lab,
    images: Images,
    arm: str,
    method: str,
    text: str | None,
    grid: CellGrid,
    witnesses: tuple[Model, ...],
    seed: int,
) -> Campaign:
    """The campaign of one arm; of each seed and cell the best finding is kept."""
    ready = _context(lab, images, method, seed, text, witnesses)
    if text:  # all arms and runs fill one grid, whatever their seeds are
        ready.__dict__["map_cells"] = grid
    made = ready.campaign
    if arm.startswith("random"):
        plain = replace(made.method, search=RandomCodes(), until="budget", needs="label")
        made = replace(made, method=plain)
    return replace(made, keep=replace(made.keep, count=1, nearest=True, place=grid))


def _usable(lab: Lab, witnesses: tuple[Model, ...], count: int, seed: int) -> Images:
    """Test images that the subject and every witness classify correctly."""
    drawn = lab.test.sample(count=min(len(lab.test), 3 * count), seed=seed)
    return read_by_all((lab.subject, *witnesses), drawn).first(count)


def _accepted(judge: Judge, grid: CellGrid, images: Images, findings: Findings) -> set[int]:
    """The cells in which the judge accepts a finding."""
    kept = on_cpu(findings)
    if not len(kept):
        return set()
    words = judge(ImagePairs(kept.x, images.x[kept.seed], kept.expected)).verdict
    return {cell for cell, word in zip(cells_of(grid, kept.x), words) if word == "kept"}


def _table(
    cells: Mapping[str, list[float]],
    asked: Mapping[str, list[float]],
    text: str,
    total: int,
    count: int,
    substituted: Sequence[str],
) -> Table:
    mapped = torch.tensor(cells[MAP], dtype=torch.float64)
    others = [arm for arm in cells if arm not in (MAP, PRIMARY)]
    rows: list[dict[str, Cell]] = []
    for arm in [name for name in (MAP, PRIMARY) if name in cells] + others:
        own = torch.tensor(cells[arm], dtype=torch.float64)
        ratio = finite_mean(mapped / own.clamp_min(1))
        times = ratio.text(".2f")
        if arm == PRIMARY:
            times += f", goal {GOAL:g} {'reached' if ratio.low >= GOAL else 'not reached'}"
        rows.append(
            {
                "arm": f"{arm} (primary comparison)" if arm == PRIMARY else arm,
                "cells with an accepted failure": finite_mean(own).text(".1f"),
                "map (natural) over it": None if arm == MAP else times,
                "map (natural) above it": None
                if arm == MAP
                else finite_mean(mapped - own).text("+.1f"),
                "queries per seed": f"{sum(asked[arm]) / len(asked[arm]):.0f}",
            }
        )
    notes = [
        f"map {text}, {total} cells; {count} seeds per run, {len(mapped)} runs, each with seeds of its own",
        f"ratio and difference are paired by run, 95 % intervals over runs; the goal of {GOAL:g} is reached if the interval of the "
        "primary ratio lies above it",
        "the primary arm differs by the map alone; every other arm has another space or search too",
        "every query of the subject is also one of each of the three witnesses, in every arm; all but random also ask for gradients",
        *substituted,
    ]
    return table_of("cells", rows, notes)
