"""What a run becomes afterwards: ``report``, ``export``, ``cite``, ``compare``, ``replay``,
``gate``, ``shrink``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.options import answer, facts, grid, note, opened, print_line, rate, shown
from hardcase.errors import FAILED, INCONCLUSIVE, HardcaseError

if TYPE_CHECKING:
    from rich.table import Table

    from hardcase.conditions import Conditions
    from hardcase.config import Config
    from hardcase.context import Context
    from hardcase.runs.results import Run
    from hardcase.suite.gate import Check, GateLimits


ASKED = ("seed", "trust_pickle", "device", "offline")
"""Flags that change how the ingredients of a run are loaded."""


def config_of(
    run: Run,
    flags: o.Flags,
    *,
    uses: tuple[str, ...] | None = ("model", "data"),
    **given: Any,
) -> Config:
    """The configuration of a run, changed by flags, or by `given`.

    What the folder names is only allowed if it was started from this account, or with ``--trust``;
    what flags name is. `uses` are the settings whose models, files and addresses the verb will
    use; None: all of them.
    """
    from hardcase.config import assign, parse
    from hardcase.runs.identity import require, same_source

    values = run.store.settings()
    if not values:
        raise HardcaseError(
            f"{run.folder} was started from Python, so its model and data cannot be found by name.",
            fix="hc.replay or hc.shrink in Python",
        )
    values.pop("cluster", None)  # no verb that looks back needs it
    settings = {name: getattr(flags, name) for name in ASKED}
    settings = {name: value for name, value in {**settings, **given}.items() if value}
    stored = parse(values)
    if "model" in settings:
        settings["model"] = stored.model.with_name(settings["model"]).model_dump()
    if not flags.allow_changes:
        same_source(run.record, stored.model_copy(update=dict.fromkeys(settings)), uses)
    recorded = {
        key: value
        for key, value in stored.model_dump().items()
        if key not in settings and (uses is None or key in (*uses, "trust_pickle"))
    }
    require(recorded, run.folder, trusted=flags.trust)
    if "model" in settings:  # the run's own model may have been trusted; this one is not yet
        values["trust_pickle"] = False
    return parse(assign({**values, **settings}, flags.settings or []))


def same_ingredients(run: Run, context: Context, flags: o.Flags, *used: str) -> None:
    """Refuse ingredients other than the run's; report another machine.

    Args:
        run: A stored run.
        context: The context that a verb has prepared.
        flags: Whether changes are allowed.
        used: Ingredients that the verb uses: ``model``, ``images``; empty: all of the search.
    """
    from hardcase.runs.identity import MACHINE, Identity, parts_of, require_same, stored_identity
    from hardcase.runs.plan import plan_of
    from hardcase.runs.verify import require_behaviour

    then = stored_identity(run.record)
    if then is None:
        note("note: this run was stored before ingredients were recorded: it is unverified")
        return
    machine = Identity(parts_of(device=context.subject.device.type))
    other = then.only(machine.parts).differences(machine)
    if other:
        note(f"note: this run began with another {', another '.join(other)}")
    try:
        if not used:
            now = plan_of(context).identity(context.campaign)
            require_same(then.only(now.parts), now, but=MACHINE)
        if "model" in used:
            now = Identity(parts_of(context.subject))
            require_same(then.only(now.parts), now)
        if "images" in used and "images" in then.parts and not run.record.get("generated_images"):
            parts = parts_of(seeds=context.seeds)
            now = Identity({name: digest for name, digest in parts.items() if name in then.parts})
            require_same(then.only(now.parts), now)
        if "model" in used and not other:
            with context.measurement.arithmetic():
                images = context.measured_images
                require_behaviour(run.record, {"model": context.subject}, images)
    except HardcaseError as problem:
        if not flags.allow_changes:
            raise HardcaseError(problem.what, *problem.why, fix="--allow-changes") from problem
        note(f"note: {problem.what}")


def context_of(run: Run, flags: o.Flags) -> Context:
    """The ingredients of a run, which must be those that it began with."""
    from hardcase.context import Context

    uses = ("model", "data", "conditions")
    context = Context(config_of(run, flags, uses=uses, conditions=flags.conditions))
    same_ingredients(run, context, flags, "model")
    same_ingredients(run, context, flags, "images")
    return context


def declared_conditions(context: Context, run: Run | None) -> Conditions:
    """The requested conditions, else those of the run, else the usual conditions of such images."""
    from hardcase.conditions import Conditions
    from hardcase.conditions.declared import usual_profile

    conditions = context.config.conditions
    if conditions in (None, "none"):
        conditions = None if run is None else run.record.get("conditions")
    return Conditions.load(conditions or usual_profile(context.shape))


@o.takes("format", "quiet", out=o.Row("Where the page goes.", "FILE.html"))
def compare(folders: o.Runs, flags: o.Flags, out: Path | None = None) -> None:
    """Compare runs: failure rates image by image, then their searches; write an HTML page and
    its JSON twin.
    """
    from hardcase.suite.compare import compare as side_by_side

    comparison = side_by_side(*map(opened, folders))
    table = comparison.table
    page = comparison.report(out or _common_parent(folders) / "compare.html")
    lines = (*_compared(table), f"page  {shown(page)}")
    answer(flags, {"page": str(page), **table}, *lines, quiet=str(page))


def _compared(table: dict[str, Any]) -> Iterator[str | Table]:
    """The lines of a comparison: failure rates first, then search results."""
    from hardcase.wording.numbers import rate as measured_rate

    for pair in table["pairs"]:
        line = _rates_line(pair)
        if line:
            yield line
    searched = any(run["searched"] for run in table["runs"])
    columns = ["run", "method", "failure rate"]
    columns += ["failing, of searched", "accepted", "clusters", "queries"] * searched
    rows = []
    for run in table["runs"]:
        row = [run["name"], run["method"]]
        row.append(measured_rate(run["risk"]) if run["risk"] else "not measured")
        if searched:
            accepted = "not judged" if run["accepted"] is None else rate(run["accepted"])
            row += [rate(run["failing"]), accepted, run["clusters"], int(run["queries"])]
        rows.append(row)
    yield grid("", columns, rows)
    yield table["sentence"]
    for pair in table["pairs"] if searched else ():
        tests = [(test["what"], test["test"], test["p"], test["p_holm"]) for test in pair["tests"]]
        title = f"{pair['first']} against {pair['second']}"
        yield grid(title, ("question", "test", "p", "p, corrected"), tests)
        if pair["changed"] is not None:
            changes = ("fixed", "still_failing", "newly_failing")
            yield facts({name.replace("_", " "): rate(pair["changed"][name]) for name in changes})


def _rates_line(pair: dict[str, Any]) -> str:
    """How the failure rates of two runs differ; empty if either has no rate."""
    from hardcase.wording.numbers import difference, percent

    rates = pair["failure_rate"]
    if rates is None:
        return ""
    both = f"{pair['first']} and {pair['second']}"
    if "why" in rates:
        return f"{both}: {rates['why']}"
    missing = ""
    if rates["missing"]:
        missing = f"; {rates['missing']:,} images are missing in {pair['first']}"
    return (
        f"{pair['first']} fails in {percent(rates['first'])}, {pair['second']} in"
        f" {percent(rates['second'])} of samples: {difference(rates['difference'])} on"
        f" {rates['images']:,} common images{missing}."
    )


@o.takes(
    "format",
    "quiet",
    config=o.Row(
        "A file with limits; hardcase.toml here by default. Flags override it.", "FILE.toml"
    ),
    max_risk=o.Row("Failure rate under the declared conditions, at most.", "SHARE"),
    max_class_risk=o.Row("Failure rate of every class, at most.", "SHARE"),
    min_accuracy=o.Row("Share of unmodified images that are right, at least.", "SHARE"),
    baseline=o.Row("The baseline: failure rates are compared image by image.", "RUN"),
    risk_margin=o.Row("By how much the rate may exceed the baseline's; 0.01.", "SHARE"),
    conditions=o.Row("The conditions under which the rate must be measured.", "NAME|FILE"),
    max_accepted_rate=o.Row("Searched images with an accepted failure, at most.", "SHARE"),
    max_high_confidence_rate=o.Row("The same for failures made with high confidence.", "SHARE"),
    max_witnessed_rate=o.Row("Searched images with a witnessed failure, at most.", "SHARE"),
    repaired_from=o.Row("RUN is a repair: nothing may be worse than in this run.", "RUN"),
    known=o.Row("Known failures that do not count: ids of failures or images.", "FILE"),
    junit=o.Row("Also write a JUnit file.", "FILE.xml"),
    github=o.Row("Print annotations; the default inside GitHub's CI."),
)
def gate(
    folder: o.OneRun,
    flags: o.Flags,
    config: Path | None = None,
    max_risk: float | None = None,
    max_class_risk: float | None = None,
    min_accuracy: float | None = None,
    baseline: Path | None = None,
    risk_margin: float | None = None,
    conditions: str | None = None,
    max_accepted_rate: float | None = None,
    max_high_confidence_rate: float | None = None,
    max_witnessed_rate: float | None = None,
    repaired_from: Path | None = None,
    known: Path | None = None,
    junit: Path | None = None,
    github: bool = False,
) -> None:
    """Hold a run against limits and against a baseline: PASS (exit 0), FAIL (1) or
    INCONCLUSIVE (4), each by an interval.
    """
    from hardcase.suite import gate as gates
    from hardcase.wording.gate import conditions_line, first_line
    from hardcase.wording.summary import decide

    limits = gates.GateLimits.of(
        _limits(config, folder),
        risk=max_risk,
        class_risk=max_class_risk,
        accuracy=min_accuracy,
        margin=risk_margin,
        conditions=conditions,
        accepted_rate=max_accepted_rate,
        high_confidence_rate=max_high_confidence_rate,
        witnessed_rate=max_witnessed_rate,
        known=None if known is None else gates.read_known(known),
    )
    checks, about = _gated(folder, limits, baseline, repaired_from)
    decided = gates.outcome(checks)
    if junit is not None:
        gates.write_junit(checks, junit, name=folder.resolve().name)
    passed = sum(check.passed for check in checks)
    first = first_line(decided, str(about["model"]), passed, len(checks))
    if len(checks) == 1 and "conditions" in about:
        first = str(decide(about, checks))
    lines = [
        first,
        *(f"{check.outcome:<12}  {check.text}" for check in checks),
        *(
            f"to decide     {wanted}"
            for wanted in dict.fromkeys(c.decide for c in checks)
            if wanted
        ),
        *(f"known         {name}" for name in about.get("known", ())),
    ]
    if about.get("conditions"):
        lines.append(f"conditions    {conditions_line(about)}")
    rows = [check.to_json() for check in checks]
    result = {"outcome": decided, "passed": decided == "pass", "checks": rows, **about}
    answer(flags, result, *lines, quiet=first)
    if not flags.json:
        for name in about.get("known_unused", ()):
            flags.log(f"known, but no failure of this run: {name}")
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        print_line("\n".join(gates.github(checks)))
    if decided != "pass":
        raise typer.Exit(FAILED if decided == "fail" else INCONCLUSIVE)


def _gated(
    folder: Path, limits: GateLimits, baseline: Path | None, repaired_from: Path | None
) -> tuple[list[Check], dict[str, Any]]:
    """The checks of a run or of the folder of a repair, and its further figures."""
    from hardcase.repair.folder import RECORD, repair_checks
    from hardcase.suite import gate as gates

    if repaired_from is not None and baseline is not None:
        raise HardcaseError(
            "--baseline and --repaired-from both name what the run is held against.",
            fix="--repaired-from alone: it compares with that run too",
        )
    before = repaired_from or baseline
    if before is not None and before.resolve() == folder.resolve():
        raise HardcaseError(
            f"{folder} is held against itself.", fix="--baseline with a run of the old version"
        )
    old = None if before is None else opened(before)
    if (folder / RECORD).exists():
        if old is None or repaired_from is None:
            raise HardcaseError(f"{folder} is a repair, and no run.", fix="--repaired-from RUN")
        return repair_checks(folder, old, limits), {"model": folder.name}
    run = opened(folder)
    checks = gates.gate(run, limits, old, repaired=repaired_from is not None)
    about: dict[str, Any] = {name: run.record.get(name) for name in ("model", "conditions")}
    if limits.on_findings or limits.witnessed_rate is not None:
        tally = gates.GateTally(run, limits.known)
        judge = run.record.get("judge") or {}
        about |= {
            "known": [row["id"] for row in tally.known],
            "known_unused": tally.unused,
            "label_check": str(judge.get("status") or judge.get("status") or "unknown"),
        }
    elif limits.known:
        raise HardcaseError(
            "--known names failures that do not count, and no limit counts failures that were"
            " found.",
            fix="--max-accepted-rate SHARE; a failure rate counts every sample",
        )
    return checks, about


def _limits(named: Path | None, folder: Path) -> dict[str, Any]:
    """The values of the file that limits come from; never a file of the run."""
    from hardcase.config import read

    if named is None and not o.PROJECT.is_file():
        return {}
    path = named or o.PROJECT
    if path.resolve().is_relative_to(folder.resolve()):
        raise HardcaseError(
            f"{path} belongs to the run; limits come from outside it.",
            fix="--config hardcase.toml of the project, or flags",
        )
    values = read(path)
    if named is None and "limits" in values:
        note(f"limits come from {path}")
    return values


ALLOW_DAMAGED = o.Row("Go on with what is left of a damaged run.")


@o.takes(
    *("settings", "trust_pickle", "device", "offline", *o.FOREIGN, *o.SAYS),
    model=o.Row("The other version; zoo:NAME, file.py:factory ..."),
    out=o.Row("Every failure with the new prediction.", "FILE.json"),
    allow_damaged=ALLOW_DAMAGED,
)
def replay(
    folder: o.OneRun,
    flags: o.Flags,
    model: str,
    out: Path | None = None,
    allow_damaged: bool = False,
) -> None:
    """Predict the stored findings of a run with another version of the model: fixed,
    still failing, newly failing.
    """
    from hardcase.cache import write_atomically
    from hardcase.context import Context
    from hardcase.suite.replay import replay as again

    run = opened(folder)
    context = Context(config_of(run, flags, model=model))
    same_ingredients(run, context, flags, "images")
    result = again(run, context.subject, allow_damaged=allow_damaged)
    if out is not None:
        record = {**result.summary(), "rows": result.rows()}
        write_atomically(out, json.dumps(record, indent=1).encode())
    answer(flags, result.summary(), facts(_replayed(result.summary())))


def _replayed(summary: dict[str, Any]) -> dict[str, str]:
    seeds = summary["seeds"]
    lines = {
        "model": summary["model"],
        "fixed": rate(summary["fixed"]),
        "still failing": rate(summary["still_failing"]),
        "images with a failure fixed": "{some_fixed} of {total}".format(**summary["by_seed"]),
    }
    if summary["accepted"] is not None:
        lines |= {"fixed, accepted failures": rate(summary["accepted"]["fixed"])}
    return lines | {
        "newly failing images": f"{rate(seeds['newly_failing'])} that were right before",
        "newly right images": f"{rate(seeds['newly_right'])} that were wrong before",
        "images, McNemar": f"p = {seeds['mcnemar_p']:.3g}",
        "images, equal ones once": "{better} better, {worse} worse, {neither} neither".format(
            **seeds["groups"]
        )
        + f"; p = {seeds['groups_p']:.3g}",
        "images and failures, McNemar": f"p = {summary['mcnemar_p']:.3g}",
    }


To = StrEnum("To", "imagefolder hf fiftyone npz csv junit hardest")


@o.takes(
    *("out", "show", *o.SAYS),
    config=o.Row("A file with limits; hardcase.toml here, else those of each run.", "FILE.toml"),
)
def report(folders: o.Runs, flags: o.Flags, config: Path | None = None) -> None:
    """Write the report of runs: an HTML page and the same numbers as JSON."""
    from hardcase.report import report as write_report

    runs = [opened(folder) for folder in folders]
    home = folders[0] if len(folders) == 1 else _common_parent(folders)
    page = write_report(*runs, out=flags.out or home / "report", limits=project_limits(config))
    answer(flags, {"page": str(page), "json": str(page.with_name("report.json"))}, str(page))
    if flags.show:
        typer.launch(page.absolute().as_uri())


@o.takes(
    *("conditions", "device", "offline", *o.FOREIGN, "out", "quiet", "verbose"),
    to=o.Row("Format to write."),
    draws=o.Row("Of hardest: samples per training image.", "K", least=1),
    allow_damaged=ALLOW_DAMAGED,
)
def export(
    folder: o.OneRun,
    flags: o.Flags,
    to: To = To.imagefolder,
    draws: int = 4,
    allow_damaged: bool = False,
) -> None:
    """Write the findings in another program's form: a data set, a table, CI annotations.

    hardest: the worst of K draws of each training image instead, to train elsewhere with.
    """
    from hardcase.suite.export import export as export_run

    run = opened(folder)
    where = flags.out or folder.with_name(f"{folder.name}-{to}")
    about = f"{len(run):,} failures under the labels of their images, from {shown(folder)}"
    if to is To.hardest:
        from hardcase.repair.hardest import export_hardest

        context = context_of(run, flags)
        conditions = declared_conditions(context, run)
        options: dict[str, Any] = {"draws": draws, "seed": context.config.seed}
        where = export_hardest(context.subject, context.train, conditions, where, **options)
        about = f"the worst of {draws} samples of each training image, to train with"
    else:
        where = export_run(run, to, where, allow_damaged=allow_damaged)
    print_line(str(where))
    flags.log(about)


def cite(folders: o.Runs) -> None:
    """Print the BibTeX of what runs used."""
    from hardcase.catalogue import bibtex
    from hardcase.cli.run import read_json

    listed = [read_json(folder / "run.json").get("citations", []) for folder in folders]
    print_line(bibtex(str(key) for keys in listed if isinstance(keys, list) for key in keys))


def project_limits(config: Path | None) -> GateLimits | None:
    """The limits of a file, or of the project's; None where there are none."""
    from hardcase.config import read
    from hardcase.suite.gate import GateLimits

    path = config or o.PROJECT
    values = read(path) if config is not None or path.is_file() else {}
    return GateLimits.of(values) if "limits" in values else None


