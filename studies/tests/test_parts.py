"""Parts of a study: measured once, kept, and nothing new after the time is up."""

from dataclasses import replace

import pytest
import torch

from hardcase.testing.toys import toy_images, toy_subject
from hardcase_studies.parts import OutOfTimeError, Parts, limited
from hardcase_studies.witness_world import WitnessWorld, searched


@pytest.fixture
def world():
    return WitnessWorld(toy_subject(), (), (toy_subject(),))


def test_a_part_is_measured_once_and_read_as_it_was(bench, world):
    from hardcase.methods.appearance_search import natural

    seeds = toy_images(4)
    parts = Parts.of(bench(), "study", seeds)
    method = natural((1, 8, 8), space="warp", gradients=4)
    made = parts.outcomes(world, "search", seeds, lambda: searched(world, method, seeds))
    again = parts.outcomes(world, "search", seeds, lambda: pytest.fail("measured twice"))
    assert again.columns.keys() == made.columns.keys()
    assert torch.equal(again.columns["passes"], made.columns["passes"])
    assert torch.equal(again.found.x, made.found.x)
    other = Parts.of(replace(bench(), seed=9), "study", seeds)
    assert other.folder != parts.folder


def test_nothing_new_is_begun_when_the_time_is_up(bench, world):
    late = Parts.of(limited(bench(minutes=0)), "late", toy_images(2))
    with pytest.raises(OutOfTimeError):
        late.tensors(world, "part", lambda: {"a": torch.zeros(1)})
    parts = replace(late, until=float("inf"))
    parts.tensors(world, "part", lambda: {"a": torch.ones(1)})
    assert late.tensors(world, "part", dict)["a"].item() == 1
