"""Sign flips, means of clusters and families of intervals against scipy and what they promise."""

import numpy as np
import pytest
import torch
from scipy import stats as reference

from hardcase.randomness import stream
from hardcase_studies.inference import cluster_means, family_intervals, sign_flip
from tiny import LAWS, check_coverage, holds


def test_sign_flips_are_exact_where_they_can_be():
    values = torch.tensor([0.3, 1.2, -0.1, 0.8, 0.4, 0.9])
    theirs = reference.permutation_test(
        (values.numpy(),),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=10**6,
    )
    ours = sign_flip(values, rng=stream(0))
    assert ours.exact
    assert ours.p == pytest.approx(theirs.pvalue)
    drawn = sign_flip(values, rng=stream(0), permutations=50)
    assert not drawn.exact
    assert drawn.p >= 1 / 51


def test_sign_flips_keep_their_level():
    rng = stream(3, "level")
    low = [sign_flip(torch.randn(8, generator=rng), rng=rng).p <= 0.05 for _ in range(400)]
    assert sum(low) / 400 <= 0.05 + 2.6 * (0.05 * 0.95 / 400) ** 0.5


def test_clusters_are_averaged():
    means = cluster_means(torch.tensor([1.0, 3.0, 10.0]), torch.tensor([7, 7, 2]))
    assert means.tolist() == [10.0, 2.0], "in the order of their numbers"


def test_six_runs_of_the_audit_are_told_from_a_random_neuron():
    """Kept labels by run, less a random neuron's; an older interval of these reached from -1.1."""
    neighbour, lsa = [14.0, 18, 11, 13, 6, 9], [11.0, 16, 8, 9, 7, 11]
    noise = torch.randn(6, 18, generator=stream(0, "others"), dtype=torch.float64) * 4
    table = torch.cat([torch.tensor([neighbour, lsa]).T.double(), noise], 1)
    found = family_intervals(table)
    assert found[0].low > 0
    assert found[1].low > 0
    assert sum(one.low > 0 or one.high < 0 for one in found[2:]) == 0


def test_few_runs_have_no_interval_or_students():
    assert family_intervals(torch.rand(2, 3))[0].kind == "(no interval: 2 runs)"
    assert family_intervals(torch.tensor([3.0, 4.0, 4.5, 7.0])[:, None])[0].kind == "(t, 4 runs)"


def family_of_units(law, count, repeats, rng):
    """Seven treatments and one control: all seven intervals hold together."""
    draws = LAWS[law][0](rng, repeats, count, 8)
    tables = torch.from_numpy(draws[..., :7] - draws[..., 7:])
    return [all(holds(found, 0) for found in family_intervals(table)) for table in tables]


@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_what_they_say(law):
    rng = np.random.default_rng(0)
    for count in (3, 4, 5, 6, 8, 30):
        check_coverage(family_of_units(law, count, 150, rng))


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
def test_intervals_cover_what_they_say_for_every_number_of_units(law):
    rng = np.random.default_rng(1)
    for count in (3, 4, 5, 6, 8, 10, 16, 30):
        check_coverage(family_of_units(law, count, 2000, rng))
