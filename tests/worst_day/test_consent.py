"""A folder of others asks no hub, fetches nothing and loads nothing before consent."""

import os
import tomllib
from pathlib import Path

import pytest
import tomli_w

from hardcase.cli.main import main
from hardcase.data import public
from hardcase.models import hubs
from hardcase.runs.files import checked_json
from hardcase.runs.folder import Store
from tiny import save_toys

MODEL = "from hardcase.testing.toys import Quarters\ndef make(): return Quarters()\n"
STRANGER = "hf:someone/name"
NAMED = {
    "model": STRANGER,
    "weights of a hub's model": f"w.pt@{STRANGER}",
    "peers": [STRANGER],
    "witnesses": ["timm:resnet18"],
    "baseline": "torchvision:resnet18",
    "judge_features": [STRANGER],
    "data": "mnist",
}


@pytest.fixture
def foreign(tmp_path, monkeypatch, capsys):
    """A run of somebody else, and what every verb says of it when it names something else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "theirs"))
    Path("model.py").write_text(MODEL)
    save_toys(Path(), 40)
    words = ("run", "--model", "model.py:make", "--data", "npz:toy.npz", "--method", "pgd", "--seeds", "4", "--conditions", "none")  # fmt: skip
    assert main([*words, "--out", "out", "-q"]) == 0
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "mine"))
    asked = []

    def loader(name, *settings, **more):
        asked.append(name)
        raise AssertionError("asked")

    monkeypatch.setattr(hubs, "LOADERS", dict.fromkeys(hubs.LOADERS, loader))
    monkeypatch.setattr(public, "collect", lambda wanted, route, source: asked.append(route.name))
    monkeypatch.setattr(os, "system", lambda words: asked.append(words))

    def command(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out + said.err

    return command, asked


def named(folder, **settings):
    """The folder as if the run had begun with these settings, with checksums that are right."""
    store = Store.open(folder)
    begun = store.begun()
    config = tomli_w.dumps({**tomllib.loads(begun["config"]), **settings})
    (folder / "config.toml").write_text(config)
    record = begun["record"]
    if "judge_features" in settings:
        record |= {"judge_features": settings["judge_features"]}
    (folder / "state/begun.json").write_bytes(checked_json({"record": record, "config": config}))
    features = {name: record[name] for name in ("judge_features",) if name in record}
    store.write_record({**store.record(), **features})


VERBS = {
    "resume": (),
    "shrink": (),
    "curve": ("--corruptions", "brightness", "--conditions", "none", "--count", "2"),
    "judge": (),
    "replay": ("--model", "model.py:make"),
    "repair": ("--epochs", "1", "--proof", "quick:seeds=4,attack.seeds=2", "--out", "fixed"),
    "export": ("--to", "hardest", "--draws", "1", "--out", "hard"),
}
TRAINS = "judge"
"""The verb that trains a network of its own first; in the long form alone."""


@pytest.mark.parametrize(
    "what",
    ["peers", *(pytest.param(name, marks=pytest.mark.long) for name in NAMED if name != "peers")],
)
def test_no_request_before_consent(foreign, what):
    command, asked = foreign
    key = "model" if "weights" in what else what
    Path("w.pt").write_bytes(b"x")
    named(Path("out"), **{key: NAMED[what]})
    for verb, more in VERBS.items():
        if what == "peers" and verb == TRAINS:
            continue
        code, said = command(verb, "out", *more, "-q")
        assert code != 3, (verb, said)
        assert asked == [], (verb, said)


def test_what_the_user_names_or_has_allowed_is_asked(foreign):
    command, asked = foreign
    named(Path("out"), peers=[STRANGER])
    code, said = command("resume", "out", "-q")
    assert (code, f"ask the hub for {STRANGER}" in said) == (2, True), said
    command("resume", "out", "-q", "--trust")
    command("replay", "out", "--model", "hf:mine/own", "--trust", "-q")
    assert asked == ["someone/name", "mine/own"]
