"""Analyses of a simulated crowd whose truth is known, and what is never taken for people."""

import json
import shutil

import numpy as np
import pytest
from asking import as_people

from hardcase import Run
from hardcase.errors import HardcaseError
from hardcase_study import analyse, new, papers, rated, record, simulate
from hardcase_study.answers import Answers, Given, Rater
from hardcase_study.bundle import DESIGNS


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_gives_a_page_and_numbers_that_say_simulated(make, design):
    study = make(design, raters=8)
    simulate(study, cheats=0.15)
    found = analyse(study.folder)
    page = (study.folder / "analysis" / "index.html").read_text()
    stored = json.loads((study.folder / "analysis" / "analysis.json").read_text())
    assert found["simulated"] is stored["simulated"] is True
    assert "No person did" in found["warning"]
    assert "<title>SIMULATED" in page
    assert "No person did" in page
    assert "http://" not in page.replace("http-equiv", "")
    assert all(one["rater"].startswith("simulated-") for one in found["raters"])
    assert found["all"]["raters"] == 8
    assert len(found["shares"]) == len(study.main)


def test_shares_come_first_and_agree_with_the_truth(make):
    study = make("label", raters=24)
    truth = simulate(study)
    found = analyse(study.folder)
    row = next(one for one in found["all"]["labels"]["methods"] if one["method"] == "sinvad")
    tests = [i for i in study.main.values() if study.stimuli[i.stimuli[0]].role == "test"]
    seen = [truth.seen[item.stimuli[0]] for item in tests]
    own = [study.classes[study.stimuli[item.stimuli[0]].expected] for item in tests]
    expected = np.mean([(word in s) / len(s) for s, word in zip(seen, own)]) * 0.94
    assert row["mean"]["low"] <= expected <= row["mean"]["high"]
    assert abs(row["mean"]["value"] - expected) < 0.05
    assert found["all"]["agreement"]["alpha"]["value"] > 0.6
    outcomes = {one["item"]: one for one in found["all"]["labels"]["posterior"]["items"]}
    clear = [(item.id, s[0]) for item, s in zip(tests, seen) if len(s) == 1]
    right = [outcomes[name]["outcome"] == word for name, word in clear]
    assert np.mean(right) > 0.93


def test_the_confirmed_rate_covers_what_the_crowd_sees(make):
    study = make("label", raters=12)
    truth = simulate(study)
    rate = analyse(study.folder)["confirmed"]["sinvad"]
    kept = [
        truth.seen[n] == (study.classes[s.expected],)
        for n, s in study.stimuli.items()
        if s.role == "test"
    ]
    about = study.settings["runs"]["sinvad"]
    expected = np.mean(kept) * about["failing"] / about["searched"]
    assert rate["low"] - 0.08 <= expected <= rate["high"] + 0.08
    assert rate["rated"] < rate["failing"] <= rate["searched"]


def test_anchoring_is_measured(make):
    study = make("same", raters=20)
    simulate(study)
    found = analyse(study.folder)["all"]["anchoring"]
    assert found["sham same"]["value"] > 0.9 > 0.1 > found["sham other"]["value"]
    assert abs(found["difference"]) < 0.15


def test_a_fault_shows_in_its_own_arm_alone(make):
    study = make("fault", raters=20)
    simulate(study)
    arms = {row["arm"]: row for row in analyse(study.folder)["all"]["fault"]}
    assert arms["faulty"]["more"]["low"] > 0.5
    assert max(arms["clean"]["more"]["value"], arms["placebo"]["more"]["value"]) < 0.1


def test_compared_methods_come_in_their_order(make):
    study = make("compare", raters=10)
    simulate(study)
    rows = analyse(study.folder)["all"]["compare"]
    strengths = [row["strength"] for row in sorted(rows, key=lambda row: row["method"])]
    assert strengths == sorted(strengths, reverse=True)
    assert sum(row["of"] for row in rows) == 2 * sum(row["won"] for row in rows)


