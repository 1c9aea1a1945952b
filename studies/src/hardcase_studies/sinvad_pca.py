"""SINVAD's Figure 13: do found images lie between the clusters of two classes, seen by the network and projected by PCA?

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023. The paper shows pictures; here *between* is counted: a
projected image lies along the line of the two class means beyond nine tenths of the test images of either class. Of the test
images themselves at most a tenth does, by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from hardcase.campaign.in_memory import search
from hardcase.criteria.network import Selection, select
from hardcase.methods.sinvad import sinvad_code
from hardcase.models.health import usable
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes
from hardcase_studies import figures
from hardcase_studies.bench import Bench, share
from hardcase_studies.lab import Lab

PAIRS = ((4, 9), (3, 5), (2, 7), (3, 8))
"""Pairs that the targeted search can cross: between 0 and 1 it seldom finds anything."""
BEYOND = 0.9


@dataclass(frozen=True, slots=True)
class Projected:
    """Test images and found images in the plane of the two main components of the test images."""

    test: Float[Tensor, "n 2"]
    y: Int[Tensor, " n"]
    found: Float[Tensor, "m 2"]

    def along(self, points: Float[Tensor, "m 2"]) -> Float[Tensor, " m"]:
        """How far points are from the mean of the first class (0) to that of the second (1)."""
        one, two = (self.test[self.y == c].mean(0) for c in torch.unique(self.y))
        return (points - one) @ (two - one) / (two - one).square().sum()

    def between(self, points: Float[Tensor, "m 2"]) -> Tensor:
        """Which points lie beyond nine tenths of the test images of either class."""
        places = [self.along(self.test[self.y == c]) for c in torch.unique(self.y)]
        low, high = places[0].quantile(BEYOND), places[1].quantile(1 - BEYOND)
        where = self.along(points)
        return (where > low) & (where < high)


def run(bench: Bench) -> Outcome:
    """``--set pairs=[[0,1]] seeds=N`` choose the pairs and how many images of each class are searched from."""
    here = Lab(bench)
    selection = select(here.profile.graph(here.subject), "last-hidden", "unit")
    rows: list[list[Cell]] = []
    clouds = {}
    for a, b in bench.options.get("pairs", PAIRS):
        bench.say(f"{a} and {b}")
        seen = _projected(bench, here, selection, (int(a), int(b)))
        found = share(seen.between(seen.found)) if len(seen.found) else None
        rows.append([f"{a} and {b}", found, share(seen.between(seen.test))])
        first = int(seen.y.min())
        clouds[f"{a} and {b}"] = {
            f"test {a}": seen.test[seen.y == first],
            f"test {b}": seen.test[seen.y != first],
            "found": seen.found,
        }
    notes = [
        *here.notes,
        f"activations of {'+'.join(selection.names)}; the authors' targeted search from images of either class to the other",
        "between: along the line of the class means, beyond nine tenths of the test images of either class",
    ]
    columns = ["pair", "between the clusters", "test images there"]
    table = Table("Figure 13: found images between two clusters", columns, rows, notes)
    return Outcome("sinvad-pca", [table], [figures.scatter(bench.out / "pca.png", clouds)])


def _projected(bench: Bench, here: Lab, selection: Selection, pair: tuple[int, int]) -> Projected:
    inside = (here.test.y == pair[0]) | (here.test.y == pair[1])
    both = usable(here.subject, here.test.take(inside.nonzero().squeeze(1)))
    count = bench.size("seeds", 60, 500)
    found = []
    for source, target in (pair, pair[::-1]):
        seeds = both.take((both.y == source).nonzero().squeeze(1)).first(count)
        method = sinvad_code(space=here.space, target=target)
        found.append(search(here.subject, method, seeds, seed=bench.seed).findings.x)
    activations = _activations(here, selection, both.x)
    middle = activations.mean(0)
    axes = torch.linalg.svd(activations - middle, full_matrices=False).Vh[:2].T
    boundary = activations[:0]
    if any(map(len, found)):
        boundary = _activations(here, selection, torch.cat(found))
    return Projected((activations - middle) @ axes, both.y, (boundary - middle) @ axes)


@torch.no_grad()
def _activations(
    here: Lab, selection: Selection, x: UInt8[Tensor, "m c h w"]
) -> Float[Tensor, "m u"]:
    parts: Sequence[Tensor] = [
        torch.cat(
            selection.read(
                here.subject(
                    from_bytes(x[rows].to(here.subject.device)), selection.taps
                ).activations
            ),
            1,
        )
        for rows in chunks(len(x), 256)
    ]
    return torch.cat([part.cpu() for part in parts]).double()
