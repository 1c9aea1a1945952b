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
    given = ["run", "--model", "net.py:make", "--data", "own_data.py:bars", "--images", "6"]
    assert main([*given, *words, "--out", "found", "--progress", "none"]) == 0
    return Run("found")


def test_there_are_six_recipes():
    kinds = {name.removeprefix("own_").removesuffix(".py") for name, _ in BLOCKS}
    assert kinds == {"method", "search", "criterion", "space", "judge", "data"}


def test_method_and_judge():
    found = run("--method", "own_method.py:brighter", "--set", "method.most=0.8")
    assert found.record["method"] == "own_method.py:brighter"
    assert len(found)
    assert main(["judge", "found", "--judge", "own_judge.py:bright", "--progress", "none"]) == 0
    assert Run("found").record["search_results"]["accepted"] is not None
    assert list(resolve("method", "own_method.py:brighter").options) == ["most", "step_size"]


def test_search():
    words = ("--method", "pgd", "--set", "method.search=own_search.py:FadingSign")
    found = run(*words, "--witness", "none", "--conditions", "none")
    assert len(found)


def test_a_method_that_asks_with_a_mask_is_told_so(capsys):
    text = Path("own_search.py").read_text()
    Path("own_search.py").write_text(text.replace(".nonzero().squeeze(1)", ""))
    words = ["run", "--model", "net.py:make", "--data", "own_data.py:bars", "--images", "2"]
    words += ["--method", "pgd", "--set", "method.search=own_search.py:FadingSign"]
    assert main([*words, "--out", "mask", "--progress", "none"]) == 2
    said = capsys.readouterr().err  # with run-time type checks, the line that asked
    assert "nonzero" in said or "own_search.py, line" in said


JUDGE = """
import hardcase as hc

class Mine:
    def __init__(self{argument}): pass
    def __call__(self, pairs):
        dark = (255 - pairs.x.float().mean((1, 2, 3))).tolist()
        return hc.Verdicts([{answer}] * len(pairs), columns={{"darkness": dark}})
"""


def test_own_columns_of_a_judge_are_stored_and_its_mistakes_are_named(capsys):
    run("--method", "own_method.py:brighter", "--conditions", "none", "--witness", "none")
    words = ["judge", "found", "--judge", "mine.py:Mine", "--progress", "none"]
    for answer, argument, code in (("'kept'", "", 0), ("'maybe'", "", 2), ("'kept'", ", limit", 2)):
        Path("mine.py").write_text(JUDGE.format(answer=answer, argument=argument))
        assert main(words) == code
        assert "unforeseen" not in capsys.readouterr().err
    kept = Run("found").verdicts.values()
    assert all(0 <= one["darkness"] <= 255 for one in kept)


def test_a_file_without_a_name_is_asked_for_one(capsys):
    words = ["run", "--model", "net.py:make", "--data", "own_data.py:bars"]
    assert main([*words, "--method", "own_method.py", "--out", "none"]) == 2
    assert "own_method.py:brighter" in capsys.readouterr().err


def test_criterion_and_data(capsys):
    words = ["coverage", "--model", "net.py:make", "--data", "own_data.py:bars"]
    assert main([*words, "--criteria", "own_criterion.py:loud", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["criterion"], row["total"]) == ("own_criterion.py:loud", 3)
    assert main(["data", "own_data.py:bars", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "own_data.py:bars"


def test_space():
    check_space(file_member(Path("own_space.py"), "Slope")())
    words = ("--method", "natural", "--set", "method.space=own_space.py:Slope")
    found = run(*words, "--witness", "none")
    assert found.record["complete"]
    assert len(found)
