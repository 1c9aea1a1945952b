"""The report: one page that needs nothing but itself, and the same numbers as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hardcase.errors import HardcaseError

if TYPE_CHECKING:
    from hardcase.runs.results import Run
    from hardcase.suite.gate import GateLimits

__all__ = ["report"]


def report(*runs: Run, out: str | Path | None = None, limits: GateLimits | None = None) -> Path:
    """Write the report of one run or several: ``index.html``, and the same numbers as JSON.

    Args:
        runs: The runs, finished or not. Several make one page with a comparison.
        out: The folder that the page is written into; the folder ``report`` of a single run where
            it is left out.
        limits: What each run is held against; where it is left out, the limits that each was
            started with.

    Returns:
        The page.

    Raises:
        HardcaseError: If there is no run, or several without `out`.
    """
    from hardcase.report.page import write

    if out is None and len(runs) > 1:
        raise HardcaseError(
            "a report of several runs needs a folder.", fix='hc.report(a, b, out="both")'
        )
    if out is None and runs:
        out = runs[0].folder / "report"
    return write(runs, Path(out or "report"), limits=limits)
