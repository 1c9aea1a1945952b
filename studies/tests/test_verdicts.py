"""The rules on figures made up for them; the stored verdicts again; nothing in the matrix is empty."""

import json
import re
from pathlib import Path

import pytest

from hardcase_studies.verdicts import (
    Claim,
    Figure,
    Item,
    Store,
    exactly,
    joined,
    judge,
    matrix,
    read_figure,
)


def figure(low, high, units=30):
    return Figure((low + high) / 2, low, high, units)


@pytest.mark.parametrize(
    ("found", "asked", "verdict"),
    [
        (figure(1, 2), {"above": exactly(0)}, "yes"),
        (figure(-1, 2), {"above": exactly(0)}, "inconclusive"),
        (figure(-2, -1), {"above": exactly(0)}, "no"),
        (figure(-2, -1), {"below": exactly(0)}, "yes"),
        (figure(1, 2), {"above": figure(0.5, 0.9)}, "yes"),
        (figure(1, 2), {"above": figure(0.5, 1.1)}, "inconclusive"),
        (figure(0.06, 0.08), {"published": 0.064}, "yes"),
        (figure(0.10, 0.13), {"published": 0.064}, "inconclusive"),
        (figure(0.13, 0.15), {"published": 0.064}, "no"),
        (figure(0.13, 0.15), {"published": 0.064, "below": exactly(0.9)}, "partly"),
        (figure(26, 34), {"published": 29.4, "rate": True}, "yes"),
        (figure(20, 34), {"published": 29.4, "rate": True}, "inconclusive"),
        (figure(10, 20), {"published": 29.4, "rate": True}, "no"),
        (figure(94, 99), {"at_least": 93}, "yes"),
        (figure(92, 99), {"at_least": 93}, "inconclusive"),
        (figure(80, 92), {"at_least": 93}, "no"),
        (figure(1, 2, units=5), {"above": exactly(0)}, "inconclusive"),
        (Figure(3.0, units=30), {"above": exactly(0)}, "inconclusive"),
    ],
)
def test_the_rules_say_what_they_are_written_to_say(found, asked, verdict):
    assert Claim(figure=found, **asked).verdict() == verdict


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["yes", "yes"], "yes"),
        (["yes", "no"], "partly"),
        (["yes", "inconclusive"], "partly"),
        (["partly", "partly"], "partly"),
        (["no", "inconclusive"], "no"),
        (["inconclusive"], "inconclusive"),
        ([], "inconclusive"),
    ],
)
def test_an_item_joins_its_figures(parts, whole):
    assert joined(parts) == whole


@pytest.mark.parametrize(
    ("cell", "value", "low", "high", "units"),
    [
        ("0.0693 [0.057, 0.0813]", 0.0693, 0.057, 0.0813, None),
        ("0.670 [0.464, 0.877] (t, 5 trainings)", 0.67, 0.464, 0.877, 5),
        ("25 of 30 = 83.3% [66.4%, 92.7%]", 83.3, 66.4, 92.7, 30),
        ("-7.19 [-15.2, +0.828]", -7.19, -15.2, 0.828, None),
        ("9.000 in all 24", 9, 9, 9, 24),
        ("100.0% in all 2967", 100, 99.876, 100, 2967),
        ("30 of 30", 100, 88.43, 100, 30),
    ],
)
def test_figures_are_read_as_tables_print_them(cell, value, low, high, units):
    found = read_figure(cell)
    assert [found.value, found.low, found.high] == pytest.approx([value, low, high], abs=0.05)
    assert found.units == units


def test_a_part_of_a_cell_can_be_picked_and_a_number_has_no_interval():
    assert read_figure("4.95 [4.63, 5.29]; var 2.87", "var (.*)").value == 2.87
    assert not read_figure("0.4583").known


