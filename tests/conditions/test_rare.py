"""Splitting: unbiased and covered on toys whose failing volume is known; a volume of the box."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from conditions.toys import darkness, grey
from hardcase.conditions import Conditions, condition_box, measure_risk, rare
from hardcase.conditions.rare import REPEATS, find_levels, measure_rare, split
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng
from hardcase.statistics import log_interval

SIZE = 3
TRIALS = 60
"""Experiments of `REPEATS` repeats each."""


def failing(value, threshold):
    return value.masked_fill(value > threshold, torch.inf)


def half_space(chance):
    threshold = float(norm.isf(chance))
    return lambda g, chain: failing((g[:, 0] + g[:, 1]) / 2**0.5, threshold)


def two_modes(chance):
    """A nearer one and a farther one, a tenth as large, in other directions."""
    near, far = (float(norm.isf(part * chance / 1.1)) for part in (1, 0.1))
    return lambda g, chain: failing(torch.maximum(g[:, 0], g[:, 1] - far + near), near)


def plateaus(chance):
    threshold = float(norm.isf(chance))

    def score(g, chain):
        value = g[:, 0]
        return ((4 * value).floor() / 4).masked_fill(value > threshold, torch.inf)

    return score


def one_carries_all(chance):
    """One image in four has all of the volume; the others fail nowhere."""
    threshold = float(norm.isf(min(1, 4 * chance)))
    none = 1e9
    return lambda g, chain: failing(g[:, 0], torch.where(chain % 4 == 0, threshold, none))


def measured(toy, chance, trials, seed):
    """Estimates of `trials` experiments, each with levels of its own and `REPEATS` repeats."""
    images = 4 if toy is one_carries_all else 1
    floor = min(1e-6, chance) if images == 1 else chance
    score = toy(chance)
    pilot = Rng.numbered(seed, f"{toy.__name__} levels", trials * images)
    levels = find_levels(lambda g, chain: score(g, chain % images), SIZE, pilot, floor=floor)
    levels = levels.reshape(trials, 1, images, -1).expand(-1, REPEATS, -1, -1).flatten(0, 2)
    rng = Rng.numbered(seed, toy.__name__, len(levels))
    found = split(score, SIZE, rng, levels)
    return found.reshape(trials, REPEATS, images).mean(2).numpy()


def covered(estimates, chance):
    bounds = [log_interval(row, floor=1e-6) for row in estimates]
    return np.mean([low <= chance <= high for low, high in bounds])


def bias(estimates, chance):
    """The mean over the truth less 1, in standard errors over experiments."""
    means = estimates.mean(1)
    return (means.mean() - chance) / (means.std(ddof=1) / len(means) ** 0.5)


TOYS = [(half_space, 1e-2), (half_space, 1e-6), (two_modes, 1e-4), (plateaus, 1e-5)]
TOYS += [(one_carries_all, 1e-3)]


@pytest.mark.parametrize(("toy", "chance"), TOYS)
def test_volumes_are_unbiased_and_covered(toy, chance):
    estimates = measured(toy, chance, TRIALS, 7)
    assert abs(bias(estimates, chance)) < 3.5
    assert covered(estimates, chance) >= 0.95 - 2.6 * (0.95 * 0.05 / TRIALS) ** 0.5


def test_a_random_walk_that_hardly_moves_does_not_bias():
    """Levels that follow from the particles themselves find a third too much at 1e-4 by two moves."""
    score = half_space(1e-3)
    levels = find_levels(score, SIZE, Rng.numbered(1, "levels", 200), moves=1)
    found = split(score, SIZE, Rng.numbered(1, "few", 4000), levels.repeat(20, 1), moves=1)
    error = found.std() / len(found) ** 0.5
    assert abs(float(found.mean()) - 1e-3) < 3.5 * float(error)
    assert float(error) < 1e-4


def test_chains_do_not_depend_on_their_neighbours():
    score = half_space(1e-2)
    levels = find_levels(score, SIZE, Rng.numbered(0, "levels", 6))
    alone = find_levels(score, SIZE, Rng.numbered(0, "levels", 1))[0]
    assert torch.equal(alone, levels[0][levels[0] < rare.DONE])
    many = split(score, SIZE, Rng.numbered(0, "test", 6), levels)
    few = split(score, SIZE, Rng.numbered(0, "test", 3), levels[:3])
    assert torch.equal(many[:3], few)


def test_what_never_fails_is_below_the_floor():
    levels = find_levels(lambda g, chain: g[:, 0], SIZE, Rng.numbered(0, "none", 4), floor=1e-2)
    found = split(lambda g, chain: g[:, 0], SIZE, Rng.numbered(1, "none", 4), levels)
    constant = find_levels(lambda g, chain: 0 * g[:, 0], SIZE, Rng.numbered(0, "none", 4))
    assert constant[:, -1].tolist() == [rare.FAILING] * 4, "particles all alike are given up"
    assert found.tolist() == [0.0] * 4
    assert log_interval(found.numpy(), floor=1e-6) == (0, 1e-6)
    assert rare.RareTable((), torch.zeros(0, REPEATS), 5).value == 0


def test_the_volume_of_a_box_is_found_where_no_draw_fails():
    subject = darkness()
    shape = (1, 16, 16)
    # 128/255 * 2^(s/2.2) < 0.4 below -0.72 of -0.73 stops: 0.4 % of the box, less the grey levels
    box = condition_box(Conditions({"exposure": "±0.73 stops", "shift": "±2 %"}), shape)
    table = measure_risk(subject, grey(2), box, samples=2)
    assert int(table.failing.sum()) == 0
    found = measure_rare(subject, grey(2), box, table)
    own = measure_risk(subject, grey(128), box, samples=64, seed=3)
    assert found.id == table.id
    assert found.value == pytest.approx(own.value, rel=0.35)
    low, high = found.bounds
    assert low <= own.value <= high
    assert "no probability" in found.to_json()["meaning"]
    with pytest.raises(HardcaseError, match="too few"):
        measure_rare(subject, grey(2), box, table, repeats=3)


def test_normal_numbers_give_the_declared_distribution():
    box = condition_box(Conditions({"rotation": "±8 deg", "bend": "0..5 %"}), (1, 16, 16))
    g = Rng.numbered(0, "normals", 4000).normal(torch.arange(4000), (box.normals,))
    z = box.from_normals(g)
    place = box.owner.index("rotation")
    assert z[:, place].abs().mean().item() == pytest.approx(box.high[place] / 2, rel=0.05)
    bent = torch.tensor([owner == "bend" for owner in box.owner])
    alone = z.masked_fill(~bent, 0)
    assert box.gauge(alone).mean().item() == pytest.approx(0.5, abs=0.03)
