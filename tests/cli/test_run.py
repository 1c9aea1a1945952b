"""Data, criteria and judges of a user's own file, through the commands: ``file.py:name``."""

import json
from pathlib import Path

import pytest

from hardcase.cli.main import main
from hardcase.runs.results import Run

OWN = """
from hardcase import Verdicts
from hardcase.criteria import select
from hardcase.criteria.neuron import Activated
from hardcase.registry import criterion, data
from tiny import Columns, bars as drawn

@data("my-bars", needs="nothing", paper="ours")
def bars():
    "Bars in one of three places."
    return drawn(60), drawn(12, seed=1, split="test")

@criterion("loud", laws=("ratio", "monotone"))
def loud(graph, *, threshold: float = 0.2):
    "Outputs that are loud for some input."
    return Activated(select(graph, "dense", "unit"), threshold)

def strict(pairs):
    return Verdicts(["lost"] * len(pairs))
"""


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch, fresh_registry):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    Path("own.py").write_text(OWN)


def test_a_campaign_with_data_criterion_and_judge_of_ones_own(capsys):
    words = "run --method dlfuzz --data own.py:bars --model own.py:Columns --images 6 --out run"
    more = "--criterion own.py:loud --criteria nc,own.py:loud:threshold=0.1 --progress none"
    assert main([*words.split(), *more.split()]) == 0
    run = Run("run")
    assert run.record["data"] == "own.py:bars"
    assert run.seeds["id"][0].as_py().startswith("test-")
    measured = {row["criterion"]: row for row in run.record["coverage"]}
    assert measured["own.py:loud:threshold=0.1"]["total"] == 6
    capsys.readouterr()
    assert main(["judge", "run", "--judge", "own.py:strict", "--progress", "none"]) == 0
    assert Run("run").record["search_results"]["accepted"] == 0
    assert main(["cite", "run"]) == 0
    assert "guo2018dlfuzz" in capsys.readouterr().out


def test_coverage_by_a_criterion_of_ones_own_and_data_that_are_described(capsys):
    words = ["coverage", "--model", "own.py:Columns", "--data", "own.py:bars"]
    assert main([*words, "--criteria", "own.py:loud", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["criterion"], row["total"], row["value"]) == ("own.py:loud", 6, 1.0)
    assert main(["data", "own.py:bars", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == "own.py:bars"
