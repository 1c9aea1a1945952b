"""The demo's second process, and what its parts add up to."""

import pytest

from hardcase.cli import demo
from hardcase.cli.options import Flags
from hardcase.cli.progress import Front
from hardcase.judges import panel


def test_the_parts_add_up():
    assert sum(demo.SHARES.values()) == pytest.approx(1)
    assert {method["name"] for method in demo.METHODS} < set(demo.SHARES)
    screen = Front()
    demo._enter(screen, "judge", began=0.0, trainings=2)
    assert screen.stage.before + screen.stage.share == pytest.approx(1)


def test_nobody_is_called_to_help_with_a_judge_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "card.json").write_text("{}")
    monkeypatch.setattr(panel, "folder", lambda *_, **__: tmp_path)
    monkeypatch.setattr(demo.subprocess, "Popen", lambda *_, **__: pytest.fail("it was called"))
    with demo._assistant(Flags(device="cpu")) as assistant:
        assert assistant is None
