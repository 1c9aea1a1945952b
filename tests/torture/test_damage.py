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

from hardcase.errors import INTERNAL, USAGE, HardcaseError
from hardcase.report import report
from hardcase.runs.files import locked
from hardcase.runs.folder import Store
from hardcase.runs.results import Run
from hardcase.runs.start import resume, start
from hardcase.testing.toys import Counting, toy_subject

FILES = (
    "findings/part-00001.parquet", "state/seeds-00001.parquet", "state/deltas-00001.safetensors", "state/ledger.jsonl",
    "state/begun.json", "state/search.json", "images.parquet", "run.json", "config.toml", "status.json", "history.csv",
)  # fmt: skip
CAREFUL = (*FILES[:3], "images.parquet")
"""Files of which every byte matters: a change of any of them is noticed."""


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
def test_any_damaged_file_is_made_again(whole, stopped, name, how):
    path, work = stopped / name, DAMAGE[how]
    path.unlink() if work is None else path.write_bytes(work(path.read_bytes()))
    said = world.go(stopped)
    assert world.left(stopped) == world.left(whole)
    if name in CAREFUL or (name in ("run.json", "config.toml") and how in ("emptied", "cut")):
        words = "shard 1 was damaged" if "00001" in name else name
        assert any(words in text for text in said), said
        if how != "gone" and name != "images.parquet":
            assert list(path.parent.glob(f"{path.name}.damaged*"))


def test_damage_in_a_complete_run_is_found_and_mended_also_without_a_ledger(whole, finished):
    (finished / "state/ledger.jsonl").unlink()
    shares = {"state/deltas-00002.safetensors": 0.99, "findings/part-00004.parquet": 0.3}
    for name, share in shares.items():
        path = finished / name
        path.write_bytes(flipped(path.read_bytes(), share))
        said = world.go(finished)
        assert world.left(finished) == world.left(whole)
        assert Run(finished).verification.state == "verified"
    assert any("shard 4 was damaged" in text for text in said)
    assert (finished / "findings/part-00004.parquet.damaged").exists()


def test_where_it_computes_may_be_changed_and_what_it_searches_not(stopped):
    config = stopped / "config.toml"
    config.write_text('model = "other"\nworkers = 2\n')
    (told,) = world.go(stopped)
    assert "config.toml was changed or damaged (model)" in told
    assert config.read_text() == 'model = "toy"\n'
    config.write_text('model = "toy"\nworkers = 2\n')
    assert world.go(stopped) == []
    assert config.read_text() == 'model = "toy"\nworkers = 2\n'


def test_what_others_added_stays_and_half_written_files_are_swept_up(stopped):
    store = Store.open(stopped)
    store.write_record({**store.record(), "judge": {"kind": "vae"}})
    world.go(stopped)
    assert Run(stopped).record["judge"] == {"kind": "vae"}
    half = ".run-0123456789ab.json", "findings/.part-00003-0123456789ab.parquet"
    for name in (*half, ".my-notes.txt"):
        (stopped / name).write_bytes(b"half")
    world.go(stopped)
    assert not any((stopped / name).exists() for name in half)
    assert (stopped / ".my-notes.txt").exists()


@pytest.mark.parametrize("trick", ["of another run", "without its checksum"])
def test_a_record_that_is_not_the_runs_own_is_not_believed(tmp_path, stopped, trick):
    if trick == "of another run":
        start(world.plan(seeds=8), tmp_path / "other")
        shutil.copy(tmp_path / "other/run.json", stopped)
        assert "run.json is not of the run that began here" in Run(stopped).verification.notes
    else:
        text = (stopped / "run.json").read_text()
        (stopped / "run.json").write_text(text.replace('"elapsed": ', '"elapsed": 9'))
    assert Run(stopped).verification.state == "damaged"
    assert any("run.json was damaged" in said for said in world.go(stopped))
    assert Run(stopped).verification.state == "verified"


def test_a_clock_that_was_set_back(whole, stopped):
    ahead = time.time() + 10 * 365 * 86400
    for path in stopped.rglob("*"):
        os.utime(path, (ahead, ahead))
    before = json.loads((stopped / "run.json").read_text())
    world.go(stopped)
    after = json.loads((stopped / "run.json").read_text())
    assert world.left(stopped) == world.left(whole)
    assert after["elapsed"] > before["elapsed"]


