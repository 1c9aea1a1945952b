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

from hardcase.errors import INTERNAL, HardcaseError
from hardcase.runs.folder import Store
from hardcase.runs.start import start
from hardcase.runs.workers import gpus
from tiny import save_toys


class Listening(world.Notes):
    """Notes what it hears of queries and shards, and how much memory the process then holds."""

    def __init__(self):
        super().__init__()
        self.live_counts, self.shards, self.pages = [], [], []

    def on_step(self, counts):
        self.live_counts.append(int(counts.queries.sum()))

    def shard(self, progress):
        self.shards.append(progress)
        if STATM.exists():
            self.pages.append(int(STATM.read_text().split()[1]))


STATM = Path("/proc/self/statm")


def test_workers_on_gpus_give_the_same_bytes_and_tell_how_they_go(tmp_path, whole, monkeypatch):
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
    with pytest.raises(HardcaseError, match="again and again") as caught:
        start(world.plan(deadly, workers=2), tmp_path / "run")
    assert caught.value.code == INTERNAL
    world.goes_on(tmp_path / "run", whole)


def test_an_error_in_a_worker_is_told_and_finished_shards_stay(tmp_path, whole):
    source = world.of(world.Failing, os.getpid())
    with pytest.raises(
        HardcaseError, match=r"shard \d could not be searched: UnsendableError: of no"
    ):
        start(world.plan(source, workers=2), tmp_path / "run")
    assert len(Store.open(tmp_path / "run").done()) >= 1
    assert "UnsendableError" in (tmp_path / "run/log.txt").read_text()
    world.goes_on(tmp_path / "run", whole)


def test_what_cannot_be_sent_is_told_before_anything_is_searched(tmp_path):
    with pytest.raises(HardcaseError, match="cannot be sent to worker processes"):
        start(world.plan(lambda: world.campaign(), workers=2), tmp_path / "run")


def script(folder, *, workers, seconds):
    """A run in a process of its own, of which its workers are children."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import world, pathlib\n"
        "if __name__ == '__main__':\n"
        f"    world.start(world.plan(world.of(world.Slow, {seconds}), workers={workers}), pathlib.Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, str(Path(world.__file__).parent), str(folder)]
    return subprocess.Popen(command)


def stat(number):
    """State and parent of a process; of none, as if it had ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "Z", ""


def children(number):
    everybody = (path.name for path in Path("/proc").glob("[0-9]*"))
    return [other for other in everybody if stat(other)[1] == str(number)]


def alive(number):
    return stat(number)[0] != "Z"


def wait_for(ready, seconds):
    late = time.monotonic() + seconds
    while time.monotonic() < late and not ready():
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_with_their_owner(tmp_path, whole):
    process = script(tmp_path / "run", workers=2, seconds=0.1)
    wait_for((tmp_path / "run/findings/part-00000.parquet").exists, 60)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(alive, workers)), 20)
    assert not any(map(alive, workers)), "orphans are left"
    world.goes_on(tmp_path / "run", whole)


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
        "--images", "24", "--set", "campaign.shard=2", "method.steps=15", "method.rounds=2", "--workers", str(workers),
        "--out", "run", "--progress", "none", "--allow-low-accuracy",
    ]  # fmt: skip
    how = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen(command, cwd=tmp_path, **how)
    first = tmp_path / "run/findings/part-00000.parquet"
    wait_for(lambda: first.exists() or process.poll() is not None, 90)
    assert process.poll() is None, process.stderr.read()
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
        Ending.calls += os.path.exists("run/state/search.json")
        if Ending.calls > 25 and os.path.exists("deadly"):
            os.kill(os.getpid(), 9)
        return super().forward(x)
def make(): return Ending()
"""


def test_a_model_that_kills_the_process_leaves_the_finished_shards(tmp_path):
    save_toys(tmp_path, 40)
    (tmp_path / "model.py").write_text(ENDING)
    (tmp_path / "deadly").touch()
    words = "run --model model.py:make --data npz:toy.npz --method pgd --images 16 --set campaign.shard=2"
    command = [sys.executable, "-m", "hardcase", *words.split(), "--out", "run", "-q"]
    own = {**os.environ, "HARDCASE_CACHE": str(tmp_path / "cache")}
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, env=own).returncode == -9
    assert Store.open(tmp_path / "run").done()


@pytest.mark.long
@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_memory_stays_flat_over_ten_thousand_guided_seeds(tmp_path):
    told = Listening()
    start(world.plan(seeds=10_000, shard=50), tmp_path / "run", told)
    assert len(told.pages) >= 200
    early = max(told.pages[20:60])
    late = max(told.pages[-40:])
    assert late < 1.1 * early, (early, late)
