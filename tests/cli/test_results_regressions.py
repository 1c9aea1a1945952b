"""A search for regressions: what the version before gets right and the new one wrong, nothing else."""

import json

import pytest
from aftermath import write_world

from hardcase.cli.main import main
from hardcase.report.page import report_content
from hardcase.runs.results import Run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_world(tmp_path)
    return tmp_path


WORDS = "run --data npz:greys.npz?split=all --method pgd --seeds 40 --allow-low-accuracy"


def test_findings_are_right_before_and_wrong_now(home, capsys):
    words = f"{WORDS} --model models.py:new --baseline models.py:old --oracle regression --out new"
    assert main(words.split()) == 0, capsys.readouterr().err
    run = Run("new")
    light = run.images().float().mean((1, 2, 3)) / 255
    assert len(run) > 0
    assert bool(((light > 0.5) & (light < 0.65)).all())
    assert set(run.findings["expected"].to_pylist()) == {1}
    assert run.record["baseline"] == "models.py:old"
    assert 'baseline = "models.py:old"' in (home / "new/config.toml").read_text()
    assert json.loads((home / "new/run.json").read_text())["funnel"]["failing"] > 0
    assert json.loads((home / "new/regression.json").read_text())["retraining"] is None
    assert set(Run("new-swapped").findings["expected"].to_pylist()) == {0}
    assert "with the roles swapped" in capsys.readouterr().out
    (section,) = report_content([run])["runs"]
    assert "Here: " in section["notes"][-1]
    assert section["regression"]["seeds"] > 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--oracle", "regression"], "--baseline MODEL"),
        (["--baseline", "models.py:old", "--oracle", "label"], "leave out --oracle"),
        (["--retrained", "models.py:old"], "--baseline MODEL"),
    ],
)
def test_what_does_not_go_together_is_told(home, capsys, more, told):
    assert main([*WORDS.split(), "--model", "models.py:new", "--out", "x", *more]) == 2
    assert told in capsys.readouterr().err
