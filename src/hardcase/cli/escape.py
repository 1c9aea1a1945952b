"""``hardcase escape``: which class pairs are easily crossed, beside the confusion matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, console, grid, note, shown, tell

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.experiments.escaping import Escaped
    from hardcase.types import Space


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
    from hardcase.cli.closing import logging_to
    from hardcase.cli.settings import free, resolve
    from hardcase.config import MethodConfig
    from hardcase.experiments import escaping

    logging_to(verbose=verbose, quiet=quiet)
    wanted = resolve(flags, {"method": "sinvad", "seeds": 200}).model_copy(
        update={"method": MethodConfig(name="sinvad")}
    )
    folder = out or free(Path("runs") / "escape")
    told, space = _measured(wanted, walks, quiet=quiet)
    page = escaping.outcome(told, lambda codes: _paint(space, codes, wanted.device), folder).write(folder)
    if format == "json":
        as_json({"folder": str(folder), **escaping.as_json(told)})
        return
    _show(told)
    tell(f"written to {shown(page)}")


def _measured(config: Config, walks: int, *, quiet: bool) -> tuple[Escaped, Space]:
    from hardcase import data, planning
    from hardcase.experiments import escape as measuring
    from hardcase.experiments.escaping import Escaped
    from hardcase.health import check
    from hardcase.searches.crossing import Crossing

    if not quiet:
        note(f"preparing {config.model} and its generator")
    ready = planning.campaign(config)
    images, search = planning.seeds(config), ready.method.search
    check(ready.subject, images, allow_low_accuracy=config.allow_low_accuracy)
    codes = search.codes if isinstance(search, Crossing) else None
    if not quiet:
        note(f"walking out of {len(images)} images")
    method = measuring.ways_out(ready.method.space, codes, walks=walks)
    escapes, done, used = measuring.measure(ready.subject, method, images, seed=config.seed)
    test = data.load(config.data, split="test", offline=config.offline)
    told = Escaped(
        images.classes,
        escapes,
        done,
        used,
        measuring.confusion(ready.subject, test),
        measuring.floor(ready.subject, test),
    )
    return told, ready.method.space


def _paint(space: Space, codes: Any, device: str) -> Any:
    import torch

    from hardcase.planning import device as existing
    from hardcase.types import Seeds

    with torch.no_grad():
        z = codes.to(existing(device))
        nobody = Seeds(z, z.new_zeros(len(z), 1, 1, 1), torch.zeros(len(z), dtype=torch.int64), torch.arange(len(z)))
        return space.decode(z, nobody).cpu()


def _show(told: Escaped) -> None:
    from hardcase.experiments.escaping import answer, pairs

    ranked, names = pairs(told), told.classes
    rows = [
        [f"{names[p.source]} → {names[p.goal]}", p.rate, p.floor, f"{p.confused} of {p.images}", "yes" if p.suspicious else ""]
        for p in ranked[:10]
    ]  # fmt: skip
    columns = ["from → to", "ways out", "floor", "confused in the test set", "suspicious"]
    console().print(grid("class pairs, suspicious ones first", columns, rows))
    tell(answer(told, ranked))
