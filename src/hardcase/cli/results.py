"""What a run becomes afterwards: ``report``, ``export``, ``cite``, ``compare``, ``replay``, ``gate``, ``shrink``."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, note, shown, tell
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.runs.results import Run


# --- What the verbs that come after a run share.


def config_of(run: Run, **flags: Any) -> Config:
    """The configuration of a run with some of it changed."""
    from hardcase.config import assign, parse, read

    values = read(run.folder / "config.toml")
    if not values:
        raise Problem(
            f"{run.folder} was started from Python, so its model and data cannot be found by name.",
            fix="hc.replay or hc.shrink in Python",
        )
    values |= {key: value for key, value in flags.items() if value and key != "settings"}
    return parse(assign(values, flags.get("settings") or []))


def rate(value: dict[str, Any]) -> str:
    """A share with its counts and its interval."""
    if not value["total"]:
        return "0 of 0"
    share, low, high = (f"{100 * value[name]:.1f} %" for name in ("share", "low", "high"))
    return f"{value['hits']} of {value['total']} = {share} (95 % interval {low} to {high})"


# --- ``hardcase compare``: runs side by side, with statistics.


def compare(
    folders: o.Runs,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Where the page goes.")
    ] = None,
    seed: o.Seed = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
) -> None:
    """Compare runs with statistics: equal budgets, paired seeds, corrected tests; one HTML page and its JSON twin."""
    from hardcase.suite.compare import compare as side_by_side

    found = side_by_side(*folders, seed=seed or 0)
    table = found.table
    page = found.report(
        out or Path(os.path.commonpath([f.absolute().parent for f in folders])) / "compare.html"
    )
    if format == "json":
        as_json({"page": str(page), **table})
    elif quiet:
        tell(str(page))
    else:
        _tell(table)
        tell(f"page  {shown(page)}")


def _tell(table: dict[str, Any]) -> None:
    columns = ("run", "method", "failing, of attempted", "confirmed", "distinct", "queries")
    rows = [
        (run["name"], run["method"], rate(run["failing"]), "not judged" if run["confirmed"] is None else rate(run["confirmed"]), run["distinct"], int(run["queries"]))
        for run in table["runs"]
    ]  # fmt: skip
    console().print(grid("", columns, rows))
    tell(table["sentence"])
    for pair in table["pairs"]:
        tests = [(test["what"], test["test"], test["p"], test["p_holm"]) for test in pair["tests"]]
        console().print(
            grid(
                f"{pair['first']} against {pair['second']}",
                ("question", "test", "p", "p, corrected"),
                tests,
            )
        )


# --- ``hardcase gate``: pass or fail for continuous integration.

FAILED = 1


def gate(
    folder: o.OneRun,
    max_confirmed_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the attempted seeds.")
    ] = None,
    max_class_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The same for every class alone.")
    ] = None,
    max_silent_rate: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Confirmed ones on which the model is sure."),
    ] = None,
    max_distinct: Annotated[
        int | None, typer.Option(metavar="N", help="Groups of confirmed tests.")
    ] = None,
    min_usable: Annotated[
        int, typer.Option(metavar="N", help="Fewer usable seeds than this never pass.")
    ] = 20,
    upper: Annotated[
        bool, typer.Option("--upper", help="Hold the upper end of the 95 % interval to the limits.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Also write a JUnit file.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations; the default inside GitHub's CI.")
    ] = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
) -> None:
    """Pass or fail a judged run by limits on what was confirmed; exit code 1 if it fails."""
    from dataclasses import asdict

    from hardcase.runs.results import Run
    from hardcase.suite import gate as gates

    limits = gates.Limits(
        confirmed_rate=max_confirmed_rate, class_rate=max_class_rate, silent_rate=max_silent_rate, distinct=max_distinct,
        usable=min_usable, upper=upper,
    )  # fmt: skip
    run = Run(folder)
    checks = gates.gate(run, limits)
    good = gates.passed(checks)
    if junit is not None:
        gates.junit(checks, junit, name=folder.resolve().name)
    if format == "json":
        as_json(
            {"passed": good, "checks": [asdict(check) for check in checks], "judge": _standing(run)}
        )
    elif not quiet:
        tell("\n".join(f"{'pass' if check.passed else 'FAIL'}  {check.text}" for check in checks))
        note(f"judge: {_standing(run)}")
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        tell("\n".join(gates.github(checks)))
    if not good:
        raise typer.Exit(FAILED)


def _standing(run: Run) -> str:
    return str((run.record.get("judge") or {}).get("standing", "unknown"))


# --- ``hardcase replay``: stored tests and another version of the model.


def replay(
    folder: o.OneRun,
    model: Annotated[str, typer.Option(help="The other version; zoo:NAME, file.py:factory ...")],
    settings: o.Settings = None,
    trust_pickle: o.TrustPickle = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Every test with what is answered now.")
    ] = None,
    device: o.Device = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Show the stored tests of a run to another version of the model: fixed, still failing, newly failing."""
    from hardcase.cache import write_atomically
    from hardcase.cli.run import logging_to
    from hardcase.context import subject
    from hardcase.runs.results import Run
    from hardcase.suite.replay import replay as again

    logging_to(verbose=verbose, quiet=quiet)
    run = Run(folder)
    config = config_of(
        run,
        model=model,
        settings=settings,
        trust_pickle=trust_pickle,
        device=device,
        offline=offline,
    )
    found = again(run, subject(config, model))
    if out is not None:
        import json

        write_atomically(
            out, json.dumps({**found.summary(), "rows": found.rows()}, indent=1).encode()
        )
    as_json(found.summary()) if format == "json" else _tell_replayed(found.summary())


