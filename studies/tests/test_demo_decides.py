"""The study of the demo: what is there is read, and three words that decide count."""

import json
from types import SimpleNamespace

import pytest

from hardcase_studies import demo_decides
from hardcase_studies.bench import Bench
from hardcase_studies.demo_decides import Demo


class Stored:
    """A run as far as the study reads it."""

    def __init__(self, folder):
        self.record = json.loads((folder / "run.json").read_text())


def finished(folder, words):
    """A demo that came to an end with these words."""
    before, verdict, after = words
    risk = {"value": 0.15, "low": 0.14, "high": 0.17}
    for name, word in (("before", before), ("after", after)):
        (folder / name).mkdir(parents=True)
        record = {"complete": True, "risk": risk, "word": word}
        (folder / name / "run.json").write_text(json.dumps(record))
    row = {"name": "failure rate", "before": 0.15, "after": 0.05, "low": -0.12, "high": -0.08}
    (folder / "repair").mkdir()
    record = {"verdict": verdict, "proof": {"rows": [row]}}
    (folder / "repair" / "repair.json").write_text(json.dumps(record))


@pytest.fixture
def stored(monkeypatch):
    monkeypatch.setattr(demo_decides, "Run", Stored)
    word = lambda run: SimpleNamespace(word=run.record["word"])  # noqa: E731
    monkeypatch.setattr(demo_decides, "decision_of", word)


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        (("FAIL", "repaired", "PASS"), True),
        (("FAIL", "not repaired", "FAIL"), True),
        (("INCONCLUSIVE", "repaired", "PASS"), False),
        (("FAIL", "inconclusive", "PASS"), False),
        (("FAIL", "repaired", "MEASURED"), False),
    ],
)
def test_all_three_steps_must_decide(tmp_path, stored, words, decides):
    finished(tmp_path / "one", words)
    assert Demo.read(tmp_path / "one").decides == decides


def test_finished_demos_are_read_and_others_are_run(tmp_path, stored, monkeypatch):
    finished(tmp_path / "demos" / "seed-0", ("FAIL", "repaired", "PASS"))
    asked = []

    def main(words):
        asked.append(words)
        finished(tmp_path / "demos" / "seed-1", ("FAIL", "inconclusive", "PASS"))
        return 0

    monkeypatch.setattr(demo_decides, "main", main)
    found = demo_decides.run(Bench(out=tmp_path, options={"runs": 2}))
    assert [words[2] for words in asked] == ["1"]
    assert found.tables[0].rows == [
        ["all three decide", "1 of 2"],
        ["FAIL, REPAIRED, PASS", "1 of 2"],
    ]
    assert found.tables[1].rows[0][-1] == "-10.0 [-12.0, -8.0]"
