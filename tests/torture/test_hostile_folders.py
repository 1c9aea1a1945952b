"""Run folders of others: whatever is put into one, no verb executes it, writes through it or hangs on it."""

import json
import os
import pickle
import shutil
import signal
import socket
import struct
import tomllib
import zlib
from functools import cache
from inspect import signature
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import world

from hardcase.cli.main import VERBS, _function, main
from hardcase.errors import Problem
from hardcase.runs.files import checked_json
from hardcase.runs.folder import Store
from hardcase.runs.identity import Identity, remember
from hardcase.runs.ledger import Entry
from hardcase.runs.results import Run
from hardcase.runs.start import Watcher, start
from hardcase.runs.tables import FINDINGS, read, to_parquet
from hardcase.tensors import _chunk
from tiny import save_toys

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
MODEL = """
from hardcase.testing.toys import Quarters
def make(): return Quarters()
def other(): return Quarters(30.0)
"""
JUDGE = """
import hardcase as hc
def trusting(findings):
    return hc.Verdicts(valid=[True] * len(findings), label_kept=[True] * len(findings))
"""
PWN = "import pathlib\npathlib.Path({0!r}).write_text('code of the folder ran')\ndef make(): pass\n"
MORE = {
    "replay": ("--model", "model.py:make"),
    "gate": ("--max-confirmed-rate", "1", "--min-usable", "1"),
    "judge": ("--judge", "judge.py:trusting"),
    "export": ("--out", "away"),
    "card": ("--to", "away"),
    "repair": ("--epochs", "1", "--proof", "quick"),
    "curve": ("--corruptions", "brightness", "--conditions", "none", "--count", "2"),
    "rank": ("--model", "model.py:make", "--data", "npz:toy.npz", "--by", "near-failures"),
    "study new": (
        "--out",
        "away",
        "--raters",
        "2",
        "--per-rater",
        "4",
        "--checks",
        "0",
        "--repeats",
        "0",
    ),
}
"""What a verb needs beside the folder; a new one that needs something and does not stand here fails on a sound run."""


def verbs():
    """Every verb that takes a run folder, read off the tables of verbs, and the word before the folder if it needs one."""
    from hardcase_studies.commands import rank
    from hardcase_study.commands import app

    known = {verb.name: _function(verb) for verb in VERBS} | {"rank": rank}
    known |= {f"study {command.name}": command.callback for command in app.registered_commands}
    for name, function in known.items():
        for p in signature(function, eval_str=True).parameters.values():
            for meta in getattr(p.annotation, "__metadata__", ()):
                if "RUN" in str(getattr(meta, "metavar", "")):
                    option = "" if "Argument" in type(meta).__name__ else f"--{p.name}"
                    if option not in (
                        "--against",
                        "--baseline",
                        "--repaired_from",
                    ):  # beside another folder
                        yield name, option


def words_for(verb, option, folder, other):
    words = [*verb.split(), *([option] if option else []), str(folder), *MORE.get(verb, ())]
    return [*words, str(other)] if verb == "compare" else words


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
    (folder / "state/begun.json").write_bytes(checked_json({"record": record, "config": config}))
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


def judge_code(folder, victim):
    """Code that run.json names, for whoever judges."""
    (folder / "pwn.py").write_text(PWN.format(str(victim / "mark")))
    record_with(folder, judge_features=[f"{folder}/pwn.py:make"])


