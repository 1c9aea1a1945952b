"""Stored results: who wrote them, with which code, and whether someone has edited them."""

import json
import shutil
import subprocess

import pytest

from hardcase_studies import stored

RECORD = {
    "name": "toy", "command": "hardcase reproduce toy", "seeds": 0, "data": "mnist5k", "device": "cpu",
    "versions": {"torch": "2"}, "notes": [], "columns": ["a"], "rows": [{"a": "é 1"}],
}  # fmt: skip


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A checkout with this module in it, where git is there."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    folder = tmp_path / "code"
    (folder / "src").mkdir(parents=True)
    here = folder / "src" / "stored.py"
    here.write_text("first")
    monkeypatch.setattr(stored, "__file__", str(here))

    def git(*words):
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True)

    for words in (("init", "-b", "main"), ("add", "."), ("commit", "-m", "first")):
        git(*words)
    return here, git


def written(folder):
    return json.loads(stored.write(folder / "toy.json", RECORD).read_text(encoding="utf-8"))


def test_a_result_knows_its_commit_and_what_was_done_since(code, tmp_path):
    here, git = code
    record = written(tmp_path)
    assert len(record["commit"]) == 40
    assert not stored.faults(record)
    edited = {**record, "rows": [{"a": "é 2"}]}
    assert stored.faults(edited) == ["edited since it was written"]
    here.write_text("second")
    assert "made by code that was changed" in stored.faults(written(tmp_path))[0]
    git("commit", "--amend", "-m", "otherwise")
    assert "is no ancestor" in stored.faults(record)[0]


def test_code_without_a_checkout_has_the_commit_that_it_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "__file__", str(tmp_path / "stored.py"))
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    assert stored.commit() is None
    assert "no commit" in stored.faults({**RECORD, "commit": None})
    monkeypatch.setenv("GIT_COMMIT", "abc123")
    assert stored.commit() == "abc123"
