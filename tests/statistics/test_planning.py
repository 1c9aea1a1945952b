"""How many images decide."""

import numpy as np

from hardcase.statistics import needed_images


def test_more_images_are_needed_for_smaller_differences():
    spread = np.random.default_rng(0).normal(0, 0.2, 500)
    small, large = (needed_images(spread, effect) for effect in (0.01, 0.02))
    assert 3 * large < small <= 4 * large
    normal = ((1.96 + 1.2816) * spread.std(ddof=1) / 0.01) ** 0.5**-1
    assert normal < small < 1.3 * normal, "the interval is a little wider than a normal one"
