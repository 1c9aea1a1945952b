"""The controls of witnesses, small: every control is run, every row has them, and a filter is no search."""

import csv
import os
from dataclasses import replace

import pytest
import torch

from hardcase.judges import teach
from hardcase.oracles import MARGIN
from hardcase_studies import witness_controls
from hardcase_studies.witness_controls import Filtering, run
from hardcase_studies.witness_world import gain, half, rate, world
from hardcase_study.bundle import Study
from tiny import bars

long = pytest.mark.skipif(
    os.environ.get("HARDCASE_TORTURE") != "long",
    reason="trains ten networks; make torture runs it",
)


@pytest.fixture
def small(bench):
    short = replace(
        teach.USUAL,
        places=teach.USUAL.places[:1],
        members=replace(teach.USUAL.members, epochs=1, steps=40, batch=32),
        density=replace(teach.USUAL.density, epochs=1, steps=20, batch=32),
    )
    return bench(schooling=short, seeds=8, draws=1, half="all", epochs=20, searches=["natural"])


@long
def test_every_row_stands_with_its_controls(small):
    made = run(replace(small, options={**small.options, "searches": ["sinvad"]}))
    headline, matched, around, rivals, again, hidden = made.tables
    assert [row[0] for row in headline.rows] == ["sinvad"]
    assert all(len(row) == len(headline.columns) for row in headline.rows)
    assert len(matched.rows) == 2 + 6
    assert [row[0] for row in around.rows] == ["sinvad"]
    assert len(rivals.rows) == 1 + 6
    assert len(again.rows) == 1 + 3
    assert [row[0] for row in hidden.rows] == ["sinvad"]
    with (small.out / "blind-key.csv").open() as file:
        kinds = {row["kind"] for row in csv.DictReader(file)}
    assert {"real", "label lost", "sinvad"} <= kinds
    assert len(Study.open(small.out / "blind").main) > 20


def test_a_world_shares_no_network_and_no_search_learns_from_a_filter(small):
    one = world(small, 0, codes=False)
    networks = [*one.witnesses, *one.scorers, one.subject]
    assert len({net.hash for net in networks}) == len(networks)
    assert one.judges["confirmed"].card["weights"] != one.judges["untaught"].card["weights"]
    method = witness_controls.natural((1, 12, 12))
    filtering = Filtering(subject=one.subject, method=method, witnesses=one.witnesses)
    assert filtering.objective is method.objective
    assert filtering.margin == MARGIN


def test_halves_are_disjoint_and_rates_resample_what_varies():
    images = bars(60)
    first, second = half(images, "development"), half(images, "test")
    assert len(first) + len(second) == 60
    assert not set(first.id) & set(second.id)
    assert half(images, "all") is images
    table = torch.tensor([[1.0], [0.0], [torch.nan], [1.0]], dtype=torch.float64)
    assert rate(table).value == pytest.approx(2 / 3)
    assert gain(table, 0 * table).value == pytest.approx(2 / 3)
    both = torch.cat([table, table], 1)
    assert rate(both).low <= 2 / 3 <= rate(both).high