def _tell_replayed(said: dict[str, Any]) -> None:
    seeds = said["seeds"]
    lines = {
        "model": said["model"],
        "fixed": rate(said["fixed"]),
        "still failing": rate(said["still_failing"]),
    }
    if said["confirmed"] is not None:
        lines |= {"fixed, confirmed tests": rate(said["confirmed"]["fixed"])}
    lines |= {
        "newly failing seeds": f"{rate(seeds['newly_failing'])} that were right before",
        "newly right seeds": f"{rate(seeds['newly_right'])} that were wrong before",
        "seeds, McNemar": f"p = {seeds['mcnemar_p']:.3g}",
        "seeds and tests, McNemar": f"p = {said['mcnemar_p']:.3g}",
    }
    tell(facts(lines))


# --- ``hardcase report``, ``export`` and ``cite``: what a run becomes afterwards.


class To(StrEnum):
    imagefolder = "imagefolder"
    hf = "hf"
    npz = "npz"
    mlflow = "mlflow"


def report(
    folders: o.Runs,
    out: o.Out = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write the report of one run or several: one HTML page and the same numbers as JSON."""
    from hardcase.cli.run import logging_to
    from hardcase.report.page import write
    from hardcase.runs.results import Run

    logging_to(verbose=verbose, quiet=quiet)
    page = write([Run(folder) for folder in folders], out or _home(folders))
    if format == "json":
        as_json({"page": str(page), "json": str(page.with_name("report.json"))})
    else:
        tell(str(page))
    if show:
        typer.launch(page.absolute().as_uri())


def export(
    folder: o.OneRun,
    to: Annotated[To, typer.Option("--to", help="What to write.")] = To.imagefolder,
    out: o.Out = None,
    uri: Annotated[
        str | None, typer.Option(metavar="URI", help="Of mlflow: the tracking store.")
    ] = None,
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="Of mlflow: the experiment.")
    ] = "hardcase",
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write the found tests as a data set of their own, or the run's numbers and report into MLflow."""
    from hardcase.runs.results import Run

    run = Run(folder)
    if to == To.mlflow:
        from hardcase.suite.export import track

        tell(track(run, uri=uri, experiment=experiment))
        return
    where = run.export(to, out or folder.with_name(f"{folder.name}-{to}"))
    tell(str(where))
    if not quiet:
        note(f"{len(run):,} tests under the labels they should have had, from {shown(folder)}")


def cite(folders: o.Runs) -> None:
    """Print the BibTeX of what runs used."""
    from hardcase.citations import bibtex
    from hardcase.cli.run import read_json

    listed = [read_json(folder / "run.json").get("citations", []) for folder in folders]
    tell(bibtex(str(key) for keys in listed if isinstance(keys, list) for key in keys))


def _home(folders: list[Path]) -> Path:
    """The run's own folder; for several, a folder beside them."""
    if len(folders) == 1:
        return folders[0] / "report"
    return Path(os.path.commonpath([folder.absolute().parent for folder in folders])) / "report"


# --- ``hardcase shrink``: the smallest change that still fails.


def shrink(
    folder: o.OneRun,
    out: o.Out = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, max=30, help="Halvings of each way back.")
    ] = 12,
    device: o.Device = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Move each failing test back toward its seed as far as it still fails; the result is a run of its own."""
    from hardcase.cli.options import free
    from hardcase.cli.run import logging_to
    from hardcase.context import campaign, plan
    from hardcase.runs.results import Run
    from hardcase.suite.shrink import shrink as move_back

    logging_to(verbose=verbose, quiet=quiet)
    run = Run(folder)
    config = config_of(run, device=device, offline=offline)
    ready = campaign(config)
    if ready.subject.hash != run.record["hashes"]["subject"]:
        note(
            "the model is not the one that the run was made with; only tests that it fails too are moved"
        )
    where = out or free(folder.with_name(f"{folder.name}-shrunk"))
    small = move_back(
        run, ready.subject, where, space=ready.method.space, seeds=plan(config).images, steps=steps
    )
    said = small.record["shrink"]
    if format == "json":
        as_json({"folder": str(small.folder), **said})
    elif quiet:
        tell(str(small.folder))
    else:
        tell(facts({
            "tests": f"{said['tests']:,}, of which {said['failing']:,} fail this model",
            "median L2 to the seed": f"{said['l2_before']:.3g} before, {said['l2_after']:.3g} now",
            "queries": said["queries"],
            "files": shown(small.folder),
            "next": f"hardcase judge {shown(small.folder)}",
        }))  # fmt: skip
