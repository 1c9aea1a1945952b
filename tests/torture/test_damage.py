"""Damaged files are named, set aside and made again; what the model, the clock or a second process does is survived."""

import errno
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import disk
import pytest
import torch
import world

from hardcase.errors import INTERNAL, USAGE, Problem
from hardcase.runs.files import locked
from hardcase.runs.folder import Store
from hardcase.runs.results import Run
from hardcase.runs.start import resume, start
from hardcase.testing.toys import Counting, toy_subject

FILES = (
    "findings/part-00001.parquet", "state/seeds-00001.parquet", "state/deltas-00001.safetensors", "state/ledger.jsonl",
    "state/begun.json", "seeds.parquet", "run.json", "config.toml", "status.json", "history.csv",
)  # fmt: skip
CAREFUL = (
    "findings/part-00001.parquet",
    "state/seeds-00001.parquet",
    "state/deltas-00001.safetensors",
    "seeds.parquet",
)
"""Files of which every byte matters: a change of any of them is noticed."""


class Impatient(world.Notes):
    """Asks to stop after a number of shards."""

    def __init__(self, shards):
        super().__init__()
        self.left = shards

    def shard(self, progress):
        self.left -= 1

    def stopped(self):
        return self.left < 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(world.plan(), folder)
    return folder


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that was stopped after three of its six shards."""
    folder = tmp_path_factory.mktemp("half") / "run"
    start(world.plan(), folder, Impatient(3))
    assert Store.open(folder).done() == {0, 1, 2}
    return folder


@pytest.fixture
def folder(tmp_path, half):
    """A copy of that run."""
    return shutil.copytree(half, tmp_path / "run")


def flipped(data, share):
    place = min(int(len(data) * share), len(data) - 1)
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


DAMAGE = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped early": lambda data: flipped(data, 0.1),
    "flipped late": lambda data: flipped(data, 0.9),
    "gone": None,
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_any_damaged_file_is_made_again(whole, name, how, folder):
    path, work = folder / name, DAMAGE[how]
    path.unlink() if work is None else path.write_bytes(work(path.read_bytes()))
    said = world.go(folder)
    assert world.left(folder) == world.left(whole)
    if name in CAREFUL or (name in ("run.json", "config.toml") and how in ("emptied", "cut")):
        words = "shard 1 was damaged" if "00001" in name else name
        assert any(words in text for text in said), said
        if how != "gone" and name != "seeds.parquet":
            assert list(path.parent.glob(f"{path.name}.damaged*"))


def test_damage_in_a_complete_run_is_found_and_mended_also_without_a_ledger(tmp_path, whole):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "state/ledger.jsonl").unlink()
    path = folder / "state/deltas-00002.safetensors"
    path.write_bytes(flipped(path.read_bytes(), 0.99))
    world.go(folder)
    assert world.left(folder) == world.left(whole)
    assert Run(folder).verification.state == "verified"
    path = folder / "findings/part-00004.parquet"
    path.write_bytes(flipped(path.read_bytes(), 0.3))
    assert any("shard 4 was damaged" in text for text in world.go(folder))
    assert world.left(folder) == world.left(whole)
    assert (folder / "findings/part-00004.parquet.damaged").exists()


def test_a_changed_setting_does_not_mix_two_campaigns(folder):
    (folder / "config.toml").write_text('model = "other"\nworkers = 2\n')
    said = world.go(folder)
    assert any("config.toml was changed or damaged (model)" in text for text in said)
    assert (folder / "config.toml").read_text() == 'model = "toy"\n'


def test_where_it_computes_may_be_changed(folder):
    (folder / "config.toml").write_text('model = "toy"\nworkers = 2\n')
    assert not world.go(folder)
    assert "workers = 2" in (folder / "config.toml").read_text()


def test_what_others_added_to_the_record_stays(folder):
    store = Store.open(folder)
    store.write_record({**store.record(), "judge": {"kind": "vae"}})
    world.go(folder)
    assert Run(folder).record["judge"] == {"kind": "vae"}


def test_a_record_of_another_run_is_not_believed(tmp_path, folder):
    start(world.plan(seeds=8), tmp_path / "other")
    shutil.copy(tmp_path / "other/run.json", folder)
    assert "run.json is not of the run that began here" in Run(folder).verification.notes
    assert any("run.json was damaged" in said for said in world.go(folder))
    assert Run(folder).verification.state == "verified"


def test_a_record_without_its_own_checksum_is_not_believed(folder):
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"elapsed": ', '"elapsed": 9'))
    assert Run(folder).verification.state == "damaged"
    assert any("run.json was damaged" in said for said in world.go(folder))
    assert Run(folder).verification.state == "verified"


def test_half_written_files_are_swept_up(half, whole, folder):
    litter = [
        folder / ".run-0123456789ab.json",
        folder / "findings/.part-00003-0123456789ab.parquet",
    ]
    mine = folder / ".my-notes.txt"
    for path in (*litter, mine):
        path.write_bytes(b"half")
    world.go(folder)
    assert not any(path.exists() for path in litter)
    assert mine.exists()


def test_a_clock_that_was_set_back(whole, monkeypatch, folder):
    ahead = time.time() + 10 * 365 * 86400
    for path in folder.rglob("*"):
        os.utime(path, (ahead, ahead))
    before = json.loads((folder / "run.json").read_text())
    world.go(folder)
    after = json.loads((folder / "run.json").read_text())
    assert world.left(folder) == world.left(whole)
    assert after["elapsed"] > before["elapsed"]


def test_elapsed_time_survives_a_kill(folder):
    store = Store.open(folder)
    entry = store.ledger.read()[2]
    store.ledger.add(2, replace(entry, summary={**entry.summary, "elapsed": 500.0}))
    (folder / "history.csv").unlink()
    world.go(folder)
    assert Run(folder).record["elapsed"] >= 500
    rows = (folder / "history.csv").read_text().splitlines()
    assert len(rows) == 7
    assert rows[3].startswith("500.0,")
    assert all(float(row.split(",")[0]) >= 500 for row in rows[3:])


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (
            "CUDA error: an illegal memory access was encountered",
            INTERNAL,
            "the GPU failed in shard",
        ),
        (
            "weights are upside down",
            INTERNAL,
            "could not be searched: RuntimeError: weights are upside down",
        ),
    ],
)
def test_an_error_from_outside_leaves_a_run_that_goes_on(tmp_path, whole, message, code, words):
    subject = toy_subject()

    class Failing(Counting):
        def __call__(self, x, taps=None):
            if self.calls >= 30:
                raise RuntimeError(message)
            return super().__call__(x, taps)

    with pytest.raises(Problem, match=words) as caught:
        start(world.plan(lambda: world.campaign(Failing(subject))), tmp_path / "run")
    assert caught.value.code == code
    assert 0 < len(Store.open(tmp_path / "run").done()) < 6
    assert "Traceback" in (tmp_path / "run/log.txt").read_text()
    resume(world.plan(), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


def test_an_exception_of_the_users_model_is_told_as_such(tmp_path, whole):
    subject = toy_subject()
    calls = []

    def grumpy(module, args):
        calls.append(1)
        if len(calls) > 30:
            raise KeyError("no such pixel")

    handle = subject.net.register_forward_pre_hook(grumpy)
    with pytest.raises(Problem, match=r"raised KeyError: 'no such pixel', in shard \d") as caught:
        start(world.plan(lambda: world.campaign(subject)), tmp_path / "run")
    assert caught.value.code == USAGE
    handle.remove()
    resume(world.plan(lambda: world.campaign(subject)), tmp_path / "run")
    assert world.left(tmp_path / "run") == world.left(whole)


def test_out_of_memory_halves_the_calls_and_changes_nothing(tmp_path, whole):
    class Cramped(Counting):
        def __call__(self, x, taps=None):
            if len(x) > 16:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().__call__(x, taps)

    campaign = world.campaign(Cramped(toy_subject()))
    start(world.plan(lambda: replace(campaign, batch=512), shard=22), tmp_path / "a", None)
    start(world.plan(shard=22), tmp_path / "b")
    assert world.left(tmp_path / "a") == world.left(tmp_path / "b")


def test_a_second_writer_is_told_who_is_there(folder):
    who = rf"another process is writing to .*: process {os.getpid()}"
    with locked(folder), pytest.raises(Problem, match=who) as caught:
        resume(world.plan(), folder)
    assert caught.value.code == USAGE
    world.go(folder)


def test_of_two_resumes_at_once_one_works(whole, folder):
    racing = [world.child(lambda: world.go(folder)) for _ in range(2)]
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in racing)
    assert codes in ([0, 2], [0, 0])
    assert world.left(folder) == world.left(whole)


def test_a_killed_writer_frees_the_folder(tmp_path, whole):
    number = os.fork()
    if not number:
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(number, 0)
    with locked(tmp_path):
        pass


def test_a_real_disk_that_is_full(tmp_path, whole):
    if os.getuid() != 0:
        pytest.skip("needs to mount a file system of its own")
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        (small / "ballast").write_bytes(bytes(60_000))
        with pytest.raises(Problem, match="No space left on device"):
            start(world.plan(), small / "run")
        (small / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=1m", str(small)], check=True)
        world.go(small / "run")
        assert world.left(small / "run") == world.left(whole)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_report_that_is_killed_while_it_is_written(tmp_path, whole):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)

    def full(name, path):
        if path.suffix == ".html" and name == "half":
            raise OSError(errno.ENOSPC, "No space left on device")

    try:
        disk.fault(full)
        with pytest.raises(Problem, match="No space left"):
            Run(folder).report()
    finally:
        disk.whole()
    assert not (folder / "report/index.html").exists()
    assert Run(folder).report().exists()
    assert world.left(folder) == world.left(whole)
