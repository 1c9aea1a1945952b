"""Published experiments that installed packages bring along, found by their entry points.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from hardcase.errors import Problem, choice
from hardcase.usercode import file_member

if TYPE_CHECKING:
    from hardcase.suite.tables import Bench, Outcome

GROUP = "hardcase.studies"
"""The group of entry points; each is a function that takes a `Bench` and returns an `Outcome`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperStudy:
    """One line of ``hardcase list experiments``.

    Args:
        name: What ``hardcase reproduce`` calls it.
        summary: What it measures, in one line.
        paper: Where it was published, or "ours".
        needs: The smallest data it makes sense on.
    """

    name: str
    summary: str = ""
    paper: str = ""
    needs: str = "mnist5k"


def studies() -> dict[str, PaperStudy]:
    """The installed studies by name.

    A package says more than a name by a mapping ``STUDIES`` from names to `PaperStudy` in its
    ``__init__.py``, which must import no torch.

    Raises:
        Problem: If no installed package has any.
    """
    found = {}
    for name, point in _points().items():
        package = import_module(point.module.partition(".")[0])
        told: Mapping[str, PaperStudy] = getattr(package, "STUDIES", {})
        found[name] = told.get(name, PaperStudy(name=name))
    return found


def find(name: str) -> Callable[[Bench], Outcome]:
    """The function of the study called `name`, or of a file of one's own: ``file.py:function``.

    Raises:
        Problem: If there is none of this name; the message lists those there are.
    """
    path, _, member = name.rpartition(":")
    if path.endswith(".py"):
        own: Callable[[Bench], Outcome] = file_member(Path(path), member)
        return own
    points = _points()
    if name not in points:
        raise choice("experiment", name, list(points))
    made: Callable[[Bench], Outcome] = points[name].load()
    return made


def _points() -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if not found:
        raise Problem(
            "no published experiment is installed.",
            "They are a package of their own beside hardcase.",
            fix="pip install ./studies",
        )
    return found
