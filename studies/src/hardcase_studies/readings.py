"""The judge and the measured noise against blind readings of findings.

Somebody looked at findings and unmodified images on sheets in random order, wrote down the digit that each shows and how
plain its noise is, and only then got the key. The readings are numbers; the images stay with whoever made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.judges.controls import LOSSES, UNCHANGED, count_controls, plant_controls
from hardcase.judges.judge import TrainedJudge
from hardcase.judges.visible import visible_change
from hardcase.runs.results import Run
from hardcase.statistics import Rate, auroc_interval
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import ImagePairs
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab

PARTS = ("images", "originals", "expected", "method", "digit", "noise")
"""Arrays of a file of readings: `digit` is -1 where none was read and -2 where nobody was asked, `noise` is 0 none, 1 faint,
2 plain, -1 not asked. Two more may be there: `sure` (whether the reader was) and `chosen` (how the images were, in words)."""
UNMODIFIED = "unmodified"
ALL = "all but unmodified"


def run(bench: Bench) -> Outcome:
    """``--data mnist5k --set readings=FILE.npz runs=DIR,DIR``: what two trainings of the judge accept of what was read blind.

    ``--set sets=N`` plants the controls of each run N times.
    """
    if "readings" not in bench.options:
        raise HardcaseError(
            "blind readings are not part of hardcase.", fix="--set readings=FILE.npz"
        )
    file = Path(str(bench.options["readings"]))
    with np.load(file, allow_pickle=False) as stored:
        read = dict(stored)
    missing = [name for name in PARTS if name not in read]
    if missing:
        raise HardcaseError(
            f"{file} has no array {missing[0]!r}.", f"a file of readings has {', '.join(PARTS)}"
        )
    lab = Lab(bench)
    judges: dict[int, TrainedJudge] = {}
    for seed in (bench.seed, bench.seed + 1):
        bench.say(f"judge {seed}")
        judges[seed] = panel.trained(lab.train, lab.test, seed=seed, device=bench.device)
    pairs = ImagePairs(
        torch.from_numpy(read["images"]),
        torch.from_numpy(read["originals"]),
        torch.from_numpy(read["expected"]).long(),
    )
    tables = [_verdicts(read, pairs, judges)]
    if (read["noise"] >= 0).any():
        tables.append(_noise(pairs, torch.from_numpy(read["noise"])))
    if bench.names("runs", ()):
        tables.append(_controls(bench, judges))
    name = "blind-readings" if file.stem == "readings" else f"blind-readings-{file.stem}"
    return Outcome(name, tables)


def _verdicts(
    read: Mapping[str, np.ndarray], pairs: ImagePairs, judges: Mapping[int, TrainedJudge]
) -> Table:
    """What each judge accepts, and calls lost, beside what was read: by method, and by how sure the reader was."""
    looked = read["digit"] > -2
    changed = looked & (read["method"] != UNMODIFIED)
    parts = {name: looked & (read["method"] == name) for name in sorted({*read["method"][looked]})}
    parts[ALL] = changed
    if "sure" in read:
        parts |= {"reader sure": changed & read["sure"], "reader unsure": changed & ~read["sure"]}
    kept = read["digit"] == read["expected"]
    rows: list[list[Cell]] = []
    for seed, judge in judges.items():
        words = np.array(judge(pairs).verdict)
        accepted, lost = words == "kept", np.isin(words, ("lost", "foreign"))
        for name, part in parts.items():
            rows.append(
                [
                    f"{name}, judge {seed}",
                    int(part.sum()),
                    _share(kept, part),
                    _share(kept, part & accepted),
                    _share(accepted, part & kept),
                    _share(~kept, part & lost),
                ]
            )
    columns = (
        "images", "read", "label read as kept", "accepted: right", "accepted, of kept", "lost: right",
    )  # fmt: skip
    chosen = str(read.get("chosen", "how they were chosen is not said"))
    return Table(
        "Verdicts against a blind reading", columns, rows, (f"one reader; images: {chosen}",)
    )


def _share(hits: np.ndarray, of: np.ndarray) -> str:
    return str(Rate(int((hits & of).sum()), int(of.sum())))


def _noise(pairs: ImagePairs, noise: Tensor) -> Table:
    """How the measured numbers rank images that a reader calls noisy above those that are not."""
    asked = noise >= 0
    rows: list[list[Cell]] = []
    numbers = visible_change(pairs)
    for name in ("noise", "saturated", "root_mean_square"):
        score = torch.tensor(numbers[name])[asked]
        for least, degree in ((1, "faint or plain"), (2, "plain")):
            area = auroc_interval(score, noise[asked] >= least)
            text = f"{area['value']:.3f} [{area['low']:.3f}, {area['high']:.3f}]"
            rows.append([name, degree, text, area["yes"], area["no"]])
    columns = ("number", "noise read as", "AUROC", "noisy", "not")
    return Table("Visible noise against a blind reading", columns, rows, ())


def _controls(bench: Bench, judges: Mapping[int, TrainedJudge]) -> Table:
    """What each judge makes of the controls of some runs."""
    rows: list[list[Cell]] = []
    sets = bench.size("sets", 1, 5)
    for seed, judge in judges.items():
        for folder in bench.names("runs", ()):
            stored = Run(Path(folder))
            planted = [plant_controls(stored, seed=number) for number in range(sets)]
            found = [count_controls(each, judge(each.pairs).verdict) for each in planted]
            rows.append(
                [
                    f"{stored.record['method']}, judge {seed}",
                    *(_planted(found, kind, "lost") for kind in LOSSES),
                    sum(each["accepted"] for each in found),
                    _planted(found, UNCHANGED, "kept"),
                ]
            )
    columns = ("run", *(f"found: {kind}" for kind in LOSSES), "losses accepted", "unchanged kept")
    notes = (f"found: called lost, or no image of the data; {sets} set(s) of controls of each run",)
    return Table("Planted label losses", columns, rows, notes)


def _planted(found: list[dict[str, Any]], kind: str, word: str) -> str:
    """How many controls of a kind were called so, of how many, over all sets."""
    rows = [each["kinds"][kind] for each in found]
    return f"{sum(row[word] for row in rows)} of {sum(row['planted'] for row in rows)}"
