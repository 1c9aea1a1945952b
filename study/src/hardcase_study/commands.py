"""``hardcase study``: make a study, serve it, analyse it; exchange answers with other tools."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.errors import HardcaseError

app = typer.Typer(
    no_args_is_help=True,
    help="People rate what was found; their answers confirm failures and calibrate the judge.",
)
Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's folder.")]
Database = Annotated[
    str,
    typer.Option(metavar="URL", help="postgresql://…; by default SQLite in the study's folder."),
]


@app.command("new")
def new_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    design: Annotated[
        str,
        typer.Option(help="label, likert, rank, compare, same, sinvad, argus or fault."),
    ] = "label",
    out: Annotated[Path, typer.Option(metavar="STUDY", help="Where to put it.")] = Path("study"),
    raters: Annotated[int | None, typer.Option(help="People wanted; 12, or as the paper.")] = None,
    per_rater: Annotated[
        int | None, typer.Option(help="Items of one rater, checks included.")
    ] = None,
    checks: Annotated[int | None, typer.Option(help="Attention checks among them.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Items shown twice among them.")] = None,
    votes: Annotated[int, typer.Option(help="Answers wanted for each item.")] = 5,
    title: Annotated[str, typer.Option(help="Heading of the first page.")] = "",
    thing: Annotated[str, typer.Option(help="fault: the feature that may have changed.")] = "",
    arms: Annotated[
        str, typer.Option(help="fault: of each run faulty, clean or placebo, with commas.")
    ] = "",
    stop: Annotated[
        bool, typer.Option("--stop", help="label: no more answers where the posterior is sure.")
    ] = False,
    language: Annotated[str, typer.Option(help="en or de; raters may change it.")] = "en",
    seed: Annotated[int, typer.Option(help="Of every sample and order.")] = 0,
    ask: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ask at most N times, each by what was answered before."),
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="--ask: the confirmed rate to decide about.")
    ] = None,
    conditions: Annotated[
        bool,
        typer.Option("--conditions", help="label: about random failing samples, not failures."),
    ] = False,
) -> None:
    """Make a study of what runs found: blinded, balanced, with checks."""
    from hardcase_study.designs import new

    found = [folder for folder in runs if (folder / "run.json").exists()]
    for folder in (one for one in runs if found and one not in found):  # runs/demo/* has a report
        typer.echo(f"left out, as it is no run: {folder}")
    study = new(
        found or runs,
        design,
        out,
        raters=raters,
        per_rater=per_rater,
        checks=checks,
        repeats=repeats,
        votes=votes,
        title=title,
        thing=thing,
        arms=tuple(filter(None, arms.split(","))),
        stop=stop,
        language=language,
        seed=seed,
        ask=ask,
        limit=limit,
        conditions=conditions,
    )
    facts = study.settings
    typer.echo(
        f"{study.folder}: design {study.design}, {len(study.main)} items, "
        f"{facts['per_rater']} per rater"
    )
    if ask is None:
        power = facts["power"]
        typer.echo(f"expected precision: {power['sentence']} ({power['source']})")
    else:
        from hardcase_study.choosing import asking_of

        more = asking_of(study, (), ()).status().more
        typer.echo(f"up to {ask} answers, one a failure; about {more} would make the decision")
    for name, stratum in facts.get("strata", {}).items():
        typer.echo(f"  {name}: {stratum['drawn']} of {stratum['size']} drawn")
    if "drawn_from" in facts:
        typer.echo(f"  images: {facts['drawn_from']}")
    typer.echo(f"texts and consent: {study.folder / 'words'}")
    typer.echo(f"next: hardcase study serve {study.folder}")


@app.command("serve")
def serve_command(
    folder: Folder,
    host: Annotated[
        str, typer.Option(help="0.0.0.0 for everybody who reaches this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option()] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A host name that raters use, of a proxy for example; may be repeated."),
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="In the raters' link; random by default, none for no token.")
    ] = None,
    database: Database = "",
    pilot: Annotated[
        bool, typer.Option("--pilot", help="A trial: the analysis leaves these answers out.")
    ] = False,
) -> None:
    """Serve a study in the browser until Ctrl-C; what was answered is kept."""
    from hardcase_study.server import serve

    def say(text: str) -> None:
        typer.echo(text)

    serve(
        folder,
        host=host,
        port=port,
        names=name or (),
        token=token,
        database=database,
        pilot=pilot,
        say=say,
    )


@app.command("analyse")
def analyse_command(
    folder: Folder, database: Database = "", format: o.AsFormat = o.Format.text
) -> None:
    """Analyse the answers: a page, a JSON file, and what people confirmed entered into the runs."""
    from hardcase_study.analysis import analyse
    from hardcase_study.bundle import Study
    from hardcase_study.calibration import record
    from hardcase_study.report import lead

    found = analyse(folder, database=database)
    entered = record(folder, database=database)
    if format == "json":
        typer.echo((folder / "analysis" / "analysis.json").read_text(encoding="utf-8"))
        return
    if found["warning"]:
        typer.echo(found["warning"])
    typer.echo(lead(Study.open(folder), found))
    agreed = found["all"].get("agreement")
    if agreed and agreed["alpha"] and math.isfinite(agreed["alpha"]["value"]):
        typer.echo(f"Krippendorff's α ({agreed['level']}): {agreed['alpha']['value']:.3f}")
    typer.echo(
        f"{found['flagged']} of {len(found['raters'])} raters flagged; "
        "numbers with and without them in the report"
    )
    for place, entry in entered.items():
        if "lost" in entry:
            counts = f"{entry['shown']} rated, {entry['lost']} lost their label"
        else:
            counts = (
                f"{entry['rated']} rated, {entry['confirmed']} confirmed, "
                f"{entry['undecided']} undecided"
            )
        typer.echo(f"{place}: {counts}")
    if not entered and not found["simulated"] and found["design"] in ("label", "same"):
        typer.echo(
            "nothing was entered into the runs: they are elsewhere, or no image has two answers by "
            "raters who are not flagged"
        )
    typer.echo(f"report: {folder / 'analysis' / 'index.html'}")
    if found["design"] in ("label", "same") and not found["simulated"]:
        typer.echo(f"next: hardcase judge RUN --calibrate {folder}")


@app.command("export")
def export_command(
    folder: Folder,
    out: Annotated[Path, typer.Argument(metavar="FILE")],
    to: Annotated[str, typer.Option(help="csv, label-studio or npz.")] = "csv",
    database: Database = "",
) -> None:
    """Write the answers for another tool."""
    from hardcase_study.bundle import Study
    from hardcase_study.exchange import export

    typer.echo(str(export(Study.open(folder), to, out, database=database)))


@app.command("import")
def import_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Label Studio JSON.")],
    folder: Folder,
    database: Database = "",
) -> None:
    """Read answers into a study."""
    from hardcase_study.bundle import Study
    from hardcase_study.exchange import load

    typer.echo(f"{load(Study.open(folder), file, database=database)} new answers")


@app.command("simulate")
def simulate_command(
    folder: Folder,
    raters: Annotated[int | None, typer.Option()] = None,
    cheats: Annotated[float, typer.Option(help="The share that answers at random.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Let a simulated crowd answer, to try the analysis. It is never taken for people."""
    from hardcase_study.bundle import Study
    from hardcase_study.crowd import simulate

    if not 0 <= cheats <= 1:
        raise HardcaseError(f"--cheats {cheats} is no share.", fix="--cheats 0.1")
    simulate(Study.open(folder), raters=raters, cheats=cheats, seed=seed)
    typer.echo("A simulated crowd answered. No person did.")
