"""Witnesses on the command line, and the method that is chosen when none is named."""

import json
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.cli.options import resolve
from hardcase.config import chosen_method
from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from tiny import furnish

MODEL = """
import torch
from hardcase.testing.toys import Quarters

def make():
    return Quarters()

def corners():
    net = Quarters(40.0)
    weight = torch.zeros(4, 8, 8)
    for i, (top, left) in enumerate([(0, 0), (0, 6), (6, 0), (6, 6)]):
        weight[i, top : top + 2, left : left + 2] = 1 / 4
    net.mean.weight.data = weight.flatten(1)
    return net
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    furnish(tmp_path, monkeypatch, MODEL, 40)
    return ["run", "--model", "model.py:make", "--data", "npz:toy.npz", "--images", "8", "-q"]


def test_flags_become_settings():
    flags = {"model": "m", "data": "d", "method": "pgd"}
    assert resolve(flags).witnesses is None
    asked = {"witness": ["zoo:lenet1", "default"], "settings": ["campaign.margin=4"]}
    config = resolve({**flags, **asked})
    assert config.witnesses == ("zoo:lenet1", "default")
    assert config.campaign.margin == 4
    assert resolve({**flags, "settings": ["witnesses=none"]}).witnesses == ("none",)


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({"model": "zoo:lenet5"}, "natural"),
        ({"model": "net.py:make"}, "natural"),
        ({"model": "onnx:net.onnx"}, "natural-blackbox"),
        ({"model": "http://host/v2/models/m/infer"}, "natural-blackbox"),
        ({"model": {"name": "zoo:lenet5", "label_only": True}}, "natural-blackbox"),
    ],
)
def test_without_a_method_the_model_decides(values, method):
    name, why = chosen_method(values)
    assert name == method
    assert getattr(values["model"], "get", lambda _: values["model"])("name") in why


def test_the_choice_is_told_and_keeps_options():
    told, flags = [], {"model": "zoo:lenet5", "data": "mnist5k"}
    config = resolve({**flags, "settings": ["method.gradients=7"]}, choose=told.append)
    assert config.method.name == "natural"
    assert config.method.options() == {"gradients": 7}
    assert told == ["method natural: zoo:lenet5 is asked for gradients"]
    with pytest.raises(HardcaseError, match="method is not given"):
        resolve(flags)


def test_a_run_with_a_witness_and_one_without(world):
    out = ["--method", "pgd", "--set", "method.epsilon=0.3", "--out"]
    asked = ["--witness", "model.py:corners", "--set", "campaign.margin=1"]
    assert main([*world, *out, "with", *asked]) == 0
    record = json.loads(Path("with/run.json").read_text())
    assert record["search_results"]["witnessed"] > 0
    assert record["witnesses"]["models"] == ["model.py:corners"]
    assert record["witnesses"]["margin"] == 1
    parts = {"networks", "lineage", "training_images", "trained_on"}
    assert set(record["witnesses"]["independence"]) == parts
    assert len(record["hashes"]["witnesses"]) == 1
    assert main([*world, *out, "without"]) == 0
    assert json.loads(Path("without/run.json").read_text())["witnesses"] is None
    assert main(["run", "with/config.toml", "--out", "again", "-q"]) == 0
    one, two = (sorted(Path(run, "findings").glob("*.parquet")) for run in ("with", "again"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_run_without_a_method_says_what_it_chose(world, capsys):
    asked = ["--witness", "model.py:corners", "--set", "method.gradients=20", "--progress", "none"]
    assert main([*world[:-1], *asked]) == 0
    said = capsys.readouterr()
    assert "method natural: model.py:make" in said.err
    run = Run(next(Path("runs").iterdir()))
    assert run.record["method"] == "natural"
    assert run.record["conditions"]["name"] == "scanner"
    assert run.record["space"]["columns"], "the conditions in effect bound the search"
    assert run.record["search_results"]["witnessed"] is not None
