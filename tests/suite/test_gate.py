"""The gate: confirmed failures only, honest intervals, files that CI systems read."""

from xml.etree import ElementTree

import pytest
from aftermath import verdict, write_run

from hardcase.errors import Problem
from hardcase.suite.gate import Limits, assert_confirmed_rate, gate, github, junit, passed

DARK = [10] * 30


def judged(folder, confirmed=3, **given):
    """Thirty attempted seeds, six of them failing, `confirmed` of those confirmed."""
    said = [verdict(kept=i < confirmed, silent=i == 0) for i in range(6)]
    return write_run(
        folder, levels=DARK, found={i: [200] for i in range(6)}, verdicts=said, **given
    )


def test_only_confirmed_failures_count(tmp_path):
    run = judged(tmp_path / "run")
    assert passed(gate(run, Limits(confirmed_rate=0.1)))
    assert not passed(gate(run, Limits(confirmed_rate=0.09)))
    (_, check) = gate(run, Limits(confirmed_rate=0.09))
    assert "3 of 30 attempted seeds = 10.0 %" in check.text


def test_the_upper_end_is_stricter(tmp_path):
    run = judged(tmp_path / "run")
    assert not passed(gate(run, Limits(confirmed_rate=0.2, upper=True)))
    assert passed(gate(run, Limits(confirmed_rate=0.3, upper=True)))


def test_silent_distinct_and_class_limits(tmp_path):
    run = judged(tmp_path / "run")
    assert passed(gate(run, Limits(silent_rate=1 / 30, distinct=1, class_rate=0.1)))
    wrong = [
        check.name
        for check in gate(run, Limits(silent_rate=0.03, distinct=0, class_rate=0.05))
        if not check.passed
    ]
    assert wrong == ["confirmed, class dark", "confirmed and confident", "distinct"]


def test_too_few_usable_seeds_never_pass(tmp_path):
    run = judged(tmp_path / "run", confirmed=0)
    assert not passed(gate(run, Limits(confirmed_rate=1.0, usable=31)))
    assert passed(gate(run, Limits(confirmed_rate=1.0, usable=30)))


def test_what_cannot_be_decided_is_a_problem(tmp_path):
    run = judged(tmp_path / "run")
    with pytest.raises(Problem, match="no limit"):
        gate(run, Limits())
    with pytest.raises(Problem, match="between 0 and 1"):
        Limits(confirmed_rate=5)
    plain = write_run(tmp_path / "plain", levels=DARK, found={0: [200]})
    with pytest.raises(Problem, match="hardcase judge"):
        gate(plain, Limits(confirmed_rate=0.1))
    with pytest.raises(Problem, match="not complete"):
        gate(judged(tmp_path / "half", complete=False), Limits(confirmed_rate=0.1))


def test_an_assertion_for_tests_of_ones_own(tmp_path):
    judged(tmp_path / "run")
    assert_confirmed_rate(tmp_path / "run", 0.1)
    with pytest.raises(AssertionError, match=r"3 of 30 attempted seeds .* at most 5\.0 %"):
        assert_confirmed_rate(tmp_path / "run", 0.05)


def test_junit_and_annotations(tmp_path):
    checks = gate(judged(tmp_path / "run"), Limits(confirmed_rate=0.05))
    root = ElementTree.parse(junit(checks, tmp_path / "out/gate.xml", name="run")).getroot()
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.find("failure") is not None for case in suite] == [False, True]
    lines = github(checks)
    assert lines[0].startswith("::notice ")
    assert lines[1].startswith("::error title=hardcase gate::confirmed: 3 of 30")
    assert "%25" in lines[1]
    assert " %" not in lines[1].replace("%25", "")
