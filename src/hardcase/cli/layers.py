"""``hardcase layers``: what a model is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, console, grid

if TYPE_CHECKING:
    from hardcase.subject import Subject
    from hardcase.types import Images


def layers(
    model: Annotated[str, typer.Option(help="zoo:NAME, file.py:factory ...")],
    data: Annotated[str, typer.Option(help="Whose images the model takes.")] = "mnist5k",
    device: o.Device = None,
    offline: o.Offline = False,
    trust_pickle: o.TrustPickle = False,
    format: o.AsFormat = o.Format.text,
) -> None:
    """Show a model's layers in the order in which they run: names, shapes, unit counts."""
    from hardcase.criteria import survey
    from hardcase.data import load
    from hardcase.tensors import from_bytes

    images = load(data, split="test", offline=offline).first(1)
    subject = _subject(model, images, data, device=device, offline=offline, trust_pickle=trust_pickle)
    rows: list[dict[str, Any]] = [
        {"name": layer.name, "kind": layer.kind, "shape": list(layer.shape), "channels": layer.channels, "units": layer.units}
        for layer in survey(subject, from_bytes(images.x.to(subject.device))).layers
    ]  # fmt: skip
    if format == "json":
        as_json(rows)
        return
    cells = [
        [row["name"], row["kind"], " x ".join(map(str, row["shape"])), row["channels"], row["units"]] for row in rows
    ]
    total = sum(row["units"] for row in rows)
    title = f"{model}: {len(rows)} layers, {total:,} units"
    console().print(grid(title, ["name", "kind", "shape", "channels", "units"], cells))


def _subject(
    model: str, images: Images, data: str, *, device: str | None, offline: bool, trust_pickle: bool
) -> Subject:
    """The model as it would be tested; one of the zoo is not trained for that, its layers are known without."""
    from hardcase import zoo
    from hardcase.config import parse
    from hardcase.models import network
    from hardcase.planning import subject
    from hardcase.subject import Subject

    if model.startswith("zoo:"):
        channels, size, _ = images.x.shape[1:]
        return Subject(zoo.build(model[4:], channels=channels, size=size, classes=len(images.classes)), name=model)
    values = {"model": model, "data": data, "method": "pgd", "offline": offline, "trust_pickle": trust_pickle}
    return network(subject(parse({**values, **({"device": device} if device else {})}), model))
