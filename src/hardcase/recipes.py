"""Names become methods: a recipe's function is called with its options and with what the campaign can give it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hardcase import data, generators
from hardcase.config import wrong_value
from hardcase.errors import Problem, choice
from hardcase.methods.catalogue import METHODS, Recipe
from hardcase.spaces.vae import Latent
from hardcase.subject import Subject
from hardcase.training import Progress
from hardcase.types import OFFERS, Images, Method, Model, Space

GIVEN = ("space", "subject", "peers", "profile", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What lies ready when a recipe is built: the networks and the data of the campaign.

    `data` is the name under which the images can be loaded again, if it is not the one they carry.
    """

    subject: Model
    images: Images
    data: str | None = None
    peers: tuple[Model, ...] = ()
    target: int | None = None
    generator: str | None = None
    seed: int = 0
    progress: Callable[[Progress], None] | None = None


def recipe(name: str) -> Recipe:
    if name not in METHODS:
        raise choice("method", name, list(METHODS))
    return METHODS[name]


def options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a method, by name."""
    return {key: p for key, p in inspect.signature(_function(recipe(name))).parameters.items() if key not in GIVEN}


def build(name: str, settings: Mapping[str, Any], bench: Bench) -> Method:
    """The method called `name` with these settings, its generator trained if it is missing."""
    row = recipe(name)
    _offered(row, bench.subject)
    known = options(name)
    for key in settings:
        if key not in known:
            raise choice(f"option of {name}", key, list(known))
    wanted = inspect.signature(_function(row)).parameters
    for key, asked, needs in (("target", bench.target is not None, "target"), ("generator", bench.generator, "space")):
        if asked and needs not in wanted:
            raise Problem(f'method "{name}" takes no {key}.', fix=f"leave out --{key}, or another --method")
    given = {key: getattr(bench, key) for key in GIVEN if key in wanted and key != "space"}
    typed = _typed(row, settings)
    space, card = _space(row, bench) if "space" in wanted else (None, None)
    try:
        method: Method = _function(row)(**given, **typed, **({"space": space} if space else {}))
    except TypeError as error:
        raise Problem(f"method {name!r} cannot be built: {error}") from error
    return replace(method, details={"generator": card, "cite": row.cite})


def _typed(row: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as the recipe's annotations want them; a list from a file becomes a tuple, text is no number."""
    hints = get_type_hints(_function(row))
    typed = {}
    for key, value in settings.items():
        try:
            typed[key] = TypeAdapter(hints[key], config={"arbitrary_types_allowed": True}).validate_python(value)
        except ValidationError as error:
            raise wrong_value(f"method.{key}", error) from error
    return typed


def _function(row: Recipe) -> Callable[..., Method]:
    module, _, function = row.where.partition(":")
    made: Callable[..., Method] = getattr(import_module(f"hardcase.methods.{module}"), function)
    return made


def _offered(row: Recipe, subject: Model) -> None:
    level = OFFERS.index(subject.offers)
    if OFFERS.index(row.needs) <= level:
        return
    able = [other.name for other in METHODS.values() if OFFERS.index(other.needs) <= level]
    raise Problem(
        f'method "{row.name}" needs {row.needs}; subject "{subject.name}" offers {subject.offers} only.',
        f"methods that work here: {', '.join(able)}",
    )


def _space(row: Recipe, bench: Bench) -> tuple[Space, dict[str, Any]]:
    """The latent space of the generator that was named, or of the recipe's own, trained on the seeds' data if missing."""
    family, _, rest = (bench.generator or row.generator).partition(":")
    source = bench.data or bench.images.name
    train = data.load(source, split="train")
    path = Path(rest).expanduser()
    if rest and (path / "card.json").is_file():
        net, card = generators.load(path, family, data=train.hash)
    else:
        judge = (lambda x: bench.subject(x).logits) if isinstance(bench.subject, Subject) else None
        net, card = generators.trained(
            family,
            train,
            data.load(source, split="test"),
            kind=rest or "linear",
            judge=judge,
            seed=bench.seed,
            progress=bench.progress,
            device=bench.subject.device,
        )
    return Latent(net.to(bench.subject.device)), card
