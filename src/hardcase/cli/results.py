"""What a run becomes afterwards: ``report``, ``export``, ``cite``, ``compare``, ``replay``,
``gate``, ``shrink``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, note, opened, rate, shown, tell
from hardcase.errors import CANNOT_TELL, FAILED, Problem

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.context import Context
    from hardcase.runs.results import Run
    from hardcase.suite.gate import Check, GateTally


def config_of(
    run: Run,
    *,
    uses: tuple[str, ...] | None = ("model", "data"),
    trusted: bool = False,
    changed: bool = False,
    **flags: Any,
) -> Config:
    """The configuration of a run with some of it changed by flags.

    What the folder names is only allowed if it was started from this account, or with `trusted`;
    what flags name is.

    Args:
        run: A stored run, perhaps of others.
        uses: The settings whose models, files and addresses the verb will use; None: all of them.
        trusted: The user trusts the folder.
        changed: Source text may be another than when the run began.
        flags: Settings by name; those that are empty change nothing.
    """
    from hardcase.config import assign, parse
    from hardcase.runs.identity import require, same_source

    values = run.store.settings()
    if not values:
        raise Problem(
            f"{run.folder} was started from Python, so its model and data cannot be found by name.",
            fix="hc.replay or hc.shrink in Python",
        )
    for name in ("metrics", "cluster"):  # no verb that looks back needs them
        values.pop(name, None)
    given = {key: value for key, value in flags.items() if value and key != "settings"}
    stored = parse(values)
    if not changed:
        same_source(run.record, stored.model_copy(update=dict.fromkeys(given)), uses)
    own = {
        key: value
        for key, value in stored.model_dump().items()
        if key not in given and (uses is None or key in (*uses, "trust_pickle"))
    }
    require(own, run.folder, trusted=trusted)
    if (
        "model" in given
    ):  # the run's own model may have been trusted; this one has to be trusted anew
        values["trust_pickle"] = False
    return parse(assign({**values, **given}, flags.get("settings") or []))


def seeds_of(run: Run) -> Images:
    """The seeds of a run as an image set."""
    import torch

    from hardcase.runs.claims import seed_claims
    from hardcase.types import Images

    label = torch.tensor(run.seeds["label"].to_pylist(), dtype=torch.int64)
    names = tuple(run.seeds["id"].to_pylist())
    claims = seed_claims(run)
    context = {} if claims is None else claims.context()
    title = str(run.folder)
    return Images(run.seed_images(), label, names, run.classes, name=title, context=context)


def same_ingredients(run: Run, context: Context, flags: o.Flags, *used: str) -> None:
    """Refuse ingredients other than the run's; another machine is said.

    Args:
        run: A stored run.
        context: What is used now.
        flags: Whether ingredients may differ.
        used: The ingredients that count, such as ``model`` and ``seeds``; all where none is named.
    """
    from hardcase.runs.behaviour import require_behaviour
    from hardcase.runs.identity import (
        MACHINE,
        Identity,
        machine_parts,
        model_parts,
        require_same,
        seeds_parts,
    )

    then = Identity.from_json(run.record.get("identity"))
    if then is None:
        note("note: this run was stored before ingredients were recorded: it is unverified")
        return
    made = str(run.seeds["id"][0]).startswith("generated")
    machine = Identity(machine_parts(context.subject.device.type))
    other = then.only(machine.parts).differences(machine)
    if other:
        note(f"note: this run began with another {', another '.join(other)}")
    try:
        if not used:
            require_same(then, context.plan.identity(context.campaign), but=MACHINE)
        if "model" in used:
            now = Identity(model_parts(context.subject))
            require_same(then.only(now.parts), now)
        if "seeds" in used and not made:
            parts = seeds_parts(context.seeds)
            now = Identity({name: one for name, one in parts.items() if name in then.parts})
            require_same(then.only(now.parts), now)
        if not other and "seeds" not in used:
            require_behaviour(run.record, {"model": context.subject}, seeds_of(run))
    except Problem as problem:
        if not flags.allow_changes:
            raise Problem(problem.what, *problem.why, fix="--allow-changes") from problem
        note(f"note: {problem.what}")


@o.takes("format", "quiet")
def compare(
    folders: o.Runs,
    flags: o.Flags,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html", help="Where the page goes.")
    ] = None,
) -> None:
    """Compare runs with statistics: equal budgets, paired seeds, corrected tests;
    one HTML page and its JSON twin.
    """
    from hardcase.suite.compare import compare as side_by_side

    found = side_by_side(*map(opened, folders))
    table = found.table
    page = found.report(out or _beside(folders) / "compare.html")
    if flags.json:
        as_json({"page": str(page), **table})
    elif flags.quiet:
        tell(str(page))
    else:
        _tell(table)
        tell(f"page  {shown(page)}")


def _tell(table: dict[str, Any]) -> None:
    columns = ("run", "method", "failing, of attempted", "confirmed", "distinct", "queries")
    rows = []
    for run in table["runs"]:
        confirmed = "not judged" if run["confirmed"] is None else rate(run["confirmed"])
        counts = (rate(run["failing"]), confirmed, run["distinct"], int(run["queries"]))
        rows.append((run["name"], run["method"], *counts))
    console().print(grid("", columns, rows))
    tell(table["sentence"])
    for pair in table["pairs"]:
        tests = [(test["what"], test["test"], test["p"], test["p_holm"]) for test in pair["tests"]]
        title = f"{pair['first']} against {pair['second']}"
        console().print(grid(title, ("question", "test", "p", "p, corrected"), tests))
        if pair["changed"] is not None:
            told = {name: rate(pair["changed"][name]) for name in _CHANGES}
            tell(facts({name.replace("_", " "): value for name, value in told.items()}))


_CHANGES = ("fixed", "still_failing", "newly_failing")


@o.takes("format", "quiet")
def gate(
    folder: o.OneRun,
    flags: o.Flags,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE.toml",
            help="Its [limits]; hardcase.toml of this folder by default. Flags override it.",
        ),
    ] = None,
    max_confirmed_rate: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Attempted seeds with a confirmed failure."),
    ] = None,
    max_class_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The same for every class alone.")
    ] = None,
    max_silent_rate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="The same for confirmed failures made with high confidence."
        ),
    ] = None,
    max_witnessed_rate: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Attempted seeds with a witnessed failure; needs no judge."
        ),
    ] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Pairs of image and declared condition that fail; no judge."
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The version before: risks are compared on common seeds."),
    ] = None,
    repaired_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="RUN is a repair: pass only if nothing is worse than in this run's network.",
        ),
    ] = None,
    max_distinct: Annotated[
        int | None, typer.Option(metavar="N", help="Distinct groups of confirmed findings.")
    ] = None,
    min_usable: Annotated[
        int | None,
        typer.Option(metavar="N", help="Fewer usable seeds than this never pass; 20 by default."),
    ] = None,
    upper: Annotated[
        bool,
        typer.Option("--upper", help="Pass only if the upper end of the 95 % interval holds too."),
    ] = False,
    accept: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Known failures that do not count: ids of findings or seeds."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Also write a JUnit file.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations; the default inside GitHub's CI.")
    ] = False,
) -> None:
    """Pass or fail a run by limits on risk and on what was confirmed; 1: it fails, 4: it cannot be
    told. Without limits it must not be worse than its reference.
    """
    from dataclasses import asdict

    from hardcase.suite import gate as gates

    limits = gates.GateLimits.of(
        _limits(config, folder),
        confirmed_rate=max_confirmed_rate,
        class_rate=max_class_rate,
        silent_rate=max_silent_rate,
        witnessed_rate=max_witnessed_rate,
        risk=max_risk,
        distinct=max_distinct,
        usable=min_usable,
        upper=upper or None,
        accepted=None if accept is None else gates.read_accepted(accept),
    )
    if repaired_from is not None:
        from hardcase.repair.gate import repair_checks

        checks = repair_checks(folder, opened(repaired_from), limits.risk_margin)
        _tell_checks(checks, folder, flags, junit)
        return
    run = opened(folder)
    checks = gates.gate(run, limits, None if baseline is None else opened(baseline))
    said = gates.outcome(checks)
    tally = gates.GateTally(run, limits.accepted)
    if junit is not None:
        gates.write_junit(checks, junit, name=folder.resolve().name)
    if flags.json:
        told = {
            "outcome": said,
            "passed": said == "pass",
            "checks": [{**asdict(check), "passed": check.passed} for check in checks],
            "undecided": run.undecided(),
            "accepted": [row["id"] for row in tally.accepted],
            "accepted_unknown": tally.unused,
            "judge": _standing(run),
        }
        as_json(told)
    elif not flags.quiet:
        tell("\n".join(f"{_WORDS[check.outcome]}  {check.text}" for check in checks))
        _tell_open(checks)
        _tell_accepted(tally)
        note(f"judge: {_standing(run)}")
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        tell("\n".join(gates.github(checks)))
    if said != "pass":
        raise typer.Exit(FAILED if said == "fail" else CANNOT_TELL)


def _tell_checks(checks: list[Check], folder: Path, flags: o.Flags, junit: Path | None) -> None:
    """Checks of a repair, and the exit code that follows."""
    from dataclasses import asdict

    from hardcase.suite import gate as gates

    said = gates.outcome(checks)
    if junit is not None:
        gates.write_junit(checks, junit, name=folder.resolve().name)
    if flags.json:
        as_json({"outcome": said, "checks": [asdict(check) for check in checks]})
    elif not flags.quiet:
        tell("\n".join(f"{_WORDS[check.outcome]}  {check.text}" for check in checks))
        _tell_open(checks)
    if said != "pass":
        raise typer.Exit(FAILED if said == "fail" else CANNOT_TELL)


_WORDS = {"pass": "pass", "fail": "FAIL", "cannot tell": "????"}


def _tell_open(checks: Sequence[Check]) -> None:
    """What would decide the checks that cannot be told."""
    for wanted in dict.fromkeys(check.decide for check in checks if check.decide):
        tell(f"cannot tell; what would decide it: {wanted}")


def _tell_accepted(tally: GateTally) -> None:
    """The failures that were not counted, and ids that stand for none."""
    for row in tally.accepted:
        tell(f"accepted  {row['id']} of seed {row['seed']}")
    for name in tally.unused:
        note(f"accepted, but no failure of this run: {name}")


def _limits(named: Path | None, folder: Path) -> dict[str, Any]:
    """The values of the file that limits come from; never one of the run."""
    from hardcase.config import read

    if named is None and not o.PROJECT.is_file():
        return {}
    path = named or o.PROJECT
    if path.resolve().is_relative_to(folder.resolve()):
        raise Problem(
            f"{path} belongs to the run; limits come from outside it.",
            fix="--config hardcase.toml of the project, or flags",
        )
    values = read(path)
    if named is None and "limits" in values:
        note(f"limits come from {path}")
    return values


def _standing(run: Run) -> str:
    return str((run.record.get("judge") or {}).get("standing", "unknown"))


@o.takes("settings", "trust_pickle", "device", "offline", *o.FOREIGN, *o.SAYS)
def replay(
    folder: o.OneRun,
    flags: o.Flags,
    model: Annotated[str, typer.Option(help="The other version; zoo:NAME, file.py:factory ...")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Every finding with the new prediction."),
    ] = None,
) -> None:
    """Predict the stored findings of a run with another version of the model: fixed,
    still failing, newly failing.
    """
    from hardcase.cache import write_atomically
    from hardcase.context import Context
    from hardcase.suite.replay import replay as again

    run = opened(folder)
    config = config_of(
        run,
        trusted=flags.trust,
        changed=flags.allow_changes,
        model=model,
        settings=flags.settings,
        trust_pickle=flags.trust_pickle,
        device=flags.device,
        offline=flags.offline,
    )
    context = Context(config)
    same_ingredients(run, context, flags, "seeds")
    found = again(run, context.subject)
    if out is not None:
        whole = {**found.summary(), "rows": found.rows()}
        write_atomically(out, json.dumps(whole, indent=1).encode())
    if flags.json:
        as_json(found.summary())
    else:
        _tell_replayed(found.summary())


def _tell_replayed(said: dict[str, Any]) -> None:
    seeds = said["seeds"]
    lines = {
        "model": said["model"],
        "fixed": rate(said["fixed"]),
        "still failing": rate(said["still_failing"]),
        "seeds with a finding fixed": "{some_fixed} of {total}".format(**said["by_seed"]),
    }
    if said["confirmed"] is not None:
        lines |= {"fixed, confirmed findings": rate(said["confirmed"]["fixed"])}
    lines |= {
        "newly failing seeds": f"{rate(seeds['newly_failing'])} that were right before",
        "newly right seeds": f"{rate(seeds['newly_right'])} that were wrong before",
        "seeds, McNemar": f"p = {seeds['mcnemar_p']:.3g}",
        "seeds, equal pictures once": "{better} better, {worse} worse, {neither} neither".format(
            **seeds["groups"]
        )
        + f"; p = {seeds['groups_p']:.3g}",
        "seeds and findings, McNemar": f"p = {said['mcnemar_p']:.3g}",
    }
    tell(facts(lines))


class To(StrEnum):
    imagefolder = "imagefolder"
    hf = "hf"
    fiftyone = "fiftyone"
    npz = "npz"
    csv = "csv"
    junit = "junit"
    mlflow = "mlflow"
    wandb = "wandb"
    tensorboard = "tensorboard"


_STORES = (To.mlflow, To.wandb, To.tensorboard)


@o.takes("out", "show", *o.SAYS)
def report(
    folders: o.Runs,
    flags: o.Flags,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE.toml",
            help="Its [limits]; by default those of hardcase.toml here, else those of each run.",
        ),
    ] = None,
) -> None:
    """Write the report of one run or several: one HTML page and the same numbers as JSON."""
    from hardcase.config import read
    from hardcase.report.page import write
    from hardcase.suite.gate import GateLimits

    path = config or o.PROJECT
    values = read(path) if config is not None or path.is_file() else {}
    limits = GateLimits.of(values) if "limits" in values else None
    runs = [opened(folder) for folder in folders]
    page = write(runs, flags.out or _home(folders), limits=limits)
    if flags.json:
        as_json({"page": str(page), "json": str(page.with_name("report.json"))})
    else:
        tell(str(page))
    if flags.show:
        typer.launch(page.absolute().as_uri())


@o.takes("out", "quiet", "verbose")
def export(
    folder: o.OneRun,
    flags: o.Flags,
    to: Annotated[To, typer.Option("--to", help="Format to write.")] = To.imagefolder,
    uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="Of mlflow: the tracking store; of wandb, tensorboard: the folder."
        ),
    ] = None,
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="Of the tracking stores: experiment or project.")
    ] = "hardcase",
) -> None:
    """Write the findings in another program's form (a data set, a table, CI annotations), or enter
    the run's numbers and report into a tracking store.
    """
    run = opened(folder)
    if to in _STORES:
        from hardcase.suite.trackers import track

        tell(track(run, to, uri=uri, experiment=experiment))
        return
    where = run.export(to, flags.out or folder.with_name(f"{folder.name}-{to}"))
    tell(str(where))
    flags.say(f"{len(run):,} findings under the labels of their seeds, from {shown(folder)}")


def cite(folders: o.Runs) -> None:
    """Print the BibTeX of what runs used."""
    from hardcase.catalogue import bibtex
    from hardcase.cli.run import read_json

    listed = [read_json(folder / "run.json").get("citations", []) for folder in folders]
    tell(bibtex(str(key) for keys in listed if isinstance(keys, list) for key in keys))


def _home(folders: list[Path]) -> Path:
    """The run's own folder; for several, a folder beside them."""
    if len(folders) == 1:
        return folders[0] / "report"
    return _beside(folders) / "report"


