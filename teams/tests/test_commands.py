"""``hardcase card``: one verb, three products, each by its flag."""

import json

import pytest

from hardcase.cli.main import main


@pytest.fixture
def folder(measured):
    return measured[0].folder


def test_a_record_is_written_and_checked(folder, tmp_path, capsys):
    limits = tmp_path / "limits.toml"
    limits.write_text("[limits]\nrisk = 1.0\n")
    words = ["card", str(folder), "--record", "--to", str(tmp_path / "r"), "--version", "1", "--config", str(limits)]  # fmt: skip
    assert main([*words, "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["outcome"] == "pass"
    assert main(["card", said["written"], "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "1"
    path = tmp_path / "r" / "1.json"
    path.write_text(path.read_text().replace('"pass"', '"fail"'))
    assert main(["card", str(path)]) == 1


def test_a_comment_stands_beside_the_baseline(folder, tmp_path):
    words = ["card", str(folder), "--comment", "--to", str(tmp_path), "--baseline", str(folder)]
    assert main(words) == 0
    assert "| baseline |" in (tmp_path / "comment.md").read_text()


def test_without_a_folder_nothing_is_written(folder):
    assert main(["card", str(folder)]) == 2


def test_without_the_library_the_install_is_named(folder, tmp_path, monkeypatch, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["card", str(folder), "--to", str(tmp_path)]) == 2
    assert "hardcase[huggingface]" in capsys.readouterr().err
