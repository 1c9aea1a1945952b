"""The registry of parts of every kind: a part's decorator is its only catalogue row.

A row's summary is the first paragraph of the part's docstring. Its options are the parameters with
a default, except those that a run supplies to a method (`SUPPLIED`). `hardcase list` reads
``catalogue.json``, which is written from the same rows by ``python -m hardcase.catalogue``, so that
it needs no torch.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hardcase.errors import HardcaseError, choice, file_member, guarded, likely_factory

if TYPE_CHECKING:
    from hardcase.types import Method

ROOMS = {
    "method": "methods",
    "space": "spaces",
    "search": "searches",
    "objective": "objectives",
    "oracle": "oracles",
    "guide": "guides",
    "criterion": "criteria",
    "generator": "generators",
    "judge": "judges",
    "data": "data",
    "model": "models",
}
"""The kinds of part that have names, and the room in which each kind lives."""
ALSO = {
    "data": ("hardcase.claims.networks", "hardcase_teams.formats"),
    "model": ("hardcase.claims.networks",),
}
"""Files elsewhere that hold parts of a kind, as far as they are installed."""
SUPPLIED = (
    *("space", "partners", "subject", "peers", "witnesses", "surrogates"),
    *("profile", "target", "shape"),
)
"""What a run gives a method that has a positional parameter of this name."""
_NOUNS = {"data": "data set"}
_HIDDEN = ("name", "keeps_code")
"""Fields of a class that say what it is and are no options."""
CATALOGUE = Path(__file__).with_name("catalogue.json")

Made = TypeVar("Made", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named form of a part: the same part with other options.

    A form that truly is another recipe has a separate decorator, with a name like ``sinvad@paper``;
    `make` is for the options of a recipe that is registered under another name.

    Args:
        summary: What this form is, in a line.
        options: Values that differ from the part's defaults.
        differences: Where it departs from the source it is named after.
        make: The recipe, where it is not that of the part.
        paper: The source, where it is not that of the part.
        cite: BibTeX of that source.
        facts: Facts of the row that differ from the part's.
    """

    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    differences: str = ""
    make: Callable[..., Any] | None = None
    paper: str = ""
    cite: str | tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A row of the registry: a name and the part that it stands for.

    Args:
        kind: A key of `ROOMS`.
        name: What users type.
        make: The class or function behind the name.
        summary: A line; by default the first paragraph of the docstring of `make`.
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
        """Names of the parameters that a run, or whoever makes the part, must supply."""
        options = self.options
        return tuple(
            name for name in inspect.signature(self.make).parameters if name not in options
        )

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options by name, with the preset's values as their defaults."""
        supplied = SUPPLIED if self.kind == "method" else ()
        function = not inspect.isclass(self.make)
        return {
            p.name: p.replace(default=self.preset.get(p.name, p.default))
            for p in inspect.signature(self.make).parameters.values()
            if (function and p.kind is p.KEYWORD_ONLY)
            or (p.default is not p.empty and p.name not in supplied)
        }

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the BibTeX entries in `cite`."""
        return tuple(map(citation_key, self.cite))

    def __call__(self, *parts: Any, **options: Any) -> Any:
        """Make the part; absent options take the preset's values."""
        built_part = self.make(*parts, **{**self.preset, **options})
        if self.kind == "method":  # a method carries the name under which it was asked for
            return replace(built_part, name=self.name)
        return built_part


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a part, as its signature and its docstring state it.

    Args:
        default: Its value if the option is absent.
        help: What it means, from the ``Args`` section.
        choices: The values it can take, where its annotation is a `Literal`.
    """

    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()


def options_of(part: Part) -> dict[str, Option]:
    """The options of a part by name.

    Args:
        part: A row of the registry.

    Example:
        >>> from hardcase.registry import options_of, resolve
        >>> options_of(resolve("criterion", "kmnc"))["cuts"].choices
        ('right-open', 'left-open', 'closed')
    """
    helps = argument_helps(part.make)
    choices = _choices(part.make)
    return {
        name: Option(parameter.default, helps.get(name, ""), tuple(map(str, choices.get(name, ()))))
        for name, parameter in part.options.items()
        if name not in _HIDDEN
    }


@cache
def _choices(built_part: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """The values that parameters annotated as `Literal` can take."""
    if isinstance(built_part, type):
        built_part = built_part.__init__  # type: ignore[misc]  # its own
    try:
        hints = get_type_hints(built_part)
    except (NameError, TypeError, AttributeError):  # some are read by type checkers only
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def argument_helps(factory: Callable[..., Any]) -> dict[str, str]:
    """What the ``Args`` section of a docstring says of each parameter."""
    lines = (inspect.getdoc(factory) or "").splitlines()
    if "Args:" not in lines:
        return {}
    helps: dict[str, str] = {}
    name = ""
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith(" "):
            break
        first = re.match(r" {4}(\w+): (.*)", line)
        if first:
            name = first[1]
            helps[name] = first[2]
        elif name and line.strip():
            helps[name] += f" {line.strip()}"
    return helps


_parts: dict[str, dict[str, Part]] = {kind: {} for kind in ROOMS}
_loaded: set[str] = set()


def part(
    kind: str,
    name: str,
    /,
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
        cite: Keys of the sources in ``references.bib``, for ``hardcase cite``, or their BibTeX.
        differences: Where this departs from its source.
        presets: Other forms under the same name, as data.
        facts: Anything that the part's kind wants to know (a method's generator, a criterion's
            laws).

    Example:
        >>> from hardcase.registry import part, resolve
        >>> @part("data", "dots", paper="ours")
        ... def dots(*, count: int = 4) -> int:
        ...     '''As many dots as `count`.'''
        ...     return count
        >>> resolve("data", "dots")(count=5)
        5
    """
    _known_kind(kind)

    def register(make: Made) -> Made:
        decorated = _named(make, name) if kind == "method" else make
        row = Part(
            kind=kind,
            name=name,
            make=decorated,
            summary=first_paragraph(make),
            paper=paper,
            cite=_entries(cite),
            differences=differences,
            facts=facts,
        )
        _add(row)
        for suffix, preset in (presets or {}).items():
            _add(_preset(row, suffix, preset))
        return decorated

    return register


