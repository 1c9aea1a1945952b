"""The experiments that ``hardcase reproduce`` can name, as a table that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One row. `where` is ``module:function`` in this folder; the function takes a `bench.Bench` and returns a `bench.Outcome`."""

    name: str
    summary: str
    paper: str
    where: str
    needs: str = "mnist5k"


_ROWS: tuple[Experiment, ...] = ()

EXPERIMENTS = {row.name: row for row in _ROWS}
