"""Run folders of others: whatever is put into one, no verb executes it, writes through it or hangs on it."""

import json
import os
import pickle
import shutil
import signal
import socket
import tomllib
from inspect import signature
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tomli_w
import world

from hardcase.cli.main import VERBS, _function, main
from hardcase.errors import Problem
from hardcase.runs.folder import Store, _with_crc
from hardcase.runs.identity import Identity
from hardcase.runs.ledger import Entry
from hardcase.runs.start import Watcher, start
from hardcase.runs.tables import FINDINGS, read, to_parquet
from hardcase.testing.toys import toy_images

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
MODEL = """
from hardcase.testing.toys import Quarters
def make(): return Quarters()
"""
JUDGE = """
import hardcase as hc
def trusting(findings):
    return hc.Verdicts(valid=[True] * len(findings), label_kept=[True] * len(findings))
"""
PWN = "import pathlib\npathlib.Path({0!r}).write_text('code of the folder ran')\ndef make(): pass\n"
MORE = {
    "replay": ("--model", "model.py:make"),
    "gate": ("--max-confirmed-rate", "1"),
    "judge": ("--judge", "judge.py:trusting"),
    "export": ("--out", "away"),
    "evidence": ("--out", "away"),
    "retrain": ("--repeats", "2", "--epochs", "1"),
}
"""What a verb needs beside the folder."""


def verbs():
    """Every verb that takes a run folder, read off the table of verbs."""
    for verb in VERBS:
        taken = signature(_function(verb), eval_str=True).parameters.values()
        if any(
            "RUN" in str(getattr(meta, "metavar", ""))
            for p in taken
            for meta in getattr(p.annotation, "__metadata__", ())
        ):
            yield verb.name  # fmt: skip


