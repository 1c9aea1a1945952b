"""``hardcase licences``: what hardcase and everything it depends on may be used under."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires
from typing import Any

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, grid
from hardcase.errors import Problem

_COLUMNS = ("name", "version", "licence", "for")


@o.takes("format")
def licences(flags: o.Flags) -> None:
    """List the licences of all dependencies that are installed, as their own metadata states
    them.
    """
    rows = list(installed("hardcase"))
    if flags.json:
        as_json(rows)
    else:
        console().print(grid("", _COLUMNS, [[row[name] for name in _COLUMNS] for row in rows]))


def installed(package: str) -> Iterator[dict[str, str]]:
    """The package and its dependencies, those of dependencies too: each once, if installed.

    Args:
        package: Name of an installed distribution.

    Example:
        >>> from hardcase.cli.licences import installed
        >>> next(installed("torch"))["name"]
        'torch'
    """
    waiting: list[tuple[str, str, frozenset[str]]] = [(package, "", frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    told: set[str] = set()
    while waiting:
        name, purpose, extras = waiting.pop(0)
        if (_key(name), extras) in seen:
            continue
        seen.add((_key(name), extras))
        try:
            facts = metadata(name)
        except PackageNotFoundError:
            if name == package:
                raise Problem(
                    f"{package} is not installed, so nothing says what it depends on.",
                    fix="pip install .",
                ) from None
            continue
        if _key(name) not in told:
            told.add(_key(name))
            yield {
                "name": name,
                "version": facts["Version"],
                "licence": licence_of(facts),
                "for": purpose or "itself",
            }
        for needed, marker, wanted in _needs(name):
            extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
            if extra is None or name == package or extra[1] in extras:
                own = f"extra {extra[1]}" if extra and name == package else purpose
                waiting.append((needed, own or "hardcase", wanted))


def _needs(name: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Name, marker and extras of each requirement of a distribution; plain ones first."""
    rows = sorted(requires(name) or (), key=lambda text: "extra" in text)
    for text in rows:
        head, _, marker = text.partition(";")
        found = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?", head)
        if found:
            extras = frozenset(part.strip() for part in (found[2] or "").split(",") if part)
            yield found[1], marker, extras


def licence_of(facts: Any) -> str:
    """The licence that a distribution's metadata states: its expression, else its classifiers, else
    the first line of its text.
    """
    if facts.get("License-Expression"):
        return str(facts["License-Expression"])
    rows = [row for row in facts.get_all("Classifier") or [] if row.startswith("License ::")]
    named = [row.rpartition(" :: ")[2] for row in rows if not row.endswith("OSI Approved")]
    if named:
        return ", ".join(named)
    text = (facts.get("License") or "").strip()
    return text.splitlines()[0][:60] if text else "not stated"


def _key(name: str) -> str:
    """Names that pip takes for one are one."""
    return re.sub(r"[-_.]+", "-", name).lower()
