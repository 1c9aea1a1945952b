"""Effects and regions: the laws of the simulation have the truths that they say."""

import numpy as np
import pytest

from hardcase_studies import condition_figures as figures


@pytest.mark.parametrize(
    ("law", "truth"), [(figures.no_effect, 0.0), (figures.few_images, 0.0), (figures.rare, 3e-4)]
)
def test_a_law_has_the_effect_that_it_says(law, truth):
    value, full, share = figures.estimate(np.random.default_rng(0), law, 200_000)
    assert full == pytest.approx(truth, abs=6e-4)
    assert float(value.mean()) == pytest.approx(full, abs=1e-3)
    assert share < 0.5


def test_a_corner_is_told_with_its_rate_and_nothing_of_nothing():
    rng = np.random.default_rng(1)
    told, truth = figures._one_region(rng, 0.5, 600, 0)
    assert told is not None
    assert told.low < truth
    assert truth > 0.2
    assert figures._one_region(rng, 0.0, 600, 1)[0] is None
