"""The controls of witnesses, small: every control is run, every row has them, and a filter is no search."""

import os
from dataclasses import replace

import pytest
import torch
from judged import QUICK

import hardcase as hc
from hardcase.oracles import MARGIN
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Verdicts
from hardcase_studies import witness_controls, witness_world
from hardcase_studies.witness_controls import filtered, run
from hardcase_studies.witness_world import gain, half, rate, world
from hardcase_study.bundle import Study
from tiny import bars

long = pytest.mark.skipif(
    os.environ.get("HARDCASE_TORTURE") != "long", reason="trains ten networks; make torture runs it"
)


@pytest.fixture
def small(bench):
    options = {"draws": 1, "half": "all", "epochs": 20, "searches": ["natural"]}
    return bench(judge_training=QUICK, seeds=8, **options)


@long
def test_every_row_stands_with_its_controls(small):
    made = run(replace(small, options={**small.options, "searches": ["sinvad-gradient"]}))
    headline, matched, around, rivals, again, hidden = made.tables
    assert [row[0] for row in headline.rows] == ["sinvad-gradient"]
    assert all(len(row) == len(headline.columns) for row in headline.rows)
    assert len(matched.rows) == 2 + 6
    assert [row[0] for row in around.rows] == ["sinvad-gradient"]
    assert len(rivals.rows) == 1 + 6
    assert len(again.rows) == 1 + 3
    assert [row[0] for row in hidden.rows] == ["sinvad-gradient"]
    study = Study.open(small.out / "blind")
    assert {"real", "label lost", "sinvad-gradient"} <= {item.quota for item in study.main.values()}
    assert len(study.main) > 20


def test_a_world_shares_no_network_and_no_search_learns_from_a_filter(small, monkeypatch):
    one = world(small, 0, codes=False)
    networks = [*one.witnesses, *one.scorers, one.subject]
    assert len({net.hash for net in networks}) == len(networks)
    assert one.judges["accepted"].card["weights"] != one.judges["untaught"].card["weights"]
    method = witness_controls.natural((1, 12, 12))
    campaigns = []

    def run_shard(campaign, *rest):
        campaigns.append(campaign)
        raise RuntimeError("enough")

    monkeypatch.setattr(witness_controls, "run_shard", run_shard)
    with pytest.raises(RuntimeError, match="enough"):
        filtered(one, method, bars(4))
    (campaign,) = campaigns
    assert campaign.witnesses == one.witnesses
    assert campaign.method.objective is method.objective
    assert campaign.method.oracle is method.oracle
    assert campaign.margin == MARGIN


def test_halves_are_disjoint_and_rates_resample_what_varies():
    images = bars(60)
    first, second = half(images, "development"), half(images, "test")
    assert len(first) + len(second) == 60
    assert not set(first.id) & set(second.id)
    assert half(images, "all") is images
    table = torch.tensor([[1.0], [0.0], [torch.nan], [1.0]], dtype=torch.float64)
    assert rate(table).value == pytest.approx(2 / 3)
    assert gain(table, 0 * table).value == pytest.approx(2 / 3)
    assert torch.tensor(rate(torch.cat([table, table], 1)).low).isnan(), "two trainings have none"
    three = rate(torch.cat([table, table, 0 * table], 1))
    assert three.low <= three.value <= three.high


class ReadsBrightness:
    """A judge that sees class 1 in bright images and class 0 in dark ones, and nothing in between."""

    def __call__(self, findings):
        level = findings.x.float().mean((1, 2, 3))
        seen = torch.where(level > 200, 1, torch.where(level < 50, 0, -1))
        return Verdicts([("lost", "kept")[same] for same in (seen == findings.expected).tolist()])


def findings(x, expected):
    """Findings of the first seeds with these images."""
    some = hc.search(toy_subject(), toy_images(8), method="pgd").take(torch.arange(len(x)))
    return replace(some, x=x, seed=torch.arange(len(x)), expected=expected)


def test_control_b_asks_what_is_shown_where_the_space_can_draw_it():
    """Told class 1 on seeds of class 0: one was drawn, one stayed, one is neither, one not found."""
    seeds = replace(toy_images(5), y=torch.zeros(5, dtype=torch.int64))
    levels = torch.tensor([255, 0, 128], dtype=torch.uint8)
    x = levels.reshape(3, 1, 1, 1).expand(3, *seeds.x.shape[1:]).clone()
    attempted = torch.tensor([1.0, 1.0, 1.0, 0.0, torch.nan], dtype=torch.float64)
    found = findings(x, torch.ones(3, dtype=torch.int64))
    part = witness_world.SeedOutcomes({"failing": attempted}, found, seeds)
    columns = witness_controls.shows(ReadsBrightness(), part, seeds).columns
    for name, hit in (("told", 0), ("seed", 1), ("neither", 2)):
        values = columns[f"shows {name}"].tolist()
        assert [i for i, value in enumerate(values) if value == 1] == [hit]
        assert values[3] == 0
        assert values[4] != values[4], "not attempted"


def test_only_in_spaces_of_appearance_control_b_is_a_rate_of_falsely_accepted_images():
    names = ("accepted", "untaught", "shows told", "shows seed", "shows neither")
    columns = {name: torch.ones(4, dtype=torch.float64) for name in names}
    found = findings(toy_images(4).x, torch.zeros(4, dtype=torch.int64))
    part = witness_world.SeedOutcomes(columns, found, toy_images(4))
    for name, empty in (("natural", [2, 3, 4]), ("sinvad-gradient", [0, 1])):
        search = witness_controls.SEARCHES[name]
        cells = list(witness_controls._wrong_label_cells(search, [part]).values())
        assert [i for i, cell in enumerate(cells) if cell == "–"] == empty
