"""``hardcase escape``, ``faults``, ``reproduce``, ``rank`` and ``yardstick``: verbs that come with the studies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hardcase.cache import free, write_atomically
from hardcase.cli import insight, options as o
from hardcase.cli.options import as_json, console, grid, opened, print_line, shown
from hardcase.errors import HardcaseError, choice

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.suite.tables import Outcome
    from hardcase.types import Space
    from hardcase_studies.bench import Bench
    from hardcase_studies.escape import Escaped
    from hardcase_studies.reruns import Rerun

__all__ = ["escape", "faults", "rank", "reproduce", "yardstick"]


def show_outcome(outcome: Outcome) -> None:
    """Tables, their notes, and the names of the figures."""
    screen = console()
    for table in outcome.tables:
        screen.print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            screen.print(f"  {text}")
    for figure in outcome.figures:
        print_line(f"figure {figure}")


def _bench(flags: o.Flags, name: str, data: str, options: Mapping[str, Any], **sizes: Any) -> Bench:
    """What a study is given by the flags; ``--set`` overrides `options`."""
    from hardcase.config import assign
    from hardcase_studies.bench import Bench

    return Bench(
        out=flags.out or free(Path("runs") / name),
        data=data,
        seed=flags.seed or 0,
        device=flags.place,
        options=assign(dict(options), flags.settings or []),
        say=flags.log,
        **sizes,
    )


def _tell(outcome: Outcome, page: Path, flags: o.Flags, where: str) -> None:
    """Print a written outcome: the numbers for scripts, or the tables and where they are."""
    if flags.json:
        print_line(page.with_name("results.json").read_text(encoding="utf-8").rstrip())
        return
    show_outcome(outcome)
    print_line(where)


@o.takes(
    *("config", "model", "data", "images", "split", "seed", "generator", "settings"),
    *("allow_low_accuracy", "trust_pickle", "device", "offline", "out", *o.SAYS),
)
def escape(
    flags: o.Flags,
    walks: Annotated[int, typer.Option(metavar="N", min=1, help="Random walks per seed.")] = 10,
    clean: Annotated[
        list[str] | None,
        typer.Option(
            "--clean", metavar="MODEL", help="Retrained on clean labels; ten make a verdict."
        ),
    ] = None,
) -> None:
    """Which classes border on which, as the model sees them; names pairs that look mislabelled or
    under-trained.
    """
    from hardcase.config import MethodConfig
    from hardcase_studies import escape

    wanted = o.resolve(vars(flags), {"method": "sinvad", "images": 200}).model_copy(
        update={"method": MethodConfig(name="sinvad")}
    )
    folder = flags.out or free(Path("runs") / "escape")
    told, space = _measured(wanted, walks, clean or [], flags)
    outcome = escape.outcome(told, lambda codes: _paint(space, codes, wanted.device), folder)
    page = outcome.write(folder)
    if flags.json:
        as_json({"folder": str(folder), **escape.as_json(told)})
        return
    _show(told)
    print_line(f"written to {shown(page)}")


def _measured(
    config: Config, walks: int, clean: list[str], flags: o.Flags
) -> tuple[Escaped, Space]:
    from hardcase.context import Context
    from hardcase.models.health import check
    from hardcase.searches.boundary import Crossing
    from hardcase_studies import escape
    from hardcase_studies.escape import Escaped

    flags.log(f"preparing {config.model.name} and its generator")
    context = Context(config)
    ready = context.campaign
    images = context.seeds.images()
    search = ready.method.search
    check(ready.subject, images, allow_low_accuracy=config.allow_low_accuracy)
    codes = search.codes if isinstance(search, Crossing) else None
    flags.log(f"walking out of {len(images)} images")
    method = escape.ways_out(ready.method.space, codes, walks=walks)
    measured = escape.measure(ready.subject, method, images, seed=config.seed)
    confused = escape.confusion(ready.subject, context.test)
    null = []
    for spec in clean:
        flags.log(f"walking out of the same images on {spec}")
        other = context.model(spec)
        null.append(escape.measure(other, method, images, seed=config.seed)[0])
    told = Escaped.of(measured, confused, escape.floor(ready.subject, context.test), null)
    return told, ready.method.space


def _paint(space: Space, codes: Any, device: str) -> Any:
    import torch

    from hardcase.tensors import usable_device
    from hardcase.types import Seeds

    with torch.no_grad():
        z = codes.to(usable_device(device))
        nobody = Seeds(
            z,
            z.new_zeros(len(z), 1, 1, 1),
            torch.zeros(len(z), dtype=torch.int64),
            torch.arange(len(z)),
        )
        return space.decode(z, nobody).cpu()


def _show(told: Escaped) -> None:
    from hardcase_studies.escape import MEDIAN, answer, pairs, word

    ranked = pairs(told)
    rows = []
    for pair in ranked[:10]:
        names = told.classes.pair(pair.source, pair.goal)
        confused = f"{pair.confused} of {pair.images}"
        middle = pair.floor if pair.floor == pair.floor else "not measured"
        rows.append([names, pair.rate, middle, confused, word(pair.suspicious)])
    columns = ["from → to", "ways out", MEDIAN, "confused in the test set", "suspicious"]
    console().print(grid("class pairs, suspicious ones first", columns, rows))
    print_line(answer(told, ranked))


@o.takes("seed", "device", "settings", "out", *o.SAYS)
def faults(
    flags: o.Flags,
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Which methods; see hardcase list methods.")
    ] = "feature-perturbation,pgd,sinvad",
    tests: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=10, help="Seeds per direction and fault (25; 100 with --full)."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--faults", metavar="A,B", help="Which faults; all by default.")
    ] = None,
    data: Annotated[
        str, typer.Option(help="What to plant them into; other than grey 28x28 needs --measure.")
    ] = "mnist5k",
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="A trait of your own: from images (m, c, h, w) in [0, 1] one number each.",
        ),
    ] = None,
    trainings: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trainings of each network (2; 5 with --full)."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="100 seeds per direction.")] = False,
) -> None:
    """Plant faults into small networks and measure which methods detect them, on the same seeds as
    networks without them; networks are trained if missing.
    """
    from hardcase_studies.faults import run

    named = only.split(",") if only else None
    given = {"tests": tests, "faults": named, "measure": measure, "trainings": trainings}
    chosen = {
        "methods": methods.split(","),
        **{key: value for key, value in given.items() if value},
    }
    bench = _bench(flags, "faults", data, chosen, full=full)
    outcome = run(bench)
    page = outcome.write(bench.out)
    _tell(outcome, page, flags, f"written to {shown(page)}")


@o.takes("seed", "device", "settings", "out", *o.SAYS)
def reproduce(
    flags: o.Flags,
    name: Annotated[
        str | None,
        typer.Argument(help="Which experiment, or FILE.py:FUNCTION; without one they are listed."),
    ] = None,
    data: Annotated[str, typer.Option(help="What to run it on.")] = "mnist5k",
    full: Annotated[
        bool, typer.Option("--full", help="Sample sizes of the paper; can take hours.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of repetitions.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="PLACE", help="Keep the numbers in this folder or FILE.json, to be checked."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Say whether the numbers agree with those kept; else exit 1."),
    ] = False,
    kept: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where numbers are kept, for --check.")
    ] = Path("results"),
    open_set: Annotated[
        bool, typer.Option("--open", help="Open a test set that may be opened once (witness-test).")
    ] = False,
) -> None:
    """Repeat a published experiment and print its tables."""
    if name is None:
        return _names(flags)
    from hardcase_studies import REPEATED, STUDIES, reruns

    if repeats is not None and name in STUDIES and name not in REPEATED:
        raise HardcaseError(
            f"{name} runs once: it has nothing that --repeats {repeats} would repeat.",
            "Its intervals are over images or trainings of its own.",
            fix=f"hardcase reproduce {name} --seed N, once for each N",
        )
    record = reruns.kept(name, kept) if check else None  # before hours of work
    from hardcase.companions import find

    study = find(name)
    folder = f"reproduce-{name.rpartition(':')[2]}"
    opening = {"open": True} if open_set else {}
    bench = _bench(flags, folder, data, opening, full=full, repeats=repeats)
    outcome = study(bench)
    page = outcome.write(bench.out, bench.command(name))
    if keep is not None:
        reruns.keep(outcome, bench, name, keep)
    if record is not None:
        _tell_rerun(name, reruns.check(record, outcome), flags)
    html = shown(page.with_name("report.html"))
    _tell(outcome, page, flags, f"written to {shown(page)}, as a page in {html}")


def _tell_rerun(name: str, rerun: Rerun, flags: o.Flags) -> NoReturn:
    """Cells that lie outside what a re-run may give, and the verdict: the exit code too."""
    columns = ["table", "row", "column", "then", "now"]
    outside = [cell for cell in rerun.cells if cell.agreement == "differs"]
    rows = [[getattr(cell, key) for key in columns] for cell in outside]
    if flags.json:
        told = [dict(zip(columns, row, strict=True)) for row in rows]
        as_json({"agrees": rerun.agrees, "summary": str(rerun), "outside": told})
    else:
        if rows:
            console().print(grid("outside the prediction interval", columns, rows))
        print_line(f"{name} {rerun}")
    raise typer.Exit(0 if rerun.agrees else 1)


def _names(flags: o.Flags) -> None:
    from hardcase.companions import studies

    columns = ["name", "needs", "summary", "paper"]
    rows = [{key: getattr(study, key) for key in columns} for study in studies().values()]
    if flags.json:
        as_json(rows)
    else:
        console().print(grid("", columns, [list(row.values()) for row in rows]))


@o.takes("seed", "device", "settings", "out", *o.SAYS)
def yardstick(
    flags: o.Flags,
    action: Annotated[str, typer.Argument(help="add, check or page.")],
    what: Annotated[
        str, typer.Argument(help="add: FILE.py:METHOD; check and page: the table's file.")
    ],
    table: Annotated[
        Path, typer.Option(metavar="FILE", help="The table that a row is added to.")
    ] = Path("yardstick.json"),
    data: Annotated[str, typer.Option(help="What to run it on.")] = "mnist5k",
) -> None:
    """Put a method of your own beside all others at the same cost; check such a table, or show it."""
    from hardcase_studies import yardstick_table as rows

    if action == "check":
        print_line(f"{what}: {len(rows.read(Path(what)).rows)} rows, all in order")
        return
    if action == "page":
        page = flags.out or Path(what).with_suffix(".html")
        write_atomically(page, rows.page(rows.read(Path(what))).encode())
        print_line(f"written to {shown(page)}")
        return
    if action != "add":
        raise choice("action of yardstick", action, ("add", "check", "page"))
    from hardcase_studies.yardstick import run

    bench = _bench(flags, "yardstick", data, {"methods": [], "add": what})
    show_outcome(run(bench))
    old = rows.read(table) if table.exists() else rows.YardstickTable(schema=1)
    rows.write(table, rows.merged(old, rows.read(bench.out / "yardstick.json").rows))
    print_line(f"added to {shown(table)}; hardcase yardstick page {shown(table)} shows it")


@o.takes(
    *(*insight.ASKED, *o.SAYS),
    model=o.Row("zoo:NAME, file.py:factory ..."),
    data=o.Row("The images to put into an order."),
    by=o.Row("deepgini, margin, confidence, entropy, dsa, lsa, mdsa or near-failures."),
    near=o.Row("The run whose failures near-failures means.", "RUN"),
    profile=o.Row("Whose train split surprise compares with.", "DATA"),
    labelled=o.Row("The labels are known: also say how good the order is.", names=("--labelled",)),
    split=o.Row("Which part of the data."),
    count=o.Row("A balanced sample of so many images.", "N", least=1),
    out=o.Row("Everything, as JSON.", "FILE.json"),
)
def rank(
    flags: o.Flags,
    model: str,
    data: str,
    by: str = "deepgini",
    near: Path | None = None,
    profile: str | None = None,
    labelled: bool = False,
    first: Annotated[int, typer.Option(metavar="N", min=1, help="How many to print.")] = 20,
    split: o.Split = o.Split.test,
    count: int | None = None,
    out: Path | None = None,
) -> None:
    """Say which images to label first, because the model most likely errs on them."""
    from dataclasses import replace

    from hardcase.cache import write_atomically
    from hardcase.runs.files import checked_json
    from hardcase_studies.ranking import SURPRISE, apfd, rank_images

    context, images = insight.model_and_images(
        None, replace(flags, model=model, data=data), split, count
    )
    subject = context.subject
    train = context.named_images(profile or data, "train") if by in SURPRISE else None
    ranked = rank_images(subject, images, by, train=train, failures=_failures(near))
    found: dict[str, Any] = {"score": by, "images": len(images), "rows": ranked.rows(images)}
    if labelled:
        wrong = ranked.predicted != images.y
        found["apfd"] = apfd(wrong, ranked.order)
        found["errors"] = int(wrong.sum())
    if out is not None:
        write_atomically(out, checked_json(found))
    if flags.json:
        as_json(found)
        return
    rows = [tuple(row.values()) for row in found["rows"][:first]]
    console().print(grid("", ("rank", "image", by, "answer"), rows))
    if labelled:
        print_line(f"APFD {found['apfd']:.3f} with {found['errors']} errors (0.5 by chance)")


def _failures(near: Path | None) -> Any:
    """The images of a run on which the model left the label."""
    if near is None:
        return None
    run = opened(near)
    kept = [i for i, kind in enumerate(run.findings["kind"].to_pylist()) if kind == "label"]
    return run.images(kept) if kept else None
