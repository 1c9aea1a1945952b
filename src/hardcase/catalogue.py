"""The stored catalogue: what ``hardcase list`` and ``hardcase cite`` read, without torch.

``catalogue.json`` is written from the registry (`write_catalogue`, ``make catalogue``); a test
fails when it no longer agrees with the decorators of the parts.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from hardcase import registry
from hardcase.errors import HardcaseError, choice
from hardcase.registry import CATALOGUE, ROOMS, Part, citation_key, options_of

OWN = ("hardcase.", "hardcase_teams.")
"""Packages whose parts the catalogue lists."""
REFERENCES = CATALOGUE.with_name("references.bib")
"""BibTeX of the sources, an entry for each key that parts cite."""

_SECTIONS = ("Args:", "Returns:", "Raises:", "Example:", "Examples:", "Yields:", "Note:")


def definition_of(factory: Callable[..., Any]) -> str:
    """The second paragraph of a docstring in a line, unless a section begins there."""
    paragraphs = (inspect.getdoc(factory) or "").split("\n\n")
    if len(paragraphs) < 2 or paragraphs[1].startswith(_SECTIONS):
        return ""
    return " ".join(paragraphs[1].split())


def describe(
    kind: str, *, measured: Callable[[Part], Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The rows of a kind as plain values, without those of plug-ins.

    Example:
        >>> from hardcase.catalogue import describe
        >>> next(row for row in describe("space") if row["name"] == "light")["options"]["most"]
        {'default': 1.0, 'help': 'Largest change of brightness, in units of [0, 1].', 'choices': []}
    """
    parts_of_kind = _own(kind)
    return [row_of(part, {} if measured is None else measured(part)) for part in parts_of_kind]


def row_of(part: Part, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything that the catalogue says of a part, as plain values."""
    options = {
        name: {
            "default": _plain(option.default),
            "help": option.help,
            "choices": list(option.choices),
        }
        for name, option in options_of(part).items()
    }
    every = {**part.facts, **(measured or {})}
    facts = {
        key: _plain(value) for key, value in every.items() if key != "toy" and _is_plain(value)
    }
    return {
        "name": part.name,
        "summary": part.summary,
        "needs": "",
        "paper": part.paper,
        "laws": [],
        "definition": definition_of(part.make),
        "differences": part.differences,
        **facts,
        "options": options,
        "cite": list(part.keys),
    }


def build_catalogue() -> dict[str, Any]:
    """The catalogue as plain values: rows by kind, metrics, and the BibTeX by key."""
    from hardcase.statistics import METRICS
    from hardcase.testing.methods import method_facts, search_facts
    from hardcase.testing.parts import space_facts

    measured = {"method": method_facts, "search": search_facts, "space": space_facts}
    tables = {room: describe(kind, measured=measured.get(kind)) for kind, room in ROOMS.items()}
    texts = REFERENCES.read_text(encoding="utf-8").strip().split("\n\n")
    entries = {citation_key(text): text for text in texts}
    for part in (part for kind in ROOMS for part in _own(kind)):
        for text in filter(lambda text: text.startswith("@"), part.cite):
            if entries.setdefault(citation_key(text), text) != text:
                raise HardcaseError(
                    f"two parts state the citation {citation_key(text)!r} differently."
                )
    return {
        **tables,
        "metrics": [asdict(metric) for metric in METRICS],
        "citations": dict(sorted(entries.items())),
    }


def write_catalogue(path: Path = CATALOGUE) -> Path:
    """Write the catalogue of all parts of this package."""
    path.write_text(render(), encoding="utf-8")
    return path


def render() -> str:
    """The text of the catalogue's file."""
    return json.dumps(build_catalogue(), indent=1, ensure_ascii=False, sort_keys=False) + "\n"


def citations() -> dict[str, str]:
    """The BibTeX of all parts by key, from the stored catalogue."""
    stored: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8"))["citations"]
    return stored


def bibtex(keys: Iterable[str]) -> str:
    """The BibTeX entries of `keys`, each once, in the order of `keys`.

    The key of a method's first source brings the others of the method with it: runs of earlier
    versions stored only the first.

    Raises:
        HardcaseError: If no part has such a citation.
    """
    entries = citations()
    together = {row["cite"][0]: row["cite"] for row in registry.rows("methods") if row["cite"]}
    wanted: dict[str, None] = {}
    for key in keys:
        if key not in entries:
            raise choice("citation", key, list(entries))
        wanted |= dict.fromkeys((key, *together.get(key, ())))
    return "\n\n".join(entries[key] for key in wanted)


def _own(kind: str) -> list[Part]:
    """The parts of this package: those of plug-ins are not in its catalogue."""
    every = registry.parts(kind).values()
    return [part for part in every if part.make.__module__.startswith(OWN)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float) or is_dataclass(value)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or isinstance(value, str | int | float):
        return value
    return getattr(value, "__name__", repr(value))


if __name__ == "__main__":
    print(write_catalogue())
