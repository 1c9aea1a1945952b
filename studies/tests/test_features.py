"""The experiments about feature perturbation, small: what they count and that their tables are whole."""

from dataclasses import replace

import pytest
import torch

from hardcase import registry
from hardcase.generators import vae
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.training.cards import TrainingRecipe
from hardcase_studies import features


@pytest.fixture
def small(bench, monkeypatch):
    row = registry.parts("generator")["vae-conditional"]
    short = replace(
        row,
        make=lambda c, s, k, latent: vae._dense(c, s, latent, 64, labels=k),
        facts={**row.facts, "recipe": TrainingRecipe(epochs=30, batch=16, lr=3e-3), "latent": 8},
    )
    monkeypatch.setitem(registry._parts["generator"], row.name, short)
    monkeypatch.setattr(features, "CONFIDENCE", 0.5)
    monkeypatch.setattr(features, "default_witnesses", _reader)
    return bench(generator="vae", seeds=6, epochs=8, robust_epochs=4)


def _reader(train, test, **_):
    net, _ = trained_classifier("lenet1", train, test, epochs=12)
    return (Subject(net, classes=test.classes, name="reader"),)


def test_what_moves_is_told_for_pairs_of_classes(small, monkeypatch):
    monkeypatch.setattr(features, "_pairs", lambda classes: [(0, 1)])
    moved = features.rq2(small).tables[0]
    assert [row[:2] for row in moved.rows] == [["0 → 1", "feature-perturbation"], ["0 → 1", "pgd"]]
    assert moved.rows[0][2] == "6 of 6"
    assert " of 6 = " in moved.rows[0][3]
    assert " of 6, p " in moved.rows[0][3].partition("by chance")[2]
    assert "verified by most of 1 networks that no search asks" in moved.notes[-1]


def test_a_random_change_is_as_large_in_the_image_as_the_finding():
    """Equal lengths of codes are not equal in the image where one direction moves more pixels."""
    torch.manual_seed(0)
    maps = torch.rand(6, 25) * torch.tensor([0.01, 0.1, 1, 1, 3, 9])[:, None]
    before = torch.full((4, 1, 5, 5), 0.5)
    direction = torch.nn.functional.normalize(torch.randn(4, 6), dim=1)
    asked = torch.tensor([0.1, 0.5, 1.0, 1.5])
    made = features.as_far_in_the_image(
        lambda code: before + (code @ maps).reshape(-1, 1, 5, 5), direction, before, asked
    )
    far = (made - before).flatten(1).norm(dim=1)
    assert torch.allclose(far, asked, atol=1e-3)


@pytest.mark.long
def test_distances_and_labels_are_counted(small):
    outcome = features.rq3(small)
    far, kept = outcome.tables
    assert [row[:2] for row in far.rows] == [row[:2] for row in kept.rows]
    assert len(kept.rows) == 4
    assert kept.columns[2:] == [
        "l2:1.5", "linf:0.1", "label kept by two of three others", "l2:1.5, of these", "linf:0.1, of these",
    ]  # fmt: skip