class Made(dict):
    """Unpickling this leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def begin_as(folder, **settings):
    """Rewrite what a run says of its beginning, with checksums that are right."""
    store = Store.open(folder)
    begun = store.begun()
    values = {**tomllib.loads(begun["config"]), **settings}
    config = tomli_w.dumps(values)
    (folder / "config.toml").write_text(config)
    record = begun["record"]
    parts = {k: v for k, v in record["identity"]["parts"].items() if not k.endswith(" source")}
    record = {**record, "identity": Identity(parts).to_json()}
    (folder / "state/begun.json").write_bytes(_with_crc({"record": record, "config": config}))
    store.write_record({**store.record(), "identity": record["identity"]})


def part_with(folder, **columns):
    """Replace columns of the first part, with a ledger that agrees."""
    path = folder / "findings/part-00000.parquet"
    rows = read(path, FINDINGS)
    for name, value in columns.items():
        place = rows.column_names.index(name)
        kind = rows.schema.field(name)
        rows = rows.set_column(place, kind, pa.array([value] * len(rows), kind.type))
    path.write_bytes(to_parquet(rows))
    store = Store.open(folder)
    entry = store.ledger.read()[0]
    new = Entry.of({"findings/part-00000.parquet": path.read_bytes()}, entry.summary)
    store.ledger.add(0, Entry({**entry.files, **new.files}, entry.summary))


def code(folder, victim):
    (folder / "pwn.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, model=f"{folder}/pwn.py:make")


def method_code(folder, victim):
    (folder / "pwn.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, method={"name": f"{folder}/pwn.py:make"})


def peer_code(folder, victim):
    (folder / "pwn.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, peers=[f"{folder}/pwn.py:make"], generator=f"{folder}/pwn.py:make")


def unpickled(folder, victim):
    (folder / "w.pt").write_bytes(pickle.dumps(Made(victim / "mark")))
    begin_as(folder, model=f"{folder}/w.pt@model.py:make", trust_pickle=True)


def metrics(folder, victim):
    begin_as(folder, metrics=str(victim / "file"))


def address(folder, victim):
    begin_as(folder, model=f"http://127.0.0.1:{victim.port}/v2/models/m/infer")


def link(name, *, whole=False):
    def trick(folder, victim):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(Path(victim) if whole else victim / "file")

    return trick


def pipe(name):
    def trick(folder, victim):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return trick


TRICKS = {
    "code": code,
    "code of the method": method_code,
    "code of a peer": peer_code,
    "pickle": unpickled,
    "metrics": metrics,
    "address": address,
    "id": lambda folder, victim: part_with(folder, id="../../victim/mark"),
    "bytes": lambda folder, victim: part_with(folder, image={"bytes": b"#!/bin/sh", "path": None}),
    "label": lambda folder, victim: part_with(folder, expected=99),
    "negative label": lambda folder, victim: part_with(folder, expected=-1, predicted=-7),
    **{f"{name} is a link": link(name) for name in (".lock", "log.txt", "status.json", "run.json", "state/ledger.jsonl")},
    **{f"{name} leads away": link(name, whole=True) for name in ("report", "retrain", "findings", "verdicts", "state")},
    **{f"{name} is a pipe": pipe(name) for name in (".lock", "log.txt", "run.json", "seeds.parquet", "findings/part-00000.parquet", "state/begun.json", "config.toml")},
}  # fmt: skip


class Victim(type(Path())):
    """A folder that must stay as it is, and a port that nobody may talk to."""

    port = 0


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run of the command line."""
    home = tmp_path_factory.mktemp("stored")
    images = toy_images(12)
    np.savez(
        home / "toy.npz",
        images=images.x.numpy(),
        labels=images.y.numpy(),
        classes=np.array(images.classes),
    )
    (home / "model.py").write_text(MODEL)
    (home / "judge.py").write_text(JUDGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("HARDCASE_CACHE", str(home / "cache"))
        words = ("run", "--model", "model.py:make", "--data", "npz:toy.npz", "--method", "pgd")
        assert main([*words, "--seeds", "6", "--out", "run", "-q"]) == 0
        assert main(["judge", "run", "--judge", "judge.py:trusting", "-q"]) == 0
    return home


def pairs():
    """All of them in the long form; else those that write or execute most, and every verb with some."""
    for i, verb in enumerate(verbs()):
        for j, trick in enumerate(TRICKS):
            if LONG or (i + j) % 9 == 0 or (verb == "resume" and j % 2):
                yield verb, trick


@pytest.mark.parametrize(("verb", "trick"), pairs())
def test_a_folder_of_others_does_no_harm(tmp_path, stored, monkeypatch, capfd, verb, trick):
    for path in stored.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "deep" / "run"
    shutil.copytree(stored / "run", folder)
    victim = Victim(tmp_path / "victim")
    victim.mkdir()
    (victim / "file").write_text("precious")
    for name in ("part-00000.parquet", "index.html", "begun.json"):
        (victim / name).write_text("precious")
    before = {path.name: path.read_bytes() for path in Path(victim).iterdir()}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        type(victim).port = listener.getsockname()[1]
        TRICKS[trick](folder, victim)
        words = [*verb.split(), str(folder), *MORE.get(verb, ())]
        if verb == "compare":
            words.insert(-1, str(stored / "run"))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(100)  # a verb that hangs ends the tests
        try:
            result = main(words)
        finally:
            signal.alarm(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    said = "".join(capfd.readouterr())
    assert {path.name: path.read_bytes() for path in Path(victim).iterdir()} == before, said
    assert result != 3, said
    strangers = [p for p in (tmp_path / "away").rglob("*") if p.suffix == ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in strangers)


def test_the_verbs_that_take_runs_are_found():
    found = set(verbs())
    assert {"resume", "report", "export", "gate", "judge", "shrink", "retrain", "status"} <= found


def test_a_folder_that_is_moved_under_a_run_stops_it(tmp_path, stored):
    folder = tmp_path / "run"

    class Mover(Watcher):
        def shard(self, progress):
            if progress.done == 2 and folder.exists():
                folder.rename(tmp_path / "elsewhere")

    with pytest.raises(Problem, match="was moved, deleted or exchanged"):
        start(world.plan(), folder, Mover())
    assert not folder.exists()
    world.go(tmp_path / "elsewhere")
    assert json.loads((tmp_path / "elsewhere/run.json").read_text())["complete"]
