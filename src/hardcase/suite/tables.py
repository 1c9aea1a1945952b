"""Tables of numbers, and the folder and the page in which they are left."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from hardcase.cache import make_folder, write_atomically

__all__ = ["Cell", "Outcome", "Table", "page", "said"]

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers with a caption; `notes` say what was substituted and why a number differs from the
    paper's.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns):  # one would hide the other where it is kept
            raise ValueError(f"{self.title}: two columns have one name: {list(self.columns)}")

    def to_markdown(self) -> str:
        """The table, its title and its notes as Markdown."""
        head = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join(
            [*head, *map(_line, self.rows), "", *(f"- {note}" for note in self.notes), ""]
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tables, and the names of the figures that were written into the same folder."""

    name: str
    tables: Sequence[Table]
    figures: Sequence[str] = ()

    def write(self, folder: Path, command: str = "") -> Path:
        """``results.md`` and ``report.html`` (tables and figures) and ``results.json`` (every
        number) in `folder`.
        """
        make_folder(folder)
        pictures = [f"![{name}]({name})\n" for name in self.figures]
        text = "\n".join(
            [f"# {self.name}", "", *(table.to_markdown() for table in self.tables), *pictures]
        )
        write_atomically(
            folder / "results.json", (json.dumps(asdict(self), indent=2) + "\n").encode()
        )
        write_atomically(folder / "report.html", page(self, folder, command).encode())
        return write_atomically(folder / "results.md", text.encode())


def _line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(map(said, cells)) + " |"


def said(cell: Cell) -> str:
    """A cell as it is printed."""
    if cell is None:
        return "not run"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action"
    " 'none'"
)
_STYLE = """
main { max-width: 84rem; }
img { image-rendering: auto; width: auto; max-width: 100%; aspect-ratio: auto; background: #fff; }
.scroll { overflow-x: auto; }
table { font-size: 0.88rem; }
td, th { white-space: nowrap; padding: 0.3rem 0.7rem; }
figure { margin: 2.5rem 0 0; } ul { padding-left: 1.2rem; }
"""


def page(outcome: Outcome, folder: Path, command: str) -> str:
    """The whole page; `command` is what makes it again. Figures are read from `folder`."""
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
<section aria-label="Figures">
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
    first, *others = (escape(said(cell)) for cell in cells)
    return (
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td>{cell}</td>" for cell in others)
        + "</tr>"
    )


def _picture(path: Path) -> str:
    data = b64encode(path.read_bytes()).decode()
    name = escape(path.stem.replace("-", ", "))
    return (
        f'<figure><img alt="{name}"'
        f' src="data:image/png;base64,{data}"><figcaption>{name}</figcaption></figure>'
    )
