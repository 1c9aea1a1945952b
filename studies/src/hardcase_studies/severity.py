"""The smallest failing severity by bisection, beside a fine grid.

Bisection asks eight times and is right to ± .01 for a seed whose failing is monotone in severity. The grid of 16 says for
how many seeds it is not; a fine grid of 501 severities says how far the crossing that was found lies from the nearest
severity at which the seed goes from right to failing, and from the first of them.
"""

from __future__ import annotations

import torch

from hardcase.analysis import curves
from hardcase.corruptions import CORRUPTIONS
from hardcase.randomness import keys_of
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase_studies.bench import Bench, share
from hardcase_studies.lab import Lab

FINE = 500
"""Severities of the fine grid, a hundredth apart."""


def run(bench: Bench) -> Outcome:
    """``--set seeds=100`` and ``corruptions=fog,snow`` are the sizes."""
    lab = Lab(bench)
    images = lab.right.sample(
        count=min(bench.size("seeds", 60, 500), len(lab.right)), seed=bench.seed
    )
    names = bench.names("corruptions", tuple(CORRUPTIONS))
    x = from_bytes(images.x).to(bench.device)
    y = images.y.to(bench.device)
    keys = keys_of(images.id).to(bench.device)
    rows: list[list[Cell]] = []
    near = []
    first = []
    back = []
    for name in names:
        bench.say(name)
        change = curves.one_condition(f"corruption.{name}", "0..5", images.shape, keys)
        args = (change, lambda x: lab.subject(x).logits, x, y)
        found = curves.crossings(*args)
        coarse = curves.curve(*args, curves.grid())
        fine = curves.curve(*args, curves.grid(5.0, FINE))
        turns = coarse.non_monotone()
        crossed = found.high.isfinite()
        away, early = _errors(fine, found)
        close = away[crossed] <= 0.02  # ± .01 of ours and a hundredth of the grid
        near.append(close)
        first.append(early[crossed] <= 0.02)
        back.append(turns)
        rows.append(
            [name, share(crossed), share(close), share(first[-1]), share(turns), found.queries]
        )
    rows.append(
        ["all", "", share(torch.cat(near)), share(torch.cat(first)), share(torch.cat(back)), ""]
    )
    notes = [
        f"{len(images)} correctly classified seeds; severities 0 to 5; crossing within ± .01 and a fine grid of {FINE} steps of .01",
        "a crossing that bisection finds is one at which the seed goes from right to failing; where failing is not monotone it need not be the first",
        *lab.notes,
    ]
    columns = [
        "corruption",
        "seeds that cross",
        "found beside a crossing",
        "and it is the first",
        "not monotone on 16",
        "queries",
    ]
    return Outcome("smallest failing severity", [Table("bisection", columns, rows, notes)])


def _errors(fine: curves.Curve, found: curves.Crossings) -> tuple[torch.Tensor, torch.Tensor]:
    """How far the middle of bisection is from the nearest place where a seed starts to fail, and from the first."""
    right = torch.cat([torch.zeros(1, fine.failing.shape[1], dtype=torch.bool), fine.failing[:-1]])
    starts = fine.failing & ~right
    middle = found.severity().double()
    gap = (fine.severity.double()[:, None] - middle[None]).abs()
    nearest = torch.where(starts, gap, torch.inf).amin(0)
    place = fine.failing.double().argmax(0)
    return nearest, gap[place, torch.arange(len(middle))]
