"""Where it fails: what is said of slices, and that nothing is said where nothing held."""

import pytest
import torch
from drawn import drawn_run

from hardcase.report.page import report_content, write
from hardcase.report.where import NEEDED, where
from hardcase.runs.results import Run


def planted(run: Run) -> Run:
    """The same run in which dark seeds alone keep their findings."""
    from hardcase.runs.folder import Packed
    from hardcase.runs.tables import FINDINGS, read, to_parquet

    light = dict(zip(run.seeds["id"].to_pylist(), run.seed_images().float().mean((1, 2, 3)).tolist()))  # fmt: skip
    edge = float(torch.tensor(list(light.values())).quantile(1 / 3))
    rows = [i for i, seed in enumerate(run.findings["seed"].to_pylist()) if light[seed] < edge]
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
    assert "third not used to find it" in first["sentence"]
    assert section["outcome"] == "failing"
    assert 0 < len(section["held"]) <= len(section["carried"]) <= 20
    page = write([dark], tmp_path).read_text()
    assert "Where it fails" in page
    assert "condition of the seed" in page


def test_where_nothing_holds_nothing_is_listed(tmp_path):
    run = drawn_run(tmp_path / "run", seeds=400, failing=0.4)
    section = report_content([run])["runs"][0]["where"]
    assert section["held"] == []
    assert section["sentence"].startswith("No condition is known")
    assert "no proof" in section["sentence"]
    assert "condition of the seed" not in write([run], tmp_path / "page").read_text()


def test_few_seeds_and_equal_outcomes_are_said(tmp_path):
    few = drawn_run(tmp_path / "few", seeds=100)
    section = where(few, few.counts())
    assert (section["carried"], section["held"]) == ([], [])
    assert str(NEEDED) in section["sentence"]
    every = drawn_run(tmp_path / "every", seeds=320, failing=1.1)
    assert where(every, every.counts())["sentence"].startswith("Every attempted seed fails")
    none = drawn_run(tmp_path / "none", seeds=320, failing=-1.0)
    assert where(none, none.counts())["sentence"].startswith("No attempted seed fails")
