"""The front door of judging: a run, its judge, and what people said."""

from __future__ import annotations

from pathlib import Path

import torch

from hardcase.judging import choosing
from hardcase.judging.judge import Judge
from hardcase.judging.schooling import Tell
from hardcase.judging.verdicts import judge_run
from hardcase.results import Run


def judge(
    run: Run | str | Path,
    *,
    by: Judge | str | Path | None = None,
    calibrate: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Run:
    """Judge the findings of a run: valid, label kept, distinct. Returns the run with its verdicts.

    `by` is a judge or the folder of one; without it the judge of the run's data, trained if it is missing. `calibrate` is
    a file of images that people have rated; the judge is fitted to them first, and keeps that.
    """
    run = run if isinstance(run, Run) else Run(run)
    if by is None:
        by = choosing.for_run(run, device=device, progress=progress)
    elif not isinstance(by, Judge):
        by = choosing.read(Path(by))
    if calibrate is not None:
        by = choosing.calibrate(by, Path(calibrate), device=device)
    return judge_run(run, by, device=device)
