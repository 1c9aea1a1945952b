"""What the report says about how tests differ from their seeds, on runs whose change is known."""

import torch
from drawn import digits, record

from hardcase.report.page import report_content
from hardcase.tensors import from_bytes, to_bytes
from tiny import stored_run


def stored(folder, change, *, count=40, **about):
    """A run of 3s that were taken for 8s, each test `change` of its seed."""
    labels = torch.full((count,), 3)
    seeds = digits(labels, torch.Generator().manual_seed(0))
    tests = to_bytes(change(from_bytes(seeds)).clamp(0, 1))
    taken = {"predicted": labels + 5, "queries": torch.ones(count, dtype=torch.int64)}
    known = record(tuple("0123456789"), **about)
    rows = torch.arange(count)
    return stored_run(folder, seeds, labels, rows, tests, findings=taken, record=known)


def said(run):
    return report_content([run])["runs"][0]["weakness"]["differences"]


def test_a_background_that_got_brighter_is_said_with_its_interval(tmp_path):
    found = said(stored(tmp_path / "run", lambda x: x + 0.3 * (x < 0.3)))
    first = {one["feature"]: one for one in found["sentences"]}["background"]
    assert "the background got brighter" in first["sentence"]
    assert (first["rate"]["hits"], first["rate"]["total"]) == (40, 40)
    assert 0.9 < first["rate"]["low"] < 1


def test_a_shift_is_told_from_other_changes(tmp_path):
    found = said(stored(tmp_path / "run", lambda x: x.roll(3, 3)))
    moved = {row["feature"]: row for row in found["features"]}
    assert moved["x"]["rose"]["hits"] == 40
    others = (moved["x"]["fell"], moved["y"]["rose"], moved["y"]["fell"])
    assert [one["hits"] for one in others] == [0, 0, 0]
    assert not {"hue", "saturation"} & set(moved)  # grey images have neither


def test_half_of_the_tests_are_no_rule(tmp_path):
    def half(x):
        even = (torch.arange(len(x)) % 2 == 0)[:, None, None, None]
        return torch.where(even, x.roll(3, 3), x.roll(-3, 3))

    found = said(stored(tmp_path / "run", half))
    assert "x" not in {one["feature"] for one in found["sentences"]}
