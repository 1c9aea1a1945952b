"""File, flags and settings become one configuration, in that order of precedence."""

from inspect import signature
from pathlib import Path

import pytest

from hardcase.api import folder_for
from hardcase.cli.main import VERBS, _function
from hardcase.cli.options import _KEYS, CAMPAIGN, resolve
from hardcase.config import BudgetConfig, Config
from hardcase.errors import Problem
from hardcase.tensors import usable_device

BASE = {"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text):
    Path("c.toml").write_text(text)
    return Path("c.toml")


def test_flags_override_the_file_and_settings_override_both():
    file = write(
        'model = "a"\ndata = "b"\nseeds = 5\nseed = 1\n[method]\nname = "pgd"\nepsilon = 0.5\n'
    )
    config = resolve(
        {"config": file, "seeds": 7, "seed": 2, "settings": ["seed=3", "method.norm=l2"]}
    )
    assert (config.model, config.seeds, config.seed) == ("a", 7, 3)
    assert config.method.options() == {"epsilon": 0.5, "norm": "l2"}


def test_another_method_does_not_inherit_the_options_of_the_files():
    file = write('model = "a"\ndata = "b"\n[method]\nname = "pgd"\nepsilon = 0.5\n')
    assert resolve({"config": file, "method": "cw"}).method.options() == {}
    assert resolve({"config": file, "method": "pgd"}).method.options() == {"epsilon": 0.5}


def test_every_flag_of_a_campaign_arrives():
    flags = {
        **BASE, "peer": ["zoo:lenet1", "zoo:lenet4"], "generator": "vae", "target": "3", "criterion": "nc", "oracle": "label",
        "keep": "all", "seeds": 9, "split": "train", "seed": 4, "device": "cuda", "batch_size": "64", "workers": 2,
        "cluster": "auto", "offline": True, "allow_low_accuracy": True, "trust_pickle": True,
        "queries": 1, "gradients": 2, "total_queries": 3, "total_gradients": 4, "findings": 5, "time": "6s",
    }  # fmt: skip
    config = resolve(flags).model_dump()
    assert config["peers"] == ("zoo:lenet1", "zoo:lenet4")
    assert config["target"] == 3
    assert config["batch_size"] == 64
    budget = ("queries", "gradients", "total_queries", "total_gradients", "findings", "time")
    assert config["budget"] == {name: flags[name] for name in budget}
    same = set(flags) - {"peer", "method", "target", "batch_size", *budget}
    assert {name: config[name] for name in same} == {name: flags[name] for name in same}


def test_every_flag_of_a_campaign_is_a_key_of_the_configuration():
    keys = {*Config.model_fields, *BudgetConfig.model_fields, "config", "settings"}
    assert {_KEYS.get(name, name) for name in CAMPAIGN} <= keys


def test_the_folders_own_file_is_used_when_none_is_named_and_that_is_said(caplog):
    caplog.set_level("WARNING")
    Path("hardcase.toml").write_text('model = "a"\ndata = "b"\nmethod = "pgd"\nseeds = 3\n')
    assert resolve({}).seeds == 3
    assert "settings come from hardcase.toml" in caplog.text


def test_a_run_folder_stands_for_its_configuration():
    Path("run").mkdir()
    Path("run/config.toml").write_text('model = "a"\ndata = "b"\nmethod = "pgd"\nseeds = 4\n')
    assert resolve({"config": Path("run")}).seeds == 4


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("mnist5k", "runs/pgd-mnist5k-0"),
        ("npz:/x/y z/toy.npz?split=all", "runs/pgd-toy-0"),
        ("run:runs/a", "runs/pgd-a-0"),
    ],
)
def test_a_folder_is_named_after_method_data_and_seed(data, expected):
    assert folder_for(resolve({**BASE, "data": data}), None) == Path(expected)


def test_a_used_folder_is_refused_and_an_empty_one_taken():
    Path("used/inside").mkdir(parents=True)
    Path("empty").mkdir()
    assert folder_for(resolve(BASE), Path("empty")) == Path("empty")
    with pytest.raises(Problem, match="not empty"):
        folder_for(resolve(BASE), Path("used"))


COMPUTING = (
    *("demo", "doctor", "run", "resume", "judge", "coverage", "replay", "shrink"),
    *("repair", "layers", "train"),
)
"""Verbs that ask or train networks. `compare` and `report` read what is stored."""


@pytest.mark.parametrize("verb", COMPUTING)
def test_every_verb_that_computes_can_be_told_where(verb):
    known = {row.name: row for row in VERBS}
    assert "device" in signature(_function(known[verb])).parameters


def test_auto_is_the_default_and_a_device_that_is_not_here_is_named():
    assert resolve(BASE).device == "auto"
    assert usable_device("auto") in ("cpu", "cuda")
    assert usable_device("cpu") == "cpu"
    with pytest.raises(Problem, match="device 'cuda:99' cannot be used"):
        usable_device("cuda:99")
