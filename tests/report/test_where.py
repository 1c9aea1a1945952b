"""Where it fails: what is said of slices and curves, and that nothing is said where nothing held or can be read."""

import json

import pytest
import torch
from aftermath import write_run
from drawn import digits, drawn_curves, drawn_run, record

from hardcase.report.page import report_content, write
from hardcase.report.pictures import severity
from hardcase.report.where import NEEDED, severities, where
from hardcase.runs.results import Run
from hardcase.runs.verify import CURVES, write_side_file
from hardcase.tensors import from_bytes, to_bytes
from tiny import stored_run


def planted(run: Run) -> Run:
    """The same run in which dark images alone keep their failures."""
    from hardcase.runs.folder import Packed
    from hardcase.runs.tables import FINDINGS, read, to_parquet

    light = dict(zip(run.seeds["id"].to_pylist(), run.seed_images().float().mean((1, 2, 3)).tolist()))  # fmt: skip
    edge = float(torch.tensor(list(light.values())).quantile(1 / 3))
    rows = [i for i, seed in enumerate(run.findings["original"].to_pylist()) if light[seed] < edge]
    table = read(run.folder / "findings/part-00000.parquet", FINDINGS)
    run.store.put(0, Packed(to_parquet(table.take(rows)), to_parquet(run.store.seeds()), b""))
    return Run(run.folder)


@pytest.fixture(scope="module")
def dark(tmp_path_factory):
    return planted(drawn_run(tmp_path_factory.mktemp("where") / "run", seeds=600))


def test_a_planted_condition_is_named_with_its_rates(dark, tmp_path):
    section = where(dark, dark.counts())
    first = section["held"][0]
    assert "dark" in first["name"]
    assert first["inside"]["share"] > 0.5 > first["outside"]["share"]
    assert section["outcome"] == "failing"
    assert 0 < len(section["held"]) <= len(section["carried"]) <= 20
    page = write([dark], tmp_path).read_text()
    assert "Images that fail more often" in page


def test_where_nothing_holds_nothing_is_listed(tmp_path):
    run = drawn_run(tmp_path / "run", seeds=400, failing=0.4)
    section = report_content([run])["runs"][0]["weak"]["where"]
    assert (section["held"], section["sentence"]) == ([], None)
    assert "Images that fail more often" not in write([run], tmp_path / "page").read_text()


def test_few_images_and_equal_outcomes_have_nothing_to_look_for(tmp_path):
    assert NEEDED > 100
    for name, given in (("few", {"seeds": 100}), ("all", {"seeds": 320, "failing": 1.1})):
        run = drawn_run(tmp_path / name, **given)
        assert where(run, run.counts())["carried"] == []


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run", levels=[10, 60, *[5] * 30], found={0: [140], 1: [150]})
    return Run(tmp_path / "run")


def test_the_most_fragile_change_comes_first_and_is_named(run):
    assert severities(run) is None
    write_side_file(run.store, CURVES, drawn_curves())
    found = severities(run)
    assert [row["name"] for row in found["rows"]] == ["zoom blur", "tilted <11° clockwise"]
    assert (
        "Most fragile: zoom blur (half of the images fail by severity 2.50)." in found["sentence"]
    )
    page = write([run], run.folder / "report").read_text(encoding="utf-8")
    assert "How failing grows with severity" in page
    assert "The same as a table" in page
    assert "tilted <11°" not in page, "text of a file is escaped"
    assert json.loads((run.folder / "report/report.json").read_text())["runs"][0]["curves"]


def test_curves_that_say_nothing_are_left_out(run):
    for text in ("", "[]", "{}", '{"corruptions": 3}', json.dumps(drawn_curves(usable="x"))):
        (run.folder / CURVES).write_text(text)
        assert severities(run) is None, text


def test_a_model_that_never_fails_is_told():
    rows = drawn_curves()["conditions"][0]["curve"]
    assert "<svg" in severity(rows, 5, label="a <b>")
    assert "a &lt;b&gt;" in severity(rows, 5, label="a <b>")


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
    return report_content([run])["runs"][0]["weak"]["differences"]


def test_a_background_that_got_brighter_is_said_with_its_interval(tmp_path):
    found = said(stored(tmp_path / "run", lambda x: x + 0.3 * (x < 0.3)))
    first = {one["feature"]: one for one in found["sentences"]}["background"]
    assert "the background got brighter" in first["sentence"]
    assert (first["rate"]["hits"], first["rate"]["total"]) == (40, 40)
    assert 0.9 < first["rate"]["low"] < 1


def test_a_shift_is_told_from_other_changes_unless_half_go_the_other_way(tmp_path):
    found = said(stored(tmp_path / "run", lambda x: x.roll(3, 3)))
    moved = {row["feature"]: row for row in found["features"]}
    assert moved["x"]["rose"]["hits"] == 40
    others = (moved["x"]["fell"], moved["y"]["rose"], moved["y"]["fell"])
    assert [one["hits"] for one in others] == [0, 0, 0]
    assert not {"hue", "saturation"} & set(moved)  # grey images have neither

    def half(x):
        even = (torch.arange(len(x)) % 2 == 0)[:, None, None, None]
        return torch.where(even, x.roll(3, 3), x.roll(-3, 3))

    found = said(stored(tmp_path / "half", half))
    assert "x" not in {one["feature"] for one in found["sentences"]}