def test_elapsed_time_survives_a_kill(stopped):
    store = Store.open(stopped)
    entry = store.ledger.read()[2]
    store.ledger.add(2, replace(entry, summary={**entry.summary, "elapsed": 500.0}))
    (stopped / "history.csv").unlink()
    world.go(stopped)
    assert Run(stopped).record["elapsed"] >= 500
    rows = (stopped / "history.csv").read_text().splitlines()
    assert len(rows) == 7
    assert rows[3].startswith("500.0,")
    assert all(float(row.split(",")[0]) >= 500 for row in rows[3:])


def test_a_failing_device_or_library_leaves_a_run_that_goes_on(tmp_path, whole):
    causes = {
        "CUDA error: an illegal memory access was encountered": "the GPU failed in shard",
        "weights are upside down": "could not be searched: RuntimeError: weights are upside down",
    }
    for number, (message, words) in enumerate(causes.items()):
        run, error = tmp_path / f"run-{number}", RuntimeError(message)
        with pytest.raises(HardcaseError, match=words) as caught:
            start(world.plan(world.of(world.Failing, None, error, 45)), run)
        assert caught.value.code == INTERNAL
        assert 0 < len(Store.open(run).done()) < 6
        assert "Traceback" in (run / "log.txt").read_text()
        world.goes_on(run, whole)


def test_an_exception_of_the_users_model_is_told_as_such(tmp_path, whole):
    subject = toy_subject()
    calls = []

    def grumpy(module, args):
        calls.append(1)
        if len(calls) > 45:
            raise KeyError("no such pixel")

    handle = subject.net.register_forward_pre_hook(grumpy)
    with pytest.raises(
        HardcaseError, match=r"raised KeyError: 'no such pixel', in shard \d"
    ) as caught:
        start(world.plan(lambda: world.campaign(subject)), tmp_path / "run")
    assert caught.value.code == USAGE
    handle.remove()
    world.goes_on(tmp_path / "run", whole, source=lambda: world.campaign(subject))


def test_out_of_memory_halves_the_calls_and_changes_nothing(tmp_path):
    class Cramped(Counting):
        def __call__(self, x, taps=None):
            if len(x) > 16:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().__call__(x, taps)

    campaign = world.campaign(Cramped(toy_subject()))
    start(world.plan(lambda: replace(campaign, batch=512), shard=22), tmp_path / "a", None)
    start(world.plan(shard=22), tmp_path / "b")
    assert world.left(tmp_path / "a") == world.left(tmp_path / "b")


def test_a_second_writer_is_told_who_is_there_and_a_killed_one_frees_the_folder(stopped, tmp_path):
    who = rf"another process is writing to .*: process {os.getpid()}"
    with locked(stopped), pytest.raises(HardcaseError, match=who) as caught:
        resume(world.plan(), stopped)
    assert caught.value.code == USAGE
    world.go(stopped)

    def die():
        with locked(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert world.alone(die) == -signal.SIGKILL
    with locked(tmp_path):
        pass


def test_of_two_resumes_at_once_one_works(whole, stopped):
    racing = [world.child(lambda: world.go(stopped)) for _ in range(2)]
    codes = sorted(map(world.ended, racing))
    assert codes in ([0, 2], [0, 0])
    assert world.left(stopped) == world.left(whole)


def test_a_real_disk_that_is_full(tmp_path, whole):
    if os.getuid() != 0:
        pytest.skip("needs to mount a file system of its own")
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        (small / "ballast").write_bytes(bytes(60_000))
        with pytest.raises(HardcaseError, match="No space left on device"):
            start(world.plan(), small / "run")
        (small / "ballast").unlink()
        subprocess.run(["mount", "-o", "remount,size=1m", str(small)], check=True)
        world.go(small / "run")
        assert world.left(small / "run") == world.left(whole)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_report_that_is_killed_while_it_is_written(whole, finished):
    def full(name, path):
        if path.suffix == ".html" and name == "half":
            raise OSError(errno.ENOSPC, "No space left on device")

    try:
        disk.fault(full)
        with pytest.raises(HardcaseError, match="No space left"):
            report(Run(finished))
    finally:
        disk.whole()
    assert not (finished / "report/index.html").exists()
    assert report(Run(finished)).exists()
    assert world.left(finished) == world.left(whole)
