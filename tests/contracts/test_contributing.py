"""The recipes of CONTRIBUTING are files that work: written down and used as ``file.py:name``."""

import json
import re
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.errors import file_member
from hardcase.registry import resolve
from hardcase.runs.results import Run
from hardcase.testing import check_space

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
NET = """
import torch
from torch import nn

def make():
    net = nn.Sequential(nn.AvgPool2d((12, 4)), nn.Flatten(), nn.Linear(3, 3, bias=False))
    net[2].weight.data = 9 * torch.eye(3)
    return net
"""


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch, fresh_registry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    Path("net.py").write_text(NET)
    for name, text in BLOCKS:
        Path(name).write_text(text)


def run(*words):
    given = ["run", "--model", "net.py:make", "--data", "own_data.py:bars", "--seeds", "6"]
    assert main([*given, *words, "--out", "found", "--progress", "none"]) == 0
    return Run("found")


def test_there_are_five_recipes():
    kinds = {name.removeprefix("own_").removesuffix(".py") for name, _ in BLOCKS}
    assert kinds == {"method", "criterion", "space", "judge", "data"}


def test_method_and_judge():
    found = run("--method", "own_method.py:brighter", "--set", "method.most=0.8")
    assert found.record["method"] == "own_method.py:brighter"
    assert len(found)
    assert main(["judge", "found", "--judge", "own_judge.py:bright", "--progress", "none"]) == 0
    assert Run("found").record["funnel"]["valid"] is not None


def test_options_are_explained_by_their_arguments():
    assert list(resolve("method", "own_method.py:brighter").options) == ["most", "step_size"]


def test_criterion(capsys):
    words = ["coverage", "--model", "net.py:make", "--data", "own_data.py:bars"]
    assert main([*words, "--criteria", "own_criterion.py:loud", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["criterion"], row["total"]) == ("own_criterion.py:loud", 3)


def test_space():
    check_space(file_member(Path("own_space.py"), "Slope")())
    found = run(
        *("--method", "natural", "--set", "method.space=own_space.py:Slope"),
        *("--witness", "none"),
    )
    assert found.record["complete"]
    assert len(found)


def test_data(capsys):
    assert main(["data", "own_data.py:bars", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "own_data.py:bars"
