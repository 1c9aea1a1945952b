"""Does the demo decide? ``hardcase reproduce demo``: the command as it is typed, over many run seeds.

The run seed changes the samples of the conditions, the order of the images and the training of the repair. The network, its images, the
profile of conditions and the limit stay: they are fixed in the source. All three steps decide where the first says FAIL or PASS, the second
REPAIRED, NOT REPAIRED or REGRESSED ELSEWHERE, and the third FAIL or PASS. A study that was stopped goes on with the demos that it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from hardcase.cache import free
from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from hardcase.suite.gate import decision_of
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase_studies.bench import Bench

DECIDED = ("FAIL", "PASS")
CONVINCING = ("FAIL", "repaired", "PASS")
"""What the demo is there to show."""


@dataclass(frozen=True, slots=True)
class Demo:
    """What one demo left in its folder."""

    words: tuple[str, str, str]
    """What the three steps came to."""
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    change: Mapping[str, Any]
    """Failure rates before and after, and their difference on the images of the proof."""

    @staticmethod
    def read(folder: Path) -> Demo:
        """Return a demo that came to its end."""
        before, after = Run(folder / "before"), Run(folder / "after")
        repair = json.loads((folder / "repair" / "repair.json").read_bytes())
        rows = repair["proof"]["rows"]
        primary = next(row for row in rows if row["name"] == "failure rate")
        change = {**primary, "value": primary["after"] - primary["before"]}
        words = (decision_of(before).word, str(repair["verdict"]), decision_of(after).word)
        return Demo(words, before.record["risk"], after.record["risk"], change)

    @property
    def decides(self) -> bool:
        """Whether all three steps decide."""
        before, repaired, after = self.words
        return before in DECIDED and after in DECIDED and repaired != "inconclusive"


def run(bench: Bench) -> Outcome:
    """``--set runs=20`` is how many run seeds."""
    count = bench.size("runs", 20, 20)
    demos = list[Demo]()
    for seed in range(bench.seed, bench.seed + count):
        bench.say(f"demo with run seed {seed}")
        demos.append(_demo(seed, bench.out / "demos" / f"seed-{seed}"))
    decided = sum(one.decides for one in demos)
    convincing = sum(one.words == CONVINCING for one in demos)
    summary: list[list[Cell]] = [
        ["all three decide", f"{decided} of {count}"],
        ["FAIL, REPAIRED, PASS", f"{convincing} of {count}"],
    ]
    columns = ["run seed", "before", "repair", "after", "failure rate before, %"]
    columns += ["repaired, %", "change, points"]
    rows = [_row(bench.seed + i, one) for i, one in enumerate(demos)]
    return Outcome(
        "demo",
        [
            Table("The demo over run seeds", ["", "demos"], summary),
            Table("Each demo", columns, rows),
        ],
    )


def _demo(seed: int, folder: Path) -> Demo:
    """The demo of a run seed, which may be there from a study that was stopped."""
    if (folder / "after" / "run.json").is_file() and Run(folder / "after").record["complete"]:
        return Demo.read(folder)
    folder = free(folder)  # what was stopped half-way stays as it is
    with redirect_stdout(StringIO()):
        code = main(["demo", "--seed", str(seed), "--out", str(folder), "-q"])
    if code:
        raise HardcaseError(f"the demo with run seed {seed} ended with {code}.")
    return Demo.read(folder)


def _row(seed: int, demo: Demo) -> list[Cell]:
    return [str(seed), *demo.words, *map(_points, (demo.before, demo.after, demo.change))]


def _points(found: Mapping[str, Any]) -> str:
    """A share with its interval, in points."""
    return f"{100 * found['value']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"
