"""Tables of numbers with intervals, and the folder and the page in which a study leaves them."""

from __future__ import annotations

import csv
import io
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardcase import statistics
from hardcase.cache import make_folder, write_atomically
from hardcase.environment import VERSION, inert
from hardcase.randomness import stream
from hardcase.statistics import Interval
from hardcase.statistics import interval as wilson
from hardcase.tensors import digest

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a study is given.

    Args:
        out: The folder for its tables and figures.
        data: The data set to run on.
        full: Use the paper's sizes; otherwise a study must end in minutes on two cores.
        repeats: How often to repeat it; None leaves that to the study.
        seed: The seed of everything random.
        device: Where networks live.
        options: What ``--set`` gave.
        say: Told what is being done.
    """

    out: Path
    data: str = "mnist5k"
    full: bool = False
    repeats: int | None = None
    seed: int = 0
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None

    def size(self, name: str, quick: int, full: int) -> int:
        """The option called `name`; without one, `full` with ``--full`` and `quick` otherwise."""
        return int(self.options.get(name, full if self.full else quick))

    def names(self, name: str, usual: Sequence[str]) -> tuple[str, ...]:
        """The option called `name` as a list of names; a single name is a list of one."""
        given = self.options.get(name, usual)
        return (given,) if isinstance(given, str) else tuple(map(str, given))

    def cell(
        self, name: str, make: Callable[[], Sequence[float]], *, but: Sequence[str] = ()
    ) -> list[float]:
        """The numbers called `name`, made now unless they are kept in the study's folder already.

        A study that was stopped goes on with what it lacks, and several processes can fill one
        folder, each with a part of the cells; the command without parts then reads them all.

        Args:
            name: What is measured, apart from the settings of the study.
            make: Measures it.
            but: Options that only choose which cells a process measures.
        """
        chosen = {key: value for key, value in self.options.items() if key not in but}
        settings = [VERSION, self.data, self.full, self.seed, self.device, chosen, name]
        path = self.out / "cells" / f"{digest([json.dumps(settings, sort_keys=True)])}.json"
        if not path.is_file():
            content = {"cell": name, "numbers": [float(value) for value in make()]}
            write_atomically(path, json.dumps(content).encode())
        return list(json.loads(path.read_bytes())["numbers"])

    def command(self, name: str) -> str:
        """The command line that repeats the study called `name` at these sizes."""
        flags = [f"--data {self.data}", f"--seed {self.seed}", f"--device {self.device}"]
        if self.full:
            flags.append("--full")
        if self.repeats is not None:
            flags.append(f"--repeats {self.repeats}")
        chosen = [f"--set '{key}={json.dumps(value)}'" for key, value in self.options.items()]
        return " ".join(["hardcase reproduce", name, *flags, *chosen])


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


def mean(values: Tensor, *, scale: float = 1.0) -> str:
    """The mean of `values` times `scale` with its bootstrap interval; ``0 in all 6`` where none
    differs from the others.

    Args:
        values: One number for each seed or run.
        scale: 100 for percent.
    """
    if len(values) < 2:
        return "none"
    found = statistics.mean(values, rng=stream(0, "bootstrap"), repeats=1000)
    if math.isnan(found.low):
        return f"{scale * found.value:.3g} in all {len(values)}"
    return f"{scale * found.value:.3g} [{scale * found.low:.3g}, {scale * found.high:.3g}]"


def finite_mean(values: Tensor, *, seed: int = 0) -> Interval:
    """Mean and 95 % bootstrap interval of the finite values; a single value has no interval, nor
    have values that are all alike."""
    known = values[values.isfinite()]
    if len(known) < 2:
        only = float(known[0]) if len(known) else float("nan")
        return Interval(only, float("nan"), float("nan"))
    return statistics.mean(known, rng=stream(seed, "interval"))


def share(values: Tensor) -> str:
    """How many are true, of how many, with Wilson's interval."""
    hits = int(values.sum())
    total = len(values)
    low, high = wilson(hits, total)
    return f"{hits} of {total} = {hits / max(total, 1):.1%} [{low:.1%}, {high:.1%}]"


def delta(values: Tensor, control: Tensor) -> str | None:
    """Cliff's delta of two samples and its word; nothing where one is empty."""
    if not len(values) or not len(control):
        return None
    size = statistics.cliffs_delta(torch.as_tensor(values), torch.as_tensor(control))
    return f"{size:+.2f} {statistics.magnitude(size)}"


def csv_text(rows: Iterable[Sequence[object]]) -> bytes:
    """Rows as a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(inert, row) for row in rows)
    return text.getvalue().encode()


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
