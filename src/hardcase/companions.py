"""Companion distributions, by entry points: ``hardcase.verbs`` (functions or typer
applications), ``hardcase.studies`` (for ``hardcase reproduce``), ``hardcase.readers`` (people's
answers, and studies that collect them). Nothing is imported before it is used, and nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from hardcase.errors import HardcaseError, choice, file_member, guarded

_KNOWN = {
    "study": "People rate what was found; their answers confirm failures and calibrate the judge.",
    "rank": "Say which images to label first, because the model most likely errs on them.",
    "escape": "Which classes border on which; names pairs that look mislabelled.",
    "faults": "Plant faults into small networks and measure which methods detect them.",
    "reproduce": "Repeat a published experiment and print its tables.",
    "yardstick": "Put a method of your own beside all others at equal cost.",
    "fetch": "Fetch networks that others have trained, by name.",
    "card": "Write what a run shows of a model: a model card, a release record, a comment.",
}
"""Verbs of the companion distributions in this repository, with their help, which is shown even if
they are not installed."""
_EXTRAS = {"study": "study", "card": "teams", "fetch": "teams"}
"""What installs the libraries that a verb needs; all others are in studies."""
_LIBRARIES = {"study": ("starlette", "uvicorn")}
"""Libraries without which no verb of an extra does anything."""


def companion_verbs() -> dict[str, str]:
    """Every verb of a companion with its line of help; none of them is imported."""
    lines = {**_KNOWN}
    for point in entry_points(group="hardcase.verbs"):
        if point.name not in lines:
            lines[point.name] = point.dist.metadata["Summary"] if point.dist else ""
    return lines


def load_verb(name: str) -> Any:
    """Import the function or the typer application of a verb in `companion_verbs`."""
    extra = _EXTRAS.get(name, "studies")
    for point in entry_points(group="hardcase.verbs", name=name):
        for library in _LIBRARIES.get(extra, ()):
            if find_spec(library) is None:
                raise _not_installed(f"`hardcase {name}`", extra, library)
        return _loaded(point)
    raise _not_installed(f"`hardcase {name}`", extra)


def _loaded(point: EntryPoint) -> Any:
    """The object that an entry point names; errors of its import name the entry point."""
    with guarded(f"importing {point.value} for {point.name!r}"):
        return point.load()


def reader() -> Any:
    """The module that asks people and reads what they answered: ``rated(folder)``,
    ``record(folder, runs=)``, ``ask(runs, budget=)``.
    """
    for point in entry_points(group="hardcase.readers", name="study"):
        return _loaded(point)
    raise _not_installed("asking people, and reading their answers,", "study")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperStudy:
    """A line of ``hardcase list experiments``.

    Args:
        name: What ``hardcase reproduce`` calls it.
        summary: What it measures, in a line.
        paper: Where it was published, or "ours".
        needs: The smallest data it makes sense on.
    """

    name: str
    summary: str = ""
    paper: str = ""
    needs: str = "mnist5k"


def studies() -> dict[str, PaperStudy]:
    """The installed studies by name.

    A distribution says more than a name by a mapping ``STUDIES`` from names to `PaperStudy` in its
    ``__init__.py``, which must import no torch.
    """
    studies = {}
    for name, point in _studies().items():
        try:
            with guarded(f"importing experiment {name!r} of the entry point {point.value}"):
                package = import_module(point.module.partition(".")[0])
        except HardcaseError as problem:  # the others can still be listed
            studies[name] = PaperStudy(name=name, summary=problem.what)
            continue
        described: Mapping[str, PaperStudy] = getattr(package, "STUDIES", {})
        studies[name] = described.get(name, PaperStudy(name=name))
    return studies


def find(name: str) -> Callable[[Any], Any]:
    """The function of the study `name`, or of a user's file: ``file.py:function``."""
    path, _, member = name.rpartition(":")
    if path.endswith(".py"):
        experiment: Callable[[Any], Any] = file_member(Path(path), member)
        return experiment
    points = _studies()
    if name not in points:
        raise choice("experiment", name, list(points))
    study: Callable[[Any], Any] = _loaded(points[name])
    return study


def _studies() -> dict[str, EntryPoint]:
    studies = {point.name: point for point in entry_points(group="hardcase.studies")}
    if not studies:
        raise _not_installed("repeating a published experiment", "studies")
    return studies


def teams_module(name: str, what: str, extra: str) -> ModuleType:
    """A module of ``hardcase_teams``, which `what` needs and `extra` installs."""
    try:
        return import_module(f"hardcase_teams.{name}")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("hardcase_teams"):
            raise
        raise _not_installed(what, extra) from error


def _not_installed(what: str, extra: str, library: str = "") -> HardcaseError:
    return HardcaseError(
        f"{what} needs {library or f'what the extra {extra!r} brings'}, which is not installed.",
        fix=f"pip install 'hardcase[{extra}]', or from a clone: pip install './hardcase[{extra}]'",
    )


def plugin_rows() -> list[dict[str, Any]]:
    """The rows of ``hardcase list plugins``: programs of others that find hardcase."""
    rows: list[dict[str, Any]] = teams_module("plugins", "the list of plug-ins", "teams").rows()
    return rows
