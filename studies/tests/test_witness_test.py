"""A test set that is opened once."""

import json

import pytest
import torch

from hardcase.campaign.in_memory import search
from hardcase.errors import HardcaseError
from hardcase.methods.pgd import pgd
from hardcase.testing.toys import toy_images, toy_peer, toy_subject
from hardcase_studies import witness_test
from hardcase_studies.witness_world import SeedOutcomes, WitnessWorld
from tiny import bars


@pytest.fixture
def unseen(bench, bars_file, monkeypatch, tmp_path):
    """Ten bars that the study's own data do not have, and searches that note when they are asked."""
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    world = WitnessWorld(toy_subject(), (), (toy_peer(),))
    asked = []

    def searches(here, seeds):
        def make():
            asked.append(len(witness_test._before(seeds)))
            flags = torch.ones(len(seeds), dtype=torch.float64)
            names = ("failing", "witnessed", "accepted", "all", "l2")
            columns = {name: flags.clone() for name in names}
            columns["l2"] = torch.linspace(2, 6, len(seeds), dtype=torch.float64)
            return SeedOutcomes(columns, found(), seeds)

        return {"natural": make, "natural, filter": make}

    monkeypatch.setattr(witness_test, "_networks", lambda bench: world)
    monkeypatch.setattr(witness_test, "_searches", searches)
    monkeypatch.setattr(witness_test, "_methods", lambda here, seeds: [])
    pool = bars(40, seed=9, split="test")
    own = witness_test.load
    monkeypatch.setattr(
        witness_test,
        "load",
        lambda name, split: pool if name == "mnist" else own(name, split=split),
    )
    return lambda **options: bench(seeds=10, **options), asked


def found():
    return search(toy_subject(), pgd(), toy_images(2)).findings


def test_nothing_is_searched_before_the_set_is_opened(unseen):
    make, asked = unseen
    (table,) = witness_test.run(make()).tables
    assert dict(table.rows)["opened before"] == 0
    assert not asked


def test_what_is_fixed_is_written_before_the_first_search_and_a_second_opening_is_refused(unseen):
    make, asked = unseen
    rates, sizes = witness_test.run(make(open=True)).tables
    assert asked == [1, 1], "the ledger knew of the opening when the search began"
    assert "opened once" in rates.notes[0]
    assert "judge " in rates.notes[0]
    assert sizes.rows[0][1].startswith("30.0%"), "three of ten within 3"
    with pytest.raises(HardcaseError, match="opened before"):
        witness_test.run(make(open=True))
    again, _ = witness_test.run(make(open=True, again=True)).tables
    assert "OPENED 2 TIMES" in again.notes[0]
    assert len(json.loads(witness_test._ledger().read_text())) == 2


def test_a_digit_of_the_studys_own_data_is_not_drawn(unseen, bench, monkeypatch):
    make, _ = unseen
    known = witness_test.load(make().data, split="test")
    monkeypatch.setattr(witness_test, "load", lambda name, split: known)
    with pytest.raises(HardcaseError, match="none of them is unseen"):
        witness_test.fresh(make())
