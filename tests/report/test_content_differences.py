"""What the report says about how tests differ from their seeds, on runs whose change is known."""

import torch
from drawn import digits, record

from hardcase.report.content import report_content
from hardcase.runs.folder import Packed, Store, pack_deltas
from hardcase.runs.results import Run
from hardcase.runs.tables import SPENDING, findings_table, seeds_table, to_parquet
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Findings


def stored(folder, change, *, count=40, **about):
    """A run of 3s that were taken for 8s, each test `change` of its seed."""
    labels = torch.full((count,), 3)
    seeds = digits(labels, torch.Generator().manual_seed(0))
    tests = to_bytes(change(from_bytes(seeds)).clamp(0, 1))
    names = [f"seed/{i:03d}" for i in range(count)]
    zeros = torch.zeros(count)
    found = Findings(
        seed=torch.arange(count), x=tests, kind=torch.zeros(count, dtype=torch.int64), expected=labels, predicted=labels + 5,
        peer_predicted=torch.zeros(count, 0, dtype=torch.int64), confidence=zeros + 0.9, score=zeros, distance=zeros,
        queries=torch.ones(count, dtype=torch.int64), code=torch.zeros(count, 0),
    )  # fmt: skip
    rows = {"id": names, "label": labels.tolist(), "predicted": labels.tolist(), "confidence": zeros.tolist(), "status": ["done"] * count}  # fmt: skip
    rows |= dict.fromkeys(("looked", "failing", *SPENDING), [1] * count)
    store = Store.create(
        folder, record(tuple("0123456789"), **about), "", [seeds_table(rows, seeds)]
    )
    part = findings_table(found, seeds, names, method="made", oracle="label")
    store.put(0, Packed(to_parquet(part), to_parquet(seeds_table(rows, seeds)), pack_deltas({})))
    return Run(folder)


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
    assert (
        moved["x"]["fell"]["hits"] == moved["y"]["rose"]["hits"] == moved["y"]["fell"]["hits"] == 0
    )
    assert not {"hue", "saturation"} & set(moved)  # grey images have neither


def test_half_of_the_tests_are_no_rule(tmp_path):
    def half(x):
        return torch.where(
            (torch.arange(len(x)) % 2 == 0)[:, None, None, None], x.roll(3, 3), x.roll(-3, 3)
        )

    assert not [
        one for one in said(stored(tmp_path / "run", half))["sentences"] if one["feature"] == "x"
    ]
