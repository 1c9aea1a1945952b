"""What people answered: kept with the run, in its verdicts, and in later runs of the same space."""

import json

import numpy as np
import pytest
import torch
from judged import made_run, splits

from hardcase.errors import Problem
from hardcase.judges import people
from hardcase.judges.asking import Draw
from hardcase.judges.grouping import thumbnails
from hardcase.judges.people import AnswerFile, PersonAnswer, read_answers
from hardcase.judges.verdicts import judge_run, verdicts_of
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.tensors import from_bytes


@pytest.fixture
def run(tmp_path):
    return a_run(tmp_path / "run")


def a_run(folder, **record):
    """Forty seeds: tests that fade out step by step, of which every third is another class."""
    _, test = splits()
    x, y = test.x[:40], test.y[:40]
    seed = from_bytes(x)
    fade = torch.linspace(1, 0.1, 40)[:, None, None, None]
    found = fade * seed
    found[::3] = seed[(torch.arange(0, 40, 3) + 1) % 40]
    about = {"space": {"text": "made:fading"}, **record}
    return made_run(folder, x, y, found, record=about)


def given(name, said, expected="0", **known):
    known = {"session": "s", "check": False, **known}
    return PersonAnswer(name, said, expected, "rater", 1.0, 0.1, "rule", **known)


def answered(run, words):
    """Write an answer for each of the first findings."""
    file = AnswerFile(run.folder)
    for row, word in enumerate(words):
        name = run.findings["id"][row].as_py()
        expected = run.classes[run.findings["expected"][row].as_py()]
        draw = Draw(row, row, 0.1, 0.5, row, "rule")
        file.ask(name, draw)
        file.answer(name, expected if word == "right" else word, expected, 2.0, draw)


def test_a_question_is_on_disk_with_its_chance_before_its_answer(run):
    file = AnswerFile(run.folder)
    file.ask("f", Draw(0, 7, 0.25, 0.5, 0, "rule"))
    row = json.loads((run.folder / "answers.jsonl").read_text())
    assert (row["asked"], row["probability"], row["rule"]) == ("f", 0.25, "rule")
    assert read_answers(run.folder) == []
    file.answer("f", "1", "0", 3.0, Draw(0, 7, 0.25, 0.5, 0, "rule"))
    (one,) = read_answers(run.folder)
    assert (one.said, one.seconds, one.probability, one.kept) == ("1", 3.0, 0.25, False)
    (run.folder / "answers.jsonl").write_text("{no json\n")
    with pytest.raises(Problem, match=r"answers\.jsonl"):
        read_answers(run.folder)


def test_a_session_that_fails_its_checks_does_not_count():
    good = [given("a", "0"), given("c", "0", check=True)]
    bad = [given("b", "0", session="t"), given("d", "2", session="t", check=True)]
    assert [one.image for one in people.trusted([*good, *bad])] == ["a", "c"]
    means = {"0": "confirmed", "2": "rejected", "none": "rejected", "unsure": "undecided"}
    for word, outcome in means.items():
        assert people.outcome_of(given("a", word)) == outcome


def test_answers_are_the_verdicts_of_their_findings_and_move_those_of_others(judge, run):
    before = judge_run(run, judge)
    earlier = before.verdicts
    answered(before, ["right", "none", "unsure", *["none"] * 9])
    after = judge_run(Run(run.folder), judge)
    ids = after.findings["id"].to_pylist()
    rows = [after.verdicts[name] for name in ids]
    for row, answer in zip(rows, (True, False, None)):
        assert (row["valid"], row["label_kept"], row["by"]) == (answer, answer, "person")
    assert {row["by"] for row in rows[12:]} <= {"judge", "norm"}
    first = np.array([earlier[name]["p_label_kept"] for name in ids[12:]])
    second = np.array([row["p_label_kept"] for row in rows[12:]])
    assert second.mean() < first.mean()
    own = after.record["judge"]["own_rules"]["label_kept"]
    assert (own["answers"], own["reused"]) == (12, 0)


def test_a_later_run_of_the_same_space_reuses_them_and_says_so(judge, run, tmp_path):
    answered(run, ["none"] * 10)
    judge_run(run, judge)
    twin = a_run(tmp_path / "twin", identity=Identity({"seed": "1"}).to_json())
    elsewhere = {"identity": Identity({"seed": "2"}).to_json(), "space": {"text": "made:else"}}
    other = a_run(tmp_path / "other", **elsewhere)
    told = judge_run(twin, judge).record["judge"]
    assert len(people.reusable(twin, judge)) == told["own_rules"]["label_kept"]["reused"] == 10
    assert "10 answers about earlier runs" in told["standing"]
    assert judge_run(other, judge).record["judge"]["own_rules"]["label_kept"]["reused"] == 0


def test_questions_leave_out_seeds_that_people_have_seen(judge, run):
    judged = judge_run(run, judge)
    said = verdicts_of(judge, judged)
    looks = thumbnails(judged, range(len(judged))).numpy()
    first, rows = people.asking_of(judged, judge, said, looks, budget=5)
    assert len(rows) == len(first.population) <= 40
    answered(judged, ["right"] * 6)
    later, left = people.asking_of(Run(run.folder), judge, said, looks, budget=5)
    seen = {judged.findings["id"][row].as_py() for row in range(6)}
    assert not seen & {*later.population.ids}
    assert len(left) + later.population.known == len(rows) + first.population.known
    assert len(later.population.earlier) == 6


def test_the_record_says_by_how_many_people_and_how_chosen(judge, run):
    judged = judge_run(run, judge)
    answered(judged, ["right", "none", "unsure"])
    entry = people.enter_people(judged)
    assert (entry["rated"], entry["confirmed"], entry["undecided"]) == (3, 1, 1)
    assert (entry["asked"]["people"], entry["asked"]["chosen"]) == (1, ["rule"])
    fresh = Run(run.folder)
    assert fresh.record["people"] == entry
    assert "one person" in fresh.summary()


def test_a_run_of_few_findings_keeps_the_thresholds_of_the_judge(judge, tmp_path):
    _, test = splits()
    few = made_run(tmp_path / "few", test.x[:5], test.y[:5], 0.5 * from_bytes(test.x[:5]))
    assert "own_rules" not in judge_run(few, judge).record["judge"]
