"""Tables as text and pages."""

import json

import pytest

from hardcase.suite.tables import Outcome, Table


def test_an_outcome_is_written_as_text_page_and_numbers_under_names_of_their_own(tmp_path):
    table = Table("A <table>", ["what", "ours"], [["seeds", 3], ["success", 0.12345], ["x", None]])
    Outcome("toy", [table]).write(tmp_path, "hardcase reproduce toy")
    text = (tmp_path / "results.md").read_text()
    assert "| success | 0.1235 |" in text
    assert "| x | not run |" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A &lt;table&gt;" in page
    assert "hardcase reproduce toy" in page
    assert json.loads((tmp_path / "results.json").read_text())["tables"][0]["rows"][0][1] == 3
    with pytest.raises(ValueError, match="two columns have one name"):
        Table("odd", ["guide", "delta", "delta"], [])
