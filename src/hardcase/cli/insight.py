"""``hardcase curve``, ``hardcase rank`` and ``hardcase evidence``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, grid, opened, shown, tell
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.context import Context
    from hardcase.types import Images

MaybeRun = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run whose model and seeds are taken.")
]
Count = Annotated[
    int | None,
    typer.Option("--count", metavar="N", min=1, help="A balanced sample of so many images."),
]
Part = Annotated[o.Split, typer.Option("--split", help="Which part of the data.")]
OutFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.json", help="Everything, as JSON.")
]

ASKED = ("seed", "settings", "trust_pickle", "device", "offline")
"""Flags that say how a model is loaded."""


@o.takes("model", "data", *ASKED, "trust", *o.SAYS)
def curve(
    flags: o.Flags,
    folder: MaybeRun = None,
    corruptions: Annotated[
        str, typer.Option(metavar="A,B", help="Which corruptions; all 18 by default, or none.")
    ] = "all",
    space: Annotated[
        str,
        typer.Option(
            metavar="A*B", help="Spaces of appearance, coordinate by coordinate: all, none, light."
        ),
    ] = "all",
    split: Part = o.Split.test,
    count: Count = None,
    out: OutFile = None,
) -> None:
    """Draw the share failing against severity, and where each image first fails; of a run, for its
    report too."""
    from hardcase.corruptions import CORRUPTIONS
    from hardcase.insight import severity_curves
    from hardcase.runs.folder import Store
    from hardcase.runs.verify import CURVES, keep_beside
    from hardcase.spaces.appearance import PARTS

    context, images = _model_and_images(folder, flags, split, count)
    names = tuple(CORRUPTIONS) if corruptions == "all" else tuple(corruptions.split(","))
    spaces = {"all": "*".join(PARTS), "none": None}
    found = severity_curves(
        context.subject,
        images,
        () if corruptions == "none" else names,
        space=spaces.get(space, space),
        progress=lambda done, total: flags.say(f"{done} of {total} curves"),
    )
    if out is None and folder is not None:
        keep_beside(Store.open(folder), CURVES, found)
    _write(out, found)
    if flags.json:
        as_json(found)
    else:
        _tell_curves(found, flags)


def _tell_curves(found: dict[str, Any], flags: o.Flags) -> None:
    rows = []
    for row in (*found["corruptions"], *found["coordinates"]):
        failing = row["curve"][-1]
        middle = row["crossing"]["quartiles"][1]
        rows.append(
            (
                row.get("corruption") or row["coordinate"],
                f"{failing['failing']} of {failing['total']}",
                f"above {row['most']:g}" if middle is None else f"{middle:.2f}",
                f"{row['non_monotone']['share']:.0%}",
                f"{sum(row['error']) / len(row['error']):.1%}" if "error" in row else "",
            )
        )
    columns = ("change", "failing at the end", "median crossing", "not monotone", "mean error")
    console().print(grid("", columns, rows))
    mean = found["corruption_error"]
    if mean is not None:
        over = mean["relative_to"]
        beside = "" if over is None else f"; over AlexNet's: {over:.1%} ({found['note']})"
        tell(f"mean corruption error: {mean['plain']:.1%}{beside}")
    flags.say(f"{found['usable']} of {found['images']} images classified correctly")


@o.takes(*ASKED, *o.SAYS)
def rank(
    flags: o.Flags,
    model: Annotated[str, typer.Option(help="zoo:NAME, file.py:factory ...")],
    data: Annotated[str, typer.Option(help="The images to put into an order.")],
    by: Annotated[
        str,
        typer.Option(
            help="deepgini, margin, confidence, entropy, dsa, lsa, mdsa or near-failures."
        ),
    ] = "deepgini",
    near: Annotated[
        Path | None, typer.Option(metavar="RUN", help="The run whose failures near-failures means.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="DATA", help="Whose train split surprise compares with.")
    ] = None,
    labelled: Annotated[
        bool,
        typer.Option("--labelled", help="The labels are known: also say how good the order is."),
    ] = False,
    first: Annotated[int, typer.Option(metavar="N", min=1, help="How many to print.")] = 20,
    split: Part = o.Split.test,
    count: Count = None,
    out: OutFile = None,
) -> None:
    """Say which images to label first, because the model most likely errs on them."""
    from dataclasses import replace

    from hardcase import ranking
    from hardcase.insight import SURPRISE, rank_images

    context, images = _model_and_images(None, replace(flags, model=model, data=data), split, count)
    subject = context.subject
    train = context.named_images(profile or data, "train") if by in SURPRISE else None
    ranked = rank_images(subject, images, by, train=train, failures=_failures(near))
    found: dict[str, Any] = {"score": by, "images": len(images), "rows": ranked.rows(images)}
    if labelled:
        wrong = ranked.predicted != images.y
        found["apfd"] = ranking.apfd(wrong, ranked.order)
        found["errors"] = int(wrong.sum())
    _write(out, found)
    if flags.json:
        as_json(found)
        return
    rows = [tuple(row.values()) for row in found["rows"][:first]]
    console().print(grid("", ("rank", "image", by, "answer"), rows))
    if labelled:
        tell(f"APFD {found['apfd']:.3f} with {found['errors']} errors (0.5 by chance)")


@o.takes("format", "quiet")
def evidence(
    folders: o.Runs,
    flags: o.Flags,
    profile: Annotated[str, typer.Option(help="42119, 8800, amlas or ai-act.")],
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="REQ.toml", help="[[requirement]] tables: id, text, metric, most, least."
        ),
    ] = None,
    tool: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="planted_defects and faults, each with counts."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder.")] = Path(
        "evidence"
    ),
) -> None:
    """Fill a folder for an assessor: each row shown, not shown or not applicable, with file and
    hash."""
    import json
    from dataclasses import asdict

    from hardcase.evidence import read_requirements, write_evidence

    about = None
    if tool is not None:
        try:
            about = json.loads(tool.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Problem(f"{tool} cannot be read as JSON: {error}") from error
    rows = write_evidence(
        [opened(folder) for folder in folders],
        out,
        profile=profile,
        requirements=read_requirements(requirements) if requirements is not None else (),
        tool=about,
    )
    if flags.json:
        as_json({"folder": str(out), "rows": [asdict(row) for row in rows]})
        return
    if not flags.quiet:
        console().print(
            grid("", ("topic", "status", "why"), [(row.id, row.status, row.why) for row in rows])
        )
    tell(f"folder  {shown(out)}")


def _model_and_images(
    folder: Path | None, flags: o.Flags, split: o.Split, count: int | None
) -> tuple[Context, Images]:
    """The context of the model and the images that a run or flags name."""
    from hardcase.cli.results import config_of
    from hardcase.context import Context

    named = vars(flags)
    if folder is not None:
        run = opened(folder)
        given = {name: named[name] for name in ("model", *ASKED)}
        config = config_of(run, trusted=flags.trust, **given)
        context = Context(config)
        images = _seeds(run)
    else:
        if flags.model is None or flags.data is None:
            raise Problem(
                "there is no model or no data.", fix="hardcase curve RUN, or --model ... --data ..."
            )
        config = o.resolve(named, {"method": "pgd"})
        context = Context(config)
        images = context.images(split)
    if count is not None:
        images = images.sample(count=count, seed=config.seed)
    return context, images


def _seeds(run: Any) -> Images:
    """The seeds of a run as an image set."""
    import torch

    from hardcase.types import Images

    label = torch.tensor(run.seeds["label"].to_pylist(), dtype=torch.int64)
    names = tuple(run.seeds["id"].to_pylist())
    return Images(run.seed_images(), label, names, run.classes, name=str(run.folder))


def _failures(near: Path | None) -> Any:
    """The images of a run on which the model left the label."""
    if near is None:
        return None
    run = opened(near)
    kept = [i for i, kind in enumerate(run.findings["kind"].to_pylist()) if kind == "label"]
    return run.images(kept) if kept else None


def _write(out: Path | None, found: dict[str, Any]) -> None:
    """As JSON with a checksum."""
    if out is None:
        return
    from hardcase.cache import write_atomically
    from hardcase.runs.ledger import sealed

    write_atomically(out, sealed(found))
