"""A killed process loses nothing that was stored, and going on gives what an undisturbed run gives, byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
HERE = Path(__file__).parent


def torture(*words):
    command = [sys.executable, str(HERE / "killing.py"), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_kill_at_every_named_step_of_writing():
    told = torture("steps", int(LONG))
    assert not told["wrong"]
    files = {name.split()[1].split(".")[0] for name in told["steps"]}
    assert {
        "part",
        "deltas",
        "seeds",
        "ledger",
        "run",
        "config",
        "status",
        "history",
        "begun",
    } <= files
    assert {name.split()[0] for name in told["steps"]} == {
        "begin",
        "half",
        "written",
        "flushed",
        "renamed",
        "merge",
    }
    assert told["kills"] >= (120 if LONG else 40)


def test_a_disk_that_is_full_from_any_step_on():
    told = torture("full", int(LONG))
    assert not told["wrong"]
    assert told["kills"] >= (120 if LONG else 40)


def test_kills_at_random_moments():
    told = torture("random", 1000 if LONG else 150)
    assert not told["wrong"]
    assert told["kills"] >= (1300 if LONG else 190)
    assert sum(word.endswith("shards") for word in told["moments"]) >= 3, (
        "every run was killed at the same moment"
    )


@pytest.mark.parametrize("count", [40 if LONG else 10])
def test_kills_of_processes_of_their_own(count):
    told = torture("fresh", count)
    assert not told["wrong"]
    assert told["kills"] == count
