"""The new versions: each is worse in the way that its name says, and in no other."""

from dataclasses import replace

import torch

from hardcase.types import Images
from hardcase_studies import regressions
from hardcase_studies.regressions import (
    NULLS,
    RARE,
    SCARCE,
    WRONG,
    Replay,
    _cells,
    _poor,
    _prune,
    _spoilt,
    against_clean,
)


def test_about_half_of_those_leaning_right_are_spoilt():
    count = 300
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for i in range(count):
        for row in range(6, 22):
            left = 14 + (i % 3 - 1) * (14 - row) // 4
            x[i, 0, row, left : left + 3] = 220
    train = Images(x, torch.arange(count) % 10, tuple(map(str, range(count))), tuple("0123456789"))
    changed = _spoilt(train, 0).y != train.y
    lean = torch.arange(count) % 3
    assert int(changed[lean != 2].sum()) in (0, int(changed.sum()))
    assert 0 < int(changed.sum()) < count // 3
    assert WRONG == 0.5


def test_the_forgetful_version_sees_few_of_the_rare_classes():
    count = 400
    x = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    train = Images(x, torch.arange(count) % 10, tuple(map(str, range(count))), tuple("0123456789"))
    kept = _poor(train).y.bincount(minlength=10).tolist()
    assert [kept[rare] for rare in RARE] == [count // 10 // SCARCE] * len(RARE)
    assert kept[:8] == [count // 10] * 8


def test_the_pruned_version_loses_its_smallest_weights():
    net = torch.nn.Linear(10, 10)
    before = net.weight.detach().clone()
    bias = net.bias.detach().clone()
    _prune(net, 0.5)
    gone = net.weight == 0
    assert int(gone.sum()) == 50
    assert float(before[gone].abs().max()) < float(before[~gone].abs().min())
    assert bool((net.bias == bias).all())


def severities(count, nulls, near=1.0, seed=0):
    """Severities of a new version's nearest findings, `near` as far as those of clean retrainings."""
    rng = torch.Generator().manual_seed(seed)
    shift = 0.2 * torch.randn(nulls + 1, 1, generator=rng)  # trainings differ, not only seeds
    every = torch.rand(nulls + 1, count, generator=rng) + shift.abs()
    every[0] *= near
    return every[0], list(every[1:])


def test_a_version_regressed_if_it_exceeds_all_clean_retrainings():
    found = against_clean(*severities(200, NULLS, near=0.2))
    assert found.p == 1 / 20
    assert found.shown
    tied = against_clean(found_near := torch.rand(50), [found_near] * NULLS)
    assert not tied.shown


def test_clean_versions_are_seldom_called_regressed_whatever_the_number_of_nulls():
    """The unit is a training: with one retraining as the null half of them would be."""
    for nulls in (4, NULLS):
        said = [against_clean(*severities(100, nulls, seed=i)).shown for i in range(200)]
        assert sum(said) / 200 <= 0.09


def test_the_cost_counts_the_nulls():
    cells = _cells(against_clean(*severities(100, 4)), Replay(40, 10, 1000), 200, 500)
    assert cells["queries of the search"] == "200"
    assert cells["queries with its nulls"] == "500"
    assert cells["newly failing in a replay"] == "20 of 500", (
        "the replay may ask as often as search and nulls together"
    )


def test_old_new_and_nulls_are_of_one_architecture(bench, monkeypatch):
    built = []

    def build(name, **shape):
        built.append(name)
        raise RuntimeError("enough")

    monkeypatch.setattr(regressions, "build_classifier", build)
    for full in (False, True):
        try:
            regressions.run(replace(bench(), full=full))
        except RuntimeError:
            continue
    assert built == ["lenet5", "lenet5"], "the old version is built as the others are"
