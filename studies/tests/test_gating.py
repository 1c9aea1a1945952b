"""The gate on real trainings: what is measured of it, and what it says of networks that differ."""

import numpy as np
import pytest

from hardcase.statistics import needed_images
from hardcase_studies import gating
from hardcase_studies.bench import Bench


def sparse(count, seed=0):
    """Differences of which most are 0, as those of two good networks."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < 0.2, rng.normal(0.06, 0.12, count), 0).clip(-1, 1)


def test_a_run_tells_about_as_many_images_as_show_the_difference():
    differences = sparse(20_000)
    effect = differences.mean()
    rng = np.random.default_rng(1)
    told = [needed_images(sparse(200, seed), effect) for seed in range(2, 8)]
    share = gating.seen_share(differences, round(np.median(told)), 150, rng)
    assert 0.8 < share < 0.99
    assert needed_images(sparse(200), effect / 2) > 2 * needed_images(sparse(200), effect)


def test_the_count_at_which_a_share_is_reached_is_read_between_two():
    assert gating.crossing([10, 20, 30], [0.1, 0.8, 1.0], 0.9) == 25
    assert gating.crossing([10, 20], [0.1, 0.8], 0.9) is None


@pytest.mark.long
def test_the_gate_passes_the_better_fails_the_worse_and_cannot_tell_two_trainings(tmp_path):
    found = gating.run(Bench(out=tmp_path, options={"seeds": 400, "resamples": 20}))
    said = {row[0]: row[-1] for row in found.tables[0].rows}
    for new, old, codes in (
        (gating.LARGER, gating.WEAK, (0, 0)),
        (gating.WEAK, gating.LARGER, (1, 1)),
        (gating.LARGER, gating.AGAIN, (4, None)),
        (gating.AGAIN, gating.LARGER, (4, None)),
    ):
        for margin, code in zip(gating.MARGINS, codes):
            if code is not None:
                assert said[f"{new} held against {old}, margin {margin:g}"] == code
