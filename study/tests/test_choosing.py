"""Studies that choose by what was answered, from the run to the run."""

import csv
import io

import numpy as np
import pytest
from asking import field
from drawn import drawn_run

from hardcase.errors import HardcaseError
from hardcase.judges.answers import read_answers
from hardcase.runs.results import Run
from hardcase_study import new
from hardcase_study.answers import Answers
from hardcase_study.bundle import Study
from hardcase_study.calibration import record
from hardcase_study.choosing import GIVEN_UP, asking_of
from hardcase_study.exchange import export
from tiny import put_verdicts


@pytest.fixture
def run(tmp_path):
    """A run whose judge has a probability for every failure."""
    made = drawn_run(tmp_path / "run", method="sinvad", seed=3, per_seed=2)
    rng = np.random.default_rng(0)
    rows = [
        {"id": name, "verdict": ("unsure", "kept")[i % 2], "by": "judge", "p_kept": float(p)}
        for i, (name, p) in enumerate(zip(made.findings["id"].to_pylist(), rng.random(len(made))))
    ]
    return put_verdicts(made, rows)


@pytest.fixture
def study(run, tmp_path):
    return new([run.folder], "label", tmp_path / "asked", ask=12)


def through(study, browse, say, pages=100):
    """Answer until the study is over; `say` gives the class for an item."""
    here = browse(study)
    token = here.begin()
    seen = []
    for _ in range(pages):
        _, path, page = here.get(f"/r/{token}")
        if path.endswith("done"):
            break
        item = study.items[field(page, "item")]
        status, _ = here.send(page, path, {"label": say(item)})
        assert status == 200
        seen.append((item, page))
    return here, seen


def own(study):
    return lambda item: study.class_name(study.stimuli[item.stimuli[0]].expected)


def test_questions_follow_from_answers_with_stored_chances_and_checks_among_them(study, browse):
    here, seen = through(study, browse, own(study))
    drawn = here.store.drawn()
    assert [one.number for one in drawn] == list(range(len(drawn)))
    assert len(drawn) <= 12
    assert [one.knew for one in drawn] == [one.number for one in drawn]
    assert all(0 < one.probability <= 1 and one.rule for one in drawn)
    assert {item.use for item, _ in seen} == {"main", "attention"}
    assert sum(item.use == "main" for item, _ in seen) == len(drawn)


def test_a_page_shows_how_far_the_decision_is_and_nothing_of_the_rate(study, browse):
    here, seen = through(study, browse, own(study))
    values = [
        float(page.split('id="decision"')[1].split('value="')[1].split('"')[0]) for _, page in seen
    ]
    assert values == sorted(values)
    assert values[-1] > values[0] == 0
    _, _, desk = here.get("/desk/desk")
    assert 'id="decision"' in desk
    assert "%" not in seen[-1][1].partition("<main")[0].replace("100%", "")


def test_the_answers_become_those_of_the_run(study, run, browse):
    through(study, browse, own(study))
    entry = record(study.folder)[str(run.folder.absolute())]
    asked = entry["asked"]
    assert asked["people"] == 1
    assert asked["checks_passed"] == asked["checks"] >= 1
    assert entry["confirmed"] == entry["rated"] == asked["answers"]
    assert asked["decision"]["answers"] == entry["rated"]
    again = record(study.folder)[str(run.folder.absolute())]
    assert again["rated"] == entry["rated"]
    given = [one for one in read_answers(run.folder) if not one.check]
    assert all(one.seconds == 1.5 and one.probability and one.rule for one in given)
    later = new([run.folder], "label", study.folder.parent / "later", ask=5)
    assert not {one.image for one in given} & {s.finding for s in later.stimuli.values()}
    assert len(Run(run.folder).record["people"]["findings"]) == entry["rated"]


def test_the_rule_and_the_time_are_in_the_tables(study, browse, tmp_path):
    through(study, browse, own(study))
    text = export(study, "csv", tmp_path / "answers.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    chosen = [row for row in rows if row["rule"]]
    assert len(chosen) == len(Answers(study.folder).drawn())
    assert all(float(row["probability"]) > 0 and float(row["seconds"]) > 0 for row in chosen)


def test_two_people_at_once_never_see_the_same_and_late_answers_count_in_order(study, browse):
    here = browse(study)
    (_, one_path, one), (_, two_path, two) = here.first(), here.first()
    assert field(one, "item") != field(two, "item")
    here.send(two, two_path, {"label": "3"})
    drawn = here.store.drawn()
    asking = asking_of(study, drawn, here.store.all())
    assert asking.status().answers == 0
    here.send(one, one_path, {"label": "3"})
    assert asking_of(study, drawn, here.store.all()).status().answers == 2


def test_a_question_that_somebody_gave_up_is_asked_again(study, browse):
    here = browse(study)
    _, _, page = here.first()
    here.store._transact(lambda run: run("UPDATE draw SET stored = stored - ?", GIVEN_UP + 1))
    _, _, again = here.first()
    assert field(again, "item") == field(page, "item")
    assert len(here.store.drawn()) == 1


def test_what_later_questions_followed_from_is_not_revised(study, browse):
    here = browse(study)
    token, path, page = here.first()
    here.send(page, path, {"label": "3"})
    here.get(f"/r/{token}")
    _, back, old = here.get(path)
    here.send(old, back, {"label": "5"}, revise=True)
    assert {one.value["label"] for one in here.store.all()} == {"3"}


def test_it_ends_when_the_decision_is_made(run, tmp_path, browse):
    study = new([run.folder], "label", tmp_path / "gate", ask=60, limit=0.02)
    here, _ = through(study, browse, own(study))
    end = asking_of(study, here.store.drawn(), here.store.all()).status()
    assert end.decision == "above the limit"
    assert end.answers < len(study.settings["ask"]["items"])
    assert Study.open(study.folder).settings["ask"]["limit"] == 0.02


def test_only_one_run_and_labels_can_be_asked_about(runs, run, tmp_path):
    both, one = [run.folder, runs / "cw"], [run.folder]
    for folders, design, ask in ((both, "label", 10), (one, "likert", 10), (one, "label", 0)):
        with pytest.raises(HardcaseError):
            new(folders, design, tmp_path / "no", ask=ask)