def test_sinvads_numbers_by_hand(make):
    study = make("sinvad")
    item = next(i for i in study.main.values() if study.stimuli[i.stimuli[0]].method == "cw")
    source, target = item.truth
    given = [
        Given(rater, item.id, 1, {source: s, target: t}, seconds)
        for rater, s, t, seconds in (("a", "5", "1", 4.0), ("b", "3", "3", 8.0))
    ]
    first, second = papers.ratings(study, given)
    assert (first.confusion, first.leaning, first.acceptability) == (1, 4, 6)
    assert (second.confusion, second.leaning, second.acceptability) == (5, 0, 6)
    (row,) = papers.sinvad(study, given)["methods"]
    assert (row["method"], row["confusion"]["mean"]) == ("cw", 3)
    assert (row["acceptability"], row["seconds"]) == (6, 6)


def test_one_odd_rater_is_no_difference_between_methods():
    """Many answers of few people: the interval is of new people and new images."""
    from hardcase_study.papers import Rating, _crossed

    given = [
        Rating(rater, str(image), method, 1 + odd, 1, 2.0)
        for image in range(60)
        for method in ("real", "cw")
        for rater, odd in (("a", 4 if method == "real" else 0), ("b", 0), ("c", 0))
    ]
    low, high = _crossed(given, "confusion", "real", "cw")
    assert low <= 0 < high
    alike = [Rating(str(rater), str(image), method, 5 if method == "real" else 1, 1, 2.0)
             for image in range(9) for rater in range(9) for method in ("real", "cw")]  # fmt: skip
    assert np.isnan(_crossed(alike, "confusion", "real", "cw")).all(), "no spread, no interval"


def test_arguss_figure_by_hand(make):
    study = make("argus")
    given = []
    for rater in "ab":
        for item in study.main.values():
            order = sorted(item.stimuli, key=lambda s: study.stimuli[s].method)
            grades = {f"grade-{s}": "4" if i == 0 else "1" for i, s in enumerate(order)}
            given.append(Given(rater, item.id, 1, {"order": order, **grades}))
    found = papers.argus(study, given)
    assert [row["rank"]["mean"] for row in found["methods"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["grade"]["mean"] for row in found["methods"]] == [4, 1, 1, 1, 1, 1, 1]
    assert found["w"] == {"mean": 1.0, "originals": 10}
    assert all(row["p_holm"] >= row["p"] for row in found["tests"])


def test_pilots_are_left_out_and_nobody_is_an_error(make):
    study = make()
    with pytest.raises(HardcaseError, match="nobody has answered"):
        analyse(study.folder)
    store = as_people(study)
    store._transact(lambda run: run("UPDATE rater SET kind = 'pilot' WHERE slot < 5"))
    found = analyse(study.folder)
    assert (found["pilots"], found["all"]["raters"], found["simulated"]) == (5, 7, False)
    store._transact(lambda run: run("UPDATE rater SET kind = 'pilot'"))
    with pytest.raises(HardcaseError, match="12 raters of a trial run are left out"):
        analyse(study.folder)


def test_a_simulated_crowd_is_never_people(make):
    study = make()
    simulate(study)
    with pytest.raises(HardcaseError, match=r"no person has answered .*; a judge is calibrated on"):
        rated(study.folder)
    assert record(study.folder) == {}
    store = Answers(study.folder)
    store.add([Rater("somebody", 99, "person", "en", 0.0, None)], [])
    with pytest.raises(HardcaseError, match="must not be mixed in"):
        simulate(study)


def test_what_people_say_is_entered_into_the_run_and_not_drawn_again(runs, tmp_path):
    shutil.copytree(runs / "sinvad", tmp_path / "run")
    study = new([tmp_path / "run"], "label", tmp_path / "first")
    as_people(study)
    funnel = Run(tmp_path / "run").record["search_results"]
    (entry,) = record(study.folder).values()
    stored = Run(tmp_path / "run").record
    assert stored["people"] == entry
    assert stored["search_results"] == funnel
    assert entry["rated"] == 57
    assert 0 < entry["confirmed"] <= entry["rated"]
    assert entry["rate"]["rated"] == 57
    second = new([tmp_path / "run"], "label", tmp_path / "second")
    seen = {s.seed for s in study.stimuli.values() if s.role == "test"}
    assert not seen & {s.seed for s in second.stimuli.values() if s.role == "test"}
    assert second.settings["runs"]["sinvad"]["rated_before"] == 57
