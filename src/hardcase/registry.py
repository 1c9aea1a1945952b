"""One registry for every kind of part: a part's decorator is its only catalogue row.

A row's summary is the first paragraph of the part's docstring, its options are its keyword-only
parameters, what it is given by a campaign are its other parameters. `hardcase list` reads
``catalogue.json``, which `write_catalogue` makes from the same rows, so that it needs no torch.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from hardcase.errors import Problem, choice
from hardcase.usercode import file_member

ROOMS = {
    "method": "methods",
    "space": "spaces",
    "search": "searches",
    "criterion": "criteria",
    "generator": "generators",
    "judge": "judges",
    "data": "data",
    "model": "models",
}
"""The kinds of part that have names, and the room in which each kind lives."""
CATALOGUE = Path(__file__).with_name("catalogue.json")

Made = TypeVar("Made", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named form of a part: the same part with other options, or another recipe under its name.

    Args:
        options: Values that differ from the part's defaults.
        summary: What this form is, in one line.
        differences: Where it departs from the source it is named after.
        make: The recipe, where it is not the part's own.
        facts: Facts of the row that differ from the part's.
    """

    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    differences: str = ""
    make: Callable[..., Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row of the registry: something that a name stands for.

    Args:
        kind: One of the keys of `ROOMS`.
        name: What users type.
        make: The class or function behind the name.
        summary: One line; by default the first paragraph of the docstring of `make`.
        paper: Where the idea was published, or "ours".
        cite: BibTeX entries of the sources.
        differences: Where the part departs from its source.
        preset: Values that replace the defaults of `make`.
        facts: Whatever else its kind wants to know of a part, by name.
    """

    kind: str
    name: str
    make: Callable[..., Any]
    summary: str = ""
    paper: str = ""
    cite: tuple[str, ...] = ()
    differences: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the parameters that the context of a campaign supplies."""
        return tuple(p.name for p in self._parameters() if p.kind is p.POSITIONAL_OR_KEYWORD)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The keyword-only parameters, with the preset's values as their defaults."""
        own = (p for p in self._parameters() if p.kind is p.KEYWORD_ONLY)
        return {p.name: p.replace(default=self.preset.get(p.name, p.default)) for p in own}

    def __call__(self, *parts: Any, **options: Any) -> Any:
        """Make the part; options that are not given take the preset's values."""
        return self.make(*parts, **{**self.preset, **options})

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.make).parameters.values())


_parts: dict[str, dict[str, Part]] = {kind: {} for kind in ROOMS}
_loaded: set[str] = set()


def part(
    kind: str,
    name: str,
    *,
    paper: str = "",
    cite: str | tuple[str, ...] = (),
    differences: str = "",
    presets: Mapping[str, Preset] | None = None,
    **facts: Any,
) -> Callable[[Made], Made]:
    """Decorator: register a class or function under `name`, and each preset under ``name@preset``.

    Args:
        kind: Which kind of part it is, see `ROOMS`.
        name: What users type on the command line and in configurations.
        paper: Where the idea was published.
        cite: BibTeX of the source, for ``hardcase cite``.
        differences: Where this departs from its source.
        presets: Other forms under the same name, as data.
        facts: Anything that the part's kind wants to know (a method's generator, a criterion's laws).

    Example:
        >>> from hardcase.registry import part, resolve
        >>> @part("data", "dots", paper="ours")
        ... def dots(*, count: int = 4) -> int:
        ...     '''As many dots as asked for.'''
        ...     return count
        >>> resolve("data", "dots")(count=5)
        5
    """
    _known_kind(kind)

    def register(make: Made) -> Made:
        row = Part(
            kind=kind,
            name=name,
            make=make,
            summary=first_paragraph(make),
            paper=paper,
            cite=(cite,) if isinstance(cite, str) else tuple(cite),
            differences=differences,
            facts=facts,
        )
        _add(row)
        for suffix, preset in (presets or {}).items():
            _add(
                replace(
                    row,
                    name=f"{name}@{suffix}",
                    make=preset.make or make,
                    summary=preset.summary,
                    differences=preset.differences,
                    preset=preset.options,
                    facts={**facts, **preset.facts},
                )
            )
        return make

    return register


method = partial(part, "method")
space = partial(part, "space")
search = partial(part, "search")
criterion = partial(part, "criterion")
generator = partial(part, "generator")
judge = partial(part, "judge")
data = partial(part, "data")
model = partial(part, "model")


def parts(kind: str) -> dict[str, Part]:
    """All parts of a kind by name: those of the package and those of installed entry points."""
    _load(kind)
    return dict(_parts[kind])


def resolve(kind: str, spec: str) -> Part:
    """The part that `spec` names.

    Args:
        kind: Which kind of part is wanted, see `ROOMS`.
        spec: ``name``, ``name@preset``, ``file.py:name`` or the name of an entry point of the
            group ``hardcase.<kind>``.

    Raises:
        Problem: If there is no such part; the message lists the choices.

    Example:
        >>> from hardcase.registry import resolve
        >>> resolve("method", "pgd").options["gradients"].default
        40
    """
    _known_kind(kind)
    path, _, member = spec.rpartition(":")
    if path.endswith(".py"):
        return _supplied(kind, Path(path), member)
    known = parts(kind)
    if spec not in known:
        raise choice(kind, spec, sorted(known))
    return known[spec]


def rows(kind: str) -> list[dict[str, Any]]:
    """What ``hardcase list`` shows of a kind, from the stored catalogue: needs no torch."""
    catalogue: dict[str, list[dict[str, Any]]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    if kind not in catalogue:
        raise choice("kind of part", kind, sorted(catalogue))
    return catalogue[kind]


def first_paragraph(made: Callable[..., Any]) -> str:
    """The first paragraph of a docstring in one line."""
    text = inspect.getdoc(made) or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix(".")


def _add(row: Part) -> None:
    before = _parts[row.kind].get(row.name)
    if before is not None and before.make.__qualname__ != row.make.__qualname__:
        raise Problem(
            f"two parts of kind {row.kind} are called {row.name!r}: "
            f"{before.make.__module__} and {row.make.__module__}.",
            fix="another name for one of them",
        )
    _parts[row.kind][row.name] = row


def _known_kind(kind: str) -> None:
    if kind not in ROOMS:
        raise choice("kind of part", kind, sorted(ROOMS))


def _load(kind: str) -> None:
    """Import the room of a kind, so that its decorators run, and the entry points of others."""
    if kind in _loaded:
        return
    _loaded.add(kind)
    room = import_module(f"hardcase.{ROOMS[kind]}")
    for module in pkgutil.iter_modules(room.__path__):
        import_module(f"{room.__name__}.{module.name}")
    for point in entry_points(group=f"hardcase.{kind}"):
        if point.name not in _parts[kind]:
            _add(_outside(kind, point.name, point.load()))


def _supplied(kind: str, path: Path, member: str) -> Part:
    """A part of a user's file, decorated or not."""
    made = file_member(path, member)
    return _outside(kind, f"{path}:{member}", made)


def _outside(kind: str, name: str, made: Callable[..., Any]) -> Part:
    """The row of a part from outside: its own if it is decorated, else one with its docstring."""
    for row in _parts[kind].values():
        if row.make is made:
            return replace(row, name=name)
    return Part(kind=kind, name=name, make=made, summary=first_paragraph(made), paper="supplied")