def explain(make: Callable[..., Any], shared: Mapping[str, str]) -> None:
    """Add the descriptions of shared arguments to the ``Args`` of a docstring."""
    text = inspect.cleandoc(make.__doc__ or "")
    if "Args:" not in text:
        text += "\n\nArgs:"
    common = [name for name in inspect.signature(make).parameters if name in shared]
    lines = [f"    {name}: {shared[name]}" for name in common if f"\n    {name}: " not in text]
    make.__doc__ = text.replace("Args:", "\n".join(["Args:", *lines]))


def _preset(row: Part, suffix: str, preset: Preset) -> Part:
    """The row of a preset: the part's, except for what the preset says otherwise."""
    return replace(
        row,
        name=f"{row.name}@{suffix}",
        make=preset.make or row.make,
        summary=preset.summary,
        paper=preset.paper or row.paper,
        cite=_entries(preset.cite) or row.cite,
        differences=preset.differences,
        preset=preset.options,
        facts={**row.facts, **preset.facts},
    )


def _named(make: Made, name: str) -> Made:
    """The function itself, except that the method it makes carries the registered name, and that
    an option with a fixed list of words refuses other words."""

    @wraps(make)
    def named(*parts: Any, **options: Any) -> Any:
        for option, allowed in _choices(make).items():
            if option in options and options[option] not in allowed:
                raise choice(f"{option} of {name}", str(options[option]), allowed)
        return replace(make(*parts, **options), name=name)

    return named  # type: ignore[return-value]  # same signature, by `wraps`


def _entries(cite: str | tuple[str, ...]) -> tuple[str, ...]:
    return (cite,) if isinstance(cite, str) else tuple(cite)


method = partial(part, "method")
space = partial(part, "space")
search = partial(part, "search")
objective = partial(part, "objective")
oracle = partial(part, "oracle")
guide = partial(part, "guide")
criterion = partial(part, "criterion")
generator = partial(part, "generator")
judge = partial(part, "judge")
data = partial(part, "data")
model = partial(part, "model")


