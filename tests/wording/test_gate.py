"""Lines of a gate: every figure has its interval, its limit and what it is about."""

import numpy as np

from hardcase.statistics import decide, decide_counts
from hardcase.wording.gate import conditions_line, counted_line, limit_words, rate_line, ties_line

RECORD = {"conditions": {"name": "scanner", "rotation": "±8 deg"}}


def test_a_line_has_value_interval_limit_and_conditions():
    line = rate_line("failure rate", decide(np.zeros(400), 0.05), 400, RECORD)
    for part in ("0.0 %", "(0.0 to 0.9)", "limit 5 %", "scanner conditions", "400 images"):
        assert part in line
    assert "not known" in rate_line("failure rate", decide(np.zeros(0), 0.05), 0)


def test_a_name_of_conditions_never_stands_alone():
    assert conditions_line(RECORD) == "scanner: rotation ±8 deg"
    assert conditions_line({"conditions": None}).startswith("none")


def test_what_is_unsure_is_told():
    line = counted_line("accepted failures", decide_counts(2, 5, 40, 0.05), 2, 5, 40)
    assert "2 of 40" in line
    assert "with 3 unsure ones 12.5 %" in line
    assert ties_line(np.zeros(2), np.zeros(2)) == ""
    assert "1 images" in ties_line(np.zeros(2), np.array([0.0, 1.0]))
    assert limit_words(0.0025) == "0.25 %"
