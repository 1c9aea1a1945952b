"""The report: one page that needs nothing but itself, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardcase.cache import sweep, write_atomically
from hardcase.environment import for_people
from hardcase.errors import Problem
from hardcase.report import pictures, words
from hardcase.report.content import plain, report_content
from hardcase.runs.files import refuse_links
from hardcase.runs.results import Run
from hardcase.suite.gate import GateLimits
from hardcase.types import ClassNames

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
    page = _page(report, large=large, small=small, mapped=mapped, drawn=drawn)
    write_atomically(folder / "report.json", json.dumps(report, indent=1, allow_nan=False).encode())
    return write_atomically(folder / "index.html", page.encode())


def render(template: Path, filters: Mapping[str, Callable[..., str]], **values: Any) -> str:
    """The page of a template: everything escaped, a name that is not there an error, and `style`
    and `script` those of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    style, script = (
        Markup((HERE / name).read_text(encoding="utf-8"))  # ours, not input
        for name in ("style.css", "page.js")
    )
    page = environment.get_template(template.name)
    return page.render(style=style, script=script, **values)


def _page(report: dict[str, Any], **images: pictures.Pictures) -> str:
    filters = ["share", "percent", "number", "decimal", "duration", "plural", "lines", "moment"]
    runs = [{**run, "classes": ClassNames(run["classes"])} for run in report["runs"]]
    return render(
        HERE / "page.html",
        {name: getattr(words, name) for name in filters},
        report={**report, "runs": runs},
        **{name: found.uris for name, found in images.items()},
        charts=pictures,
    )
