"""The first screen: the terminal's decision, every figure of the record in the plot, and what to do next."""

import json

import pytest
from drawn import drawn_run, judge

import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.report.page import report_content
from hardcase.runs.results import Run
from hardcase.suite.gate import GateLimits, decision_of
from hardcase.testing.toys import toy_images, toy_subject

GIVEN = {"method": "none", "conditions": {"shift": "±50 %"}, "judge": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A measured run of a toy that a shift misleads."""
    folder = tmp_path_factory.mktemp("decision") / "run"
    return hc.run(toy_subject(), toy_images(60), out=folder, **GIVEN)


def section(run, **limits):
    return report_content([run], GateLimits(**limits) if limits else None)["runs"][0]


@pytest.mark.parametrize(("risk", "word"), [(None, "MEASURED"), (0.001, "FAIL"), (0.99, "PASS")])
def test_the_decision_is_the_first_line_of_the_terminal(run, risk, word):
    limits = {} if risk is None else {"risk": risk}
    decided = decision_of(run, GateLimits(**limits))
    first = section(run, **limits)["decision"]
    assert (first["word"], first["sentence"]) == (decided.word, decided.sentence)
    assert first["word"] == word
    assert first["plot"]["limit"] == risk
    page = hc.report(run, out=run.folder.parent / str(risk), limits=GateLimits(**limits))
    text = " ".join(page.read_text().replace("<b>", "").replace("</b>", "").split())
    assert f"{decided.word} {decided.sentence}" in text


def test_the_plot_has_every_rate_of_the_record(run):
    risk = run.record["risk"]
    rows = section(run)["decision"]["plot"]["rows"]
    truth = [risk["unmodified"], risk, *risk["wider"]]
    assert risk["value"] > 0.05, "the toy fails, or this shows nothing"
    if risk["worst_region"]:
        truth.insert(2, {**risk["worst_region"], "high": None})
    places = [tuple(row[name] for name in ("value", "low", "high")) for row in rows]
    assert places == [tuple(one[name] for name in ("value", "low", "high")) for one in truth]


def test_a_baseline_is_a_row_of_the_plot(tmp_path):
    other = toy_subject(30.0)
    run = hc.run(toy_subject(), toy_images(60), out=tmp_path / "run", baseline=other, **GIVEN)
    [baseline] = run.record["risk"]["baselines"]
    row = section(run)["decision"]["plot"]["rows"][-1]
    assert row["value"] == baseline["value"]
    assert "difference" in row["text"]


def test_a_phase_that_failed_is_the_first_word(run, tmp_path):
    record = json.loads((run.folder / "run.json").read_text())
    phases = {**record["phases"], "search": {"status": "failed", "why": "no memory was left"}}
    broken = drawn_run(tmp_path / "run", seeds=20, phases=phases, complete=False)
    first = section(broken, risk=0.5)["decision"]
    assert first["word"] == "FAILED"
    assert "no memory was left" in first["sentence"]
    assert first["next"][0]["command"].startswith("hardcase resume")


def test_an_unfinished_run_says_what_is_missing(tmp_path):
    phases = {"measure": {"status": "done"}, "search": {"status": "running"}}
    run = drawn_run(tmp_path / "run", seeds=20, complete=False, phases=phases)
    first = section(run)["decision"]
    assert "the search, the label check" in first["unfinished"]
    assert "the measurement" not in first["unfinished"]
    assert first["next"][0]["command"].startswith("hardcase resume")


def test_a_search_alone_has_no_plot_and_decides_by_limits_on_findings_alone(tmp_path):
    run = judge(drawn_run(tmp_path / "run", per_seed=2))
    first = section(run)["decision"]
    assert (first["word"], first["plot"]) == ("INCONCLUSIVE", None)
    assert section(run, accepted_rate=0.01)["decision"]["word"] == "FAIL"


def test_what_to_do_next_has_a_command(run, tmp_path):
    commands = [step["command"] for step in section(run)["decision"]["next"]]
    assert any("--max-risk" in command for command in commands)
    high = run.record["risk"]["high"]
    limit = next(float(c.rpartition(" ")[2]) for c in commands if "--max-risk" in c)
    assert high <= limit <= high + 0.01, "a limit that this run would hold"
    failing = [step["command"] for step in section(run, risk=0.001)["decision"]["next"]]
    assert any(command.startswith("hardcase repair") for command in failing)
    unjudged = section(drawn_run(tmp_path / "run"))["decision"]["next"]
    assert any(step["command"].startswith("hardcase judge") for step in unjudged)


def test_limits_that_cannot_be_held_leave_the_page(tmp_path):
    """Failures that nobody judged cannot be held against a limit: the figures are told anyway."""
    run = drawn_run(tmp_path / "run", seeds=20)
    with pytest.raises(HardcaseError):
        decision_of(run, GateLimits(accepted_rate=0.1))
    assert section(run, accepted_rate=0.1)["decision"]["limits"] == []


def test_a_measurement_that_runs_share_is_shown_once(run, tmp_path):
    both = report_content([run, Run(run.folder)])["runs"]
    assert [one["measured_in"] for one in both] == [None, 0]
    page = hc.report(run, Run(run.folder), out=tmp_path / "both").read_text()
    assert page.count('class="whiskers"') == hc.report(run, out=tmp_path / "one").read_text().count(
        'class="whiskers"'
    )
    with pytest.raises(HardcaseError, match="needs a folder"):
        hc.report(run, run)
