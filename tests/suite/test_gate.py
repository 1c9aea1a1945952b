"""The gate: one outcome for each limit, by intervals; what is unsure counts both ways; files that CI systems read."""

from unittest import SkipTest
from xml.etree import ElementTree

import numpy as np
import pytest
from aftermath import verdict, write_run

import hardcase as hc
from hardcase.analysis.slices import having, tagged_seeds
from hardcase.config import DROPPED_LIMITS, RENAMED_LIMITS, LimitsConfig
from hardcase.errors import HardcaseError
from hardcase.suite import gate as gates
from hardcase.suite.gate import GateLimits, GateTally, assert_failure_rate, gate, outcome
from hardcase.testing.toys import toy_images, toy_subject

DARK = [10] * 400
SOUND = {"calibrated": True, "accuracy": 0.97}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """400 searched images, forty of them failing, twenty of these accepted, five with high confidence."""
    said = [verdict("kept" if i < 20 else "lost", silent=i < 5) for i in range(40)]
    found = {i: [200] for i in range(40)}
    folder = tmp_path_factory.mktemp("gate") / "run"
    return write_run(folder, levels=DARK, found=found, verdicts=said, judge=SOUND)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"accepted_rate": 0.08}, "pass"),  # 5 % (3.1 to 7.6)
        ({"accepted_rate": 0.05}, "inconclusive"),
        ({"accepted_rate": 0.03}, "fail"),
        ({"high_confidence_rate": 0.03}, "pass"),  # 1.25 % (0.4 to 2.9)
        ({"high_confidence_rate": 0.01}, "inconclusive"),
        ({"high_confidence_rate": 0.003}, "fail"),
    ],
)
def test_a_limit_on_findings_is_held_by_its_interval(judged, limits, expected):
    (check,) = gate(judged, GateLimits(**limits))
    assert check.outcome == expected
    assert check.low < check.value < check.high
    assert bool(check.decide) == (expected == "inconclusive")
    assert check.images == 400


def test_limits_share_the_error_of_a_fail_and_none_of_a_pass(judged):
    alone = gate(judged, GateLimits(accepted_rate=0.0305))
    both = gate(judged, GateLimits(accepted_rate=0.0305, high_confidence_rate=0.5))
    assert [check.outcome for check in alone] == ["fail"]
    assert [check.outcome for check in both] == ["inconclusive", "pass"]
    assert (alone[0].low, alone[0].high) == (both[0].low, both[0].high), "95 % are shown"
    assert outcome(both) == "inconclusive"


def test_what_cannot_be_decided_is_a_problem(tmp_path, judged):
    plain = write_run(tmp_path / "plain", levels=DARK[:30], found={0: [200]})
    half = write_run(tmp_path / "half", levels=DARK[:30], found={0: [200]}, complete=False)
    for run, limits, match in (
        (judged, {}, "no limit"),
        (judged, {"slices": {"dark and purple": 0.1}}, "tag of these images"),
        (plain, {"accepted_rate": 0.1}, "hardcase judge"),
        (plain, {"witnessed_rate": 0.1}, "witness"),
        (plain, {"risk": 0.1}, "measured"),
        (half, {"accepted_rate": 0.1}, "not complete"),
    ):
        with pytest.raises(HardcaseError, match=match):
            gate(run, GateLimits(**limits))


def open_run(folder, accepted, unsure, refused=0, **given):
    """Four hundred searched images of which so many are accepted, unsure and refused."""
    said = [verdict()] * accepted + [verdict("unsure")] * unsure + [verdict("lost")] * refused
    found = {i: [200] for i in range(len(said))}
    return write_run(folder, levels=DARK, found=found, verdicts=said, **{"judge": SOUND, **given})


@pytest.mark.parametrize(
    ("accepted", "unsure", "limit", "expected"),
    [
        (4, 0, 0.05, "pass"),
        (60, 0, 0.05, "fail"),
        (4, 30, 0.05, "inconclusive"),
        (60, 300, 0.05, "fail"),
        (4, 30, 0.13, "pass"),
        (0, 399, 0.05, "inconclusive"),
    ],
)
def test_what_is_unsure_counts_both_ways(tmp_path, accepted, unsure, limit, expected):
    run = open_run(tmp_path / "run", accepted, unsure, refused=accepted + unsure < 400)
    (check,) = gate(run, GateLimits(accepted_rate=limit))
    assert check.outcome == expected
    assert check.value == accepted / 400


