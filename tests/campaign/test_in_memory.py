"""Search in memory: as the campaign's own loop, shard after shard."""

import torch

from hardcase.campaign.in_memory import search, walk
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.methods.pgd import pgd
from hardcase.testing.toys import toy_images, toy_subject

SUBJECT = toy_subject()
METHOD = pgd(epsilon=0.3, gradients=5)
SEEDS = toy_images(6)


def test_a_search_in_memory_is_the_campaigns_loop():
    done = search(SUBJECT, METHOD, SEEDS, keep="first")
    shard = run_shard(Campaign(subject=SUBJECT, method=METHOD), SEEDS, limits(METHOD.budget, 6))
    assert torch.equal(done.findings.x, shard.findings.x)
    assert torch.equal(done.queries, shard.counts.queries)
    assert done.succeeded == len(set(done.findings.seed.tolist()))
    assert bool(done.attempted.all())


def test_seeds_of_later_shards_keep_their_places():
    done = search(SUBJECT, METHOD, SEEDS, shard=4, keep="first")
    assert set(done.findings.seed.tolist()) <= set(range(6))
    assert max(done.findings.seed.tolist()) > 3
    assert len(done.queries) == 6


def test_a_walk_ends_in_the_state_of_the_search():
    state, queries = walk(SUBJECT, METHOD, SEEDS)
    assert len(queries) == 6
    assert torch.equal(queries, search(SUBJECT, METHOD, SEEDS).queries)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