def parts(kind: str, wanted: str = "") -> dict[str, Part]:
    """All parts of a kind by name: those of the package, and of the parts of installed plug-ins the
    `wanted` part. The others are not imported: what is broken in a plug-in concerns nobody who
    does not name it.
    """
    if kind not in _loaded:
        _load(kind)
    allowed = _parts[kind]
    word = _word(wanted)
    if word and word not in map(_word, allowed):
        for point in entry_points(group=f"hardcase.{kind}"):
            if _word(point.name) == word:
                with guarded(f"{kind} {point.name!r} of the entry point {point.value}"):
                    loaded: Callable[..., Any] = point.load()
                _add(_outside(kind, point.name, loaded))
    return {name: allowed[name] for name in sorted(allowed, key=methodcaller("split", "@"))}


def _word(name: str) -> str:
    """What names a part: without its form, and without the path of ``folder:PATH``."""
    return name.partition("@")[0].partition(":")[0].partition("?")[0]


def names(kind: str) -> list[str]:
    """The names of all parts of a kind, those of plug-ins too, which are not imported for it."""
    return list(
        dict.fromkeys([*parts(kind), *(p.name for p in entry_points(group=f"hardcase.{kind}"))])
    )


def resolve(kind: str, spec: str) -> Part:
    """The part that `spec` names.

    Args:
        kind: Which kind of part is wanted, see `ROOMS`.
        spec: ``name``, ``name@preset``, ``file.py:name`` or the name of an entry point of the
            group ``hardcase.<kind>``.

    Raises:
        HardcaseError: If there is no such part; the message lists the choices.

    Example:
        >>> from hardcase.registry import resolve
        >>> resolve("method", "pgd").options["gradients"].default
        40
    """
    path, _, member = spec.rpartition(":")
    if path.endswith(".py"):
        return _supplied(kind, Path(path), member)
    refuse_bare_file(kind, spec)
    allowed = parts(kind, spec)
    if spec not in allowed:
        raise choice(_NOUNS.get(kind, kind), spec, names(kind))
    return allowed[spec]


def refuse_bare_file(kind: str, spec: str) -> None:
    """Raise if `spec` is a file without the name of a part."""
    if spec.endswith(".py"):
        raise HardcaseError(
            f"{spec} is a file; which {kind} of it is meant?",
            fix=f"{spec}:{likely_factory(Path(spec))}",
        )


def with_parts(
    method: Method,
    *,
    space: str = "",
    search: str = "",
    objective: str = "",
    shape: tuple[int, int, int] | None = None,
) -> Method:
    """Return the method with other parts where they are named."""
    named = {"space": space, "search": search, "objective": objective}
    changes: dict[str, Any] = {
        kind: built(kind, spec, shape) for kind, spec in named.items() if spec
    }
    if search:
        changes["needs"] = resolve("search", search).facts.get("needs", method.needs)
    return replace(method, **changes)


def built(kind: str, spec: str, shape: tuple[int, int, int] | None) -> Any:
    """Return the part that `spec` names, built with its options and the images' shape."""
    from hardcase.types import Objective, Search, Space

    roles: dict[str, tuple[type, str]] = {
        "space": (Space, "A space has name, keeps_code, encode, decode, project and distance."),
        "search": (Search, "A search has init and step."),
        "objective": (Objective, "An objective takes a probe and returns a score for each row."),
    }
    part = resolve(kind, spec)
    if kind == "objective" and part.given == ("probe",):  # a plain function is an objective itself
        return part.make
    unknown = [name for name in part.given if name != "shape"]
    if unknown:
        raise HardcaseError(
            f"{kind} {spec} takes {unknown[0]!r}, which no run can give it.",
            "Such a part may ask for `shape`; everything else needs a default.",
        )
    protocol, contract = roles[kind]
    with guarded(f"{kind} {spec}"):
        value = part(**dict.fromkeys(part.given, shape))
    if not isinstance(value, protocol):
        raise HardcaseError(f"{spec} makes a {type(value).__name__}, which is no {kind}.", contract)
    return value


