"""A killed process loses nothing that was stored, and going on gives what an undisturbed run gives, byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
FILES = {"part", "deltas", "seeds", "ledger", "run", "config", "status", "history", "begun"}
PLAYED = {"HARDCASE_PLAYED_DEVICE": "tile=16 drift=1e-5"}
"""A device whose last bits depend on the shape of a call, as a GPU's do."""


def torture(*words, **more):
    """What killing.py tells when nothing went wrong."""
    command = [sys.executable, str(Path(__file__).parent / "killing.py"), *map(str, words)]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert not told["wrong"]
    return told


def test_a_kill_at_every_step_of_writing():
    told = torture("steps", int(LONG))
    moments, files = ({name.split()[i] for name in told["steps"]} for i in (0, 1))
    assert moments == {"half", "written", "flush", "renamed"}
    assert files >= FILES
    assert told["kills"] >= (100 if LONG else 30)


def test_kills_at_random_moments():
    told = torture("random", 1000 if LONG else 24)
    assert told["kills"] >= (1300 if LONG else 28)
    assert sum(word.endswith("shards") for word in told["moments"]) >= 3, "one moment for all"


@pytest.mark.parametrize(
    ("what", "count", "least"),
    [
        pytest.param("full", int(LONG), 100 if LONG else 30, id="a disk that is full from any step on"),
        pytest.param("fresh", 40 if LONG else 3, 3, marks=pytest.mark.long, id="processes of their own"),
        pytest.param("judging", int(LONG), 5, marks=pytest.mark.long, id="every step of judging"),
        pytest.param("report", int(LONG), 5, marks=pytest.mark.long, id="every step of a report"),
        pytest.param("training", 30 if LONG else 1, 1, marks=pytest.mark.long, id="a generator is trained"),
    ],
)  # fmt: skip
def test_kills_of_other_work(what, count, least):
    assert torture(what, count)["kills"] >= max(least, count)


def test_default_runs_killed_in_every_phase():
    """Three kinds of models, in one process and with two workers."""
    told = torture("default", 100 if LONG else 12)
    assert told["kills"] >= (95 if LONG else 11)
    for phase in ("measure", "search", "check"):
        assert any(word.endswith(phase) for word in told["moments"]), phase


def test_kills_on_a_device_whose_bits_depend_on_the_batch():
    assert torture("random", 300 if LONG else 8, **PLAYED)["kills"] >= (380 if LONG else 8)
    if LONG:
        torture("steps", 1, **PLAYED)
