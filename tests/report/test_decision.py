"""The first screen: the verdict of the gate with its uncertainty, pictures, and what to do next."""

import json

import pytest
from browser import PROGRAM, Browser
from drawn import drawn_run, judge

from hardcase.report.decision import where_in_one_sentence
from hardcase.report.page import report_content, write
from hardcase.runs.results import Run
from hardcase.runs.verify import Verification
from hardcase.suite.gate import GateLimits, gate, outcome

SOUND = {"calibrated": True, "accuracy": 0.97, "status": "calibrated"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return judge(drawn_run(tmp_path_factory.mktemp("decision") / "run"), card=SOUND)


def decided(run, limits=None):
    return report_content([run], limits)["runs"][0]["decision"]


@pytest.mark.parametrize(("rate", "verdict"), [(0.2, "fail"), (0.4, "cannot tell"), (0.9, "pass")])
def test_the_page_says_what_the_gate_says(run, rate, verdict, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "verification", property(lambda run: Verification("verified")))
    limits = GateLimits(confirmed_rate=rate)
    said = decided(run, limits)
    assert said["verdict"] == outcome(gate(run, limits)) == verdict
    assert said["undecided"] == run.counts()["search_results"]["unsure"] > 0
    assert said["confirmed"]["hits"] == run.counts()["search_results"]["accepted"]
    assert said["with_undecided"]["hits"] == said["confirmed"]["hits"] + said["undecided"]
    assert len(said["pictures"]) == 3
    page = write([run], tmp_path, limits=limits)
    text = page.read_text()
    assert text.index(said["word"]) < text.index("How many seeds the search could break")
    stored = json.loads((tmp_path / "report.json").read_text())["runs"][0]["decision"]
    assert stored == json.loads(json.dumps(said))


def test_limits_that_the_run_was_started_with_are_shown(run, tmp_path):
    (run.folder / "config.toml").write_text("[limits]\nconfirmed_rate = 0.2\n")
    said = decided(Run(run.folder))
    assert (said["verdict"], said["limits_from"]) == ("fail", "run")
    (run.folder / "config.toml").write_text("")
    said = decided(Run(run.folder))
    assert (said["verdict"], said["limits"]) == ("no limits", [])
    assert any("limits.risk" in (step["command"] or "") for step in said["next"])


def test_a_judge_nobody_calibrated_passes_nothing(run, tmp_path):
    weak = judge(drawn_run(tmp_path / "weak"), card={"calibrated": False, "status": "no"})
    said = decided(weak, GateLimits(confirmed_rate=1.0))
    assert said["verdict"] == "cannot tell"
    assert "not calibrated" in said["weak_judge"]
    assert any("--calibrate" in step["text"] for step in said["next"])


def test_unjudged_and_empty_runs_say_so(tmp_path):
    said = decided(drawn_run(tmp_path / "plain"), GateLimits(confirmed_rate=0.05))
    assert said["verdict"] == "cannot tell"
    assert "nobody has judged" in said["sentence"]
    assert said["next"][0]["command"].startswith("hardcase judge")
    none = decided(drawn_run(tmp_path / "none", failing=-1.0), GateLimits(confirmed_rate=0.05))
    assert none["verdict"] == "pass"
    assert "no proof" in none["sentence"]
    assert none["pictures"] == []


@pytest.mark.browser
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)")
def test_the_first_screen_fits_a_desk_and_a_phone(run, tmp_path):
    page = write([run], tmp_path, limits=GateLimits(confirmed_rate=0.4, class_rate=0.95))
    browser = Browser()
    try:
        for width, height in ((1280, 900), (400, 1400)):
            browser.open(page, width=width, height=height)
            assert browser.js("document.documentElement.scrollWidth") == width
            bottom = "document.querySelector('.decision .next').getBoundingClientRect().top"
            assert browser.js(bottom) < height
            assert browser.complaints() == []
    finally:
        browser.close()


def test_one_sentence_says_where(run):
    said = decided(run)["where"]
    assert said.startswith("Where it fails: ")
    assert "most often " in said
    assert " is taken for " in said
    rate = {"share": 0.68}
    held = [{"name": "dark and tilted", "inside": rate, "outside": {"share": 0.09}}]
    pairs = [{"expected": 0, "predicted": 1, "tests": 3}]
    told = where_in_one_sentence(held, pairs, run.classes, 9)
    assert "on seeds that are dark and tilted (68.0\u00a0%, elsewhere 9.0\u00a0%)" in told
    assert where_in_one_sentence(held, [], run.classes, 0) is None


def test_several_runs_are_decided_together_and_the_worst_decides(run, tmp_path):
    other = judge(drawn_run(tmp_path / "other", method="pgd"), card=SOUND)
    said = report_content([run, other], GateLimits(confirmed_rate=0.2))["decision"]
    assert said["verdict"] == "fail"
    assert said["sentence"].startswith("Run run: ")
    assert said["note"] == "The verdict of other is the same."
    page = write([run, other], tmp_path / "report", limits=GateLimits(confirmed_rate=0.2))
    text = page.read_text()
    assert text.index("Not within its limits") < text.index("Side by side")
    first = text[: text.index("Side by side")]
    assert "What to do next" in first
    assert first.count('class="flip"') == 3, "three findings on the first screen"
