"""Stopped in every way there is, a run keeps what it found and ends, resumed, with the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hardcase.runs.files import locked
from hardcase.runs.phases import PHASES

SHARDS = ("--images", "24", "--seed", "7", "--set", "campaign.shard=4", "method.epsilon=0.08")


@pytest.fixture(scope="module")
def undisturbed():
    """Findings of runs that nobody disturbed, by their settings."""
    return {}


@pytest.fixture
def whole(world, undisturbed):
    if not undisturbed:
        done = world.run(*SHARDS, "--out", "whole", "--format", "json")
        assert done.code == 0
        assert json.loads(done.out)["findings"]["kept"] > 12, "little to compare"
        undisturbed.update(world.findings("whole"))
    return undisturbed


def disturb(monkeypatch, *numbers, shard=2):
    """Send these signals when so many shards are done, each before the next step of the search."""
    from hardcase.cli.progress import Front

    shard_done, on_step, waiting = Front.shard, Front.on_step, []

    def told(front, progress):
        shard_done(front, progress)
        if progress.done == shard and not front.stops:
            waiting.extend(numbers)

    def step(front, counts):
        on_step(front, counts)
        if waiting:
            signal.raise_signal(waiting.pop(0))

    monkeypatch.setattr(Front, "shard", told)
    monkeypatch.setattr(Front, "on_step", step)


def ends_the_same(world, whole):
    done = world("resume", "out")
    assert done.code == 0, done.err
    assert world.findings() == whole
    assert "hardcase open out" in done.out


CTRL_C = signal.SIGINT


@pytest.mark.parametrize("sent", [([CTRL_C], 3), ([signal.SIGTERM], 3), ([CTRL_C, CTRL_C], 2)])
def test_one_signal_finishes_the_shard_and_a_second_gives_it_up(world, whole, monkeypatch, sent):
    numbers, kept = sent
    with monkeypatch.context() as patch:
        disturb(patch, *numbers)
        done = world.run(*SHARDS)
    assert done.code == 130
    assert len(world.findings()) == kept
    assert world.record()["search_results"]["searched"] == 4 * kept
    assert "hardcase resume out" in done.out
    seen = json.loads(world("status", "out", "--format", "json").out)[0]
    assert seen["phases"]["search"]["status"] == "running"
    assert "stopped" in world("status", "out").out.partition("search")[2].splitlines()[0]
    with locked(Path("out")):
        assert "running" in world("status", "out").out.partition("search")[2].splitlines()[0]
    ends_the_same(world, whole)


def interrupted(context):
    raise KeyboardInterrupt


def test_an_interrupt_before_anything_is_measured_leaves_nothing(world, monkeypatch):
    from hardcase.context import Context

    monkeypatch.setattr(Context, "measurement", property(interrupted))
    done = world.run(*SHARDS)
    assert done.code == 130
    assert "no folder was made" in done.err
    assert not Path("out").exists()


def test_an_interrupt_between_two_phases_keeps_what_was_measured(world, whole, monkeypatch):
    from hardcase.context import Context

    with monkeypatch.context() as patch:
        patch.setattr(Context, "campaign", property(interrupted))
        done = world.run(*SHARDS)
    assert done.code == 130
    assert "hardcase resume out" in done.out
    record = world.record()
    assert [record["phases"][name]["status"] for name in PHASES] == [
        "done",
        "not begun",
        "not begun",
    ]
    assert not record["complete"]
    assert record["risk"]["images"] == record["risk"]["of"]
    ends_the_same(world, whole)


def test_a_resumed_run_can_be_interrupted_again(world, whole, monkeypatch):
    for shard in (1, 3, 4):
        with monkeypatch.context() as patch:
            disturb(patch, signal.SIGINT, shard=shard)
            done = world("resume", "out") if Path("out").exists() else world.run(*SHARDS)
            assert done.code == 130
        assert len(world.findings()) == shard + 1
    ends_the_same(world, whole)


def start(*more, given=SHARDS, slow="0.05"):
    """The command line in a process group of its own, slow enough to be caught."""
    begin = "run --model model.py:make --data npz:toy.npz --method pgd --out out"
    words = [*begin.split(), *given, *more]
    environment = {**os.environ, "SLOW": slow, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hardcase", *words], env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(process, ready, patience=120):
    until = time.monotonic() + patience
    while not ready():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until, "it never got so far"
        time.sleep(0.02)


def test_kill_9_loses_at_most_the_unfinished_shard(world, whole):
    process = start()
    wait_for(process, world.findings)
    kept = world.findings()
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    after = world.findings()
    assert len(after) < len(whole)
    assert {name: after[name] for name in kept} == kept
    assert world("status", "out").code == 0
    ends_the_same(world, whole)


def test_ctrl_c_in_a_terminal_reaches_all_workers_and_the_run_is_saved(world):
    small = ("--images", "10", "--seed", "7", "--set", "campaign.shard=1", "method.epsilon=0.08")
    assert world.run(*small, "--out", "whole").code == 0
    process = start("--workers", "2", given=small, slow="0.03")
    wait_for(process, world.findings)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "hardcase resume out" in out
    assert "which is saved" in err
    assert len(world.findings()) < 10
    settings = Path("out/config.toml")
    settings.write_text(settings.read_text().replace("workers = 2", "workers = 1"))
    ends_the_same(world, world.findings("whole"))


@pytest.mark.long
def test_two_ctrl_c_end_workers_at_once(world):
    process = start("--workers", "2", slow="2")
    wait_for(process, Path("out/status.json").exists)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.5)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert time.monotonic() - began < 15, "a shard takes far longer than this"
    assert "Traceback" not in err
    assert "hardcase resume out" in out
