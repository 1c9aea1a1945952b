"""A search by queries alone: it climbs by ranks, widens until something fails, and comes back."""

import torch

from hardcase.campaign.in_memory import search
from hardcase.models.wrappers import LabelOnly
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.black_box import Evolution, _ranked
from hardcase.spaces.pixel import Pixels
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget, Method


def method(queries=300, **options):
    return Method(
        name="evolution",
        space=Pixels(),
        search=Evolution(**{"spread": 0.05, "most": 0.4, **options}),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        budget=Budget(queries=queries),
    )


def test_ranks_stand_for_scores_and_equal_scores_pull_nowhere():
    ranks = _ranked(torch.tensor([[3.0, -1.0, 100.0], [2.0, 2.0, 2.0]]))
    assert ranks.tolist() == [[0.0, -0.5, 0.5], [0.0, 0.0, 0.0]]


def test_a_black_box_fails_within_its_budget():
    subject = Counting(toy_subject(), offers="scores")
    found = search(subject, method(), toy_images(6))
    assert found.succeeded == 6
    assert bool((found.queries <= 300).all())


def test_labels_alone_are_enough():
    found = search(LabelOnly(toy_subject()), method(600), toy_images(6))
    assert found.succeeded == 6


def test_the_way_back_makes_changes_smaller():
    near = search(toy_subject(), method(bisections=8), toy_images(6))
    far = search(toy_subject(), method(bisections=1), toy_images(6))
    assert float(near.findings.distance.mean()) < float(far.findings.distance.mean())
