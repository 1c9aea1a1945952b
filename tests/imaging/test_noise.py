import math

import pytest
import torch

from hardcase.imaging.noise import WORD, Draws, content_key, grain, lattice, plasma, poisson
from hardcase.randomness import stream


def test_draws_are_uniform_and_normal_and_differ_by_key_and_name():
    draws = Draws(torch.arange(64))
    u, z = draws.uniform("a", 1000), draws.normal("a", 1000)
    assert abs(float(u.mean()) - 0.5) < 0.005
    assert abs(float(u.var()) - 1 / 12) < 0.001
    assert torch.histc(u, 10, 0, 1) == pytest.approx([6400] * 10, rel=0.05)
    assert abs(float(z.mean())) < 0.015
    assert abs(float(z.std()) - 1) < 0.01
    assert abs(float(torch.corrcoef(u)[0, 1:].mean())) < 0.02
    assert abs(float((u[:, 1:] - 0.5).mul(u[:, :-1] - 0.5).mean())) < 0.002
    assert not torch.equal(u, draws.uniform("b", 1000))
    assert torch.equal(Draws(torch.tensor([5])).uniform("a", 1000)[0], u[5])
    far = (Draws(torch.tensor([1 << bit])).uniform("a", 9) for bit in (33, 34))
    assert not torch.equal(*far)


def test_counts_of_light_are_poisson():
    scipy = pytest.importorskip("scipy.stats")
    u = (torch.arange(20000) + 0.5) / 20000
    for mean in (0.0, 0.3, 2.0, 5.9, 6.1, 20.0, 60.0):
        given = (value.reshape(1, 1, 100, 200) for value in (torch.full_like(u, mean), u))
        counts = poisson(*given).flatten()
        true = scipy.poisson.ppf(u.double().numpy(), mean)
        assert float((counts.double().numpy() != true).mean()) < 0.02, mean
        assert float(counts.mean()) == pytest.approx(mean, abs=0.02 + 0.002 * mean)


def test_lattice_numbers_are_even_and_independent_of_their_count():
    key = torch.tensor([1, 2])
    numbers = lattice(key, 20_000, salt=3)
    assert torch.equal(lattice(key, 100, salt=3), numbers[:, :100])
    for bit in range(32):
        assert float((numbers >> bit & 1).double().mean()) == pytest.approx(0.5, abs=0.02)
    uniform = (numbers.long() & WORD).double() / 2**32
    assert float(torch.corrcoef(uniform)[0, 1].abs()) < 4 / math.sqrt(20_000)
    assert float(torch.corrcoef(torch.stack([uniform[0, 1:], uniform[0, :-1]]))[0, 1].abs()) < 0.03
    assert not torch.equal(lattice(key, 100, salt=4), numbers[:, :100])


@pytest.mark.parametrize("channels", [1, 3])
def test_grain_has_unit_variance_and_is_the_seeds_own(channels):
    x = torch.rand(2, channels, 96, 96, generator=stream(1))
    pattern = grain(x, content_key(x))
    assert pattern.shape == x.shape
    assert pattern.mean().abs() < 0.03
    assert pattern.std() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(grain(x[1:], content_key(x[1:])), pattern[1:])
    assert (pattern[0] * pattern[1]).mean().abs() < 0.04
    shifted = (pattern[..., 1:] * pattern[..., :-1]).mean()
    assert shifted.abs() < 0.03


def test_clouds_fill_the_range_and_are_coarse():
    cloud = plasma(Draws(torch.arange(4)), torch.full((4,), 2.0), 60)
    assert cloud.shape == (4, 64, 64)
    assert torch.allclose(cloud.amin((1, 2)), torch.zeros(4))
    assert torch.allclose(cloud.amax((1, 2)), torch.ones(4))
    near = (cloud - cloud.roll(1, 2)).abs().mean()
    far = (cloud - cloud.roll(32, 2)).abs().mean()
    assert float(far) > 3 * float(near)
