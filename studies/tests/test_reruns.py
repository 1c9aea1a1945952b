"""Kept results of studies, and re-runs that agree with them or do not."""

import random

import pytest

from hardcase.errors import HardcaseError
from hardcase.suite.tables import Outcome, Table
from hardcase_studies.bench import Bench
from hardcase_studies.reruns import CheckedCell, check, keep, kept


def outcome(*cells, row="ours"):
    return Outcome("toy", [Table("T", ["what", *"abcdefgh"[: len(cells)]], [[row, *cells]])])


def agreement(then, now):
    return CheckedCell("t", "r", "c", then, now).agreement


def test_what_is_kept_is_read_again_and_agrees_with_itself(tmp_path):
    first = outcome("3 of 10", 0.25, None, "word")
    keep(first, Bench(out=tmp_path, seed=4), "studies/own.py:run", tmp_path)
    result = kept("toy", tmp_path)
    assert result["seeds"] == 4
    assert result["command"].startswith("hardcase reproduce toy")
    rerun = check(result, first)
    assert rerun.agrees
    assert [cell.now for cell in rerun.cells] == ["3 of 10", "0.25", "not run", "word"]


def test_rows_of_one_name_are_told_apart(tmp_path):
    table = Table("T", ["what", "a"], [["x", 1], ["x", 2]])
    written = keep(Outcome("toy", [table]), Bench(out=tmp_path), "own/studies.py:run", tmp_path)
    assert written == tmp_path / "toy.json", "a file's study is kept by its outcome's name"
    assert [row["row"] for row in kept("toy", tmp_path)["rows"]] == ["x", "x (2)"]


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ("50 of 100 = 50.0% [40%, 60%]", "60 of 100", "agrees"),
        ("50 of 100", "70 of 100", "differs"),
        ("1,000 of 2,000", "100 of 200", "agrees"),
        ("0 of 20", "3 of 20", "agrees"),
        ("0 of 20", "6 of 20", "differs"),
        ("0.10 [0.05, 0.15]", "0.16 [0.11, 0.21]", "agrees"),
        ("0.10 [0.05, 0.15]", "0.18 [0.13, 0.23]", "differs"),
        ("+1.5 % [+1.0 %, +2.0 %]", "-0.5 % [-1.0 %, 0.0 %]", "differs"),
        ("0.3", "0.4", "not compared"),
        ("detected", "not detected", "not compared"),
    ],
)
def test_numbers_are_compared_by_their_kind(then, now, said):
    assert agreement(then, now) == said


def test_a_rerun_of_the_same_law_differs_in_one_cell_of_twenty():
    rng = random.Random(0)

    def drawn(size):
        return f"{sum(rng.random() < 0.3 for _ in range(size))} of {size}"

    outside = sum(agreement(drawn(80), drawn(40)) == "differs" for _ in range(2000))
    assert 0.01 < outside / 2000 <= 0.06


def test_chance_is_allowed_for_and_a_change_is_not():
    then = [f"{30 + i % 3} of 60" for i in range(8)]
    record = {"rows": []}
    for column, value in zip("abcdefgh", then, strict=True):
        record["rows"].append({"table": "T", "row": "ours", "column": column, "value": value})
    one = check(record, outcome("50 of 60", *then[1:]))
    assert one.agrees
    assert one.count("differs") == 1
    many = check(record, outcome(*["50 of 60"] * 8))
    assert not many.agrees
    assert "does not agree: 8 of 8" in str(many)
    lost = check(record, outcome(*then, row="theirs"))
    assert not lost.agrees
    assert len(lost.lost) == 16


@pytest.mark.parametrize("text", [None, "[1]", '{"rows": [{"a": 1}]}'])
def test_what_is_no_kept_result_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "toy.json").write_text(text)
    with pytest.raises(HardcaseError):
        kept("toy", tmp_path)
