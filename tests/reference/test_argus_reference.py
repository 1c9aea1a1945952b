"""ARGUS's Algorithm 1 and our adaptive form against the same written as plain loops."""

import pytest
import torch

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, parse_keep
from hardcase.methods.generative import argus, argus_adaptive
from hardcase.randomness import stream
from hardcase.spaces.latent import Grid, collect
from hardcase.tensors import from_bytes, to_bytes, to_grid
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject
from hardcase.types import Budget

IMAGES, OTHERS = toy_images(6), toy_images(30, seed=2)
NET, SUBJECT = ToyQuantiser(), toy_subject()
MIN_MARGIN = 1e-4


@pytest.fixture(scope="module")
def library():
    return collect(OTHERS, NET.encode, device=torch.device("cpu"))


def found(method, keep, budget=None):
    campaign = Campaign(subject=SUBJECT, method=method, keep=parse_keep(keep), batch=64)
    shard = run_shard(campaign, IMAGES, limits(budget or method.budget, len(IMAGES)))
    rows = zip(shard.findings.seed, shard.findings.x, shard.findings.predicted)
    return shard, {(int(seed), to_key(x)): int(predicted) for seed, x, predicted in rows}


def to_key(x):
    return bytes(x.flatten().tolist())


def says(code, label):
    """Picture, answer and whether it leaves `label`, of one code."""
    x = to_grid(NET.decode(code[None]))
    p = SUBJECT(x).logits.softmax(1)[0]
    own, p = float(p[label]), p.clone()
    p[label] = -1
    return to_key(to_bytes(x)[0]), int(p.argmax()), float(p.max()) - own >= MIN_MARGIN


@pytest.mark.parametrize("mix", [0.55, 0.8])
def test_every_seed_meets_every_partner_of_another_class_once(library, mix):
    shard, ours = found(argus(space=Grid(NET), partners=library, mix=mix), "all")
    expected, asked = {}, 0
    for i, (x, y) in enumerate(zip(from_bytes(IMAGES.x), IMAGES.y.tolist())):
        own = NET.encode(x[None])[0]
        for code, label in zip(library.codes, library.label.tolist()):
            if label == y:
                continue
            asked += 1
            key, answer, failed = says((1 - mix) * own + mix * code, y)
            if failed:
                expected[i, key] = answer
    assert ours == expected
    assert len(ours) > 10
    once = asked + len(IMAGES)  # each pair, and one look at each reconstruction
    assert int(shard.counts.queries.sum()) == once


def slow_adaptive(own, y, library, rounds, halvings, blocks):
    """The nearest code that reaches each class: distance and picture."""
    reached = {}
    for goal in sorted(set(library.label.tolist()) - {y}):
        rows = [r for r in range(len(library.label)) if int(library.label[r]) == goal]
        rows.sort(key=lambda r: float((library.codes[r] - own).square().sum().sqrt()))
        best, far = None, float("inf")
        for r in rows[:rounds]:
            low, high = 0.0, 1.0
            for turn in range(halvings + 1):
                share = high if turn == 0 else (low + high) / 2
                code = own + share * (library.codes[r] - own)
                _, answer, failed = says(code, y)
                hit = failed and answer == goal
                low, high = (low, share) if hit else (share, high)
                distance = float((code - own).square().sum().sqrt())
                if hit and distance < far:
                    best, far = code, distance
        if best is None:
            continue
        for size in blocks:
            order = (best - own).square().sum(0).flatten().argsort(descending=True, stable=True)
            for start in range(0, len(order), size):
                trial, places = best.clone().flatten(1), order[start : start + size]
                trial[:, places] = own.flatten(1)[:, places]
                trial = trial.reshape_as(best)
                _, answer, failed = says(trial, y)
                distance = float((trial - own).square().sum().sqrt())
                if failed and answer == goal and distance < far:
                    best, far = trial, distance
        reached[goal] = (far, says(best, y)[0])
    return reached


@pytest.mark.parametrize("blocks", [(), (8, 1), (5,)])
def test_the_adaptive_form_finds_the_nearest_code_that_a_plain_loop_finds(library, blocks):
    method = argus_adaptive(space=Grid(NET), partners=library, rounds=2, halvings=4, blocks=blocks)
    shard, ours = found(method, "best-per-label")
    rows = zip(shard.findings.seed, shard.findings.predicted, shard.findings.distance)
    best = {(int(seed), int(predicted)): float(distance) for seed, predicted, distance in rows}
    expected = {}
    for i, (x, y) in enumerate(zip(from_bytes(IMAGES.x), IMAGES.y.tolist())):
        slow = slow_adaptive(NET.encode(x[None])[0], y, library, 2, 4, blocks)
        for goal, (far, key) in slow.items():
            expected[i, goal] = far
            assert (i, key) in ours
    assert best.keys() == expected.keys()
    assert all(best[pair] == pytest.approx(expected[pair], rel=1e-4) for pair in best)
    assert bool((shard.counts.queries <= method.budget.queries).all())


def test_taking_places_back_comes_nearer_and_a_cut_budget_still_finds(library):
    def mean(**options):
        method = argus_adaptive(space=Grid(NET), partners=library, **options)
        return float(found(method, "best-per-label")[0].findings.distance.mean())

    assert mean() < 0.95 * mean(blocks=())
    method = argus_adaptive(space=Grid(NET), partners=library)
    shard, _ = found(method, "best-per-label", Budget(queries=40))
    assert bool((shard.counts.queries <= 40).all())
    assert len(shard.findings)


def test_a_library_streams_rows_and_names_those_of_other_classes(library):
    for label, rows in enumerate(library.by_class):
        assert sorted(rows.tolist()) == [r for r in range(30) if int(library.label[r]) != label]
        assert len(set(library.label[rows[:3]].tolist())) == 3, "classes take turns"
    rows = torch.randint(30, (2, 3), generator=stream(0))
    assert torch.equal(library.take(rows)[1, 2], library.codes[rows[1, 2]])
    one = OTHERS.take((OTHERS.y == 1).nonzero().squeeze(1))
    with pytest.raises(Exception, match="one class only"):
        collect(one, NET.encode, device=torch.device("cpu"))
    few = collect(OTHERS, NET.encode, device=torch.device("cpu"), limit=8)
    assert few.label.bincount().tolist() == [2, 2, 2, 2]
