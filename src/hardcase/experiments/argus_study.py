"""Images of several methods for people to rank, in files that do not say who made what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from hardcase import tensors
from hardcase.cache import make_folder, write_atomically
from hardcase.experiments.argus_answers import COLUMNS, SCORES
from hardcase.experiments.argus_measured import Measured
from hardcase.experiments.argus_methods import RIVALS
from hardcase.experiments.saying import csv_text
from hardcase.randomness import stream
from hardcase.types import KINDS, Images

MIXES = (0.1, 0.2, 0.3)
METHODS = (*(f"ARGUS {mix}" for mix in MIXES), *RIVALS)


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
    x = torch.zeros(len(seeds), len(found), *seeds.x.shape[1:], dtype=torch.uint8)
    predicted, there = (
        torch.full((len(seeds), len(found)), -1),
        torch.zeros(len(seeds), len(found), dtype=torch.bool),
    )
    for m, done in enumerate(found):
        failing = done.findings.kind == KINDS.index("label")
        for o in range(len(seeds)):
            rng = stream(seed, "ratings", m, o)
            rows, others = (
                (failing & (done.findings.seed == o)).nonzero().squeeze(1),
                done.sample[o][done.there[o]],
            )
            if len(rows):
                pick = rows[torch.randint(len(rows), (1,), generator=rng)]
                x[o, m], predicted[o, m], there[o, m] = (
                    done.findings.x[pick][0],
                    done.findings.predicted[pick][0],
                    True,
                )
            elif fill and len(others):
                x[o, m], there[o, m] = (
                    others[int(torch.randint(len(others), (1,), generator=rng))],
                    True,
                )
    return Study(seeds, x, predicted, there)


def write_study(study: Study, folder: Path, *, raters: int, seed: int) -> None:
    """``images/``, ``items.csv``, ``assignments.csv``, ``study.json`` and ``key.csv``. Names of files and items tell nothing."""
    make_folder(folder / "images")
    items, key = [["item", "original", "image", "original_image", "label"]], [["item", "original", "method", "fails", "predicted", "seed"]]  # fmt: skip
    classes, shown = study.originals.classes, dict[int, list[str]]()
    for o, label in enumerate(study.originals.y.tolist()):
        first = f"images/o{o:02d}.png"
        write_atomically(folder / first, tensors.encode(study.originals.x[o]))
        there = study.there[o].nonzero().squeeze(1)
        order = there[
            torch.randperm(len(there), generator=stream(seed, "ratings", "blind", o))
        ].tolist()
        shown[o] = [f"o{o:02d}-{chr(ord('a') + i)}" for i in range(len(order))]
        for name, m in zip(shown[o], order):
            write_atomically(folder / f"images/{name}.png", tensors.encode(study.x[o, m]))
            items.append([name, f"o{o:02d}", f"images/{name}.png", first, classes[label]])
            wrong = int(study.predicted[o, m])
            answer = ["yes", classes[wrong]] if wrong >= 0 else ["no", classes[label]]
            key.append([name, f"o{o:02d}", METHODS[m], *answer, study.originals.id[o]])
    order_rows = [["rater", "position", "original", "items"], *assign(shown, raters, seed)]
    for name, rows in (("items", items), ("key", key), ("assignments", order_rows)):
        write_atomically(folder / f"{name}.csv", csv_text(rows))
    write_atomically(
        folder / "study.json", (json.dumps(_instructions(raters), indent=2) + "\n").encode()
    )


def assign(shown: dict[int, list[str]], raters: int, seed: int) -> list[list[str]]:
    """Everyone sees every original; originals and their images come in an order of the rater's own."""
    rows = []
    for rater in range(raters):
        rng = stream(seed, "ratings", "rater", rater)
        for position, o in enumerate(torch.randperm(len(shown), generator=rng).tolist()):
            order = torch.randperm(len(shown[o]), generator=rng).tolist()
            rows.append(
                [f"r{rater:03d}", str(position), f"o{o:02d}", " ".join(shown[o][i] for i in order)]
            )
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