def test_an_item_is_judged_from_its_stored_file_alone(tmp_path):
    cells = [("a", "x", "1.0 [0.5, 1.5]", "12"), ("b", "y", "-2 [-3, -1]", "12")]
    rows = []
    for row, kind, value, images in cells:
        for column, cell in (("kind", kind), ("value", value), ("images", images)):
            rows.append({"table": "T: one", "row": row, "column": column, "value": cell})
    (tmp_path / "one.json").write_text(json.dumps({"rows": rows}))
    place = {"file": "one", "table": "T", "column": "value", "units": "images"}
    said = {"document": "d", "item": "i", "claim": "c", "command": "run"}

    def verdict(*tests):
        return judge(Item(**said, tests=tests), Store(tmp_path)).verdict

    assert verdict({"figure": {**place, "row": "a"}, "above": 0}) == "yes"
    assert verdict({"figure": {**place, "row": {"kind": "y"}}, "above": 0}) == "no"
    assert verdict({"figure": {**place, "row": "a", "units": 5}, "above": 0}) == "inconclusive"
    other = {**place, "row": "b"}
    assert verdict({"figure": {**place, "row": "a"}, "above": other}) == "yes"
    share = {"file": "one", "table": "T", "column": "value", "share": True}
    assert verdict({"figure": share, "at_least": 50}) == "inconclusive"
    assert verdict({"figure": {**place, "file": "two", "row": "a"}, "above": 0}) == "not run"
    later = {"figure": {**place, "file": "two", "row": "a"}, "above": 0}
    for tests in ((), (later,)):
        assert (
            judge(Item(**said, tests=tests, tried="it needs"), Store(tmp_path)).verdict == "tried"
        )
    absent = Item(**said, absent="no data")
    assert judge(absent, Store(tmp_path)).verdict == "cannot be had"


def test_of_two_files_the_first_that_is_stored_is_read_and_an_optional_figure_may_miss(tmp_path):
    cell = {"table": "T", "row": "a", "column": "value", "value": "1.0 [0.5, 1.5]"}
    (tmp_path / "old.json").write_text(json.dumps({"rows": [cell]}))
    place = {"file": ["new", "old"], "table": "T", "row": "a", "column": "value", "units": 9}
    missing = {"figure": {**place, "file": "new"}, "above": 0, "optional": True}
    item = Item(
        document="d", item="i", claim="c", command="run",
        tests=({"figure": place, "above": 0}, missing),
    )  # fmt: skip
    found = judge(item, Store(tmp_path))
    assert (found.verdict, found.files, len(found.figures)) == ("partly", ("old",), 1)


ROOT = Path(__file__).parents[2]
STORE = Store(ROOT / "results")
VERDICTS = ("yes", "partly", "no", "inconclusive", "tried", "cannot be had", "built")
"""What a row may say: none is left as "not run"."""
NOT_HAD = re.compile(r"ImageNet-32|ARGUS on ImageNet|people's ratings")
"""What may be missing: these data and answers, and nothing else."""


@pytest.mark.parametrize("item", matrix().items, ids=lambda item: f"{item.document} {item.item}")
def test_no_cell_of_the_matrix_is_empty(item):
    assert item.document in matrix().documents
    assert item.claim
    assert item.command
    assert bool(item.tests or item.tried) + bool(item.absent) + bool(item.built) == 1
    assert not item.absent or NOT_HAD.match(item.absent)
    assert not item.built or (ROOT / item.built.partition("::")[0]).is_file()
    for test in item.tests:
        assert set(test) <= {
            "label", "figure", "above", "below", "published", "rate", "at_least", "at_most", "shown",
            "optional",
        }  # fmt: skip
        assert test.get("shown") or set(test) & {
            "above", "below", "published", "at_least", "at_most",
        }  # fmt: skip


def test_the_stored_verdicts_are_those_of_the_rules():
    """Every verdict again, from the stored files; the page shows these and no others."""
    page = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    for item in matrix().items:
        found = judge(item, STORE)
        assert found.verdict in VERDICTS
        (line,) = [
            line for line in page.splitlines() if line.startswith(f"| {item.item} | {item.claim}")
        ]
        mark = "*" if matrix().was_known(found, STORE) else ""
        assert line.split(" | ")[3].rstrip("†") == f"{found.verdict}{mark}", item.item
        for label, figure, _ in found.figures:
            assert f"{label} {figure}".strip() in line


def test_each_error_of_the_last_audit_has_a_row_with_a_test_that_exists():
    assert [row["key"] for row in matrix().errors] == [f"E{n}" for n in range(18, 29)]
    for row in matrix().errors:
        named = re.findall(r"`((?:studies/)?tests/[^`]+)`", row["holds"])
        assert named, row["key"]
        for path in named:
            file, _, test = path.partition("::")
            assert (ROOT / file).exists(), path
            assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), path