def _common_parent(folders: list[Path]) -> Path:
    """The folder that holds all of them."""
    return Path(os.path.commonpath([folder.absolute().parent for folder in folders]))


@o.takes(
    *("out", "device", "offline", *o.FOREIGN, *o.SAYS),
    steps=o.Row("Bisection steps per failure.", "N", least=1),
)
def shrink(folder: o.OneRun, flags: o.Flags, steps: int = 12) -> None:
    """Move each failure back toward its image as far as it still fails; the result is a new run."""
    from hardcase.context import Context
    from hardcase.suite.shrink import shrink as move_back
    from hardcase.types import Images

    run = opened(folder)
    context = Context(config_of(run, flags, uses=None))
    ready = context.campaign
    same_ingredients(run, context, flags)
    where = flags.out or free(folder.with_name(f"{folder.name}-shrunk"))
    # of images in files nothing is known but their pixels
    images = context.seeds if isinstance(context.seeds, Images) else None
    ingredients: dict[str, Any] = {"space": ready.method.space, "seeds": images}
    small = move_back(run, ready.subject, where, steps=steps, **ingredients)
    figures = small.record["shrink"]
    lines = {
        "findings": f"{figures['tests']:,}, of which {figures['failing']:,} fail this model",
        "median L2 to the image": (
            f"{figures['l2_before']:.3g} before, {figures['l2_after']:.3g} now"
        ),
        "queries": figures["queries"],
        **_needed(small),
        "files": shown(small.folder),
        "next": f"hardcase judge {shown(small.folder)}",
    }
    answer(flags, {"folder": str(small.folder), **figures}, facts(lines), quiet=str(small.folder))


def _needed(small: Run) -> dict[str, str]:
    """What the moved findings still need, and the first of them in words."""
    needed = small.record["shrink"].get("needed") or {}
    most = sorted(needed.items(), key=lambda pair: -pair[1])
    counts = [f"{name} {count}" for name, count in most if count]
    if not counts:
        return {}
    return {"needed by": ", ".join(counts), "the first": small.changes()[0] or "unchanged"}
