"""``hardcase conditions fit``: which conditions to declare, from unlabelled images of the field."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.insight import ASKED, named_context
from hardcase.cli.options import as_json, print_line, shown
from hardcase.errors import HardcaseError
from hardcase.wording.field import field_headline, field_lines

if TYPE_CHECKING:
    from hardcase.data.files import ImageSet
    from hardcase.types import Images, Model

__all__ = ["conditions"]

Action = StrEnum("Action", "fit")
EVERY = 15.0
"""Seconds between two notes about how far a fit is."""


@o.takes(
    *("model", "data", *ASKED, "out", *o.SAYS),
    field=o.Row("Unlabelled images of the field: folder:PATH, npz:PATH ...", "DATA"),
    coordinates=o.Row("Which conditions to look for; by default all that suit.", "A,B"),
    split=o.Row("Which part of the data."),
)
def conditions(
    flags: o.Flags,
    action: Annotated[Action, typer.Argument(metavar="fit", help="fit: find them.")],
    field: str | None = None,
    coordinates: str = "",
    split: o.Split = o.Split.test,
) -> None:
    """Find the conditions under which labelled images look like unlabelled ones of the field, and
    say what they cannot explain. With --model: which accuracy to expect there.

    Writes a declaration for --conditions, its figures (.json) and a sheet of images (.png).
    """
    from hardcase.conditions.fitting.fit import finished

    if flags.data is None or field is None:
        fix = "hardcase conditions fit --data D --field folder:FIELD --out field.toml"
        raise HardcaseError("there is no data or no field.", fix=fix)
    out = flags.out or Path("field.toml")
    if out.exists():
        raise HardcaseError(f"{out} exists and stays as it is.", fix="another --out")
    model, images, train = _ingredients(flags, split)
    fitted = finished(
        images,
        field,
        model=model,
        train=train,
        coordinates=tuple(filter(None, coordinates.split(","))),
        seed=flags.seed or 0,
        out=out,
        on_progress=_noted(flags.log),
    )
    record = fitted.to_json()
    if flags.json:
        as_json({"file": str(out), **record})
    elif flags.quiet:
        print_line(field_headline(record))
    else:
        print_line("\n".join([*field_lines(record), "", *_next(flags, out, bool(fitted.found))]))


def _ingredients(flags: o.Flags, split: o.Split) -> tuple[Model | None, Images, ImageSet | None]:
    """The model, if named, the labelled images, and those to learn classes from."""
    from hardcase.conditions.fitting.fit import known_images
    from hardcase.config import task_of

    assert flags.data is not None
    if flags.model is not None and task_of("auto", flags.data, flags.model) != "classes":
        why = "The accuracy to expect is that of a network which names one class for each image."
        raise HardcaseError(
            f"{flags.model} makes claims about images.", why, fix="leave out --model"
        )
    if flags.model is not None:
        context = named_context(flags, "conditions fit", split=split)
        return context.subject, context.images(split), context.labelled("train")
    images, train = (
        known_images(flags.data, part, offline=flags.offline) for part in (split, "train")
    )
    return None, images, train


def _next(flags: o.Flags, out: Path, declared: bool) -> list[str]:
    """Where things are, and what to type next."""
    lines = [f"images       {shown(out.with_suffix('.png'))}: field, fitted, least explained"]
    if declared:
        model = flags.model or "MODEL"
        command = f"hardcase run --model {model} --data {flags.data} --conditions {shown(out)}"
        lines.append(f"next         {command}")
    return lines


def _noted(log: Callable[[str], None]) -> Callable[[str, int], None]:
    """What tells how far a fit is, now and then."""
    last: dict[str, Any] = {"time": monotonic()}

    def note(what: str, count: int) -> None:
        if monotonic() - last["time"] >= EVERY:
            last["time"] = monotonic()
            log(f"{count} {what}")

    return note
