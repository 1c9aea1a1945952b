"""Rating studies: what is written can be read, and wrong answers are told by their line."""

import json

import pytest
import torch

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.testing.toys import toy_images
from hardcase_studies.people import (
    Exhibition,
    friedman,
    grouped,
    raters,
    read_answers,
    read_table,
    shuffled,
)


def test_an_exhibition_is_a_folder_of_images_tables_and_instructions(tmp_path):
    x = toy_images(2).x
    shown = Exhibition({"a": x[0], "b": x[1]}, {"items": [["item"], ["a"], ["b"]]}, {"scale": [1]})
    shown.write(tmp_path)
    assert (tmp_path / "images" / "b.png").read_bytes().startswith(b"\x89PNG")
    assert read_table(tmp_path / "items.csv", ["item"], "the items") == [
        {"item": "a"},
        {"item": "b"},
    ]
    assert json.loads((tmp_path / "study.json").read_text()) == {"scale": [1]}


def test_answers_that_are_none_are_told_by_their_line(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("rater,score\nr0,3\nr1,many\n")
    with pytest.raises(Problem, match="line 3 is no rating"):
        read_answers(path, ["rater", "score"], lambda row: int(row["score"]), fix="a number")
    with pytest.raises(Problem, match="no column 'seconds'"):
        read_answers(path, ["seconds"], dict, fix="")


def test_everyone_has_an_order_of_their_own():
    orders = {name: shuffled(range(20), rng) for name, rng in raters(3, 0, "test").items()}
    assert list(orders) == ["r000", "r001", "r002"]
    assert all(sorted(order) == list(range(20)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 3
    assert shuffled(range(9), stream(1)) == shuffled(range(9), stream(1))


def test_values_are_grouped_in_the_order_in_which_keys_occur():
    assert grouped(["b1", "a2", "b3"], lambda s: s[0], lambda s: float(s[1])) == {
        "b": [1.0, 3.0],
        "a": [2.0],
    }


def test_methods_that_never_differ_have_no_friedman_test():
    assert friedman(torch.ones(5, 3)) is None
