"""The gate: confirmed failures only, honest intervals, files that CI systems read."""

from unittest import SkipTest
from xml.etree import ElementTree

import pytest
from aftermath import verdict, write_run

from hardcase.analysis.insight import having, tagged_seeds
from hardcase.errors import Problem
from hardcase.suite.gate import (
    GateLimits,
    GateTally,
    assert_confirmed_rate,
    gate,
    github,
    outcome,
    passed,
    read_accepted,
    write_junit,
)

DARK = [10] * 30
SOUND = {"calibrated": True, "accuracy": 0.97}


def judged(folder, confirmed=3, **given):
    """Thirty attempted seeds, six of them failing, `confirmed` of those confirmed."""
    said = [verdict(kept=i < confirmed, silent=i == 0) for i in range(6)]
    about = {"judge": SOUND, **given}
    return write_run(
        folder, levels=DARK, found={i: [200] for i in range(6)}, verdicts=said, **about
    )


def test_only_confirmed_failures_count(tmp_path):
    run = judged(tmp_path / "run")
    assert passed(gate(run, GateLimits(confirmed_rate=0.1)))
    assert not passed(gate(run, GateLimits(confirmed_rate=0.09)))
    (_, check) = gate(run, GateLimits(confirmed_rate=0.09))
    assert "3 of 30 attempted seeds = 10.0 %" in check.text


def test_the_upper_end_is_stricter(tmp_path):
    run = judged(tmp_path / "run")
    assert not passed(gate(run, GateLimits(confirmed_rate=0.2, upper=True)))
    assert passed(gate(run, GateLimits(confirmed_rate=0.3, upper=True)))


def test_silent_distinct_and_class_limits(tmp_path):
    run = judged(tmp_path / "run")
    assert passed(gate(run, GateLimits(silent_rate=1 / 30, distinct=1, class_rate=0.1)))
    wrong = [
        check.name
        for check in gate(run, GateLimits(silent_rate=0.03, distinct=0, class_rate=0.05))
        if not check.passed
    ]
    assert wrong == ["confirmed, class dark", "confirmed and confident", "distinct"]


def test_too_few_usable_seeds_never_pass(tmp_path):
    run = judged(tmp_path / "run", confirmed=0)
    assert not passed(gate(run, GateLimits(confirmed_rate=1.0, usable=31)))
    assert passed(gate(run, GateLimits(confirmed_rate=1.0, usable=30)))


def test_what_cannot_be_decided_is_a_problem(tmp_path):
    run = judged(tmp_path / "run")
    with pytest.raises(Problem, match="no limit"):
        gate(run, GateLimits())
    with pytest.raises(Problem, match="between 0 and 1"):
        GateLimits(confirmed_rate=5)
    plain = write_run(tmp_path / "plain", levels=DARK, found={0: [200]})
    with pytest.raises(Problem, match="hardcase judge"):
        gate(plain, GateLimits(confirmed_rate=0.1))
    with pytest.raises(Problem, match="not complete"):
        gate(judged(tmp_path / "half", complete=False), GateLimits(confirmed_rate=0.1))


def test_an_assertion_for_tests_of_ones_own(tmp_path):
    judged(tmp_path / "run")
    assert_confirmed_rate(tmp_path / "run", 0.1)
    with pytest.raises(AssertionError, match=r"3 of 30 attempted seeds .* at most 5\.0 %"):
        assert_confirmed_rate(tmp_path / "run", 0.05)


def test_junit_and_annotations(tmp_path):
    checks = gate(judged(tmp_path / "run"), GateLimits(confirmed_rate=0.05))
    root = ElementTree.parse(write_junit(checks, tmp_path / "out/gate.xml", name="run")).getroot()
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [False, True]
    lines = github(checks)
    assert lines[0].startswith("::notice ")
    assert lines[1].startswith("::error title=hardcase gate::confirmed: 3 of 30")
    assert "%25" in lines[1]
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
    assert (f"{undecided} undecided" in found[1].text) == (undecided > 0)
    assert bool(found[1].decide) == (expected == "cannot tell")
    assert f"undecided: {undecided} of 40" in run.summary()


def test_a_seed_with_one_confirmed_finding_is_decided(tmp_path):
    said = [verdict(), verdict(valid=None), verdict(kept=False), verdict(kept=None)]
    found = {0: [200, 210], 1: [200, 210]}
    run = write_run(tmp_path / "run", levels=DARK, found=found, verdicts=said, judge=SOUND)
    assert run.undecided() == 1
    (check,) = gate(run, GateLimits(confirmed_rate=0.5))[1:]
    assert (check.least, check.most) == (1, 2)


@pytest.mark.parametrize(
    "judge", [{"calibrated": False}, {"calibrated": True, "accuracy": 0.53}, None]
)
def test_a_weak_or_uncalibrated_judge_never_passes(tmp_path, judge):
    run = open_run(tmp_path / "run", 1, 0, refused=20, judge=judge)
    found = gate(run, GateLimits(confirmed_rate=1.0))
    assert outcome(found) == "cannot tell"
    assert "calibrate" in found[1].decide
    assert outcome(gate(run, GateLimits(confirmed_rate=0.01))) == "fail"


