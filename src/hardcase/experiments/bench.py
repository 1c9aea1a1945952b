"""What every experiment is given and what it returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hardcase.cache import make_folder, write_atomically
from hardcase.experiments.pages import page

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """`full` asks for the paper's sizes; otherwise an experiment must end in minutes on two cores."""

    out: Path
    data: str = "mnist5k"
    full: bool = False
    repeats: int | None = None
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None

    def command(self, name: str) -> str:
        """What makes the experiment called `name` again, at these sizes."""
        flags = [f"--data {self.data}", f"--seed {self.seed}", f"--device {self.device}"]
        flags += ["--full"] * self.full + [f"--repeats {self.repeats}"] * (self.repeats is not None)
        chosen = [f"--set '{key}={json.dumps(value)}'" for key, value in self.options.items()]
        return " ".join(["hardcase reproduce", name, *flags, *chosen])


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers with a caption; `notes` say what was substituted and why a number differs from the paper's."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        head = [f"### {self.title}", "", _line(self.columns), _line(["---"] * len(self.columns))]
        return "\n".join(
            [*head, *map(_line, self.rows), "", *(f"- {note}" for note in self.notes), ""]
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment's tables and the names of the pictures it wrote into its folder."""

    name: str
    tables: Sequence[Table]
    figures: Sequence[str] = ()

    def write(self, folder: Path, command: str = "") -> Path:
        """``results.md`` and ``report.html`` (tables and pictures) and ``results.json`` (every number) in `folder`."""
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
