"""The setup that every study is given, and how its numbers are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardcase import statistics
from hardcase.cache import write_atomically
from hardcase.environment import VERSION
from hardcase.statistics import Interval, mean_interval, wilson_interval as wilson
from hardcase.suite.tables import Cell, Table
from hardcase.tensors import digest

__all__ = ["Bench", "delta", "finite_mean", "mean", "share", "table_of"]


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
        if self.options.get("open"):
            flags.append("--open")
        rest = {key: value for key, value in self.options.items() if key != "open"}
        chosen = [f"--set '{key}={json.dumps(value)}'" for key, value in rest.items()]
        return " ".join(["hardcase reproduce", name, *flags, *chosen])


def table_of(title: str, rows: Sequence[Mapping[str, Cell]], notes: Sequence[str] = ()) -> Table:
    """A table whose rows name their cells; the columns are those of the first row."""
    columns = list(rows[0]) if rows else []
    return Table(title, columns, [[row[name] for name in columns] for row in rows], notes)


def mean(values: Tensor, *, scale: float = 1.0) -> str:
    """The mean of `values` times `scale` with its interval; ``0 in all 6`` where none differs."""
    if not len(values):
        return "none"
    return mean_interval(values).scaled(scale).text(".3g")


def finite_mean(
    values: Tensor, *, unit: str = "runs", within: tuple[float, float] = (-math.inf, math.inf)
) -> Interval:
    """Mean and 95 % interval of the finite values, no end of it outside what a value can be."""
    return mean_interval(values[values.isfinite()], unit=unit, within=within)


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