def test_an_image_with_one_accepted_finding_is_decided(tmp_path):
    said = [verdict(), verdict("unsure"), verdict("lost"), verdict("unsure")]
    found = {0: [200, 210], 1: [200, 210]}
    run = write_run(tmp_path / "run", levels=DARK[:30], found=found, verdicts=said, judge=SOUND)
    tally = GateTally(run)
    assert (len(tally.accepted), len(tally.unsure)) == (1, 1)


WEAK = {"calibrated": True, "accuracy": 0.53}


@pytest.mark.parametrize("judge", [{"calibrated": False}, WEAK, None])
def test_a_weak_or_uncalibrated_label_check_never_passes(tmp_path, judge):
    run = open_run(tmp_path / "run", 8, 0, refused=40, judge=judge)
    (check,) = gate(run, GateLimits(accepted_rate=1.0))
    assert check.outcome == "inconclusive"
    assert "--calibrate" in check.decide
    assert outcome(gate(run, GateLimits(accepted_rate=0.001))) == "fail"
    nothing = write_run(tmp_path / "nothing", levels=DARK, found={}, judge=judge)
    assert outcome(gate(nothing, GateLimits(accepted_rate=0.01))) == "pass"


def test_a_model_that_misreads_images_does_not_pass_for_having_fewer_to_search(tmp_path):
    misread = [10] * 340 + [240] * 60
    run = write_run(tmp_path / "run", levels=misread, found={}, judge=SOUND)
    assert len(GateTally(run).misread) == 60
    assert outcome(gate(run, GateLimits(accepted_rate=0.1))) == "fail"
    assert outcome(gate(run, GateLimits(high_confidence_rate=0.1))) == "fail"


def test_an_image_that_was_not_searched_may_fail(tmp_path):
    run = write_run(
        tmp_path / "run", levels=DARK, found={}, queries=[0] * 100 + [10] * 300, judge=SOUND
    )
    assert len(GateTally(run).unsearched) == 100
    assert outcome(gate(run, GateLimits(accepted_rate=0.1))) == "inconclusive"


def test_witnessed_failures_need_no_label_check(tmp_path):
    run = write_run(tmp_path / "run", levels=DARK, found={0: [200]}, witnesses={"models": ["b"]})
    assert outcome(gate(run, GateLimits(witnessed_rate=0.02))) == "pass"
    tally = GateTally(run)
    tally.rows = [{**row, "witnessed": True} for row in tally.rows]
    assert tally.witnessed == {"s0"}


def test_known_failures_do_not_count_and_are_listed(tmp_path, judged):
    names = judged.findings["id"].to_pylist()
    listed = tmp_path / "known.txt"
    listed.write_text(f"# known\n{names[0]}  # ticket 7\n\ns1\nnowhere\n")
    known = gates.read_known(listed)
    assert known == {names[0], "s1", "nowhere"}
    (check,) = gate(judged, GateLimits(accepted_rate=0.5, known=known))
    assert (check.value, check.images) == (18 / 400, 400)
    tally = GateTally(judged, known)
    assert [row["id"] for row in tally.known] == names[:2]
    assert tally.unused == ["nowhere"]
    with pytest.raises(HardcaseError):
        gates.read_known(tmp_path / "gone.txt")


def test_limits_come_from_a_file_with_flags_above():
    values = {"model": "unknown", "limits": {"accepted_rate": 0.1, "classes": {"dark": 0.2}}}
    expected = GateLimits(accepted_rate=0.3, classes={"dark": 0.2})
    assert GateLimits.of(values, accepted_rate=0.3, class_risk=None) == expected
    for section, flags, place in (
        ({"accepted_rates": 0.1}, {}, r"limits\.accepted_rate"),
        ({"classes": {"dark": 7}}, {}, r"limits\.classes\.dark"),
        ({"slices": {"dark": 2}}, {}, r"limits\.slices\.dark"),
        ({}, {"risk": 5}, r"limits\.risk"),
    ):
        with pytest.raises(HardcaseError, match=place):
            GateLimits.of({"limits": section}, **flags)


@pytest.mark.parametrize("name", [*RENAMED_LIMITS, *DROPPED_LIMITS])
def test_limits_of_the_past_are_refused_by_name(name):
    assert name not in LimitsConfig.model_fields
    with pytest.raises(HardcaseError, match=rf"limits\.{name} is"):
        GateLimits.of({"limits": {name: 0.1}})


