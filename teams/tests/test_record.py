"""Release records: signed, chained, and what changed since the one before."""

import json

import pytest

from hardcase.errors import FAILED, HardcaseError
from hardcase_teams.card import CardContent
from hardcase_teams.record import latest_record, read_record, write_record


@pytest.fixture
def folder(measured, tmp_path):
    for version, run in zip(("1.0", "1.1"), measured):
        write_record(CardContent(run), tmp_path, version=version)
    return tmp_path


def test_a_record_says_what_was_measured_and_what_changed(folder, measured):
    newest = latest_record(folder)
    assert (newest["version"], newest["number"]) == ("1.1", 2)
    assert newest["figures"]["risk"]["value"] == measured[1].record["risk"]["value"]
    assert newest["model"]["hash"] == measured[1].record["hashes"]["model"]
    changed = {row["what"]: (row["before"], row["now"]) for row in newest["changes"]}
    assert changed["conditions.shift"] == ("±30 %", "±10 %")
    assert "model.hash" not in changed
    assert newest["sha256"] in (folder / "1.1.md").read_text()


def test_what_was_changed_or_left_out_is_noticed(folder):
    path = folder / "1.0.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "outcome": "excellent"}))
    with pytest.raises(HardcaseError) as told:
        read_record(path)
    assert told.value.code == FAILED
    path.unlink()
    with pytest.raises(HardcaseError) as told:
        latest_record(folder)
    assert told.value.code == FAILED


def test_a_version_has_one_record_and_a_tame_name(folder, measured):
    for version in ("1.1", "../x", ""):
        if not version:  # the hash of the weights
            write_record(CardContent(measured[0]), folder)
        with pytest.raises(HardcaseError):
            write_record(CardContent(measured[0]), folder, version=version)
    assert latest_record(folder)["number"] == 3


def test_another_file_is_no_record(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(HardcaseError):
        read_record(tmp_path / "x.json")
