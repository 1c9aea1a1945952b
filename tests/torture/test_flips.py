"""Single bits flipped in any file of a run are noticed by whoever reads it, or change nothing that is read."""

import os
import random
import shutil
import tomllib
from pathlib import Path

import pytest
import world

import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.judges.verdicts import judge
from hardcase.report import report
from hardcase.runs.results import Run
from hardcase.runs.start import reopen
from hardcase.runs.verify import SIDE_FILES, read_side_file, write_side_file
from hardcase.suite.gate import GateLimits, gate
from hardcase.testing.toys import toy_images, toy_subject

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
FLIPS = 200 if LONG else 25
FILES = (
    "run.json", "config.toml", "images.parquet", "status.json", "history.csv", "findings/part-00001.parquet",
    "verdicts/part-00000.parquet", "state/begun.json", "state/ledger.jsonl", "state/seeds-00001.parquet",
    *SIDE_FILES,
)  # fmt: skip


def run(folder, seed=0):
    """Three shards with failures in each."""
    images = toy_images(12)
    how = hc.Execution(shard=4)
    hc.run(toy_subject(), images, method="pgd", out=folder, execution=how, seed=seed, judge=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder)
    judge(folder, by=world.trusting)
    for name in SIDE_FILES:
        write_side_file(
            Run(folder).store, name, {"correctly_classified": 12, "sentence": "nothing got worse"}
        )
    assert Run(folder).verification.notes == ()
    return folder


def flipped(data, rng):
    """The data with one of its bits turned."""
    place = rng.randrange(8 * len(data))
    other = bytearray(data)
    other[place // 8] ^= 1 << place % 8
    return bytes(other), place


def believed(folder):
    """Whether a reader takes the run for sound."""
    try:
        return Run(folder).verification.state == "verified"
    except HardcaseError:
        return False


def same(name, before, after):
    """Whether two contents say the same to every reader."""
    if name == "config.toml":
        try:
            return tomllib.loads(before.decode()) == tomllib.loads(after.decode())
        except ValueError:
            return False
    if name.endswith(".json"):
        return before.split() == after.split()
    if name == "state/ledger.jsonl":  # lines that later ones have replaced are history
        return True
    return before == after


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_not_believed(name, finished):
    path = finished / name
    data = path.read_bytes()
    rng = random.Random(name)
    silent = []
    for _ in range(FLIPS):
        other, place = flipped(data, rng)
        path.write_bytes(other)
        if believed(finished) and not same(name, data, other):
            silent.append(place)
    assert silent == []


READERS = {
    "report": "report RUN --out page",
    "compare": "compare RUN OTHER --out compare.html",
    "gate": "gate RUN --max-accepted-rate 1",
    "export": "export RUN --to npz --out tests.npz",
    "status": "status RUN",
    "cite": "cite RUN",
}
ONLY = {"status": ("run.json", "status.json"), "cite": ("run.json",)}
"""Readers that read no more than this."""


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_says_so(tmp_path, whole, reader, command, monkeypatch):
    """A flipped bit in any file that a verb reads is told of, or refused, by that verb."""
    monkeypatch.chdir(tmp_path)
    silent = []
    files = ONLY.get(reader, FILES)
    for turn in range(4 * len(files) if LONG else 2):
        name = files[(turn * 5 + len(reader)) % len(files)]
        folder = tmp_path / f"run-{turn}"
        shutil.copytree(whole, folder)
        data = (folder / name).read_bytes()
        other, place = flipped(data, random.Random(f"{reader} {turn}"))
        (folder / name).write_bytes(other)
        shutil.rmtree("page", ignore_errors=True)
        Path("tests.npz").unlink(missing_ok=True)
        words = READERS[reader].replace("RUN", str(folder)).replace("OTHER", str(whole))
        code, said = command(words)
        assert code != 3, said
        told = code == 2 or "note:" in said or "damaged" in said
        if not told and not same(name, data, other):
            silent.append((name, place))
    assert silent == []


def test_what_is_kept_beside_one_run_is_not_believed_in_another(tmp_path, whole):
    folder = tmp_path / "run"
    run(folder, seed=1)
    for name in SIDE_FILES:
        shutil.copy(whole / name, folder / name)
        assert read_side_file(Run(folder).store, name) is None
        assert f"{name} is damaged, or of another run" in Run(folder).verification.notes


@pytest.mark.parametrize("trick", ["part of another run", "part gone", "record edited"])
def test_a_damaged_run_is_refused_by_the_gate_and_marked_in_the_report(tmp_path, trick, finished):
    part = finished / "findings/part-00001.parquet"
    if trick == "part of another run":
        run(tmp_path / "other", seed=1)
        shutil.copy(tmp_path / "other/findings/part-00000.parquet", part)
    elif trick == "part gone":
        part.unlink()
    else:
        record = Path(finished / "run.json").read_text()
        (finished / "run.json").write_text(record.replace('"method": "pgd"', '"method": "talk"'))
    stored = Run(finished)
    assert stored.verification.state == "damaged"
    with pytest.raises(HardcaseError, match="a gate decides on verified runs only"):
        gate(stored, GateLimits(accepted_rate=1.0))
    if trick == "record edited":
        page = report(stored, out=tmp_path / "report").read_text()
        assert "This run is damaged." in page


@pytest.mark.parametrize("entry", ['"failing": ', '"elapsed": ', '"checksum": "'])
def test_no_verb_gives_a_damaged_record_a_right_checksum(entry, finished):
    text = (finished / "run.json").read_text()
    (finished / "run.json").write_text(text.replace(entry, f"{entry}9", 1))
    with pytest.raises(HardcaseError, match=r"run\.json is damaged"):
        judge(finished, by=world.trusting)
    assert Run(finished).verification.state == "damaged"
    reopen(finished)
    rebuilt = Run(finished)
    assert rebuilt.store.intact
    assert not rebuilt.record["complete"]


def test_a_sound_run_passes_and_an_old_one_is_unverified(whole, finished):
    assert gate(Run(whole), GateLimits(accepted_rate=1.0))
    store = Run(finished).store
    record = store.record()
    del record["identity"]
    store.write_record(record)
    assert Run(finished).verification.state == "unverified"
