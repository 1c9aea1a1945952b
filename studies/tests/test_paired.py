"""The verdict on planted faults: same seeds, a placebo that stays at its level, a least effect."""

import torch

from hardcase.randomness import stream
from hardcase_studies.paired import Pairs, placebo, verdicts

SEEDS = 60


def pairs(on_faulty, on_clean, trainings=5, seed=0):
    rng = stream(seed, "outcomes")
    faulty = torch.rand(trainings, SEEDS, generator=rng) < on_faulty
    clean = torch.rand(trainings, SEEDS, generator=rng) < on_clean
    return Pairs(faulty, clean, faulty.double() - clean.double())


def test_a_clear_fault_is_detected_and_an_equal_share_is_not():
    clear, same, nothing = verdicts([pairs(0.8, 0.1, seed=1), pairs(0.4, 0.4), pairs(0.0, 0.0)])
    assert clear.detected
    assert clear.difference.low < 0.7 < clear.difference.high
    assert clear.positive.hits == 5
    assert not same.detected
    assert not nothing.detected
    assert nothing.difference.low < 0 < nothing.difference.high, "0 of 60 is not certain"


def test_a_difference_that_is_real_but_small_or_not_in_every_training_is_not_enough():
    small = pairs(0.0, 0.0)
    small.faulty[:, :4] = True
    (verdict,) = verdicts([small])
    assert 0 < verdict.difference.value < 0.09
    assert not verdict.detected
    once = pairs(0.9, 0.05, trainings=2)
    once.faulty[1] = once.clean[1]
    (verdict,) = verdicts([once])
    assert verdict.p < 0.05
    assert not verdict.detected


def test_cells_are_corrected_together():
    weak = pairs(0.35, 0.2, trainings=2, seed=4)
    (alone,) = verdicts([weak])
    together = verdicts([weak, *(pairs(0.3, 0.3, trainings=2, seed=i) for i in range(8))])
    assert together[0].p >= alone.p


def test_the_placebo_is_seldom_called_a_detection():
    """Seeds at one end of the trait regress to the mean on both sides alike."""
    rng = stream(3, "placebo")
    end = torch.rand(SEEDS, generator=rng)
    outcomes = torch.rand(400, SEEDS, generator=rng) < end
    share = placebo(outcomes)
    assert share.of == 200
    assert share.hits / share.of <= 0.05 + 2.6 * (0.05 * 0.95 / 200) ** 0.5
