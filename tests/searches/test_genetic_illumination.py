"""Illumination: drafts that ask no network, and a search that goes on without a map."""

from dataclasses import replace

import torch

import hardcase as hc
from hardcase.analysis.maps import grid_of, mapping
from hardcase.randomness import Rng
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget
from tiny import noise_method as method

GRID = grid_of("brightness,contrast", toy_images(30))


def test_drafts_reach_more_cells_at_the_same_queries():
    reached = {}
    for drafts in (1, 8):
        made = mapping(method(), GRID)
        search = replace(made.search, drafts=drafts, queries=20)
        guide = mapped(replace(made, search=search), 120)
        reached[drafts] = int((guide.base["level"] > 0).sum())
    assert reached[8] > reached[1]


def test_without_an_aim_the_seed_is_the_parent():
    made = mapping(method(), GRID)
    search = replace(made.search, children=3, spread=1e-6)
    z = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    state = {"z": z, "x": z, "y": torch.zeros(2), "id": torch.arange(2)}
    drawn = search._drafted(state, torch.arange(2), {}, Rng.numbered(0, "search", 2))
    assert drawn.shape == (6, 1, 8, 8)
    assert torch.allclose(drawn, z.repeat_interleave(3, 0), atol=1e-4)


def mapped(made, queries):
    """What a search teaches the map of its method."""
    budget, how = Budget(queries=queries), hc.Execution(shard=4)
    hc.search(toy_subject(), toy_images(4), method=made, budget=budget, execution=how)
    (guide,) = made.guides
    assert int(guide.base["visits"].sum()) == 4 * queries
    return guide


def test_the_methods_own_search_comes_first_and_ends_where_it_would():
    guide = mapped(mapping(method(), GRID), 60)
    assert int((guide.base["level"] > 1).sum()) > 0, "a gradient finds failures of the toy at once"
    assert int(guide.base["aimed"].sum()) > 0, "and then the map steers"


def test_a_seed_whose_gradients_are_spent_goes_on_with_the_map():
    made = mapping(replace(method(), budget=Budget(queries=40, gradients=3)), GRID)
    assert made.search.gradients == 3
    mapped(made, 60)
