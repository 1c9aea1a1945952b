"""Tables of numbers, and the folder and the page in which they are left."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hardcase.cache import make_folder, write_atomically

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers with a caption; `notes` say what was substituted and why a number differs from the
    paper's."""

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
        number) in `folder`."""
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


def page(outcome: Outcome, folder: Path, command: str) -> str:
    """The complete page; `command` writes it again. Figures are read from `folder`."""
    from hardcase.report.page import render

    figures = [
        (Path(name).stem.replace("-", ", "), b64encode((folder / name).read_bytes()).decode())
        for name in outcome.figures
    ]
    template = Path(__file__).with_name("tables.html")
    return render(template, {"said": said}, outcome=outcome, command=command, figures=figures)