@cache
def rows(kind: str) -> list[dict[str, Any]]:
    """What ``hardcase list`` shows of a kind, from the stored catalogue: needs no torch.

    Args:
        kind: A room of `ROOMS` (``methods``, ``searches``, …) or ``metrics``.
    """
    catalogue: dict[str, list[dict[str, Any]]] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    kinds = [*ROOMS.values(), "metrics"]
    if kind not in kinds:
        raise choice("kind of part", kind, sorted(kinds))
    return catalogue[kind]


def check_offer(part: Part, subject: str, offers: str, levels: Sequence[str]) -> None:
    """Refuse a method that needs more than the model offers, and name methods that would
    work; `levels` are the kinds of answers of models, the least first.
    """
    needs = {row["name"]: row["needs"] for row in rows("methods")}
    level = levels.index(offers)
    if part.name not in needs or levels.index(needs[part.name]) <= level:
        return
    able = [name for name, need in needs.items() if levels.index(need) <= level]
    raise HardcaseError(
        f'method "{part.name}" needs {needs[part.name]}; model "{subject}" offers {offers} only.',
        f"methods that work here: {', '.join(able)}",
    )


def citation_key(text: str) -> str:
    """The key of a BibTeX entry; a bare key names an entry that another part states."""
    key = re.match(r"@\w+{([^,\s]+),", text)
    return key[1] if key else text


def first_paragraph(factory: Callable[..., Any]) -> str:
    """The first paragraph of a docstring in a line."""
    text = inspect.getdoc(factory) or ""
    return " ".join(text.partition("\n\n")[0].split()).removesuffix(".")


def _add(row: Part) -> None:
    before = _parts[row.kind].get(row.name)
    if before is not None and _origin(before) != _origin(row):
        raise HardcaseError(
            f"two parts of kind {row.kind} are called {row.name!r}: "
            f"{before.make.__qualname__} of {_origin(before)[0]} and "
            f"{row.make.__qualname__} of {_origin(row)[0]}.",
            fix="another name for one of them",
        )
    _parts[row.kind][row.name] = row


def _origin(row: Part) -> tuple[str, str]:
    """The file and the name of a part's class or function: the same when a file is run again."""
    code = getattr(inspect.unwrap(row.make), "__code__", None)
    return code.co_filename if code else row.make.__module__, row.make.__qualname__


def _known_kind(kind: str) -> None:
    if kind not in ROOMS:
        raise choice("kind of part", kind, sorted(ROOMS))


def _load(kind: str) -> None:
    """Import the room of a kind, so that its decorators run."""
    _known_kind(kind)
    _loaded.add(kind)
    room = import_module(f"hardcase.{ROOMS[kind]}")
    for module in pkgutil.iter_modules(getattr(room, "__path__", ())):
        import_module(f"{room.__name__}.{module.name}")
    for name in ALSO.get(kind, ()):
        if find_spec(name.partition(".")[0]):
            import_module(name)


def _supplied(kind: str, path: Path, member: str) -> Part:
    """A part of a user's file, decorated or not, or a preset of a decorated part."""
    name, _, suffix = member.partition("@")
    made = file_member(path, name)
    if not suffix:
        return _outside(kind, f"{path}:{name}", made)
    rows = _parts[kind].values()
    base = next((row.name for row in rows if row.make is made and not row.preset), name)
    forms = {row.name.removeprefix(f"{base}@"): row for row in rows if f"{base}@" in row.name}
    if suffix not in forms:
        raise choice(f"preset of {name}", suffix, sorted(forms))
    return replace(forms[suffix], name=f"{path}:{member}")


def _outside(kind: str, name: str, factory: Callable[..., Any]) -> Part:
    """The row of a part from outside: that of its decorator, else a row with its docstring."""
    for row in _parts[kind].values():
        if row.make is factory and not row.preset:
            return replace(row, name=name)
    return Part(
        kind=kind, name=name, make=factory, summary=first_paragraph(factory), paper="supplied"
    )
