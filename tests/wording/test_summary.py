"""The last screen of a run: the first word follows from the figures, and every line fits."""

import pytest

from hardcase.wording.summary import (
    WIDTH,
    Decision,
    conditions_name,
    decide,
    failure_of,
    figures,
    short_name,
    summary_lines,
)


def estimate(value, low, high):
    return {"value": value, "low": low, "high": high}


RISK = {**estimate(0.024, 0.017, 0.033), "images": 1000, "unmodified": estimate(0.018, 0.01, 0.03)}


def record(difference=None, **more):
    beside = []
    if difference is not None:
        beside = [
            {
                "name": "zoo:lenet1",
                "difference": difference,
                "unmodified_difference": difference,
                "images": 1000,
                "unmodified": estimate(0.02, 0.01, 0.03),
                **estimate(0.03, 0.02, 0.04),
            }
        ]
    conditions = {"name": "scanner"}
    risk = {**RISK, "baselines": beside}
    return {"model": "zoo:lenet5", "conditions": conditions, "risk": risk, **more}


@pytest.mark.parametrize(
    ("limit", "difference", "word"),
    [
        (None, None, "MEASURED"),
        (0.01, None, "FAIL"),
        (0.04, None, "PASS"),
        (0.02, None, "INCONCLUSIVE"),
        (None, (-0.0135, -0.02, -0.005), "PASS"),
        (None, (0.05, 0.02, 0.08), "FAIL"),
        (None, (0.005, -0.01, 0.02), "INCONCLUSIVE"),
        (0.01, (-0.0135, -0.02, -0.005), "FAIL"),
        (0.02, (-0.0135, -0.02, -0.005), "INCONCLUSIVE"),
    ],
)
def test_the_first_word_is_the_worst_of_limit_and_baseline(limit, difference, word):
    seen = record(None if difference is None else estimate(*difference))
    said = decide(seen, limit=limit, margin=0.01)
    assert said.word == word
    if word == "INCONCLUSIVE":
        assert any(
            int(part.replace(",", "")) > 1000
            for part in said.sentence.split()
            if part.replace(",", "").isdigit()
        ), "how many images would decide"


def test_a_failed_phase_comes_first_and_a_run_without_figures_is_inconclusive():
    phases = {"measure": {"status": "done"}, "search": {"status": "failed", "why": "no space."}}
    said = decide(record(phases=phases), limit=0.5, margin=0.01)
    assert (said.word, said.sentence.endswith("no space")) == ("FAILED", True)
    assert failure_of({"phases": {"measure": {"status": "running"}}}) is None
    assert decide({}, limit=None, margin=0.01).word == "INCONCLUSIVE"


def test_every_line_fits_and_all_figures_have_a_row():
    long = {**record(estimate(-0.01, -0.02, -0.005)), "model": "work/" + "x" * 90 + ".py:make"}
    long["risk"]["worst_region"] = {"low": 0.09, "words": "bend over 2 %, " * 9}
    long["risk"]["effects"] = [{"condition": "bend", **estimate(0.002, 0.001, 0.004)}]
    said = Decision("PASS", "it passes " * 40)
    lines = summary_lines(long, said, search=["found " * 60], checked=["accepts 5"], report="open")
    assert all(len(line) <= WIDTH for line in lines)
    assert len(figures(long)) == 5
    assert len(figures(record(conditions=None))) == 2
    assert figures({}) == []


def test_names_are_short():
    assert short_name("weights.safetensors@net.py:make") == "weights.safetensors"
    assert short_name("zoo:lenet5") == "lenet5"
    assert conditions_name({}) == "unmodified images"
    assert conditions_name({"conditions": {}}) == "unmodified images"
    assert conditions_name({"conditions": {"name": "scanner"}}) == "scanner conditions"
