"""Numbers as cells of a table: means and shares with their intervals, effect sizes with their words; rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from hardcase import statistics
from hardcase.randomness import stream
from hardcase.statistics import interval


def mean(values: Tensor, *, scale: float = 1.0) -> str:
    """The mean of `values` times `scale` with its bootstrap interval."""
    if len(values) < 2:
        return "none"
    found = statistics.mean(values.double(), rng=stream(0, "bootstrap"), repeats=1000)
    return f"{scale * found.value:.3g} [{scale * found.low:.3g}, {scale * found.high:.3g}]"


def share(values: Tensor) -> str:
    """How many are true, of how many, with Wilson's interval."""
    hits, total = int(values.sum()), len(values)
    low, high = interval(hits, total)
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
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
