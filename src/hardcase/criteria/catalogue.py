"""The criteria that can be named, as a table. No torch: ``hardcase list criteria`` reads it at once.

A criterion is asked for as ``name`` or ``name:option=value,option=value``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardcase.criteria.conventions import Options, convention
from hardcase.criteria.entry import Entry
from hardcase.criteria.table import entries
from hardcase.errors import Problem, choice

CRITERIA: Mapping[str, Entry] = {entry.name: entry for entry in entries()}


@dataclass(frozen=True, slots=True)
class Spec:
    """A criterion by name, and the options that were given."""

    name: str
    options: Options = field(default_factory=dict)

    def __str__(self) -> str:
        given = ",".join(f"{key}={_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{given}" if given else self.name


def parse(text: str) -> Spec:
    """``kmnc:k=1000,mode=unit`` as a `Spec`; an unknown name or option is an error that lists the choices."""
    name, _, rest = text.strip().partition(":")
    if name not in CRITERIA:
        raise choice("criterion", name, list(CRITERIA))
    options = dict[str, str | int | float | bool]()
    for piece in filter(None, rest.split(",")):
        key, equals, value = piece.partition("=")
        if not equals:
            raise Problem(
                f"option {piece!r} of criterion {name!r} has no value.", fix=f"{name}:{piece}=..."
            )
        options[key.strip()] = _value(CRITERIA[name], key.strip(), value.strip())
    return Spec(name, options)


def parse_list(text: str) -> list[Spec]:
    """``nc,kmnc:k=1000,mode=unit,nbc``: a piece with ``=`` but no name belongs to the criterion before it."""
    texts = list[str]()
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if texts and "=" in piece.split(":")[0]:
            texts[-1] += f",{piece}" if ":" in texts[-1] else f":{piece}"
        else:
            texts.append(piece)
    if not texts:
        raise Problem("no criterion was named.", f"known: {', '.join(CRITERIA)}")
    return [parse(text) for text in texts]


def resolve(spec: Spec, convention_name: str = "default") -> dict[str, Any]:
    """All options of a criterion: those given, then the convention's, then the defaults."""
    entry = CRITERIA[spec.name]
    implied = convention(convention_name).options(spec.name)
    return {
        key: spec.options.get(key, implied.get(key, option.default))
        for key, option in entry.options.items()
    }


def listing() -> list[dict[str, Any]]:
    """What ``hardcase list criteria`` prints."""
    return [
        {
            "name": entry.name,
            "summary": entry.summary,
            "definition": entry.definition,
            "needs": entry.needs,
            "paper": entry.paper,
            "laws": list(entry.laws),
            "options": {key: option.default for key, option in entry.options.items()},
        }
        for entry in CRITERIA.values()
    ]


def _value(entry: Entry, key: str, text: str) -> str | int | float | bool:
    """An option's value, of the type of its default."""
    if key not in entry.options:
        raise choice(f"option of criterion {entry.name!r}", key, list(entry.options))
    option = entry.options[key]
    if option.choices and text not in option.choices:
        raise choice(f"value of {entry.name}:{key}", text, list(option.choices))
    try:
        return _typed(option.default, text)
    except ValueError as error:
        kind = type(option.default).__name__
        raise Problem(
            f"{entry.name}:{key}={text} is not a value of the right kind ({kind}).",
            fix=f"{key}={option.default}",
        ) from error


def _typed(default: object, text: str) -> str | int | float | bool:
    if isinstance(default, bool):
        return _yes(text)
    if isinstance(default, int):
        return int(text.replace("_", ""))
    return float(text) if isinstance(default, float) else text


def _yes(text: str) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def names(specs: Sequence[Spec]) -> list[str]:
    """A name for each, different even if two ask for the same."""
    texts = [str(spec) for spec in specs]
    return [
        text if texts.count(text) == 1 else f"{text}#{texts[: i + 1].count(text)}"
        for i, text in enumerate(texts)
    ]
