"""Natural failures of photographs, small: rows stand with their controls; levels count what the scorer keeps."""

import os
from dataclasses import replace

import pytest
import torch

from hardcase.testing.toys import toy_images, toy_subject
from hardcase_studies import natural_photographs
from hardcase_studies.lab import Lab
from hardcase_studies.mixer import RECIPE, Mixer, trained_mixer
from hardcase_studies.natural_photographs import _levels, _photographed, cifar10
from hardcase_studies.parts import Parts
from hardcase_studies.witness_world import WitnessWorld

long = pytest.mark.skipif(
    os.environ.get("HARDCASE_TORTURE") != "long", reason="trains ten networks; make torture runs it"
)


@long
def test_the_study_of_small_photographs_prints_a_row_with_its_controls(bench):
    made = cifar10(bench(seeds=4, draws=1, half="all", epochs=80))
    (table,) = made.tables
    (row,) = table.rows
    assert len(row) == len(table.columns)
    assert row[0] == "natural"
    assert "scorer 3, mixer, none" in table.columns
    assert any("witness 1" in note for note in table.notes)


def test_scorers_are_of_another_family_than_the_witnesses(bench, monkeypatch):
    """A scorer that has a witness's architecture follows its gradients: it is no evidence."""
    small = bench(epochs=1, half_epochs=1)
    world = natural_photographs._small_world(small, Lab(small), 0)
    kinds = {type(one.net) for one in (world.subject, *world.witnesses)}
    assert {type(one.net) for one in world.scorers} == {Mixer}
    assert Mixer not in kinds
    assert len({one.hash for one in world.scorers}) == 3


def test_a_mixer_learns_and_is_kept(bench):
    here = Lab(bench())
    recipe = replace(RECIPE, epochs=30)
    net, card = trained_mixer(here.train, here.test, recipe=recipe)
    assert card["accuracy"] > 0.7
    again, _ = trained_mixer(here.train, here.test, recipe=recipe)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters()))


def test_levels_are_of_all_seeds_that_the_subject_gets_right(bench, monkeypatch):
    monkeypatch.setattr(natural_photographs, "TOP", 2)
    seeds = toy_images(6)
    subject = toy_subject()
    world = WitnessWorld(subject, (), (subject,))
    method = natural_photographs.natural((1, 8, 8), space="warp*light")
    parts = Parts.of(bench(), "photographs", seeds)
    row = _photographed(bench(draws=1), parts, world, seeds, method)
    assert row.found.columns["failing"].isfinite().sum() == len(seeds)
    table = _levels(subject, {"natural": row})
    assert [line[1] for line in table.rows] == ["top-1", "outside top-2"]
    found = int(row.found.columns["failing"].sum())
    assert table.rows[0][2].startswith(f"{found / len(seeds):.1%}")
    assert table.rows[0][3].startswith("0.0%")
    assert bool((torch.tensor(len(row.found.found)) == found).all())
