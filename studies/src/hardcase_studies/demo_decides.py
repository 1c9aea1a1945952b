"""Does the demo decide? ``hardcase reproduce demo``: the command as it is typed, over many run seeds.

The run seed changes the samples of the conditions, the order of the images and the training of the repair. The network, its images, the
profile of conditions and the limit stay: they are fixed in the source. All three steps decide where the first says FAIL or PASS, the second
REPAIRED, NOT REPAIRED or REGRESSED ELSEWHERE, and the third FAIL or PASS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from time import monotonic, process_time
from typing import Any

from hardcase.cache import free
from hardcase.cli.main import main
from hardcase.errors import Problem
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase_studies.bench import Bench

DECIDED = ("FAIL", "PASS")
CONVINCING = ("FAIL", "repaired", "PASS")
"""What the demo is there to show."""


def run(bench: Bench) -> Outcome:
    """``--set runs=20`` is how many run seeds."""
    count = bench.size("runs", 20, 20)
    found = list[dict[str, Any]]()
    for number in range(count):
        seed = bench.seed + number
        bench.say(f"demo with run seed {seed}")
        found.append(_demo(seed, bench.out / "demos"))
    rows = [_row(bench.seed + i, one) for i, one in enumerate(found)]
    columns = ["run seed", "before", "repair", "after", "failure rate before, %"]
    columns += ["repaired, %", "change, points", "seconds", "processor seconds"]
    decided = sum(_decides(one) for one in found)
    convincing = sum(_words(one) == CONVINCING for one in found)
    summary: list[list[Cell]] = [
        ["all three decide", f"{decided} of {count}"],
        ["FAIL, REPAIRED, PASS", f"{convincing} of {count}"],
    ]
    notes = ["seconds are those of the whole command beside whatever else the machine did"]
    return Outcome(
        "demo",
        [
            Table("The demo over run seeds", ["", "demos"], summary),
            Table("Each demo", columns, rows, notes),
        ],
    )


def _demo(seed: int, home: Path) -> dict[str, Any]:
    """What the command prints as JSON, and how long it took."""
    began, used = monotonic(), process_time()
    printed = StringIO()
    with redirect_stdout(printed):
        words = ["demo", "--seed", str(seed), "--out", str(free(home / f"seed-{seed}"))]
        code = main([*words, "--progress", "none", "--format", "json"])
    if code:
        raise Problem(f"the demo with run seed {seed} ended with {code}.")
    found: dict[str, Any] = json.loads(printed.getvalue())
    return {**found, "seconds": monotonic() - began, "processor": process_time() - used}


def _words(found: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the three steps came to."""
    decisions = found["decisions"]
    return str(decisions["before"]), str(found["repair"]["verdict"]), str(decisions["after"])


def _decides(found: Mapping[str, Any]) -> bool:
    before, repaired, after = _words(found)
    return before in DECIDED and after in DECIDED and repaired != "inconclusive"


def _row(seed: int, found: Mapping[str, Any]) -> list[Cell]:
    rows = found["repair"]["proof"]["rows"]
    primary = next(row for row in rows if row["name"] == "failure rate")
    change = primary["after"] - primary["before"]
    return [
        str(seed),
        *_words(found),
        _percent(found["before"]["risk"]),
        _percent(found["after"]["risk"]),
        f"{100 * change:.1f} [{100 * primary['low']:.1f}, {100 * primary['high']:.1f}]",
        f"{found['seconds']:.0f}",
        f"{found['processor']:.0f}",
    ]


def _percent(risk: Mapping[str, float]) -> str:
    return f"{100 * risk['value']:.1f} [{100 * risk['low']:.1f}, {100 * risk['high']:.1f}]"
