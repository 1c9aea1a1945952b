"""File, flags and settings become one configuration, in that order of precedence."""

import io
import logging
from importlib import import_module
from inspect import signature
from pathlib import Path
from time import sleep

import pytest
from rich.console import Console

from hardcase.api import folder_for
from hardcase.cli import main as main_module, options
from hardcase.cli.main import VERBS, _function
from hardcase.cli.options import _KEYS, CAMPAIGN, cell, clock, facts, grid, resolve, shown
from hardcase.cli.progress import Screen
from hardcase.config import BudgetConfig, Config
from hardcase.environment import duration
from hardcase.errors import HardcaseError
from hardcase.tensors import usable_device

BASE = {"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text):
    Path("c.toml").write_text(text)
    return Path("c.toml")


def test_flags_and_settings_override_the_file():
    method = '[method]\nname = "pgd"\nepsilon = 0.5\n'
    file = write(f'model = "a"\ndata = "b"\nimages = 5\nseed = 1\n{method}')
    settings = ["seed=3", "method.norm=l2"]
    config = resolve({"config": file, "images": 7, "settings": settings})
    assert (config.model.name, config.images, config.seed) == ("a", 7, 3)
    assert config.method.options() == {"epsilon": 0.5, "norm": "l2"}
    # another method does not inherit the options of the file's
    assert resolve({"config": file, "method": "cw"}).method.options() == {}
    assert resolve({"config": file, "method": "pgd"}).method.options() == {"epsilon": 0.5}


@pytest.mark.parametrize(
    "twice",
    [
        {"images": 7, "settings": ["images=8"]},
        {"settings": ["images=7", "images=8"]},
        {"queries": 7, "settings": ["budget.queries=8"]},
    ],
)
def test_two_values_for_one_setting_are_an_error_that_names_both(twice):
    with pytest.raises(HardcaseError) as caught:
        resolve({**BASE, **twice})
    assert all(part in caught.value.what for part in ("7", "8", "--set"))


def test_limits_of_a_file_of_their_own_stand_between_flags_and_the_projects_file(tmp_path):
    project, own = tmp_path / "hardcase.toml", tmp_path / "limits.toml"
    project.write_text("[limits]\nrisk = 0.3\nmargin = 0.02\naccuracy = 0.9\n")
    own.write_text("[limits]\nrisk = 0.2\nmargin = 0.03\n")
    flags = {**BASE, "config": project, "limits": own, "settings": ["limits.margin=0.04"]}
    config = resolve(flags)
    assert (config.limits.risk, config.limits.margin, config.limits.accuracy) == (0.2, 0.04, 0.9)
    givers = {name: config.given[f"limits.{name}"] for name in ("risk", "margin", "accuracy")}
    assert givers == {"risk": "--limits", "margin": "flag", "accuracy": "hardcase.toml"}
    own.write_text("seed = 3\n")
    with pytest.raises(HardcaseError, match="has no limits"):
        resolve(flags)


def test_every_flag_of_a_campaign_is_a_key_and_arrives():
    flags = {
        **BASE, "peer": ["zoo:lenet1", "zoo:lenet4"], "generator": "vae", "target": "3", "criterion": "nc", "oracle": "label",
        "keep": "all", "images": 9, "split": "train", "seed": 4, "device": "cuda", "batch_size": "64", "workers": 2,
        "cluster": "auto", "offline": True, "allow_low_accuracy": True, "trust_pickle": True,
        "queries": 1, "gradients": 2, "total_queries": 3, "total_gradients": 4, "findings": 5, "time": "6s",
    }  # fmt: skip
    config = resolve(flags).model_dump()
    assert config["peers"] == ("zoo:lenet1", "zoo:lenet4")
    assert config["target"] == 3
    assert config["batch_size"] == 64
    budget = ("queries", "gradients", "total_queries", "total_gradients", "findings", "time")
    assert config["budget"] == {name: flags[name] for name in budget}
    assert config["model"]["name"] == flags["model"]
    assert config["method"]["criterion"] == flags["criterion"]
    same = set(flags) - {"peer", "model", "method", "criterion", "target", "batch_size", *budget}
    assert {name: config[name] for name in same} == {name: flags[name] for name in same}
    keys = {*Config.model_fields, *BudgetConfig.model_fields, "config", "settings", "criterion"}
    assert {_KEYS.get(name, name) for name in CAMPAIGN} <= keys


def test_the_folders_own_file_or_that_of_a_run_is_used_and_that_is_said(caplog):
    caplog.set_level("WARNING")
    Path("hardcase.toml").write_text('model = "a"\ndata = "b"\nmethod = "pgd"\nimages = 3\n')
    assert resolve({}).images == 3
    assert "settings come from hardcase.toml" in caplog.text
    Path("run").mkdir()
    Path("run/config.toml").write_text('model = "a"\ndata = "b"\nmethod = "pgd"\nimages = 4\n')
    assert resolve({"config": Path("run")}).images == 4


def test_a_folder_is_named_after_the_run_a_used_one_refused_and_an_empty_one_taken():
    names = {"mnist5k": "mnist5k", "npz:/x/y z/toy.npz?split=all": "toy", "run:runs/a": "a"}
    for data, name in names.items():
        assert folder_for(resolve({**BASE, "data": data}), None) == Path(f"runs/pgd-{name}-0")
    Path("used/inside").mkdir(parents=True)
    Path("empty").mkdir()
    assert folder_for(resolve(BASE), Path("empty")) == Path("empty")
    with pytest.raises(HardcaseError, match="not empty"):
        folder_for(resolve(BASE), Path("used"))


COMPUTING = "demo doctor run resume judge coverage replay shrink repair layers train"
"""Verbs that ask or train networks. `compare` and `report` read what is stored."""


def test_every_verb_that_computes_can_be_told_where():
    known = {row.name: row for row in VERBS}
    for verb in COMPUTING.split():
        assert "device" in signature(_function(known[verb])).parameters, verb


def test_auto_is_the_default_and_a_device_that_is_not_here_is_named():
    assert resolve(BASE).device == "auto"
    assert usable_device("auto") in ("cpu", "cuda")
    assert usable_device("cpu") == "cpu"
    with pytest.raises(HardcaseError, match="device 'cuda:99' cannot be used"):
        usable_device("cuda:99")


@pytest.mark.parametrize(
    ("write", "value", "said"),
    [
        *((duration, *pair) for pair in [(0, "0.0 s"), (9.94, "9.9 s"), (59, "59 s")]),
        *((duration, *pair) for pair in [(200, "3 min 20 s"), (7500, "2 h 5 min")]),
        *((clock, *pair) for pair in [(0.9, "0:00:00"), (83, "0:01:23"), (3723, "1:02:03")]),
        *((cell, *pair) for pair in [(None, "–"), (12345, "12,345"), (0.123456, "0.1235")]),
        *((cell, *pair) for pair in [(True, "True"), ("a", "a")]),
        (facts, {"a": 1, "long": "x"}, "a     1\nlong  x"),
        (shown, "a b", "'a b'"),
    ],
)
def test_values_as_people_read_them(write, value, said):
    assert write(value) == said


def test_numbers_lean_right_and_brackets_are_text():
    from rich.console import Console

    screen = Console(width=60, markup=False)
    with screen.capture() as got:
        screen.print(grid("title", ["[name]", "count"], [["[a]", 5], ["b", 12345]]))
    lines = [line.rstrip() for line in got.get().splitlines()]
    assert any("[name]" in line for line in lines)
    assert next(line for line in lines if "[a]" in line).endswith(" 5")
    assert next(line for line in lines if "12,345" in line).endswith("12,345")


def test_a_silence_of_a_command_is_ended_in_words(capsys, monkeypatch):
    monkeypatch.setattr(options.Silence, "FIRST", 0.02)
    silence = options.Silence()
    with silence.ended("report"):
        sleep(0.15)
    said = capsys.readouterr().err.splitlines()
    assert 1 <= len(said) <= 3  # each silence is twice as long as the one before
    assert all(line == "0:00:00 report: at work" for line in said)
    with silence.ended("report"):
        silence.held = True  # a screen shows what is done
        sleep(0.1)
    with silence.ended(""):
        sleep(0.1)
    assert not capsys.readouterr().err


def test_who_waits_for_libraries_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(options.Silence, "FIRST", 0.02)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_library.py").write_text("import time\ntime.sleep(0.1)\n")
    with options.Silence().ended("gate"):
        import_module("slow_library")
    assert "0:00:00 gate: loading PyTorch and other libraries\n" in capsys.readouterr().err


def test_what_is_logged_stands_above_the_screen(capsys):
    """What is written past a live screen tears it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    try:
        options.logging_to(verbose=False, quiet=False)
        screen = Screen(Console(file=out, force_terminal=True, width=60))
        with screen:
            logging.getLogger("hardcase").warning("mind this")
        said = out.getvalue()
        logging.getLogger("hardcase").warning("and this")
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        root.setLevel(level)
    assert "note: mind this" in said
    assert capsys.readouterr().err == "note: and this\n"


@pytest.mark.parametrize(
    ("words", "verb"),
    [("report runs/a", "report"), ("status runs/a", ""), ("judge r --ask 20", ""), ("run -q", "")],
)
def test_only_verbs_that_compute_are_watched(words, verb):
    assert main_module._computing(words.split()) == verb
