"""The demo's second process."""

import pytest

from hardcase.cli import start
from hardcase.cli.options import Flags
from hardcase.judges import panel


def test_nobody_is_called_to_help_with_a_judge_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "card.json").write_text("{}")
    monkeypatch.setattr(panel, "folder", lambda *_, **__: tmp_path)
    monkeypatch.setattr(start.subprocess, "Popen", lambda *_, **__: pytest.fail("it was called"))
    with start._assistant(Flags(device="cpu")) as assistant:
        assert assistant is None
