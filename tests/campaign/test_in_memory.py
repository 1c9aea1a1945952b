"""Search in memory is the run's own loop, shard after shard; and a targeted search cannot start in its target."""

import pytest
import torch

import hardcase as hc
from hardcase.campaign.in_memory import search, walk
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.methods import cw, fgsm, pgd, sinvad
from hardcase.spaces.latent import Latent
from hardcase.testing.toys import ToyAutoencoder, toy_images, toy_subject

SUBJECT = toy_subject()
METHOD = pgd(epsilon=0.3, gradients=5)
SEEDS = toy_images(6)
TARGET, COUNT = 2, 12
METHODS = {
    "pgd": lambda: pgd(TARGET),
    "fgsm": lambda: fgsm(TARGET),
    "cw": lambda: cw(TARGET, steps=10, rounds=2),
    "sinvad": lambda: sinvad(Latent(ToyAutoencoder()), target=TARGET),
}


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


@pytest.mark.parametrize("name", METHODS)
def test_seeds_of_the_target_are_neither_searched_nor_counted(name, tmp_path):
    images = toy_images(COUNT)
    there = int((images.y == TARGET).sum())
    assert there > 0
    run = hc.run(SUBJECT, images, method=METHODS[name](), out=tmp_path / "run", judge=False)
    counts = run.record
    assert counts["skipped"]["target"] == there
    assert counts["search_results"]["correctly_classified"] == COUNT, (
        "the subject gets them all right"
    )
    assert counts["search_results"]["searched"] <= COUNT - there
    of_target = [row for row in run.seeds.to_pylist() if row["label"] == TARGET]
    assert {row["status"] for row in of_target} == {"skipped: target"}
    assert sum(row["evaluated"] for row in of_target) == 0


def test_in_memory_they_are_not_attempted_either():
    images = toy_images(COUNT)
    found = search(SUBJECT, pgd(TARGET), images)
    assert found.attempted.tolist() == (images.y != TARGET).tolist()
    kept = hc.search(SUBJECT, images, method="pgd", target=TARGET)
    assert TARGET not in kept.expected.tolist()
    only = images.take((images.y == TARGET).nonzero().squeeze(1))
    with pytest.raises(hc.HardcaseError, match="another class than the target"):
        hc.search(SUBJECT, only, method="pgd", target=TARGET)
