"""MSE, SSIM, LD, ER and SR against counting by hand."""

import math

import pytest
import torch

from hardcase.randomness import stream
from hardcase.types import KINDS, Findings
from hardcase_studies.argus_measure import PerSeed, label_diversity, mse, per_seed, ssim


def test_mse_and_ssim_of_each_pair():
    x, y = (torch.rand(3, 1, 16, 16, generator=stream(seed)) for seed in (1, 2))
    expected = [
        sum((a - b) ** 2 for a, b in zip(p.flatten().tolist(), q.flatten().tolist())) / 256
        for p, q in zip(x, y)
    ]
    assert mse(x, y).tolist() == pytest.approx(expected, rel=1e-4)
    assert ssim(x, x).tolist() == pytest.approx([1, 1, 1])
    assert bool((ssim(x, y) < 0.5).all())
    assert ssim(x[:1], y[:1]).tolist() == pytest.approx(ssim(x, y)[:1].tolist(), rel=1e-5)
    assert ssim(x[:0], y[:0]).shape == (0,)


def test_rates_and_diversity_count_what_they_say():
    owner, label = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([1, 1, 3, 0, 0])
    assert label_diversity(owner, label, 4).tolist() == [2, 0, 1, 0]
    assert label_diversity(owner[:0], label[:0], 2).tolist() == [0, 0]


def test_seeds_are_measured_by_label_failures_only():
    seeds = torch.zeros(2, 1, 12, 12, dtype=torch.uint8)
    x = torch.full((3, 1, 12, 12), 51, dtype=torch.uint8)
    x[2] = 255
    whole, real = torch.tensor([1, 2, 3]), torch.zeros(3)
    kind = torch.tensor([KINDS.index("label"), KINDS.index("label"), KINDS.index("disagreement")])
    found = Findings(
        torch.tensor([0, 0, 1]),
        x,
        kind,
        whole * 0,
        whole,
        whole[:, None][:, :0],
        real,
        real,
        real,
        whole,
        real[:, None][:, :0],
    )
    measured = per_seed(found, seeds, failing=torch.tensor([5, 0]), looked=torch.tensor([10, 10]))
    assert measured.mse[0] == pytest.approx(0.04)
    assert math.isnan(measured.mse[1])
    assert math.isnan(measured.ssim[1])
    assert (measured.ld.tolist(), measured.er.tolist(), measured.sr.tolist()) == (
        [2, 0],
        [0.5, 0],
        [1, 0],
    )
    both = PerSeed.join([measured, measured.take(torch.tensor([False, True]))])
    assert both.er.tolist() == [0.5, 0, 0]