def test_where_nothing_failed_no_judge_is_needed(tmp_path):
    run = write_run(tmp_path / "run", levels=DARK, found={})
    assert outcome(gate(run, GateLimits(confirmed_rate=0.0))) == "pass"


def test_limits_of_single_classes_go_before_that_of_all(tmp_path):
    run = judged(tmp_path / "run")
    assert passed(gate(run, GateLimits(class_rate=0.01, classes={"dark": 0.1})))
    assert not passed(gate(run, GateLimits(class_rate=0.1, classes={"dark": 0.01})))
    with pytest.raises(Problem, match="no class 'drak'"):
        gate(run, GateLimits(classes={"drak": 0.1}))
    with pytest.raises(Problem, match=r"limits\.classes\.dark is 3"):
        GateLimits(classes={"dark": 3})


def test_witnessed_failures_need_no_judge(tmp_path):
    run = write_run(tmp_path / "plain", levels=DARK, found={0: [200]})
    with pytest.raises(Problem, match="without witnesses"):
        gate(run, GateLimits(witnessed_rate=0.1))
    run = write_run(tmp_path / "run", levels=DARK, found={0: [200]}, witnesses={"models": ["b"]})
    assert outcome(gate(run, GateLimits(witnessed_rate=0.0))) == "pass"
    tally = GateTally(run)
    tally.rows = [{**row, "witnessed": True} for row in tally.rows]
    assert tally.witnessed == {"s0"}


def test_accepted_failures_do_not_count_and_are_listed(tmp_path):
    run = judged(tmp_path / "run")
    names = run.findings["id"].to_pylist()
    listed = tmp_path / "known.txt"
    listed.write_text(f"# known\n{names[0]}  # ticket 7\n\ns1\nnowhere\n")
    accepted = read_accepted(listed)
    assert accepted == {names[0], "s1", "nowhere"}
    (check,) = gate(run, GateLimits(confirmed_rate=0.05, accepted=accepted))[1:]
    assert (check.least, check.of, check.outcome) == (1, 30, "pass")
    tally = GateTally(run, accepted)
    assert [row["id"] for row in tally.accepted] == names[:2]
    assert tally.unused == ["nowhere"]
    with pytest.raises(Problem, match="cannot be read"):
        read_accepted(tmp_path / "gone.txt")


def test_limits_come_from_a_file_with_flags_above(tmp_path):
    values = {"model": "unknown", "limits": {"confirmed_rate": 0.1, "classes": {"dark": 0.2}}}
    assert GateLimits.of(values, confirmed_rate=0.3) == GateLimits(
        confirmed_rate=0.3, classes={"dark": 0.2}
    )
    with pytest.raises(Problem, match=r"limits\.confirmed_rate"):
        GateLimits.of({"limits": {"confirmed_rates": 0.1}})
    with pytest.raises(Problem, match=r"limits\.classes\.dark is 7"):
        GateLimits.of({"limits": {"classes": {"dark": 7}}})


def test_what_cannot_be_told_is_skipped_in_a_test_of_ones_own(tmp_path):
    open_run(tmp_path / "run", 1, 9)
    with pytest.raises(SkipTest, match="9 undecided"):
        assert_confirmed_rate(tmp_path / "run", 0.05)
    with pytest.raises(AssertionError, match="9 undecided"):
        assert_confirmed_rate(tmp_path / "run", 0.05, strict=True)
    found = gate(open_run(tmp_path / "other", 1, 9), GateLimits(confirmed_rate=0.05))
    root = ElementTree.parse(write_junit(found, tmp_path / "gate.xml", name="run")).getroot()
    assert (root[0].get("failures"), root[0].get("skipped")) == ("0", "1")
    assert "what would decide it" in root[0][1].find("skipped").get("message")
    assert github(found)[1].startswith("::warning ")


def test_limits_of_slices_hold_for_the_seeds_that_have_the_tags(tmp_path):
    levels = list(range(10, 100, 3))
    said = [verdict() for _ in range(6)]
    found = {i: [200] for i in range(6)}
    run = write_run(tmp_path / "run", levels=levels, found=found, verdicts=said, judge=SOUND)
    tags, seeds = tagged_seeds(run)
    assert {"dark", "bright"} <= set(tags.names)
    assert len(having(tags, seeds, "bright")) == 10
    checks = gate(run, GateLimits(slices={"bright": 0.1}))
    assert passed(checks)
    assert checks[-1].of == 10
    (_, check) = gate(run, GateLimits(slices={"dark": 0.1}))
    assert check.name == "confirmed, slice dark"
    assert check.outcome == "fail"
    with pytest.raises(Problem, match="tag of these seeds"):
        gate(run, GateLimits(slices={"dark and purple": 0.1}))
    with pytest.raises(Problem, match="between 0 and 1"):
        GateLimits(slices={"dark": 2})
