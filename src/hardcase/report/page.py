"""The report: one page that needs nothing but itself, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardcase.cache import sweep, write_atomically
from hardcase.environment import for_people
from hardcase.errors import Problem
from hardcase.report import charts, pictures, words
from hardcase.report.content import plain, report_content
from hardcase.runs.files import refuse_links
from hardcase.runs.results import Run
from hardcase.suite.gate import GateLimits
from hardcase.types import ClassNames

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent


def write(runs: Sequence[Run], folder: Path, *, limits: GateLimits | None = None) -> Path:
    """Write ``index.html`` and ``report.json`` about one run or several into `folder`; returns the
    page."""
    if not runs:
        raise Problem("there is no run to report on.", fix="hardcase report RUN")
    if folder.parent in [run.folder for run in runs]:  # what others left there may lead elsewhere
        refuse_links(folder.parent, (folder.name,))
    sweep(folder)
    report = report_content(runs, limits)
    large = pictures.triples(runs, report["runs"])
    small = pictures.thumbnails(runs, report["runs"])
    mapped = pictures.map_cells(runs, report["runs"])
    drawn = pictures.condition_draws(runs, report["runs"])
    report["reduced_to"] = {"triples": large.width, "gallery": small.width}
    report = for_people(plain(report))
    page = _render(report, large=large, small=small, mapped=mapped, drawn=drawn)
    write_atomically(folder / "report.json", json.dumps(report, indent=1, allow_nan=False).encode())
    return write_atomically(folder / "index.html", page.encode())


def templates(folder: Path, filters: Mapping[str, Callable[..., str]]) -> Environment:
    """The templates of a folder: everything escaped, and a name that is not there an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment


def _render(report: dict[str, Any], **images: pictures.Pictures) -> str:
    from markupsafe import Markup

    filters = ["share", "percent", "number", "decimal", "duration", "plural", "lines", "moment"]
    environment = templates(HERE, {name: getattr(words, name) for name in filters})
    own = {
        name: Markup((HERE / name).read_text(encoding="utf-8")) for name in ("style.css", "page.js")
    }  # ours, not input
    runs = [{**run, "classes": ClassNames(run["classes"])} for run in report["runs"]]
    return environment.get_template("page.html").render(
        report={**report, "runs": runs},
        **{name: found.uris for name, found in images.items()},
        charts=charts,
        style=own["style.css"],
        script=own["page.js"],
    )
