"""``hardcase escape``, ``retrain``, ``faults`` and ``reproduce``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, grid, note, shown, tell
from hardcase.errors import choice

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.experiments.bench import Bench, Outcome
    from hardcase.suite.escape import Escaped
    from hardcase.types import Space


# --- ``hardcase escape``: which class pairs are easily crossed, beside the confusion matrix.


def escape(
    config: o.ConfigFile = None,
    model: o.Model = None,
    data: o.Data = None,
    seeds: o.Seeds = None,
    split: o.FromSplit = None,
    seed: o.Seed = None,
    generator: o.Generator = None,
    walks: Annotated[int, typer.Option(metavar="N", min=1, help="Walks from every image.")] = 10,
    settings: o.Settings = None,
    trust_pickle: o.TrustPickle = False,
    device: o.Device = None,
    offline: o.Offline = False,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Which classes border on which, as the model sees them; names pairs that look mislabelled or under-trained."""
    flags = dict(locals())
    from hardcase.cli.options import free, resolve
    from hardcase.cli.run import logging_to
    from hardcase.config import MethodConfig
    from hardcase.suite import escape

    logging_to(verbose=verbose, quiet=quiet)
    wanted = resolve(flags, {"method": "sinvad", "seeds": 200}).model_copy(
        update={"method": MethodConfig(name="sinvad")}
    )
    folder = out or free(Path("runs") / "escape")
    told, space = _measured(wanted, walks, quiet=quiet)
    page = escape.outcome(told, lambda codes: _paint(space, codes, wanted.device), folder).write(
        folder
    )
    if format == "json":
        as_json({"folder": str(folder), **escape.as_json(told)})
        return
    _show(told)
    tell(f"written to {shown(page)}")


def _measured(config: Config, walks: int, *, quiet: bool) -> tuple[Escaped, Space]:
    from hardcase import context
    from hardcase.data.sources import load
    from hardcase.models.health import check
    from hardcase.searches.boundary import Crossing
    from hardcase.suite import escape
    from hardcase.suite.escape import Escaped

    if not quiet:
        note(f"preparing {config.model} and its generator")
    ready = context.campaign(config)
    images, search = context.seeds(config), ready.method.search
    check(ready.subject, images, allow_low_accuracy=config.allow_low_accuracy)
    codes = search.codes if isinstance(search, Crossing) else None
    if not quiet:
        note(f"walking out of {len(images)} images")
    method = escape.ways_out(ready.method.space, codes, walks=walks)
    escapes, done, used = escape.measure(ready.subject, method, images, seed=config.seed)
    test = load(config.data, split="test", offline=config.offline)
    told = Escaped(
        images.classes,
        escapes,
        done,
        used,
        escape.confusion(ready.subject, test),
        escape.floor(ready.subject, test),
    )
    return told, ready.method.space


def _paint(space: Space, codes: Any, device: str) -> Any:
    import torch

    from hardcase.context import device as existing
    from hardcase.types import Seeds

    with torch.no_grad():
        z = codes.to(existing(device))
        nobody = Seeds(
            z,
            z.new_zeros(len(z), 1, 1, 1),
            torch.zeros(len(z), dtype=torch.int64),
            torch.arange(len(z)),
        )
        return space.decode(z, nobody).cpu()


def _show(told: Escaped) -> None:
    from hardcase.suite.escape import answer, pairs

    ranked, names = pairs(told), told.classes
    rows = [
        [f"{names[p.source]} → {names[p.goal]}", p.rate, p.floor, f"{p.confused} of {p.images}", "yes" if p.suspicious else ""]
        for p in ranked[:10]
    ]  # fmt: skip
    columns = ["from → to", "ways out", "floor", "confused in the test set", "suspicious"]
    console().print(grid("class pairs, suspicious ones first", columns, rows))
    tell(answer(told, ranked))


# --- ``hardcase faults``: which method detects which planted fault.


