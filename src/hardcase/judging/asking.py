"""The front door of judging: a run, its judge, and what people said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from hardcase.errors import Problem
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


def finish(
    run: Run,
    *,
    say: Callable[[str], None] = lambda text: None,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    train: bool = False,
) -> Run:
    """What the end of every run does: judge it if its judge is trained (or `train` says to train one), else say how to.

    A run that cannot be judged stays as it is, and why is said.
    """
    if not len(run):
        return run
    if not (train or choosing.is_ready(run)):
        say(
            f"not judged: the judge of {run.record['data']} is not trained yet; hardcase judge {run.folder} trains it once"
        )
        return run
    try:
        return judge(run, device=device, progress=progress)
    except Problem as problem:
        say(f"not judged: {problem.what}")
        return run
