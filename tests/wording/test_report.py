"""What the report alone says: rows of the plot, next steps, what is unfinished."""

import pytest

from hardcase.wording.report import (
    change_in_brief,
    conditions_sentence,
    next_steps,
    plot_rows,
    region_sentence,
    unfinished_sentence,
)

RATE = {"value": 0.1, "low": 0.05, "high": 0.2}
RISK = {**RATE, "unmodified": {**RATE, "value": 0.02}, "images": 50, "of": 80, "samples": 4}
RECORD = {"model": "zoo:lenet5", "data": "digits", "conditions": {"name": "scanner", "bend": "2 %"}}
DONE = {"status": "done"}


def test_a_run_that_measured_nothing_has_no_plot_and_no_sentence():
    assert plot_rows(RECORD) == []
    assert conditions_sentence(RECORD) == region_sentence(RECORD) == ""


def test_unmodified_images_alone_are_one_row():
    rows = plot_rows({**RECORD, "conditions": None, "risk": RISK})
    assert [row.value for row in rows] == [0.02]


def test_a_region_is_a_bound_of_one_side():
    region = {"value": 0.5, "low": 0.42, "words": "bend over 1 %", "images": 25}
    record = {**RECORD, "risk": {**RISK, "worst_region": region}}
    assert plot_rows(record)[-1].high is None
    assert "42" in plot_rows(record)[-1].text
    assert region["words"] in region_sentence(record)


def test_what_was_measured_says_of_how_many_and_of_claims_how_many_images():
    assert "50 of 80 images" in conditions_sentence({**RECORD, "risk": RISK})
    claims = {**RECORD, "risk": {**RISK, "of": 50}, "claims": {"images": 30}}
    assert "50 claims about 30 images" in conditions_sentence(claims)


@pytest.mark.parametrize(
    ("phases", "missing"),
    [({}, ""), ({"measure": DONE, "search": {"status": "running"}}, "the search, the label check")],
)
def test_what_did_not_end_is_named(phases, missing):
    assert missing in unfinished_sentence({"complete": False, "phases": phases})
    assert unfinished_sentence({"complete": True}) == ""


@pytest.mark.parametrize(
    ("word", "verb"),
    [("FAIL", "repair"), ("MEASURED", "gate"), ("PASS", "gate"), ("FAILED", "resume")],
)
def test_every_decision_has_a_next_command(word, verb):
    given = {"unchecked": False, "declared": 0.2, "decide": []}
    steps = next_steps(word, "run", complete=word != "FAILED", **given)
    assert steps[0].command.startswith(f"hardcase {verb}")


def test_short_changes_stay_whole():
    assert change_in_brief("tilted 3°, faded by 16 %") == "tilted 3°, faded by 16 %"
    assert change_in_brief(None) == ""
