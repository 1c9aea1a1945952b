"""The page of an experiment: tables and pictures in one file that needs nothing else and loads nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardcase.experiments.bench import Cell, Outcome, Table

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
main { max-width: 84rem; }
img { image-rendering: auto; width: auto; max-width: 100%; aspect-ratio: auto; background: #fff; }
.scroll { overflow-x: auto; } table { font-size: 0.88rem; } td, th { white-space: nowrap; padding: 0.3rem 0.7rem; }
figure { margin: 2.5rem 0 0; } ul { padding-left: 1.2rem; }
"""


def page(outcome: Outcome, folder: Path, command: str) -> str:
    """The whole page; `command` is what makes it again. Pictures are read from `folder`."""
    style = files("hardcase.report").joinpath("style.css").read_text(encoding="utf-8") + _STYLE
    again = f"<p>Made by <code>{escape(command)}</code></p>" if command else ""
    tables = "\n".join(map(_table, outcome.tables))
    pictures = "\n".join(_picture(folder / name) for name in outcome.figures)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(outcome.name)} · hardcase</title>
<style>{style}</style>
</head>
<body>
<main>
<p class="brand">hardcase <span>experiment</span></p>
<h1>{escape(outcome.name)}</h1>
{again}
{tables}
<section aria-label="Pictures">
{pictures}
</section>
</main>
</body>
</html>
"""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = "\n".join(_row(row) for row in table.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    title = escape(table.title)
    return f"""<section>
<h2>{title}</h2>
<div class="scroll" tabindex="0" role="region" aria-label="{title}">
<table><thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody></table>
</div>
<ul class="small">{notes}</ul>
</section>"""


def _row(cells: Sequence[Cell]) -> str:
    from hardcase.experiments.bench import said

    first, *others = (escape(said(cell)) for cell in cells)
    return (
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td>{cell}</td>" for cell in others)
        + "</tr>"
    )


def _picture(path: Path) -> str:
    data = b64encode(path.read_bytes()).decode()
    name = escape(path.stem.replace("-", ", "))
    return f'<figure><img alt="{name}" src="data:image/png;base64,{data}"><figcaption>{name}</figcaption></figure>'
