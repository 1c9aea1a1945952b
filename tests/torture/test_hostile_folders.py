"""Run folders of others: whatever is put into one, no verb executes it, writes through it or hangs on it."""

import json
import os
import pickle
import shutil
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
from hardcase.data import public
from hardcase.errors import HardcaseError
from hardcase.runs.files import checked_json
from hardcase.runs.folder import Store
from hardcase.runs.identity import Identity, remember
from hardcase.runs.results import Run
from hardcase.runs.start import Watcher, start
from hardcase.runs.tables import FINDINGS, read, to_parquet
from hardcase.tensors import _chunk
from hardcase_teams import hubs
from tiny import furnish, rewrite

LONG = os.environ.get("HARDCASE_TORTURE") == "long"
JUDGE = """
import hardcase as hc
def trusting(pairs):
    return hc.Verdicts(["kept"] * len(pairs))
"""
PWN = "import pathlib\npathlib.Path({0!r}).write_text('code of the folder ran')\ndef make(): pass\n"
MORE = {
    "replay": "--model model.py:make",
    "gate": "--max-accepted-rate 1",
    "judge": "--judge judge.py:trusting",
    "export": "--out away",
    "card": "--to away",
    "repair": "--epochs 1 --proof quick:images=20,attack.images=4",
    "curve": "--corruptions brightness --conditions none --count 2",
    "rank": "--model model.py:make --data npz:toy.npz --by near-failures",
    "study new": "--out away --raters 2 --per-rater 4 --checks 0 --repeats 0",
}
"""What a verb needs beside the folder; a new one that needs something and does not stand here fails on a sound run."""


def verbs():
    """Every verb that takes a run folder, read off the tables of verbs, and the word before the folder if it needs one."""
    from hardcase_studies.commands import rank
    from hardcase_study.commands import app
    from hardcase_teams.commands import card

    known = {verb.name: _function(verb) for verb in VERBS} | {"rank": rank, "card": card}
    known |= {f"study {command.name}": command.callback for command in app.registered_commands}
    beside = ("--against", "--baseline", "--repaired_from")  # of another folder
    for name, function in known.items():
        for p in signature(function, eval_str=True).parameters.values():
            for meta in getattr(p.annotation, "__metadata__", ()):
                option = "" if "Argument" in type(meta).__name__ else f"--{p.name}"
                if "RUN" in str(getattr(meta, "metavar", "")) and option not in beside:
                    yield name, option


def words_for(verb, option, folder, other):
    also = other if verb == "compare" else MORE.get(verb, "")
    return f"{verb} {option} {folder} {also}".split()


