"""Several processes: the same bytes, lost workers replaced, errors told, nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import world

from hardcase.errors import INTERNAL, Problem
from hardcase.runs.folder import Store
from hardcase.runs.start import resume, start
from hardcase.runs.workers import gpus
from tiny import save_toys


class Listening(world.Notes):
    def __init__(self):
        super().__init__()
        self.live_counts, self.shards = [], []

    def on_step(self, counts):
        self.live_counts.append(int(counts.queries.sum()))

    def shard(self, progress):
        self.shards.append(progress)


def test_workers_on_two_gpus_give_the_same_bytes_and_tell_how_they_get_on(
    tmp_path, whole, monkeypatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told, slow = Listening(), world.of(world.Slow, 0.12, tmp_path)
    start(world.plan(slow, workers=2, devices=("4", "7")), tmp_path / "run", told)
    assert world.left(tmp_path / "run") == world.left(whole)
    seen = {path.name for path in tmp_path.glob("gpu-*")}
    assert seen == {"gpu-none", "gpu-4", "gpu-7"}, "the owner, and each worker on its own"
    assert len(told.live_counts) >= 2, "nothing was heard of the workers between two shards"
    assert max(told.live_counts) <= 8 * 6, "pulses are about the shards under way"
    assert [progress.done for progress in told.shards] == list(range(7))


def test_gpus_are_named_as_the_environment_has_them(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus(3) == ("0", "1", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 2")
    assert gpus(2) == ("5", "2")
    assert gpus(0) == ()


def test_a_killed_workers_shard_is_run_again(tmp_path, whole):
    deadly = world.of(world.Dangerous, tmp_path, os.getpid(), 4, 2)
    start(world.plan(deadly, workers=2), tmp_path / "run")
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.long
def test_workers_that_always_die_end_the_run_and_what_was_found_stays(tmp_path, whole, monkeypatch):
    monkeypatch.setattr("hardcase.runs.workers.PATIENCE", 1)
    deadly = world.of(world.Dangerous, tmp_path, os.getpid(), 2, 10**6)
    with pytest.raises(Problem, match="again and again") as caught:
        start(world.plan(deadly, workers=2), tmp_path / "run")
    assert caught.value.code == INTERNAL
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


def test_an_error_in_a_worker_is_told_and_finished_shards_stay(tmp_path, whole):
    source = world.of(world.Failing, os.getpid())
    with pytest.raises(Problem, match=r"shard \d could not be searched: UnsendableError: of no"):
        start(world.plan(source, workers=2), tmp_path / "run")
    assert len(Store.open(tmp_path / "run").done()) >= 1
    assert "UnsendableError" in (tmp_path / "run/log.txt").read_text()
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


def test_what_cannot_be_sent_is_told_before_anything_is_searched(tmp_path):
    with pytest.raises(Problem, match="cannot be sent to worker processes"):
        start(world.plan(lambda: world.campaign(), workers=2), tmp_path / "run")


def script(folder, *, workers, seconds):
    """A run in a process of its own, of which its workers are children."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import world, pathlib\n"
        "if __name__ == '__main__':\n"
        f"    world.start(world.plan(world.of(world.Slow, {seconds}), workers={workers}), pathlib.Path(sys.argv[2]))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(Path(world.__file__).parent), str(folder)]
    )


def children(number):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == number:
            found.append(int(path.parent.name))
    return found


def alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_their_owner(tmp_path, whole):
    process = script(tmp_path / "run", workers=2, seconds=0.1)
    late = time.monotonic() + 60
    while time.monotonic() < late and not (tmp_path / "run/findings/part-00000.parquet").exists():
        time.sleep(0.05)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    late = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < late:
        time.sleep(0.1)
    assert not any(map(alive, workers)), "orphans are left"
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_sigterm_to_all_processes_ends_a_run_cleanly(tmp_path, workers):
    """A service manager tells every process at once; the owner finishes its shards, saves, and leaves with 130."""

    save_toys(tmp_path, 120)
    (tmp_path / "model.py").write_text(
        "import time\nfrom hardcase.testing.toys import Quarters\n"
        "class Slow(Quarters):\n"
        "    def forward(self, x):\n        time.sleep(0.03)\n        return super().forward(x)\n"
        "def make(): return Slow()\n"
    )
    command = [
        sys.executable, "-m", "hardcase", "run", "--model", "model.py:make", "--data", "npz:toy.npz", "--method", "cw",
        "--seeds", "24", "--set", "campaign.shard=2", "method.steps=15", "method.rounds=2", "--workers", str(workers),
        "--out", "run", "--progress", "none", "--allow-low-accuracy",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    late = time.monotonic() + 90
    while time.monotonic() < late and not (tmp_path / "run/findings/part-00000.parquet").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    record = json.loads((tmp_path / "run/run.json").read_text())
    done = len(Store.open(tmp_path / "run").done())
    assert not record["complete"]
    assert 0 < done < 12
    assert json.loads((tmp_path / "run/status.json").read_text())["phase"] == "stopped"


ENDING = """
import os
from hardcase.testing.toys import Quarters
class Ending(Quarters):
    calls = 0
    def forward(self, x):
        Ending.calls += 1
        if Ending.calls > 25 and os.path.exists("deadly"):
            os._exit(7)
        return super().forward(x)
def make(): return Ending()
"""


def test_a_model_that_ends_the_process_leaves_the_finished_shards(tmp_path):
    save_toys(tmp_path, 40)
    (tmp_path / "model.py").write_text(ENDING)
    (tmp_path / "deadly").touch()
    words = "run --model model.py:make --data npz:toy.npz --method pgd --seeds 16 --set campaign.shard=2"
    done = subprocess.run(
        [sys.executable, "-m", "hardcase", *words.split(), "--out", "run", "--progress", "none"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "HARDCASE_CACHE": str(tmp_path / "cache")},
    )
    assert done.returncode == 7
    assert Store.open(tmp_path / "run").done()


class Weighing(world.Notes):
    """Notes how much memory the process holds when a shard is finished."""

    def __init__(self):
        super().__init__()
        self.pages = []

    def shard(self, progress):
        self.pages.append(int(Path("/proc/self/statm").read_text().split()[1]))


@pytest.mark.skipif(os.environ.get("HARDCASE_TORTURE") != "long", reason="part of make torture")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_flat_over_ten_thousand_guided_seeds(tmp_path):
    told = Weighing()
    start(world.plan(seeds=10_000, shard=50), tmp_path / "run", told)
    assert len(told.pages) >= 200
    early = max(told.pages[20:60])
    late = max(told.pages[-40:])
    assert late < 1.1 * early, (early, late)