def data_code(folder, victim):
    (folder / "pwn.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, data=f"{folder}/pwn.py:make")


def code_behind_a_comma(folder, victim):
    """A file whose name ends like one that the user has allowed."""
    (folder / ",model.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, model=f"{folder}/,model.py:make")


def code_behind_a_line(folder, victim):
    (folder / "a\nb.py").write_text(PWN.format(str(victim / "mark")))
    begin_as(folder, model=f"{folder}/a\nb.py:make")


def script_code(folder, victim):
    """TorchScript is code."""
    import torch

    torch.jit.script(torch.nn.Flatten()).save(str(folder / "net.pt"))
    begin_as(folder, model=f"{folder}/net.pt")


def record_with(folder, **entries):
    """Entries of run.json and of what was kept of the beginning, with checksums that are right."""
    store = Store.open(folder)
    begun = store.begun()
    record = {**begun["record"], **entries}
    whole = {"record": record, "config": begun["config"]}
    (folder / "state/begun.json").write_bytes(checked_json(whole))
    store.write_record({**store.record(), **entries})


def raw_record(change):
    def trick(folder, victim):
        path = folder / "run.json"
        path.write_bytes(change(path.read_bytes()))

    return trick


def sealed_as(name, data):
    """Put a file under a name of the ledger, whose line agrees."""

    def trick(folder, victim):
        (folder / name).write_bytes(data() if callable(data) else data)
        store = Store.open(folder)
        for number, entry in list(store.ledger.read().items()):
            if name in entry.files:
                new = Entry.of({name: (folder / name).read_bytes()}, {})
                store.ledger.add(number, Entry({**entry.files, **new.files}, entry.summary))

    return trick


@cache
def many_rows():
    """A few kilobytes of Parquet that stand for more rows than are believed."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": np.zeros(10_000_000, np.int64)}), sink, compression="snappy")
    return sink.getvalue().to_pybytes()


@cache
def large_picture():
    """A PNG of 8,400 x 8,400 pixels in some hundred kilobytes."""
    lines = zlib.compress(b"\0" * (8_401 * 8_400), 1)
    size = struct.pack(">IIBBBBB", 8_400, 8_400, 8, 0, 0, 0, 0)
    parts = (_chunk(b"IHDR", size), _chunk(b"IDAT", lines), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def postscript(folder, victim):
    words = (
        f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({victim / 'mark'}) (w) file closefile\n"
    )
    part_with(folder, image={"bytes": words.encode(), "path": None})


def other_ledger(folder, victim):
    """Lines, with right checksums, about files elsewhere and about none."""
    path = folder / "state/ledger.jsonl"
    lines = []
    for number, files in (
        (0, {}),
        (1, {"../../victim/file": [8, 1]}),
        (-1, {"/etc/passwd": [1, 1]}),
    ):
        body = json.dumps({"shard": number, "files": files, "summary": {}}).encode()
        lines.append(body + b"\t%08x\n" % crc32(body))
    path.write_bytes(b"".join(lines))


def hard_link(name):
    def trick(folder, victim):
        (folder / name).unlink(missing_ok=True)
        os.link(victim / "file", folder / name)

    return trick


def folder_instead(name):
    def trick(folder, victim):
        (folder / name).unlink(missing_ok=True)
        (folder / name / "inside").mkdir(parents=True)

    return trick


def sparse(name):
    """A file of a terabyte that takes no room."""

    def trick(folder, victim):
        with open(folder / name, "r+b") as file:
            file.truncate(2**40)

    return trick


NAMES = ["\x1b]0;owned\x07\x1b[2J", "a\n::error title=x::y", "=HYPERLINK(1)", "<script>x</script>"]


def metrics(folder, victim):
    begin_as(folder, metrics=str(victim / "file"))


def address(folder, victim):
    begin_as(folder, model=f"http://127.0.0.1:{victim.port}/v2/models/m/infer")


def link(name, *, whole=False):
    def trick(folder, victim):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
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
    "code of the judge": judge_code,
    "code of the data": data_code,
    "code behind a comma": code_behind_a_comma,
    "code behind a line": code_behind_a_line,
    "TorchScript": script_code,
    "metrics": metrics,
    "address": address,
    "PostScript": postscript,
    "names that command": lambda folder, victim: record_with(folder, classes=NAMES),
    "NaN": raw_record(lambda data: data.replace(b'"elapsed": ', b'"elapsed": NaN, "x": ', 1)),
    "said twice": raw_record(lambda data: data.replace(b"{", b'{"method": "other", ', 1)),
    "nested deeply": raw_record(lambda data: data.replace(b"{", b'{"x": ' + b"[" * 900 + b"]" * 900 + b", ", 1)),
    "judge of words": lambda folder, victim: record_with(folder, judge={"silence": 5, "groups": "x", "rules": [], "calibration": 3}),
    "witnesses of words": lambda folder, victim: record_with(folder, witnesses={"models": 7}, space={"text": 3}),
    "empty image": lambda folder, victim: record_with(folder, image=[], classes=[]),
    "many rows": sealed_as("findings/part-00000.parquet", many_rows),
    "many seeds": sealed_as("seeds.parquet", many_rows),
    "large picture": lambda folder, victim: part_with(folder, image={"bytes": large_picture(), "path": None}),
    "other ledger": other_ledger,
    "tensors of nothing": sealed_as("state/deltas-00000.safetensors", b"\xff" * 64),
    "id": lambda folder, victim: part_with(folder, id="../../victim/mark"),
    "bytes": lambda folder, victim: part_with(folder, image={"bytes": b"#!/bin/sh", "path": None}),
    "label": lambda folder, victim: part_with(folder, expected=99),
    "negative label": lambda folder, victim: part_with(folder, expected=-1, predicted=-7),
    **{f"{name} is a link": link(name) for name in (".lock", "log.txt", "status.json", "run.json", "state/ledger.jsonl", "config.toml", "history.csv", "seeds.parquet", "state/begun.json", "findings/part-00000.parquet", "verdicts/part-00000.parquet", "report/index.html")},
    **{f"{name} is linked hard": hard_link(name) for name in (".lock", "log.txt", "run.json", "state/ledger.jsonl")},
    **{f"{name} is a folder": folder_instead(name) for name in (".lock", "log.txt", "run.json", "config.toml", "status.json", "findings/part-00000.parquet", "state/ledger.jsonl")},
    **{f"{name} is vast": sparse(name) for name in ("run.json", "config.toml", "seeds.parquet", "findings/part-00000.parquet", "state/ledger.jsonl", "history.csv")},
    **{f"{name} leads away": link(name, whole=True) for name in ("report", "repair", "findings", "verdicts", "state")},
    **{f"{name} is a pipe": pipe(name) for name in (".lock", "log.txt", "run.json", "seeds.parquet", "findings/part-00000.parquet", "state/begun.json", "config.toml", "history.csv", "status.json", "state/ledger.jsonl")},
}  # fmt: skip


class Victim(type(Path())):
    """A folder that must stay as it is, and a port that nobody may talk to."""

    port = 0


def furnish(home, patch):
    """A user with a model, data and a judge of their own, who has run the model before."""
    save_toys(home, 60)
    (home / "model.py").write_text(MODEL)
    (home / "judge.py").write_text(JUDGE)
    patch.chdir(home)
    patch.setenv("HARDCASE_CACHE", str(home / "cache"))
    remember({"model": "model.py:make"})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run of the command line."""
    home = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        furnish(home, patch)
        words = ("run", "--model", "model.py:make", "--data", "npz:toy.npz", "--method", "pgd")
        assert main([*words, "--seeds", "6", "--out", "run", "-q"]) == 0
        assert main(["judge", "run", "--judge", "judge.py:trusting", "-q"]) == 0
        assert Run("run").verification.state == "verified"
    return home


def pairs():
    """All of them in the long form; else every verb with some, and every trick with some verb."""
    for i, (verb, option) in enumerate(verbs()):
        for j, trick in enumerate(TRICKS):
            if LONG or (i + j) % 29 == 0 or (verb == "resume" and j % 7 == 0):
                yield verb, option, trick


@pytest.fixture
def world_of_ones_own(tmp_path, monkeypatch):
    furnish(tmp_path, monkeypatch)


@pytest.mark.parametrize(("verb", "option"), verbs())
@pytest.mark.usefixtures("world_of_ones_own")
def test_every_verb_does_its_work_on_a_sound_run(tmp_path, stored, capfd, verb, option):
    shutil.copytree(stored / "run", tmp_path / "run")
    code = main(words_for(verb, option, tmp_path / "run", stored / "run"))
    said = "".join(capfd.readouterr())
    # a study of six findings may be too small to draw
    assert code in (0, 1, 4) or (verb == "study new" and "error" in said), said


@pytest.mark.parametrize(("verb", "option", "trick"), pairs())
@pytest.mark.usefixtures("world_of_ones_own")
def test_a_folder_of_others_does_no_harm(tmp_path, stored, capfd, verb, option, trick):
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
        words = words_for(verb, option, folder, stored / "run")
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
    assert "\x1b]" not in said
    assert "\n::" not in said
    assert "\n=HYPER" not in said
    strangers = [p for p in (tmp_path / "away").rglob("*") if p.suffix == ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in strangers)


def test_the_verbs_that_take_runs_are_found():
    found = {name for name, _ in verbs()}
    assert {
        *[
            "resume",
            "report",
            "export",
            "gate",
            "judge",
            "shrink",
            "repair",
            "status",
            "rank",
            "curve",
        ]
    } <= found


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
