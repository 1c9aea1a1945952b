"""The experiments about feature perturbation, small: what they count and that their tables are whole."""

from dataclasses import replace

import pytest

from hardcase.experiments import features
from hardcase.generators import catalogue, vae
from hardcase.training.recipe import TrainingRecipe


@pytest.fixture
def small(bench, monkeypatch):
    row = catalogue.GENERATORS["vae-conditional"]
    monkeypatch.setitem(
        catalogue.GENERATORS,
        row.name,
        replace(row, recipe=TrainingRecipe(epochs=30, batch=16, lr=3e-3), latent=8),
    )
    monkeypatch.setattr(
        vae, "conditional", lambda c, s, k, latent: vae._dense(c, s, latent, 64, labels=k)
    )
    monkeypatch.setattr(features, "CONFIDENCE", 0.5)
    return bench(generator="vae", seeds=6, epochs=8, robust_epochs=4)


def test_what_moves_is_told_for_pairs_of_classes(small, monkeypatch):
    monkeypatch.setattr(features, "_pairs", lambda classes: [(0, 1)])
    moved = features.rq2(small).tables[0]
    assert [row[:2] for row in moved.rows] == [["0 → 1", "feature-perturbation"], ["0 → 1", "pgd"]]
    assert moved.rows[0][2] == "6 of 6"
    assert " of 6 = " in moved.rows[0][3]


def test_distances_and_labels_are_counted(small, monkeypatch):
    far, kept = features.rq3(small).tables
    assert [row[:2] for row in far.rows] == [row[:2] for row in kept.rows]
    assert len(kept.rows) == 4
    assert kept.columns[2:] == ["l2:1.5", "linf:0.1"]
    both = features._trials
    monkeypatch.setattr(features, "_trials", lambda here: dict(list(both(here).items())[:2]))
    labels = features.labels(small).tables[0]
    assert [row[0] for row in labels.rows] == ["as maintained", "without the way back"]
    assert labels.rows[0][1] == "6 of 6"
    near, straight = (float(row[4].split()[0]) for row in labels.rows)
    assert near <= straight
