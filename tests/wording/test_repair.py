"""What a repair says: the decision first, in lines that fit."""

import pytest

from hardcase.wording.repair import figure_lines, headline, repair_lines
from hardcase.wording.summary import WIDTH


def record(verdict="repaired", reasons=(), **row):
    rate = {
        "group": "declared",
        "name": "failure rate",
        "before": 0.145,
        "after": 0.039,
        "low": -0.119,
        "high": -0.093,
        "margin": 0.036,
        "decides": True,
        **row,
    }
    error = {
        **rate,
        "name": "error on unmodified images",
        "before": 0.018,
        "after": 0.02,
        "low": -0.006,
        "high": 0.01,
        "margin": 0.023,
    }
    fog = {**error, "name": "fog", "decides": False}
    return {
        "verdict": verdict,
        "model": "fixed/weights.safetensors@zoo:lenet5",
        "parents": {"model": "zoo:lenet5"},
        "conditions": {"name": "phone"},
        "proof": {
            "images": 503,
            "reasons": list(reasons),
            "bound": "worst case: at least 92% before",
            "rows": [rate, error, fog],
        },
    }


def test_the_first_word_is_the_decision_and_the_numbers_follow():
    said = headline(record())
    assert said.startswith("REPAIRED  lenet5 fails in 3.9 % instead of 14.5 %")
    assert "-10.6 pp (-11.9 to -9.3)" in said


@pytest.mark.parametrize("verdict", ["not repaired", "regressed elsewhere", "inconclusive"])
def test_what_is_not_repaired_says_why(verdict):
    said = headline(record(verdict, ["the very reason", "another"]))
    assert said.startswith(verdict.upper())
    assert "the very reason" in said
    lines = repair_lines(record(verdict, ["the very reason", "another"]))
    assert any("another" in line for line in lines)


def test_only_figures_that_decide_are_in_the_table_and_every_line_fits():
    lines = figure_lines(record())
    assert len(lines) == 3
    assert not any("fog" in line for line in lines)
    assert "margin +2.3 pp" in lines[2]
    whole = repair_lines(record(), folder="fixed")
    assert max(map(len, whole)) <= WIDTH
    assert whole[-1].endswith("fixed/report.html")
