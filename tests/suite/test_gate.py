"""The gate: confirmed failures only, honest intervals, files that CI systems read."""

from unittest import SkipTest
from xml.etree import ElementTree

import pytest
from aftermath import verdict, write_run

import hardcase as hc
from hardcase.analysis.slices import having, tagged_seeds
from hardcase.errors import Problem
from hardcase.suite import gate as gates
from hardcase.suite.gate import GateLimits, GateTally, assert_confirmed_rate, gate, outcome
from hardcase.testing.toys import toy_images, toy_subject

DARK = [10] * 30
SOUND = {"calibrated": True, "accuracy": 0.97}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Thirty attempted seeds, six of them failing, three of those confirmed, one confidently."""
    said = [verdict(kept=i < 3, silent=i == 0) for i in range(6)]
    found = {i: [200] for i in range(6)}
    folder = tmp_path_factory.mktemp("gate") / "run"
    return write_run(folder, levels=DARK, found=found, verdicts=said, judge=SOUND)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"confirmed_rate": 0.1}, []),
        ({"confirmed_rate": 0.09}, ["confirmed"]),
        ({"confirmed_rate": 0.3, "upper": True}, []),
        ({"confirmed_rate": 0.2, "upper": True}, ["confirmed"]),
        ({"silent_rate": 1 / 30, "distinct": 1, "class_rate": 0.1}, []),
        ({"silent_rate": 0.03}, ["confirmed and confident"]),
        ({"distinct": 0}, ["distinct"]),
        ({"class_rate": 0.05}, ["confirmed, class dark"]),
        ({"class_rate": 0.01, "classes": {"dark": 0.1}}, []),
        ({"class_rate": 0.1, "classes": {"dark": 0.01}}, ["confirmed, class dark"]),
        ({"confirmed_rate": 1.0, "usable": 30}, []),
        ({"confirmed_rate": 1.0, "usable": 31}, ["usable seeds"]),
    ],
)
def test_only_confirmed_failures_count_and_each_limit_is_held(judged, limits, expected):
    found = gate(judged, GateLimits(**limits))
    assert [check.name for check in found if not check.passed] == expected
    assert not any(check.decide for check in found if check.outcome != "cannot tell")


def test_what_cannot_be_decided_is_a_problem(tmp_path, judged):
    plain = write_run(tmp_path / "plain", levels=DARK, found={0: [200]})
    half = write_run(tmp_path / "half", levels=DARK, found={0: [200]}, complete=False)
    for run, limits, match in (
        (judged, {}, "no limit"),
        (judged, {"classes": {"drak": 0.1}}, "no class 'drak'"),
        (judged, {"slices": {"dark and purple": 0.1}}, "tag of these seeds"),
        (plain, {"confirmed_rate": 0.1}, "hardcase judge"),
        (plain, {"witnessed_rate": 0.1}, "witness"),
        (plain, {"risk": 0.1}, "risk"),
        (half, {"confirmed_rate": 0.1}, "not complete"),
    ):
        with pytest.raises(Problem, match=match):
            gate(run, GateLimits(**limits))


def test_junit_and_annotations(tmp_path, judged):
    checks = gate(judged, GateLimits(confirmed_rate=0.05))
    assert (checks[1].least, checks[1].of, checks[1].limit) == (3, 30, 0.05)
    written = gates.write_junit(checks, tmp_path / "out/gate.xml", name="run")
    (suite,) = ElementTree.parse(written).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [False, True]
    lines = gates.github(checks)
    assert lines[0].startswith("::notice ")
    assert lines[1].startswith("::error title=hardcase gate::confirmed: 3 of 30")
    assert " %" not in lines[1].replace("%25", "")


def open_run(folder, confirmed, undecided, refused=0, **given):
    """Forty attempted seeds of which so many are confirmed, undecided and refused."""
    said = [verdict()] * confirmed + [verdict(kept=None)] * undecided + [verdict(kept=False)] * refused  # fmt: skip
    found = {i: [200] for i in range(len(said))}
    about = {"judge": SOUND, **given}
    return write_run(folder, levels=[10] * 40, found=found, verdicts=said, **about)


@pytest.mark.parametrize(
    ("confirmed", "undecided", "limit", "expected"),
    [
        (2, 0, 0.05, "pass"),
        (3, 0, 0.05, "fail"),
        (2, 3, 0.05, "cannot tell"),
        (3, 30, 0.05, "fail"),
        (2, 3, 0.125, "pass"),
        (0, 39, 0.05, "cannot tell"),
    ],
)
def test_the_undecided_count_both_ways(tmp_path, confirmed, undecided, limit, expected):
    run = open_run(tmp_path / "run", confirmed, undecided, refused=confirmed + undecided < 40)
    found = gate(run, GateLimits(confirmed_rate=limit))
    assert outcome(found) == expected
    assert run.undecided() == undecided
    assert (found[1].least, found[1].most, found[1].of) == (confirmed, confirmed + undecided, 40)
    assert bool(found[1].decide) == (expected == "cannot tell")


def test_a_seed_with_one_confirmed_finding_is_decided(tmp_path):
    said = [verdict(), verdict(valid=None), verdict(kept=False), verdict(kept=None)]
    found = {0: [200, 210], 1: [200, 210]}
    run = write_run(tmp_path / "run", levels=DARK, found=found, verdicts=said, judge=SOUND)
    assert run.undecided() == 1
    (check,) = gate(run, GateLimits(confirmed_rate=0.5))[1:]
    assert (check.least, check.most) == (1, 2)


WEAK = {"calibrated": True, "accuracy": 0.53}


@pytest.mark.parametrize("judge", [{"calibrated": False}, WEAK, None])
def test_a_weak_or_uncalibrated_judge_never_passes(tmp_path, judge):
    run = open_run(tmp_path / "run", 1, 0, refused=20, judge=judge)
    found = gate(run, GateLimits(confirmed_rate=1.0))
    assert outcome(found) == "cannot tell"
    assert "--calibrate" in found[1].decide
    assert outcome(gate(run, GateLimits(confirmed_rate=0.01))) == "fail"
    nothing = write_run(tmp_path / "nothing", levels=DARK, found={}, judge=judge)
    assert outcome(gate(nothing, GateLimits(confirmed_rate=0.0))) == "pass"


def test_witnessed_failures_need_no_judge(tmp_path):
    run = write_run(tmp_path / "run", levels=DARK, found={0: [200]}, witnesses={"models": ["b"]})
    assert outcome(gate(run, GateLimits(witnessed_rate=0.0))) == "pass"
    tally = GateTally(run)
    tally.rows = [{**row, "witnessed": True} for row in tally.rows]
    assert tally.witnessed == {"s0"}


def test_accepted_failures_do_not_count_and_are_listed(tmp_path, judged):
    names = judged.findings["id"].to_pylist()
    listed = tmp_path / "known.txt"
    listed.write_text(f"# known\n{names[0]}  # ticket 7\n\ns1\nnowhere\n")
    accepted = gates.read_accepted(listed)
    assert accepted == {names[0], "s1", "nowhere"}
    (check,) = gate(judged, GateLimits(confirmed_rate=0.05, accepted=accepted))[1:]
    assert (check.least, check.of, check.outcome) == (1, 30, "pass")
    tally = GateTally(judged, accepted)
    assert [row["id"] for row in tally.accepted] == names[:2]
    assert tally.unused == ["nowhere"]
    with pytest.raises(Problem):
        gates.read_accepted(tmp_path / "gone.txt")


def test_limits_come_from_a_file_with_flags_above():
    values = {"model": "unknown", "limits": {"confirmed_rate": 0.1, "classes": {"dark": 0.2}}}
    expected = GateLimits(confirmed_rate=0.3, classes={"dark": 0.2})
    assert GateLimits.of(values, confirmed_rate=0.3, class_rate=None) == expected
    for section, flags, place in (
        ({"confirmed_rates": 0.1}, {}, r"limits\.confirmed_rate"),
        ({"classes": {"dark": 7}}, {}, r"limits\.classes\.dark"),
        ({"slices": {"dark": 2}}, {}, r"limits\.slices\.dark"),
        ({}, {"risk": 5}, r"limits\.risk"),
    ):
        with pytest.raises(Problem, match=place):
            GateLimits.of({"limits": section}, **flags)


def test_an_assertion_for_tests_of_ones_own(tmp_path, judged):
    assert_confirmed_rate(judged.folder, 0.1)
    with pytest.raises(AssertionError, match="3 of 30"):
        assert_confirmed_rate(judged, 0.05)
    run = open_run(tmp_path / "run", 1, 9)
    with pytest.raises(SkipTest, match="9 undecided"):
        assert_confirmed_rate(run, 0.05)
    with pytest.raises(AssertionError, match="9 undecided"):
        assert_confirmed_rate(run, 0.05, strict=True)
    found = gate(run, GateLimits(confirmed_rate=0.05))
    written = gates.write_junit(found, tmp_path / "gate.xml", name="run")
    (suite,) = ElementTree.parse(written).getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    assert found[1].decide in suite[1].find("skipped").get("message")
    assert gates.github(found)[1].startswith("::warning ")


def test_limits_of_slices_hold_for_the_seeds_that_have_the_tags(tmp_path):
    levels = list(range(10, 100, 3))
    found = {i: [200] for i in range(6)}
    said = [verdict() for _ in range(6)]
    run = write_run(tmp_path / "run", levels=levels, found=found, verdicts=said, judge=SOUND)
    tags, seeds = tagged_seeds(run)
    assert len(having(tags, seeds, "bright")) == 10
    (_, check) = gate(run, GateLimits(slices={"bright": 0.1}))
    assert (check.outcome, check.of) == ("pass", 10)
    (_, check) = gate(run, GateLimits(slices={"dark": 0.1}))
    assert (check.outcome, check.name) == ("fail", "confirmed, slice dark")


MEASURED = {
    "risk": {"value": 0.1, "low": 0.05, "high": 0.15, "samples": 4, "images": 30, "failing": 12},
    "accuracy": {"value": 0.9, "images": 30},
    "least_scale": {"quantiles": {"0.1": 0.4}, "seeds": 30},
}  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "changes", "expected"),
    [
        ({"risk": 0.2}, {}, "pass"),
        ({"risk": 0.1}, {}, "cannot tell"),
        ({"risk": 0.01}, {}, "fail"),
        ({"accuracy": 0.5}, {}, "pass"),
        ({"accuracy": 0.9}, {}, "cannot tell"),
        ({"accuracy": 0.99}, {}, "fail"),
        ({"least_scale": 0.2}, {}, "pass"),
        ({"least_scale": 0.2}, {"worst_case": {"comparable": False}}, "cannot tell"),
        ({"least_scale": 0.2}, {"least_scale": None}, "cannot tell"),
        ({"least_scale": 0.9}, {}, "fail"),
    ],
)
def test_measured_figures_are_held_by_their_intervals(tmp_path, limits, changes, expected):
    run = write_run(tmp_path / "run", levels=DARK, found={})
    run.record.update({**MEASURED, **changes})
    (check,) = gate(run, GateLimits(**limits))
    assert check.outcome == expected
    assert bool(check.decide) == (expected == "cannot tell")


def test_enough_images_must_be_usable_only_where_those_that_were_searched_are_counted(tmp_path):
    run = write_run(tmp_path / "run", levels=DARK[:3], found={})
    run.record.update(MEASURED)
    assert [check.name for check in gate(run, GateLimits(risk=0.2))] == ["risk"]
    for counted in ({"confirmed_rate": 0.2}, {"usable": 2}):
        assert gate(run, GateLimits(risk=0.2, **counted))[0].name == "usable seeds"


def test_a_run_is_held_against_its_baseline_image_by_image(tmp_path):
    given = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}
    run = hc.run(toy_subject(), toy_images(24), out=tmp_path / "run", **given)
    found = gate(run, GateLimits(), run)
    assert found[-1].name == "risk against the baseline"
    assert found[-1].limit == GateLimits().risk_margin
    assert outcome(found) in ("pass", "cannot tell"), "24 images do not show that nothing changed"
    alone = gate(run, GateLimits())[-1]
    assert alone.outcome == "cannot tell"
    assert "--baseline OLD" in alone.decide
