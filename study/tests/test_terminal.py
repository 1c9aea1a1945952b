"""``judge RUN --ask N``: a scripted person at the terminal."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from judged import QUICK, cache_of, made_run, quick_judge, splits
from rich.color import ColorSystem
from rich.console import Console

from hardcase import companions
from hardcase.cli.main import main
from hardcase.judges import panel
from hardcase.judges.answers import read_answers
from hardcase.runs.results import Run
from hardcase.tensors import from_bytes
from tiny import bars

ask = pytest.importorskip("hardcase_study.terminal")


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with cache_of(tmp_path_factory):
        yield quick_judge()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, test = splits()
    x, y = test.x[:40], test.y[:40]
    seed = from_bytes(x)
    found = torch.linspace(1, 0.1, 40)[:, None, None, None] * seed
    found[::3] = seed[(torch.arange(0, 40, 3) + 1) % 40]
    return made_run(tmp_path / "run", x, y, found)


class Person(io.StringIO):
    """Reads what the file of answers says is asked, and names the class of the seed."""

    def __init__(self, run, say):
        super().__init__()
        self.run, self.say = run, say

    def readline(self):
        row = json.loads((self.run.folder / "answers.jsonl").read_text().splitlines()[-1])
        table = self.run.seeds if row.get("check") else self.run.findings
        place = table["id"].to_pylist().index(row["asked"])
        label = table["label" if row.get("check") else "expected"][place].as_py()
        return self.say(row, str(label)) + "\n"


def judged(run, judge, monkeypatch, say, budget=20):
    monkeypatch.setattr(sys, "stdin", Person(run, say))
    words = ["judge", str(run.folder), "--judge", str(judge.folder), "--ask", str(budget)]
    return main([*words, "--format", "json"])


def test_answers_change_the_verdicts_and_the_record_says_how(run, judge, monkeypatch, capsys):
    assert judged(run, judge, monkeypatch, lambda row, label: label) == 0
    (record,) = json.loads(capsys.readouterr().out)
    people = record["people"]
    assert people["asked"]["people"] == 1
    assert people["asked"]["checks"] == people["asked"]["checks_passed"] >= 1
    assert people["confirmed"] == people["rated"] == people["asked"]["answers"] <= 20
    assert people["asked"]["decision"]["answers"] == people["rated"]
    verdicts = Run(run.folder).verdicts
    by_person = [row for row in verdicts.values() if row["by"] == "person"]
    assert len(by_person) == people["rated"]
    assert all(row["verdict"] == "kept" for row in by_person)
    assert record["search_results"]["confirmed"] > 0
    assert not (run.folder / "asking").exists()


def test_one_may_stop_mistype_and_go_on_later(run, judge, monkeypatch, capsys):
    typed = iter(["?", "0", "1", "q"])
    judged(run, judge, monkeypatch, lambda row, label: label if row.get("check") else next(typed))
    first = {one.image for one in read_answers(run.folder) if not one.check}
    assert len(first) == 2
    judged(run, judge, monkeypatch, lambda row, label: label, budget=5)
    given = [one for one in read_answers(run.folder) if not one.check]
    assert len(given) == 7
    assert first < {one.image for one in given}
    assert "none of the answers" in capsys.readouterr().err


def test_whoever_names_real_images_wrongly_changes_nothing(run, judge, monkeypatch, capsys):
    judged(run, judge, monkeypatch, lambda row, label: str((int(label) + 1) % 3))
    (record,) = json.loads(capsys.readouterr().out)
    assert record["people"]["rated"] == 0
    assert record["people"]["asked"]["left_out"] > 0
    assert "person" not in {row["by"] for row in Run(run.folder).verdicts.values()}


def test_a_limit_of_the_project_is_what_is_decided(run, judge, monkeypatch, capsys):
    Path("hardcase.toml").write_text("[limits]\naccepted_rate = 0.1\n")
    judged(run, judge, monkeypatch, lambda row, label: label, budget=40)
    (record,) = json.loads(capsys.readouterr().out)
    decision = record["people"]["asked"]["decision"]
    assert decision["limit"] == 0.1
    assert decision["decision"] == "above the limit"
    assert decision["answers"] < 40


def test_nothing_that_is_shown_tells_the_class(run, judge, monkeypatch, capsys):
    judged(run, judge, monkeypatch, lambda row, label: label, budget=3)
    shown = capsys.readouterr().err
    names = run.findings["id"].to_pylist()
    assert not any(name in shown for name in names)
    assert "check" not in shown.partition("One person")[0]


def test_questions_need_a_number_and_the_companion(run, judge, monkeypatch, capsys):
    assert judged(run, judge, monkeypatch, lambda row, label: label, budget=0) == 2
    monkeypatch.setattr(companions, "entry_points", lambda **_: ())
    assert judged(run, judge, monkeypatch, lambda row, label: label) == 2
    assert "hardcase[study]" in capsys.readouterr().err


@pytest.mark.long
def test_a_sinvad_run_is_asked_about_from_end_to_end(tmp_path, monkeypatch, capsys):
    """A search in codes, a judge trained on the data, twenty answers, another verdict."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(panel, "config_for", lambda *args, **options: QUICK)
    train, test = bars(160), bars(60, seed=1, split="test")
    np.savez("bars.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    Path("model.py").write_text("from tiny import Columns as make\n")
    words = ["--model", "model.py:make", "--data", "npz:bars.npz", "--conditions", "none"]
    assert main(["run", "--method", "sinvad", *words, "--images", "40", "--out", "found"]) == 0
    capsys.readouterr()
    run = Run("found")
    before = {name: row["verdict"] for name, row in (run.verdicts or {}).items()}
    monkeypatch.setattr(sys, "stdin", Person(run, lambda row, label: label))
    assert main(["judge", "found", "--ask", "20"]) == 0
    judged = Run("found")
    asked = judged.record["people"]["asked"]
    assert asked["people"] == 1
    assert 0 < asked["answers"] <= 20
    after = {name: row["verdict"] for name, row in judged.verdicts.items()}
    assert after != before
    page = judged.report().read_text(encoding="utf-8")
    assert "one person" in page
    assert "at random, without replacement" in page


@pytest.mark.parametrize(
    ("colours", "white"),
    [(ColorSystem.EIGHT_BIT, "38;5;231"), (ColorSystem.TRUECOLOR, "38;2;255;255;255")],
)
def test_images_are_drawn_in_half_blocks(colours, white):
    rng = np.random.default_rng(0)
    for shape in ((28, 28, 1), (32, 32, 3), (224, 224, 3)):
        lines = ask.half_blocks(rng.integers(0, 256, shape, dtype=np.uint8), colours).splitlines()
        assert len(lines) == ask.COLUMNS // 2
        assert all(line.count("▀") == ask.COLUMNS for line in lines)
    assert white in ask.half_blocks(np.full((2, 2, 1), 255, np.uint8), colours)


@pytest.mark.parametrize(
    ("terminal", "environment", "colours"),
    [
        (True, {"TERM": "xterm", "COLORTERM": "truecolor"}, ColorSystem.TRUECOLOR),
        (True, {"TERM": "xterm-256color"}, ColorSystem.EIGHT_BIT),
        (True, {"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        (False, {"TERM": "xterm-256color"}, None),
        (True, {"TERM": "dumb"}, None),
    ],
)
def test_files_are_named_where_it_has_no_colours(monkeypatch, terminal, environment, colours):
    for name in ("COLORTERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ask.colours_of(Console(force_terminal=terminal)) is colours
