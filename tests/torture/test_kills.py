"""A killed process loses nothing that was stored, and going on gives what an undisturbed run gives, byte for byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
HERE = Path(__file__).parent


PLAYED = "tile=16 drift=1e-5"
"""A device whose last bits depend on the shape of a call, as a GPU's do."""


def torture(*words, **more):
    command = [sys.executable, str(HERE / "killing.py"), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **more}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_kill_at_every_step_of_writing():
    told = torture("steps", int(LONG))
    assert not told["wrong"]
    moments, files = ({name.split()[i] for name in told["steps"]} for i in (0, 1))
    assert moments == {"half", "written", "flush", "renamed"}
    assert {
        *["part", "deltas", "seeds", "ledger", "run", "config", "status", "history", "begun"]
    } <= files
    assert told["kills"] >= (100 if LONG else 30)


def test_a_disk_that_is_full_from_any_step_on():
    told = torture("full", int(LONG))
    assert not told["wrong"]
    assert told["kills"] >= (100 if LONG else 30)


def test_kills_at_random_moments():
    told = torture("random", 1000 if LONG else 24)
    assert not told["wrong"]
    assert told["kills"] >= (1300 if LONG else 28)
    assert sum(word.endswith("shards") for word in told["moments"]) >= 3, (
        "every run was killed at the same moment"
    )


@pytest.mark.long
@pytest.mark.parametrize("count", [40 if LONG else 3])
def test_kills_of_processes_of_their_own(count):
    told = torture("fresh", count)
    assert not told["wrong"]
    assert told["kills"] == count


def test_kills_on_a_device_whose_bits_depend_on_the_batch():
    told = torture("random", 300 if LONG else 8, HARDCASE_PLAYED_DEVICE=PLAYED)
    assert not told["wrong"]
    assert told["kills"] >= (380 if LONG else 8)
    told = torture("steps", int(LONG), HARDCASE_PLAYED_DEVICE=PLAYED) if LONG else {"wrong": []}
    assert not told["wrong"]


@pytest.mark.long
@pytest.mark.parametrize("work", ["judging", "report"])
def test_a_kill_at_every_step_of_what_comes_after_the_search(work):
    told = torture(work, int(LONG))
    assert not told["wrong"]
    assert told["kills"] >= 5


@pytest.mark.long
def test_kills_while_a_generator_is_trained():
    told = torture("training", 30 if LONG else 1)
    assert not told["wrong"]
    assert told["kills"] == (30 if LONG else 1)
