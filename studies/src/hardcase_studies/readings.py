"""The judge and the measured noise against blind readings of findings.

Somebody looked at findings and unmodified images on sheets in random order, wrote down the digit that each shows and how
plain its noise is, and only then got the key. The readings are numbers; the images stay with whoever made them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hardcase.errors import Problem
from hardcase.judges import panel
from hardcase.judges.controls import LOSSES, UNCHANGED, count_controls, plant_controls
from hardcase.judges.visible import visible_change
from hardcase.runs.results import Run
from hardcase.statistics import Rate, auroc_interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import ImagePairs
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

PARTS = ("images", "originals", "expected", "method", "digit", "noise")
"""Arrays of a file of readings; `digit` is -1 where none was read and -2 where nobody was asked, `noise` is 0 none, 1 faint,
2 plain, -1 not asked."""


def run(bench: Bench) -> Outcome:
    """``--data mnist5k --set readings=FILE.npz runs=DIR,DIR``: what the judge of the data accepts of what was read blind."""
    if "readings" not in bench.options:
        raise Problem("blind readings are not part of hardcase.", fix="--set readings=FILE.npz")
    with np.load(Path(str(bench.options["readings"])), allow_pickle=False) as stored:
        read = {name: stored[name] for name in PARTS}
    lab = Lab(bench)
    bench.say("judge")
    judge = panel.trained(lab.train, lab.test, seed=bench.seed, device=bench.device)
    pairs = ImagePairs(
        torch.from_numpy(read["images"]),
        torch.from_numpy(read["originals"]),
        torch.from_numpy(read["expected"]).long(),
    )
    words = np.array(judge(pairs).verdict)
    looked = read["digit"] > -2
    kept = read["digit"] == read["expected"]
    rows: list[list[Cell]] = []
    for name in [*sorted(set(read["method"][looked].tolist())), "all but unmodified"]:
        rows_of = looked & (
            read["method"] != "unmodified" if name.startswith("all") else read["method"] == name
        )
        accepted, lost = rows_of & (words == "kept"), rows_of & np.isin(words, ("lost", "foreign"))
        rows.append(
            [
                name,
                int(rows_of.sum()),
                str(Rate(int((rows_of & kept).sum()), int(rows_of.sum()))),
                str(Rate(int((accepted & kept).sum()), int(accepted.sum()))),
                str(Rate(int((accepted & kept).sum()), int((rows_of & kept).sum()))),
                str(Rate(int((lost & ~kept).sum()), int(lost.sum()))),
            ]
        )
    asked = read["noise"] >= 0
    ranked: list[list[Cell]] = []
    numbers = visible_change(pairs)
    for name in ("noise", "saturated", "root_mean_square"):
        score = torch.tensor(numbers[name])[torch.from_numpy(asked)]
        for least, degree in ((1, "faint or plain"), (2, "plain")):
            area = auroc_interval(score, torch.from_numpy(read["noise"][asked] >= least))
            text = f"{area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"
            ranked.append([name, degree, text, area["yes"], area["no"]])
    return Outcome(
        "blind-readings",
        [
            Table(
                "Verdicts against a blind reading",
                ("method", "read", "label read as kept", "accepted: right", "accepted, of kept", "lost: right"),
                rows,
                ("one reader; of sinvad all accepted findings and a random part of the others were read, so its share of kept is too high",),
            ),
            Table("Visible noise against a blind reading", ("number", "noise read as", "AUROC", "noisy", "not"), ranked, ()),
            _controls(bench, lab),
        ],
    )  # fmt: skip


def _controls(bench: Bench, lab: Lab) -> Table:
    """What two trainings of the judge make of the controls of some runs."""
    rows: list[list[Cell]] = []
    for seed in (bench.seed, bench.seed + 1):
        judge = panel.trained(lab.train, lab.test, seed=seed, device=bench.device)
        for folder in bench.names("runs", ()):
            stored = Run(Path(folder))
            controls = plant_controls(stored)
            found = count_controls(controls, judge(controls.pairs).verdict)
            kinds = found["kinds"]
            found_by_kind = [
                f"{kinds[kind]['lost']} of {kinds[kind]['planted']}" for kind in LOSSES
            ]
            plain = kinds[UNCHANGED]
            rows.append(
                [f"{stored.record['method']}, judge {seed}", *found_by_kind, found["accepted"], f"{plain['kept']} of {plain['planted']}"]
            )  # fmt: skip
    columns = ("run", *(f"found: {kind}" for kind in LOSSES), "losses accepted", "unchanged kept")
    return Table(
        "Planted label losses", columns, rows, ("found: called lost, or no image of the data",)
    )
