"""``hardcase curve``: the share failing against severity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.options import answer, grid, opened
from hardcase.errors import HardcaseError

if TYPE_CHECKING:
    from rich.table import Table

    from hardcase.context import Context
    from hardcase.types import Images

MaybeRun = Annotated[
    Path | None, typer.Argument(metavar="RUN", help="A run whose model and images are used.")
]
ASKED = ("seed", "settings", "trust_pickle", "device", "offline")
"""Flags that say how a model is loaded."""


@o.takes(
    *("model", "data", *ASKED, "trust", *o.SAYS),
    corruptions=o.Row("Which corruptions; all by default (18 of colour images), or none.", "A,B"),
    conditions=o.Row("Conditions whose scale is raised; those of the run.", "NAME|FILE|none"),
    split=o.Row("Which part of the data."),
    count=o.Row("A balanced sample of so many images.", "N", least=1),
    out=o.Row("Everything, as JSON.", "FILE.json"),
)
def curve(
    flags: o.Flags,
    folder: MaybeRun = None,
    corruptions: str = "all",
    conditions: str | None = None,
    split: o.Split = o.Split.test,
    count: int | None = None,
    out: Path | None = None,
) -> None:
    """Draw the share failing against severity and against the scale of declared conditions, and
    where each image first fails; of a run, for its report too."""
    from hardcase.analysis.conditions import keep_worst
    from hardcase.analysis.curves import severity_curves
    from hardcase.cache import write_atomically
    from hardcase.conditions import condition_box, measure_worst
    from hardcase.conditions.declared import DECLARABLE
    from hardcase.corruptions import CORRUPTIONS
    from hardcase.runs.files import checked_json
    from hardcase.runs.folder import Store
    from hardcase.runs.verify import CURVES, write_side_file

    context, images = model_and_images(folder, flags, split, count, conditions)
    names = tuple(corruptions.split(",")) if corruptions not in ("all", "none") else ()
    if corruptions == "all":
        grey = images.shape[0] == 1
        names = tuple(n for n in CORRUPTIONS if not (grey and DECLARABLE[f"corruption.{n}"].colour))
    worst = None
    declared = context.conditions
    if declared is not None:
        flags.log(f"conditions {declared.name}: {declared}")
        box = condition_box(declared, images.shape)
        worst = measure_worst(context.subject, images, box, seed=context.config.seed)
    result = severity_curves(
        context.subject,
        images,
        names,
        worst=worst,
        progress=lambda done, total: flags.log(f"{done} of {total} curves: {names[done - 1]}"),
    )
    if worst is not None:
        result |= worst.to_json()
    if out is None and folder is not None:
        write_side_file(Store.open(folder), CURVES, result)
        if declared is not None and worst is not None and count is None:
            keep_worst(opened(folder), declared, worst)
    if out is not None:
        write_atomically(out, checked_json(result))
    answer(flags, result, *_curves(result))
    if not flags.json:
        flags.log(
            f"{result['correctly_classified']} of {result['images']} images classified correctly"
        )


def _curves(result: dict[str, Any]) -> Iterator[str | Table]:
    rows = []
    for row in (*result["corruptions"], *result["conditions"]):
        failing = row["curve"][-1]
        middle = row["crossing"]["quartiles"][1]
        rows.append(
            (
                row.get("corruption") or row["condition"],
                f"{failing['failing']} of {failing['total']}",
                f"above {row['most']:g}" if middle is None else f"{middle:.2f}",
                f"{row['non_monotone']['share']:.0%}",
                f"{sum(row['error']) / len(row['error']):.1%}" if "error" in row else "",
            )
        )
    columns = ("change", "failing at the end", "median crossing", "not monotone", "mean error")
    yield grid("", columns, rows)
    worst = result.get("worst_case")
    if worst is not None:
        low, high = worst["images_like_these"]
        yield (
            f"worst case: at least {worst['value']:.1%} of the images fail somewhere in the"
            f" declared ranges ({low:.1%} to {high:.1%})"
        )
    mean = result["corruption_error"]
    if mean is not None:
        yield f"mean corruption error: {mean['plain']:.1%}"


def named_context(flags: o.Flags, verb: str, **objects: Any) -> Context:
    """The context of a model and data that flags must name where there is no run."""
    from hardcase.context import Context

    if flags.model is None or flags.data is None:
        fix = f"hardcase {verb} RUN, or --model ... --data ..."
        raise HardcaseError("there is no model or no data.", fix=fix)
    return Context(o.resolve({**vars(flags), **objects}, {"method": "pgd"}))


def model_and_images(
    folder: Path | None,
    flags: o.Flags,
    split: o.Split,
    count: int | None,
    conditions: str | None = None,
) -> tuple[Context, Images]:
    """The context of the model and the images that a run or flags name."""
    from hardcase.analysis.slices import seeds_of
    from hardcase.cli.results import config_of, same_ingredients
    from hardcase.context import Context

    if folder is not None:
        run = opened(folder)
        uses = ("model", "data", "conditions")
        named = {"model": flags.model, "conditions": conditions}
        context = Context(config_of(run, flags, uses=uses, **named))
        if not flags.model:
            same_ingredients(run, context, flags, "model")
        images = seeds_of(run) if run.store.searching else context.seeds.images()
    else:
        context = named_context(flags, "curve", conditions=conditions)
        images = context.images(split)
    if count is not None:
        images = images.sample(count=count, seed=context.config.seed)
    return context, images
