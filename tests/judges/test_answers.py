"""What people answered: kept with the run, and in the verdicts of the images they saw."""

import json

import pytest
import torch
from judged import made_run, splits

from hardcase.errors import HardcaseError
from hardcase.judges.answers import AnswerFile, PersonAnswer, read_answers, trusted
from hardcase.judges.verdicts import judge_run
from hardcase.runs.results import Run
from hardcase.tensors import from_bytes


@pytest.fixture
def run(tmp_path):
    """Forty images: tests that fade out step by step, of which every third is another class."""
    _, test = splits()
    x, y = test.x[:40], test.y[:40]
    seed = from_bytes(x)
    fade = torch.linspace(1, 0.1, 40)[:, None, None, None]
    found = fade * seed
    found[::3] = seed[(torch.arange(0, 40, 3) + 1) % 40]
    return made_run(tmp_path / "run", x, y, found)


def given(name, said, expected="0", **known):
    known = {"session": "s", "check": False, **known}
    return PersonAnswer(name, said, expected, "rater", 1.0, 0.1, "rule", **known)


def test_a_question_is_on_disk_before_its_answer(run):
    file = AnswerFile(run.folder)
    file.ask("f", {"probability": 0.25, "rule": "rule"})
    row = json.loads((run.folder / "answers.jsonl").read_text())
    assert (row["asked"], row["probability"], row["rule"]) == ("f", 0.25, "rule")
    assert read_answers(run.folder) == []
    file.add(given("f", "1"))
    (one,) = read_answers(run.folder)
    assert (one.said, one.probability, one.kept) == ("1", 0.1, False)
    (run.folder / "answers.jsonl").write_text("{no json\n")
    with pytest.raises(HardcaseError, match=r"answers\.jsonl"):
        read_answers(run.folder)


def test_a_session_that_fails_its_checks_does_not_count():
    good = [given("a", "0"), given("c", "0", check=True)]
    bad = [given("b", "0", session="t"), given("d", "2", session="t", check=True)]
    assert [one.image for one in trusted([*good, *bad])] == ["a", "c"]
    words = {"0": "kept", "2": "lost", "none": "foreign", "unsure": "unsure"}
    assert {word: given("a", word).verdict for word in words} == words


def test_answers_are_the_verdicts_of_their_findings_and_of_no_others(judge, run):
    before = judge_run(run, judge)
    earlier = before.verdicts
    unasked = before.record["search_results"]["confirmed"]
    ids = before.findings["id"].to_pylist()
    classes = [before.classes[row] for row in before.findings["expected"].to_pylist()]
    file = AnswerFile(run.folder)
    answers = [classes[0], "none", "unsure", *["none"] * 9]
    for name, word, expected in zip(ids, answers, classes):
        file.add(given(name, word, expected))
    after = judge_run(Run(run.folder), judge)
    rows = [after.verdicts[name] for name in ids]
    assert [row["verdict"] for row in rows[:3]] == ["kept", "foreign", "unsure"]
    assert {row["by"] for row in rows[:12]} == {"person"}
    assert {row["by"] for row in rows[12:]} <= {"judge", "norm"}
    others = ("verdict", "p_kept")
    for name, row in zip(ids[12:], rows[12:]):
        assert [row[key] for key in others] == [earlier[name][key] for key in others]
    assert unasked is None
    assert after.counts()["search_results"]["confirmed"] == 1
