"""ARGUS's manual evaluation: what is exported gives nothing away, what comes back is checked and counted right."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from hardcase.errors import Problem
from hardcase.experiments import argus_ratings
from hardcase.experiments.argus_answers import by_original, friedman, pairs, read
from hardcase.experiments.argus_measured import Measured
from hardcase.experiments.argus_study import METHODS, Study, assign, chosen, write_study
from hardcase.experiments.bench import Bench
from hardcase.statistics import PerSeed
from hardcase.testing.toys import toy_images
from hardcase.types import Findings

SEEDS = toy_images(3, seed=1)


def study(missing=()):
    there = torch.ones(3, 7, dtype=torch.bool)
    for o, m in missing:
        there[o, m] = False
    x = (
        torch.arange(21, dtype=torch.uint8)
        .reshape(3, 7, 1, 1, 1)
        .expand(3, 7, *SEEDS.x.shape[1:])
        .contiguous()
    )
    return Study(SEEDS, x, torch.ones(3, 7, dtype=torch.int64), there)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def ratings(folder, opinion):
    """A file in which two people answer `opinion(original, method, rater)` = rank, score for every item of the key."""
    lines = ["rater,item,rank,score"]
    for rater in (0, 1):
        for row in rows(folder / "key.csv"):
            rank, score = opinion(row["original"], row["method"], rater)
            lines.append(f"r{rater},{row['item']},{rank},{score}")
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    return folder / "ratings.csv"


def in_order(original, method, rater):
    place = METHODS.index(method)
    return place + 1, 4 if place < 3 else 1


def test_the_study_is_whole_and_blind(tmp_path):
    write_study(study(missing=[(1, 4)]), tmp_path, raters=4, seed=0)
    items, key = rows(tmp_path / "items.csv"), rows(tmp_path / "key.csv")
    assert len(items) == len(key) == 20
    assert {row["method"] for row in key if row["original"] == "o01"} == {*METHODS} - {METHODS[4]}
    shown = (tmp_path / "items.csv").read_text() + (tmp_path / "assignments.csv").read_text()
    assert not any(method in shown for method in METHODS)
    orders = {tuple(row["method"] for row in key if row["original"] == o) for o in ("o00", "o02")}
    assert len(orders) == 2, "each original has an order of its own"
    for row in items:
        assert (tmp_path / row["image"]).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / row["original_image"]).is_file()
    orders = rows(tmp_path / "assignments.csv")
    assert len(orders) == 4 * 3
    assert all(sorted(row["items"].split()) == sorted(i["item"] for i in items if i["original"] == row["original"]) for row in orders)  # fmt: skip
    assert len({row["items"] for row in orders if row["original"] == "o00"}) > 1
    assert json.loads((tmp_path / "study.json").read_text())["ratings"] == [
        "rater",
        "item",
        "rank",
        "score",
    ]


def test_assignments_follow_from_the_seed():
    shown = {0: ["a", "b", "c"], 1: ["d", "e"]}
    assert assign(shown, 3, 0) == assign(shown, 3, 0) != assign(shown, 3, 1)


def test_one_failing_image_of_each_original_is_chosen():
    n = 4
    found = Findings(
        seed=torch.tensor([0, 0, 2, 2]), x=SEEDS.x[[0, 1, 2, 0]], kind=torch.tensor([0, 0, 0, 1]),
        expected=torch.zeros(n, dtype=torch.int64), predicted=torch.tensor([1, 2, 1, 0]),
        peer_predicted=torch.zeros(n, 0, dtype=torch.int64), confidence=torch.ones(n), score=torch.ones(n),
        distance=torch.ones(n), queries=torch.ones(n, dtype=torch.int64), code=torch.zeros(n, 0),
    )  # fmt: skip
    none = torch.zeros(3)
    done = Measured(
        seeds=PerSeed(none, none, none, none, none), alike=none, made=none, mse=none, ssim=none, judged=None, findings=found,
        sample=SEEDS.x[:, None], there=torch.tensor([[True], [True], [False]]), lost=0, originals=3,
    )  # fmt: skip
    study = chosen(SEEDS, [done], seed=0)
    assert study.there.squeeze(1).tolist() == [True, False, True]
    assert int(study.predicted[2, 0]) == 1, "a disagreement is no failing image"
    assert torch.equal(study.x[2, 0], SEEDS.x[2])
    assert len({int(chosen(SEEDS, [done], seed=s).predicted[0, 0]) for s in range(20)}) == 2
    filled = chosen(SEEDS, [done], seed=0, fill=True)
    assert filled.there.all()
    assert filled.predicted.squeeze(1).tolist()[1] == -1
    assert torch.equal(filled.x[1, 0], SEEDS.x[1])


def test_means_tests_and_the_papers_words(tmp_path):
    write_study(study(), tmp_path, raters=2, seed=0)
    found = read(ratings(tmp_path, in_order), tmp_path / "key.csv")
    assert len(found) == 2 * 21
    table = by_original(found, METHODS)
    assert table.methods == METHODS
    assert table.rank.tolist() == [[1, 2, 3, 4, 5, 6, 7]] * 3
    test = friedman(table.rank)
    assert (test.blocks, test.w) == (3, pytest.approx(1.0))
    assert test.statistic == pytest.approx(18)
    two = pairs(table.rank, METHODS)
    assert len(two) == 21
    assert two[0].difference == -1
    assert all(pair.corrected >= pair.p for pair in two)
    options = {"ratings": str(tmp_path / "ratings.csv")}
    first, second = argus_ratings.run(Bench(out=tmp_path / "out", options=options)).tables
    assert first.rows[0][:4] == ["ARGUS 0.1", 3, "1.000 [1.000, 1.000]", "near 1"]
    assert first.rows[3][4:] == ["1.000 [1.000, 1.000]", "mostly below 2"]
    assert len(second.rows) == 42
    assert (tmp_path / "out" / "ratings.png").is_file()


def test_people_are_averaged_and_missing_images_are_left_out(tmp_path):
    write_study(study(missing=[(0, 6)]), tmp_path, raters=2, seed=0)
    swap = {METHODS[0]: 2, METHODS[1]: 1}

    def opinion(original, method, rater):
        rank, score = in_order(original, method, rater)
        return (swap.get(method, rank) if rater else rank), score

    table = by_original(read(ratings(tmp_path, opinion), tmp_path / "key.csv"), METHODS)
    assert table.rank[:, 0].tolist() == table.rank[:, 1].tolist() == [1.5] * 3
    assert bool(table.rank[0, 6].isnan())
    assert friedman(table.rank).blocks == 2
    last = next(pair for pair in pairs(table.score, METHODS) if pair.two == METHODS[6])
    assert (last.count, last.difference) == (2, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace("rank", "place"), "no column 'rank'"),
        (lambda text: text.splitlines()[0], "no rows"),
        (lambda text: text.replace("o00-a", "o99-a"), "knows no item 'o99-a'"),
        (lambda text: text.replace(",4\n", ",5\n", 1), "line [0-9]+ is no rating"),
        (lambda text: text.replace(",1,4\n", ",2,4\n", 1), "the ranks \\[2, 2, 3, 4, 5, 6, 7\\]"),
        (lambda text: text + text.splitlines()[1] + "\n", "twice"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, change, says):
    write_study(study(), tmp_path, raters=2, seed=0)
    path = ratings(tmp_path, in_order)
    path.write_text(change(path.read_text()))
    with pytest.raises(Problem, match=says):
        read(path, tmp_path / "key.csv")


def test_a_missing_file_or_key_is_named(tmp_path):
    with pytest.raises(Problem, match="the key"):
        read(tmp_path / "none.csv", tmp_path / "key.csv")
    write_study(study(), tmp_path, raters=2, seed=0)
    with pytest.raises(Problem, match="the ratings"):
        read(tmp_path / "none.csv", tmp_path / "key.csv")


def test_a_study_is_exported_with_every_method(tmp_path, monkeypatch):
    whole = replace(study(), there=torch.ones(3, 7, dtype=torch.bool))
    monkeypatch.setattr(argus_ratings, "made", lambda bench: (whole, ["toys"]))
    outcome = argus_ratings.run(Bench(out=tmp_path, options={"raters": 3}))
    (table,) = outcome.tables
    assert [row[:3] for row in table.rows] == [[name, 3, 3] for name in METHODS]
    assert all(row["fails"] == "yes" for row in rows(tmp_path / "key.csv"))
    assert (tmp_path / "assignments.csv").read_text().count("\n") == 1 + 9
    assert (tmp_path / outcome.figures[0]).is_file()
