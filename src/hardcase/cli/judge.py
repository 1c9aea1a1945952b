"""``hardcase judge`` and ``hardcase train judge``: are found tests valid, have they kept their label, how sure is that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.afterwards import rate
from hardcase.cli.speaking import as_json, console, facts, grid, shown, tell
from hardcase.cli.train import TrainingData, learn, present
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.judging.judge import Judge
    from hardcase.results import Run
    from hardcase.training import Progress
    from hardcase.types import Images


def judge(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Run folders.")] = None,
    calibrate: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Images rated by people, to fit and measure the judge with.")
    ] = None,
    which: Annotated[
        Path | None, typer.Option("--judge", metavar="DIR", help="A trained judge; by default that of the run's data.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Whose judge; by default that of the run's data, mnist5k without a run.")
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Judge what runs have found: valid, label kept, distinct. Trains the judge of the data if it is missing."""
    from hardcase.cli.closing import logging_to
    from hardcase.cli.watching import front
    from hardcase.planning import device as existing
    from hardcase.results import Run

    logging_to(verbose=verbose, quiet=quiet)
    place = existing(device or "cpu")
    runs = [Run(folder) for folder in folders or []]
    if not runs and calibrate is None:
        raise Problem("there is no run to judge and nothing to calibrate with.", fix="hardcase judge RUN")
    with front(progress, quiet=quiet) as screen:
        asked = {"seed": seed or 0, "device": place, "offline": offline, "progress": screen.train}
        judges = [_judge(run, which, data, asked) for run in runs] or [_judge(None, which, data or "mnist5k", asked)]
    if calibrate is not None:
        judges = [_calibrated(one, calibrate, place) for one in judges[:1]] * max(len(judges), 1)
        _tell_calibration(judges[0], format, quiet or format == "json")
    judged = [_judged(run, one, place) for run, one in zip(runs, judges)]
    if format == "json":
        as_json([{"folder": str(run.folder), **run.record} for run in judged] or judges[0].calibration)
    elif judged:
        tell("\n\n".join(_closing(run, quiet) for run in judged))


def train(
    data: TrainingData = "mnist5k",
    seed: o.Seed = None,
    device: o.Device = None,
    offline: o.Offline = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Train the judge of a data set: networks that take no part in any search."""
    from hardcase.judging.training import trained

    def school(first: Images, second: Images, place: str, tell: Callable[[Progress], None]) -> dict[str, Any]:
        return dict(trained(first, second, seed=seed or 0, device=place, progress=tell).card)

    present(
        learn(school, data, device, offline=offline, progress=progress, quiet=quiet, verbose=verbose), format, quiet
    )


def _judge(run: Run | None, which: Path | None, data: str | None, asked: dict[str, Any]) -> Judge:
    from hardcase.judging import choosing

    if which is not None:
        return choosing.read(which)
    if run is None or data is not None:
        split = "test" if run is None else run.record.get("split", "test")
        return choosing.for_data(data or "mnist5k", learn_from="train" if split == "test" else "test", **asked)
    return choosing.for_run(run, **asked)


def _judged(run: Run, judge: Judge, place: str) -> Run:
    from hardcase.judging.verdicts import judge_run

    return judge_run(run, judge, device=place)


def _calibrated(judge: Judge, file: Path, place: str) -> Judge:
    from hardcase.judging.choosing import calibrate

    return calibrate(judge, file, device=place)


def _tell_calibration(judge: Judge, format: str, quiet: bool) -> None:
    if quiet:
        return
    known = judge.calibration
    assert known is not None
    columns = ("question", "AUROC", "yes where it is so", "no where it is not", "wrongly yes", "undecided")
    rows = [
        (name.replace("_", " "), _auroc(known[name]["auroc"]), *(rate(known[name][key]) for key in ("tpr", "tnr", "false_yes", "undecided")))
        for name in ("label_kept", "valid")
    ]  # fmt: skip
    console().print(
        grid(f"{known['images']} images rated by people, pooled over {known['pooled_over']}", columns, rows)
    )
    both = known["confirmed"]
    tell(
        facts(
            {
                "confirmed, right": rate(both["precision"]),
                "confirmed, found": rate(both["recall"]),
                "kept in": shown(judge.folder),
            }
        )
    )


def _auroc(value: dict[str, Any]) -> str:
    return "–" if value["value"] is None else f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _closing(run: Run, quiet: bool) -> str:
    if quiet:
        return str(run.folder)
    said = run.record["judge"]
    quiet_ones = said["silence"]["silent"]
    lines = [
        f"{run.record['method']} on {run.record['model']}, {run.record['data']}",
        run.summary(),
        f"judge: {said['standing']}",
        f"of the confirmed tests {rate(quiet_ones)} are silent: the model is as sure of them as of its right answers",
        f"report  hardcase report {shown(run.folder)} --open",
    ]
    return "\n".join(lines)


__all__ = ["judge", "train"]
