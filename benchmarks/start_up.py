"""Where the processor time of one small command goes: ``hardcase run --method pgd --images 1``.

All networks, the judge's among them, are in the cache before anything is measured. A stage has what
is spent in it and not in a stage inside it; processor time is that of all threads, and threads that
wait in a loop spend some, so the stages are measured with one thread.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import Figure

RESULT = "start-up"
COMMAND = "python -m benchmarks start_up"
WORDS = "run --model zoo:lenet5 --data mnist5k --method pgd --images 1 -q --out"
REPEATS = 3
PROFILE = """
import json, os, sys, time
from functools import wraps
clock = getattr(time, os.environ["STAGE_CLOCK"])
spent, open_stages = {}, []
def enter(stage):
    now = clock()
    if open_stages:
        spent[open_stages[-1][0]] = spent.get(open_stages[-1][0], 0.0) + now - open_stages[-1][1]
    open_stages.append([stage, now])
def leave():
    now = clock()
    stage, since = open_stages.pop()
    spent[stage] = spent.get(stage, 0.0) + now - since
    if open_stages:
        open_stages[-1][1] = now
def staged(module, name, stage):
    function = getattr(module, name)
    @wraps(function)
    def measured(*arguments, **options):
        enter(stage)
        try:
            return function(*arguments, **options)
        finally:
            leave()
    setattr(module, name, measured)
interpreter = begun = clock()
enter("command line")
from hardcase.cli.main import main
enter("import torch")
import torch
leave()
enter("import hardcase")
import hardcase.api as api
from hardcase import splits, tasks
from hardcase.judges import verdicts
from hardcase.runs import phases, start, workers
leave()
staged(splits, "load", "data: read")
staged(tasks, "load_model", "networks: load, hash, try outputs")
staged(api, "measure_plan", "images and plan")
staged(phases, "begin", "networks: check; first record")
staged(phases, "measure", "failure rate under conditions")
staged(api, "keep_measured", "figures and pictures of it")
staged(api, "plan_of", "method and plan")
staged(workers, "run_shard", "search")
staged(start, "search", "search: record, log, closing")
staged(api, "finish", "judge")
code = main(sys.argv[1:])
leave()
wall = os.environ["STAGE_CLOCK"] == "perf_counter"
spent["interpreter"] = 0.0 if wall else interpreter
spent["whole command"] = clock() - (begun if wall else 0.0)
print("stages " + json.dumps(spent))
sys.exit(code)
"""


def measured(
    folder: Path,
    *,
    threads: str | None = None,
    words: Sequence[str] = WORDS.split(),
    clock: str = "process_time",
) -> dict[str, float]:
    """Seconds of every stage of one command: of the processor, or by another clock of `time`."""
    others = {} if threads is None else {"OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", PROFILE, *words, str(folder)],
        env={**os.environ, **others, "STAGE_CLOCK": clock},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("stages "))
    stages: dict[str, float] = json.loads(line.removeprefix("stages "))
    return stages


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as home:
        measured(Path(home) / "first", threads=None)  # trains what is missing
        alone = [measured(Path(home) / f"one-{i}", threads="1") for i in range(REPEATS)]
        usual = [measured(Path(home) / f"usual-{i}", threads=None) for i in range(REPEATS)]
    for stage in alone[0]:
        yield Figure(
            name=stage,
            value=statistics.median(stages[stage] for stages in alone),
            unit="s of processor time, one thread",
            against="whole command",
            command=COMMAND,
        )
    yield Figure(
        name="whole command, usual threads",
        value=statistics.median(stages["whole command"] for stages in usual),
        unit=f"s of processor time, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
        against="whole command",
        command=COMMAND,
    )