def faults(
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Which methods; see hardcase list methods.")
    ] = "feature-perturbation,pgd,sinvad",
    tests: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=10, help="Seeds a direction and fault (25; 100 with --full)."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--faults", metavar="A,B", help="Which faults; all by default.")
    ] = None,
    data: Annotated[str, typer.Option(help="Grey digits to plant them into.")] = "mnist5k",
    full: Annotated[bool, typer.Option("--full", help="100 tests a direction.")] = False,
    seed: o.Seed = None,
    device: o.Device = None,
    settings: o.Settings = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Plant eight faults into small networks and see which methods detect them; networks are trained if missing."""
    from hardcase.cli.options import free
    from hardcase.cli.run import logging_to
    from hardcase.config import assign
    from hardcase.context import device as existing
    from hardcase.experiments.bench import Bench
    from hardcase.suite.faults import run

    logging_to(verbose=verbose, quiet=quiet)
    chosen: dict[str, object] = {"methods": methods.split(",")}
    chosen |= {"tests": tests} if tests else {}
    chosen |= {"faults": only.split(",")} if only else {}
    bench = Bench(
        out=out or free(Path("runs") / "faults"), data=data, full=full, seed=seed or 0, device=existing(device or "cpu"),
        options=assign(chosen, settings or []), say=(lambda text: None) if quiet else note,
    )  # fmt: skip
    outcome = run(bench)
    page = outcome.write(bench.out)
    if format == "json":
        tell((bench.out / "results.json").read_text(encoding="utf-8").rstrip())
        return
    show(outcome)
    tell(f"written to {shown(page)}")


# --- ``hardcase reproduce``: a published experiment, ours beside the paper's.


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Which experiment; without one they are listed.")
    ] = None,
    data: Annotated[str, typer.Option(help="What to run it on.")] = "mnist5k",
    full: Annotated[
        bool, typer.Option("--full", help="The paper's sizes; can take hours.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How often to repeat it.")
    ] = None,
    ratings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What people answered, for sinvad-rq1 and argus-ratings (CSV)."
        ),
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    settings: o.Settings = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Repeat a published experiment and print its tables."""
    if name is None:
        return _names(format)
    from hardcase.cli.options import free
    from hardcase.cli.run import logging_to
    from hardcase.config import assign
    from hardcase.context import device as existing
    from hardcase.experiments.bench import Bench

    logging_to(verbose=verbose, quiet=quiet)
    bench = Bench(
        out=out or free(Path("runs") / f"reproduce-{name}"), data=data, full=full, repeats=repeats, seed=seed or 0,
        device=existing(device or "cpu"), options=assign({} if ratings is None else {"ratings": str(ratings)}, settings or []), say=(lambda text: None) if quiet else note,
    )  # fmt: skip
    outcome = perform(name, bench)
    page = outcome.write(bench.out, bench.command(name))
    if format == "json":
        tell((bench.out / "results.json").read_text(encoding="utf-8").rstrip())
        return
    show(outcome)
    tell(f"written to {shown(page)}, as a page in {shown(page.with_name('report.html'))}")


def perform(name: str, bench: Bench) -> Outcome:
    """Run the experiment called `name`."""
    from hardcase.experiments.catalogue import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise choice("experiment", name, list(EXPERIMENTS))
    module, _, function = EXPERIMENTS[name].where.partition(":")
    outcome: Outcome = getattr(import_module(f"hardcase.{module}"), function)(bench)
    return outcome


def _names(format: str) -> None:
    from hardcase.experiments.catalogue import EXPERIMENTS

    rows = list(EXPERIMENTS.values())
    if format == "json":
        as_json(
            [
                {"name": row.name, "summary": row.summary, "needs": row.needs, "paper": row.paper}
                for row in rows
            ]
        )
    elif rows:
        columns = ["name", "needs", "summary", "paper"]
        console().print(
            grid("", columns, [[row.name, row.needs, row.summary, row.paper] for row in rows])
        )
    else:
        tell("no experiments yet")


def show(outcome: Outcome) -> None:
    """Tables, their notes, and the names of the pictures."""
    screen = console()
    for table in outcome.tables:
        screen.print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            screen.print(f"  {text}")
    for figure in outcome.figures:
        tell(f"picture {figure}")


# --- ``hardcase retrain``: does training with the tests of a run help, beside controls of the same size?


def retrain(
    folder: o.OneRun,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="RUN", help="Also measure on this run's tests; repeatable."
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Passes over the training images.")
    ] = 5,
    repeats: Annotated[
        int, typer.Option(metavar="N", min=2, help="How often each arm is trained.")
    ] = 5,
    seed: o.Seed = None,
    device: o.Device = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fine-tune the run's network on its tests; report accuracy on images nobody trained on, beside two controls."""
    from dataclasses import replace

    from hardcase.cli.run import logging_to
    from hardcase.suite.retrain import Retraining
    from hardcase.suite.retrain import retrain as perform

    logging_to(verbose=verbose, quiet=quiet)
    how = Retraining(repeats=repeats, seed=seed or 0)
    how = replace(how, recipe=replace(how.recipe, epochs=epochs))
    outcome = perform(
        folder,
        how,
        others=against or [],
        place=device or "cpu",
        say=(lambda text: None) if quiet else note,
    )
    page = outcome.write(out or folder / "retrain")
    if format == "json":
        tell((page.parent / "results.json").read_text(encoding="utf-8").rstrip())
        return
    for table in outcome.tables:
        console().print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            console().print(f"  {text}")
    tell(f"written to {shown(page)}")
