"""Stored speeds: of one commit, with the code that they measured, and known as stale after it changed."""

import ast
import importlib
import json
from pathlib import Path

import pytest

import benchmarks
from benchmarks import figures
from hardcase_studies import stored

FILES = sorted(Path(benchmarks.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_benchmark_imports_of_ours_exists(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hardcase"):
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


def test_a_result_is_of_one_commit_and_says_which_rows_are_stale(tmp_path, monkeypatch):
    code = tmp_path / "engine.py"
    code.write_text("fast = True")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "imported_files", lambda: ["engine.py"])
    row = {"unit": "s", "against": "nothing", "command": "python -m benchmarks"}

    def measured(commit, *names):
        monkeypatch.setattr(stored, "commit", lambda: commit)
        figures.collect([figures.Figure(name=name, value=1.0, **row) for name in names])
        return json.loads((tmp_path / "bench-cpu.json").read_text())

    measured("first", "start")
    record = measured("second", "search")
    assert [kept["name"] for kept in record["rows"]] == ["search"]  # the first commit's row left
    record = measured("second", "judge")
    assert [kept["name"] for kept in record["rows"]] == ["judge", "search"]
    assert figures.stale_rows(record) == []
    code.write_text("fast = False")
    assert figures.stale_rows(record) == ["judge", "search"]