def test_junit_and_annotations(tmp_path, judged):
    limits = {"accepted_rate": 0.01, "high_confidence_rate": 0.01}
    found = gate(judged, GateLimits(**limits))
    written = gates.write_junit(found, tmp_path / "out/gate.xml", name="run")
    (suite,) = ElementTree.parse(written).getroot()
    counts = [suite.get(name) for name in ("tests", "failures", "skipped")]
    assert counts == ["2", "1", "1"]
    assert suite[0].find("failure") is not None
    assert found[1].decide in suite[1].find("skipped").get("message")
    lines = gates.github(found)
    assert lines[0].startswith("::error title=hardcase gate::accepted failures: 20 of 400")
    assert lines[1].startswith("::warning ")
    assert " %" not in lines[0].replace("%25", "")


def test_limits_of_slices_hold_for_the_images_that_have_the_tags(tmp_path):
    levels = np.linspace(10, 100, 400).round().astype(int).tolist()
    found = {i: [200] for i in range(90)}
    said = [verdict() for _ in range(90)]
    run = write_run(tmp_path / "run", levels=levels, found=found, verdicts=said, judge=SOUND)
    tags, seeds = tagged_seeds(run)
    bright = having(tags, seeds, "bright")
    (check,) = gate(run, GateLimits(slices={"bright": 0.1}))
    assert (check.outcome, check.images) == ("pass", len(bright))
    (check,) = gate(run, GateLimits(slices={"dark": 0.1}))
    assert (check.outcome, check.name) == ("fail", "accepted failures, slice dark")


# --- what was measured


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A network that is seldom wrong, under conditions, on 400 images."""
    given = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}
    folder = tmp_path_factory.mktemp("measured")
    return hc.run(toy_subject(), toy_images(400), out=folder / "run", **given)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"risk": 0.03}, "pass"),  # 0.8 % (0.3 to 1.8), with a tie
        ({"risk": 0.005}, "inconclusive"),
        ({"accuracy": 0.98}, "pass"),
        ({"accuracy": 0.995}, "inconclusive"),
        ({"class_risk": 0.05}, "pass"),
        ({"classes": {"north-west": 0.05}}, "pass"),
        ({"classes": {"north-west": 0.005}, "class_risk": 0.05}, "inconclusive"),
    ],
)
def test_measured_figures_are_held_by_their_intervals(measured, limits, expected):
    found = gate(measured, GateLimits(**limits))
    assert outcome(found) == expected
    assert len(found) == (4 if "class_risk" in limits else 1)


def test_what_was_not_measured_is_a_problem(measured, tmp_path):
    for limits, match in (
        ({"classes": {"north": 0.1}}, "no class 'north'"),
        ({"accepted_rate": 0.1}, "without a search"),
        ({"risk": 0.1, "conditions": "scanner"}, "not measured under the conditions"),
    ):
        with pytest.raises(HardcaseError, match=match):
            gate(measured, GateLimits(**limits))
    given = {"method": "none", "conditions": "none", "judge": False}
    plain = hc.run(toy_subject(), toy_images(40), out=tmp_path / "plain", **given)
    with pytest.raises(HardcaseError, match="without declared conditions"):
        gate(plain, GateLimits(risk=0.1))


def test_a_run_is_held_against_its_baseline_image_by_image(measured, tmp_path):
    given = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}
    again = hc.run(toy_subject(), toy_images(400), out=tmp_path / "again", **given)
    (check,) = gate(again, GateLimits(), measured)
    assert (check.outcome, check.images) == ("pass", 400)
    few = hc.run(toy_subject(), toy_images(400), out=tmp_path / "few", measure=100, **given)
    (check,) = gate(few, GateLimits(), measured)
    assert (check.outcome, check.images) == ("inconclusive", 100), "a beginning is no loss"
    (check,) = gate(measured, GateLimits(), few)
    assert (check.outcome, check.images) == ("inconclusive", 100)


def test_a_model_that_was_measured_beside_is_a_baseline(tmp_path):
    beside = toy_subject()
    given = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}
    run = hc.run(toy_subject(), toy_images(400), out=tmp_path / "run", baseline=beside, **given)
    (check,) = gate(run, GateLimits())
    assert check.outcome == "pass"
    assert beside.name in check.name


def test_an_assertion_for_tests_of_ones_own(measured):
    assert_failure_rate(measured.folder, 0.05)
    with pytest.raises(SkipTest, match="without ties"):
        assert_failure_rate(measured, 0.005)
    with pytest.raises(AssertionError, match="limit"):
        assert_failure_rate(measured, 0.005, strict=True)