class Made(dict):
    """Unpickling this leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def begin_as(folder, record=None, *, sources=False, **settings):
    """Rewrite what a run says of its beginning, and entries of its record, with checksums that are right.

    Unless `sources`, it does not say which code it began with.
    """
    store = Store.open(folder)
    record = record or {}
    forget = without_sources if settings and not sources else dict
    for name in ("begun", "search"):
        path = folder / f"state/{name}.json"
        begun = json.loads(path.read_text())
        config = tomli_w.dumps({**tomllib.loads(begun["config"]), **settings})
        whole = {"record": forget({**begun["record"], **record}), "config": config}
        path.write_bytes(checked_json(whole))
    (folder / "config.toml").write_text(config)
    (folder / "run.json").write_bytes(checked_json(forget({**store.record(), **record})))


def without_sources(record):
    """A record that does not say which code the run, and its search, began with."""
    record = dict(record)
    if "identity" in record:
        record["identity"] = nameless(record["identity"])
    search = record.get("phases", {}).get("search", {})
    if "identity" in search:
        stated = {**search, "identity": nameless(search["identity"])}
        record["phases"] = {**record["phases"], "search": stated}
    return record


def nameless(identity):
    parts = identity["parts"]
    kept = {name: part for name, part in parts.items() if not name.endswith(" source")}
    return Identity(kept).to_json()


def record_with(folder, **entries):
    begin_as(folder, entries)


def part_with(folder, **columns):
    """Replace columns of the first part, with a ledger that agrees."""
    path = folder / "findings/part-00000.parquet"
    rows = read(path, FINDINGS)
    for name, value in columns.items():
        place = rows.column_names.index(name)
        kind = rows.schema.field(name)
        rows = rows.set_column(place, kind, pa.array([value] * len(rows), kind.type))
    rewrite(folder, "findings/part-00000.parquet", to_parquet(rows))


def code(settings, file="pwn.py"):
    """Settings, or entries of run.json, that name a file of the folder which leaves a mark when it is run."""

    def trick(folder, victim):
        (folder / file).write_text(PWN.format(str(victim / "mark")))
        begin_as(folder, **settings(f"{folder}/{file}:make"))

    return trick


def pickled(folder, victim):
    (folder / "w.pt").write_bytes(pickle.dumps(Made(victim / "mark")))
    begin_as(folder, model=f"{folder}/w.pt@model.py:make", trust_pickle=True)


def script(folder, victim):
    """TorchScript is code."""
    import torch

    torch.jit.script(torch.nn.Flatten()).save(str(folder / "net.pt"))
    begin_as(folder, model=f"{folder}/net.pt")


def named(record=None, **settings):
    return lambda folder, victim: begin_as(folder, record, sources=True, **settings)


def raw_record(change):
    def trick(folder, victim):
        path = folder / "run.json"
        path.write_bytes(change(path.read_bytes()))

    return trick


def sealed_as(name, data):
    """Put a file under a name of the ledger, whose line agrees."""
    return lambda folder, victim: rewrite(folder, name, data() if callable(data) else data)


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
    work = f"({victim / 'mark'}) (w) file closefile\n"
    words = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n" + work
    part_with(folder, image={"bytes": words.encode(), "path": None})


def other_ledger(folder, victim):
    """Lines, with right checksums, about files elsewhere and about none."""
    path = folder / "state/ledger.jsonl"
    lines = []
    files_of = {0: {}, 1: {"../../victim/file": [8, 1]}, -1: {"/etc/passwd": [1, 1]}}
    for number, files in files_of.items():
        body = json.dumps({"shard": number, "files": files, "summary": {}}).encode()
        lines.append(body + b"\t%08x\n" % crc32(body))
    path.write_bytes(b"".join(lines))


def instead(put):
    """Put something else in the place of a file or a folder."""

    def of(name):
        def trick(folder, victim):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            put(path, victim)

        return trick

    return of


def sparse(name):
    """A file of a terabyte that takes no room."""

    def trick(folder, victim):
        with open(folder / name, "r+b") as file:
            file.truncate(2**40)

    return trick


link = instead(lambda path, victim: path.symlink_to(victim / "file"))
leading_away = instead(lambda path, victim: path.symlink_to(Path(victim)))
hard_link = instead(lambda path, victim: os.link(victim / "file", path))
folder_instead = instead(lambda path, victim: (path / "inside").mkdir(parents=True))
pipe = instead(lambda path, victim: os.mkfifo(path))
NAMES = ["\x1b]0;owned\x07\x1b[2J", "a\n::error title=x::y", "=HYPERLINK(1)", "<script>x</script>"]


STRANGER = "hf:someone/name"
TRICKS = {
    "code": code(lambda own: {"model": own}),
    "code of the method": code(lambda own: {"method": {"name": own}}),
    "code of a peer": code(lambda own: {"peers": [own], "generator": own}),
    "code of the judge": code(lambda own: {"record": {"judge_features": [own]}}),
    "code of the data": code(lambda own: {"data": own}),
    "code behind a comma": code(lambda own: {"model": own}, ",model.py"),  # ends like one that is allowed
    "code behind a line": code(lambda own: {"model": own}, "a\nb.py"),
    "pickle": pickled,
    "TorchScript": script,
    "address": lambda folder, victim: begin_as(folder, model=f"http://127.0.0.1:{victim.port}/v2/models/m/infer"),
    "hub's model": named(model=STRANGER),
    "weights of a hub's model": named(model=f"w.pt@{STRANGER}"),
    "hub's peer": named(peers=[STRANGER]),
    "hub's witness": named(witnesses=["timm:resnet18"]),
    "hub's baseline": named(baseline="torchvision:resnet18"),
    "hub's features of the judge": named({"judge_features": [STRANGER]}),
    "data that are fetched": named(data="mnist"),
    "PostScript": postscript,
    "names that command": named({"classes": NAMES}),
    "NaN": raw_record(lambda data: data.replace(b'"elapsed": ', b'"elapsed": NaN, "x": ', 1)),
    "said twice": raw_record(lambda data: data.replace(b"{", b'{"method": "other", ', 1)),
    "nested deeply": raw_record(lambda data: data.replace(b"{", b'{"x": ' + b"[" * 900 + b"]" * 900 + b", ", 1)),
    "judge of words": named({"judge": {"high_confidence": 5, "groups": "x", "rules": [], "calibration": 3}}),
    "witnesses of words": named({"witnesses": {"models": 7}, "space": {"text": 3}}),
    "empty image": named({"shape": [], "classes": []}),
    "many rows": sealed_as("findings/part-00000.parquet", many_rows),
    "many seeds": sealed_as("images.parquet", many_rows),
    "large picture": lambda folder, victim: part_with(folder, image={"bytes": large_picture(), "path": None}),
    "other ledger": other_ledger,
    "tensors of nothing": sealed_as("state/deltas-00000.safetensors", b"\xff" * 64),
    "id": lambda folder, victim: part_with(folder, id="../../victim/mark"),
    "bytes": lambda folder, victim: part_with(folder, image={"bytes": b"#!/bin/sh", "path": None}),
    "label": lambda folder, victim: part_with(folder, expected=99),
    "negative label": lambda folder, victim: part_with(folder, expected=-1, predicted=-7),
    **{f"{name} is a link": link(name) for name in (".lock", "log.txt", "status.json", "run.json", "state/ledger.jsonl", "config.toml", "history.csv", "images.parquet", "state/begun.json", "findings/part-00000.parquet", "verdicts/part-00000.parquet", "report/index.html")},
    **{f"{name} is linked hard": hard_link(name) for name in (".lock", "log.txt", "run.json", "state/ledger.jsonl")},
    **{f"{name} is a folder": folder_instead(name) for name in (".lock", "log.txt", "run.json", "config.toml", "status.json", "findings/part-00000.parquet", "state/ledger.jsonl")},
    **{f"{name} is vast": sparse(name) for name in ("run.json", "config.toml", "images.parquet", "findings/part-00000.parquet", "state/ledger.jsonl", "history.csv")},
    **{f"{name} leads away": leading_away(name) for name in ("report", "repair", "findings", "verdicts", "state")},
    **{f"{name} is a pipe": pipe(name) for name in (".lock", "log.txt", "run.json", "images.parquet", "findings/part-00000.parquet", "state/begun.json", "config.toml", "history.csv", "status.json", "state/ledger.jsonl")},
}  # fmt: skip


class Victim(type(Path())):
    """A folder that must stay as it is, and a port that nobody may talk to."""

    port = 0


def of_a_judging_user(home, patch):
    """A user with a model, data and a judge of their own, who has run the model before."""
    furnish(home, patch)
    (home / "judge.py").write_text(JUDGE)
    remember({"model": "model.py:make"})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run of the command line."""
    home = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        of_a_judging_user(home, patch)
        words = "run --model model.py:make --data npz:toy.npz --method pgd --images 6 --out run -q"
        assert main(words.split()) == 0
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
def here(tmp_path, monkeypatch):
    """The folder of a user, and what was asked of hubs and fetched from elsewhere."""
    of_a_judging_user(tmp_path, monkeypatch)
    asked = []

    def loader(name, *settings, **more):
        asked.append(name)
        raise HardcaseError("asked")

    monkeypatch.setattr(hubs, "LOADERS", dict.fromkeys(hubs.LOADERS, loader))
    monkeypatch.setattr(public, "collect", lambda wanted, route, source: asked.append(route.name))
    return asked