def _beside(folders: list[Path]) -> Path:
    """The folder that holds all of them."""
    return Path(os.path.commonpath([folder.absolute().parent for folder in folders]))


@o.takes("out", "device", "offline", *o.FOREIGN, *o.SAYS)
def shrink(
    folder: o.OneRun,
    flags: o.Flags,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, max=30, help="Bisection steps per finding.")
    ] = 12,
) -> None:
    """Move each failing finding back toward its seed as far as it still fails; the result is a run
    of its own.
    """
    from hardcase.context import Context
    from hardcase.suite.shrink import shrink as move_back

    run = opened(folder)
    config = config_of(
        run,
        uses=None,
        trusted=flags.trust,
        changed=flags.allow_changes,
        device=flags.device,
        offline=flags.offline,
    )
    context = Context(config)
    ready = context.campaign
    same_ingredients(run, context, flags)
    where = flags.out or free(folder.with_name(f"{folder.name}-shrunk"))
    small = move_back(
        run,
        ready.subject,
        where,
        space=ready.method.space,
        seeds=context.seeds.images(),
        steps=steps,
    )
    said = small.record["shrink"]
    if flags.json:
        as_json({"folder": str(small.folder), **said})
    elif flags.quiet:
        tell(str(small.folder))
    else:
        lines = {
            "findings": f"{said['tests']:,}, of which {said['failing']:,} fail this model",
            "median L2 to the seed": f"{said['l2_before']:.3g} before, {said['l2_after']:.3g} now",
            "queries": said["queries"],
            **_needed(small),
            "files": shown(small.folder),
            "next": f"hardcase judge {shown(small.folder)}",
        }
        tell(facts(lines))


def _needed(small: Run) -> dict[str, str]:
    """What the moved findings still need, and the first of them in words."""
    needed = small.record["shrink"].get("needed")
    if not needed:
        return {}
    most = sorted(needed.items(), key=lambda pair: -pair[1])
    return {
        "needed by": ", ".join(f"{name} {count}" for name, count in most if count),
        "the first": small.changes()[0] or "unchanged",
    }
