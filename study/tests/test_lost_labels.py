"""People rate the random failing samples of a run: the share that lost its label, beside the judge's."""

import json
import shutil

import pytest
from asking import as_people

import hardcase as hc
from hardcase.analysis.conditions import shown_samples
from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.report import report
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.wording.checks import lost_in_words
from hardcase_study import analyse, new, record
from hardcase_study.bundle import Study


def measured(out, conditions):
    how = {"method": "none", "judge": False, "conditions": conditions, "samples": 16}
    return hc.run(toy_subject(20.0), toy_images(60), out=out, **how)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run without search: its failing samples are all that it has."""
    declared = {"rotation": "±40 deg", "exposure": "±1 stops"}
    return measured(tmp_path_factory.mktemp("runs") / "first", declared)


@pytest.fixture
def own(stored, tmp_path):
    return shutil.copytree(stored.folder, tmp_path / "own")


def answered(study, say):
    """Three people answer every item by `say(expected, stimulus)`; checks and repeats rightly."""
    store = as_people(study, raters=3)
    rows = list[tuple[str, str, str]]()
    for one in store.all():
        shown = study.stimuli[study.items[one.item].stimuli[0]]
        label = study.classes[shown.expected]
        said = say(label, shown) if shown.finding else label
        rows.append((json.dumps({"label": said}), one.rater, one.item))
    change = "UPDATE answer SET value = ? WHERE rater = ? AND item = ?"
    store._transact(lambda run: [run(change, *row) for row in rows])


def test_draws_are_shown_each_by_itself_with_the_label_of_their_seed(stored, own, tmp_path):
    shown = shown_samples(stored)
    study = new([own], out=tmp_path / "study", conditions=True)
    tests = {one.finding: one for one in study.stimuli.values() if one.finding}
    assert study.of_conditions
    assert len({row["original"] for row in shown}) < len(tests) <= len(shown) <= 60
    facts = {(row["original"], row["label"], row["predicted"]) for row in shown}
    assert {(one.seed, one.expected, one.predicted) for one in tests.values()} <= facts
    assert all(one.expected != one.predicted for one in tests.values())


def test_what_people_say_stands_beside_the_judge(own, tmp_path, capsys):
    folder = tmp_path / "study"
    sizes = "--raters 3 --votes 3 --per-rater 80 --repeats 0"
    assert main(f"study new {own} --conditions --out {folder} {sizes}".split()) == 0
    study = Study.open(folder)
    assert record(folder) == {}
    lost = sorted({one.finding for one in study.stimuli.values() if one.finding})[::3]
    answered(study, lambda label, one: "none" if one.finding in lost else label)
    assert main(f"study analyse {folder}".split()) == 0
    run = hc.Run(own)
    people = run.record["risk"]["lost_labels_people"]
    assert people == analyse(folder)["lost_labels"]["conditions"]
    rated = len({one.finding for one in study.stimuli.values() if one.finding})
    assert (people["lost"], people["decided"], people["shown"]) == (len(lost), rated, rated)
    assert people["low"] < people["lost"] / people["decided"] < people["high"]
    assert people["people"] == 3
    assert "people" not in run.record, "nothing was said of findings"
    assert run.verification.state == "verified"
    words = f"3 people call {len(lost)} lost"
    assert words in lost_in_words(run.record["risk"])
    assert words in capsys.readouterr().out
    assert words in (own / report(run)).read_text()

    def keeps(findings):
        return hc.Verdicts(["kept"] * len(findings))

    judged = hc.judge(run, by=keeps).record
    assert judged["risk"]["lost_labels_people"] == people
    assert judged["risk"]["lost_labels"]["lost"] == 0
    assert "the label check calls 0 lost" in lost_in_words(judged["risk"])
    assert words in lost_in_words(judged["risk"])


def test_a_run_is_known_by_its_draws(own, tmp_path):
    study = new([own], out=tmp_path / "study", conditions=True)
    as_people(study)
    moved = own.rename(tmp_path / "moved")
    assert record(study.folder) == {}
    other = measured(own, {"rotation": "±30 deg"})
    assert record(study.folder) == {}
    assert "lost_labels_people" not in hc.Run(other.folder).record["risk"]
    assert list(record(study.folder, runs=[moved])) == [str(moved)]


def test_a_simulated_crowd_says_nothing_of_labels(own, tmp_path):
    from hardcase_study import simulate

    study = new([own], out=tmp_path / "study", conditions=True)
    simulate(study)
    assert record(study.folder) == {}
    assert "lost_labels_people" not in hc.Run(own).record["risk"]


def test_runs_without_draws_and_other_designs_are_refused(own, runs, tmp_path):
    with pytest.raises(HardcaseError, match="keeps no failing samples"):
        new([runs / "sinvad"], out=tmp_path / "none", conditions=True)
    for given in ({"design": "likert"}, {"ask": 5}):
        with pytest.raises(HardcaseError, match="goes with the design label"):
            new([own], out=tmp_path / "other", conditions=True, **given)