@pytest.mark.parametrize(("verb", "option"), verbs())
def test_every_verb_does_its_work_on_a_sound_run(tmp_path, here, stored, capfd, verb, option):
    shutil.copytree(stored / "run", tmp_path / "run")
    code = main(words_for(verb, option, tmp_path / "run", stored / "run"))
    said = "".join(capfd.readouterr())
    # a study of six failures may be too small to draw
    assert code in (0, 1, 4) or (verb == "study new" and "error" in said), said


@pytest.mark.parametrize(("verb", "option", "trick"), pairs())
def test_a_folder_of_others_does_no_harm(tmp_path, here, stored, capfd, verb, option, trick):
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
        result = main(words_for(verb, option, folder, stored / "run"))
        with pytest.raises(BlockingIOError):
            listener.accept()
    said = "".join(capfd.readouterr())
    assert {path.name: path.read_bytes() for path in Path(victim).iterdir()} == before, said
    assert result != 3, said
    assert here == [], "a hub was asked without consent"
    assert "\x1b]" not in said
    assert "\n::" not in said
    assert "\n=HYPER" not in said
    strangers = [p for p in (tmp_path / "away").rglob("*") if p.suffix == ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in strangers)


def test_the_verbs_that_take_runs_are_found():
    known = {"resume", "report", "export", "gate", "judge", "shrink", "repair", "status", "rank"}
    assert known | {"curve"} <= {name for name, _ in verbs()}


def test_a_hub_that_the_user_names_or_has_allowed_is_asked(tmp_path, here, stored, command):
    begin_as(shutil.copytree(stored / "run", tmp_path / "run"), sources=True, peers=[STRANGER])
    code, said = command("resume run -q")
    assert (code, f"ask the hub for {STRANGER}" in said, here) == (2, True, []), said
    command("resume run -q --trust")
    command("replay run --model hf:mine/own --trust -q")
    assert here == ["someone/name", "mine/own"]


def test_a_folder_that_is_moved_under_a_run_stops_it(tmp_path, stored):
    folder = tmp_path / "run"

    class Mover(Watcher):
        def shard(self, progress):
            if progress.done == 2 and folder.exists():
                folder.rename(tmp_path / "elsewhere")

    with pytest.raises(HardcaseError, match="was moved, deleted or exchanged"):
        start(world.plan(), folder, Mover())
    assert not folder.exists()
    world.go(tmp_path / "elsewhere")
    assert json.loads((tmp_path / "elsewhere/run.json").read_text())["complete"]
