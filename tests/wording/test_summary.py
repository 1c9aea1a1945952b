"""The last screen of a run: the first word follows from the figures, and every line fits."""

from types import SimpleNamespace

import pytest

from hardcase.wording.summary import (
    WIDTH,
    Decision,
    conditions_name,
    decide,
    failure_of,
    figures,
    search_sentence,
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


def check(name, outcome, value, low, high, *, limit=0.01, decide=""):
    return SimpleNamespace(
        name=name,
        outcome=outcome,
        text=f"{name}: {outcome}",
        decide=decide,
        value=value,
        low=low,
        high=high,
        limit=limit,
    )


RATE = ("failure rate", 0.024, 0.017, 0.033)
AGAINST = ("failure rate against zoo:lenet1", -0.0135, -0.02, -0.005)


@pytest.mark.parametrize(
    ("outcomes", "word"),
    [
        ((), "MEASURED"),
        (("pass",), "PASS"),
        (("fail",), "FAIL"),
        (("inconclusive",), "INCONCLUSIVE"),
        (("pass", "fail"), "FAIL"),
        (("inconclusive", "pass"), "INCONCLUSIVE"),
        (("fail", "inconclusive"), "FAIL"),
    ],
)
def test_the_first_word_is_the_worst_of_limit_and_baseline(outcomes, word):
    facts = (RATE, AGAINST)
    checks = [
        check(name, outcome, *figures, decide="hardcase run ... --measure 4000")
        for (name, *figures), outcome in zip(facts, outcomes)
    ]
    said = decide(record(), checks)
    assert said.word == word
    assert ("4000" in said.sentence) == (word == "INCONCLUSIVE")


def test_a_failed_phase_comes_first_and_a_run_without_figures_is_inconclusive():
    phases = {"measure": {"status": "done"}, "search": {"status": "failed", "why": "no space."}}
    said = decide(record(phases=phases))
    assert (said.word, said.sentence.endswith("no space")) == ("FAILED", True)
    assert failure_of({"phases": {"measure": {"status": "running"}}}) is None
    assert decide({}).word == "INCONCLUSIVE"


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


def test_images_left_out_are_told_with_what_they_would_add():
    short = record(conditions=None)
    short["risk"] |= {"value": 0.2, "low": 0.1, "high": 0.4, "images": 100, "of": 400}
    short["risk"]["settled"] = "time"
    assert figures(short)[2] == (
        "  100 of 400 images     --measure all narrows the interval to about 15.0 to 30.0"
    )
    short["risk"]["settled"] = ""
    assert len(figures(short)) == 2


def test_names_are_short():
    assert short_name("weights.safetensors@net.py:make") == "weights.safetensors"
    assert short_name("zoo:lenet5") == "lenet5"
    assert conditions_name({}) == "unmodified images"
    assert conditions_name({"conditions": {}}) == "unmodified images"
    assert conditions_name({"conditions": {"name": "scanner"}}) == "scanner conditions"


def test_a_run_without_figures_has_no_empty_table():
    lines = summary_lines({"model": "m"}, Decision("INCONCLUSIVE", "not yet"), report="stopped")
    assert lines == ["INCONCLUSIVE  not yet", "", "report       stopped"]


def test_a_search_that_conditions_do_not_bound_says_so():
    counts = {"failing": 3, "searched": 4, "clusters": None}
    named = {"method": "pgd", "conditions": {"name": "scanner"}, "space": None}
    unbounded = search_sentence(named, counts)
    assert unbounded.endswith("Scanner conditions do not bound this search.")
    within = {**named, "space": {"columns": [0, 1]}}
    without = {**named, "conditions": None}
    for bounded in (within, without):
        assert "bound" not in search_sentence(bounded, counts)
