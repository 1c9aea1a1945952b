"""Intervals and permutation tests against published examples, against scipy, and against what they promise."""

import numpy as np
import pytest
import torch
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import Problem
from hardcase.inference import max_statistic, mean_interval, median_interval, newcombe_paired
from hardcase.randomness import stream
from hardcase_studies.inference import cluster_means, family_intervals, sign_flip
from hardcase_study.agreement import crossed_interval


def rows(both, one, other, neither):
    first = [1] * both + [1] * one + [0] * other + [0] * neither
    second = [1] * both + [0] * one + [1] * other + [0] * neither
    return torch.tensor(first).bool(), torch.tensor(second).bool()


def test_paired_differences_as_in_newcombes_table():
    ours = newcombe_paired(*rows(36, 12, 2, 0))
    assert (ours.low, ours.high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    nothing = newcombe_paired(*rows(0, 0, 0, 200))
    assert nothing.low < 0 < nothing.high, "0 of 200 twice is not certain"
    with pytest.raises(Problem, match="row by row"):
        newcombe_paired(torch.ones(2).bool(), torch.ones(3).bool())


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


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_best_of_many_that_show_nothing_is_seldom_called_something():
    rng = stream(5, "best")
    best = [
        float(max_statistic(torch.randn(9, 24, generator=rng), rng=rng).min()) <= 0.05
        for _ in range(200)
    ]
    assert sum(best) / 200 <= 0.05 + 2.6 * (0.05 * 0.95 / 200) ** 0.5
    shifted = torch.randn(12, 24, generator=rng)
    shifted[:, 3] += 3
    p = max_statistic(shifted, rng=rng)
    assert int(p.argmin()) == 3
    assert float(p[3]) < 0.01
    assert float(max_statistic(torch.zeros(5, 2), rng=rng).min()) == 1


def test_clusters_are_averaged():
    means = cluster_means(torch.tensor([1.0, 3.0, 10.0]), torch.tensor([7, 7, 2]))
    assert means.tolist() == [10.0, 2.0], "in the order of their numbers"


def test_a_sample_of_zeros_and_ones_is_a_share():
    ours = mean_interval(torch.zeros(200, dtype=torch.bool))
    assert (ours.low, ours.high) == pytest.approx(statistics.interval(0, 200))
    mixed = mean_interval(torch.tensor([0.0] * 9 + [1.0]))
    assert (mixed.low, mixed.high) == pytest.approx(statistics.interval(1, 10))


def test_few_and_equal_values_have_no_interval():
    """Six runs without any gain in coverage say nothing of a gain of 39 points."""
    assert mean_interval(torch.zeros(6)).text(".0f") == "0 in all 6"
    assert mean_interval([97.8, 98.7]).text(".1f") == "98.2 (no interval: 2 runs)"
    assert family_intervals(torch.rand(2, 3))[0].kind == "(no interval: 2 runs)"
    assert not crossed_interval(torch.rand(9, 2)).known
    assert not median_interval([1.0, 2, 3, 4, 5]).known
    assert not mean_interval([]).known


def test_three_to_five_units_have_students_interval_and_say_so():
    values = [3.0, 4.0, 4.5, 7.0]
    theirs = reference.ttest_1samp(values, 0).confidence_interval()
    ours = mean_interval(values, unit="trainings")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.kind == "(t, 4 trainings)"
    assert family_intervals(torch.tensor(values)[:, None])[0].kind == "(t, 4 runs)"
    assert "t, 3 trainings" in str(crossed_interval(torch.rand(20, 3, generator=stream(0))))


@pytest.mark.parametrize("count", [6, 9, 12])
def test_an_interval_holds_what_a_permutation_test_does_not_reject(count):
    values = torch.randn(count, generator=stream(count), dtype=torch.float64)
    found = mean_interval(values)
    for end, sign in ((found.low, 1), (found.high, -1)):
        inside, outside = ((values - end - sign * shift).numpy() for shift in (1e-6, -1e-6))
        p = [
            reference.permutation_test(
                (sample,), np.mean, permutation_type="samples", n_resamples=np.inf
            ).pvalue
            for sample in (inside, outside)
        ]
        assert p[0] > 0.05 >= p[1]


def test_six_runs_of_the_audit_are_told_from_a_random_neuron():
    """Kept labels by run, less a random neuron's; an older interval of these reached from -1.1."""
    neighbour, lsa = [14.0, 18, 11, 13, 6, 9], [11.0, 16, 8, 9, 7, 11]
    noise = torch.randn(6, 18, generator=stream(0, "others"), dtype=torch.float64) * 4
    table = torch.cat([torch.tensor([neighbour, lsa]).T.double(), noise], 1)
    found = family_intervals(table)
    assert found[0].low > 0
    assert found[1].low > 0
    assert sum(one.low > 0 or one.high < 0 for one in found[2:]) == 0


def test_crossed_intervals_are_wider_than_those_of_rows_alone():
    rng = stream(1, "crossed")
    raters = torch.randn(1, 8, generator=rng)
    table = torch.randn(60, 1, generator=rng) + 2 * raters + torch.randn(60, 8, generator=rng)
    table[0, 0] = torch.nan
    both = crossed_interval(table)
    images = mean_interval(table[1:].mean(1))
    assert both.low < float(table.nanmean()) < both.high
    assert both.high - both.low > 1.5 * (images.high - images.low)


# How often intervals hold the truth. Laws: what runs and trainings give (numbers about a mean,
# skewed shares of a run's seeds, counts of which a quarter are 0).

LAWS = {
    "normal": (lambda rng, *shape: rng.normal(size=shape), 0.0),
    "skewed shares": (lambda rng, *shape: rng.beta(4, 16, shape), 0.2),
    "zero-inflated": (
        lambda rng, *shape: rng.gamma(4, 1, shape) * (rng.random(shape) > 0.25),
        3.0,
    ),
}
ENOUGH, MOST = 0.93, 0.98


def holds(found, truth):
    return found.low <= truth <= found.high


def check_coverage(hits, *, most=MOST):
    """Between the limits, but for three standard errors of the simulation."""
    error = 3 * (0.95 * 0.05 / len(hits)) ** 0.5
    assert ENOUGH - error <= np.mean(hits) <= min(most + error, 1)


def mean_of_units(law, count, repeats, rng):
    draw, truth = LAWS[law]
    return [holds(mean_interval(row), truth) for row in torch.from_numpy(draw(rng, repeats, count))]


def median_of_units(law, count, repeats, rng):
    truth = float(np.median(LAWS[law][0](np.random.default_rng(1), 400_000)))
    draws = torch.from_numpy(LAWS[law][0](rng, repeats, count))
    return [holds(median_interval(row), truth) for row in draws]


def family_of_units(law, count, repeats, rng):
    """Seven treatments and one control: all seven intervals hold together."""
    draws = LAWS[law][0](rng, repeats, count, 8)
    tables = torch.from_numpy(draws[..., :7] - draws[..., 7:])
    return [all(holds(found, 0) for found in family_intervals(table)) for table in tables]


def means_over_trainings(law, count, repeats, rng):
    """Forty seeds times `count` trainings; a training moves its whole column."""
    draw, truth = LAWS[law]
    hits = []
    for _ in range(repeats):
        table = draw(rng, 40, 1) + draw(rng, 1, count) - truth + 0.3 * rng.normal(size=(40, count))
        hits.append(holds(crossed_interval(torch.from_numpy(table)), truth))
    return hits


KINDS = {
    mean_of_units: range(3, 31),
    median_of_units: range(6, 31),
    family_of_units: (3, 4, 5, 6, 8, 10, 16, 30),
    means_over_trainings: (3, 4, 5, 6, 10, 30),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_what_they_say(kind, law):
    rng = np.random.default_rng(0)
    for count in {3, 4, 5, 6, 8, 12, 30} & {*KINDS[kind]}:
        check_coverage(kind(law, count, 150, rng))


@pytest.mark.long
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_what_they_say_for_every_number_of_units(kind, law):
    rng = np.random.default_rng(1)
    for count in KINDS[kind]:
        check_coverage(kind(law, count, 2000, rng))


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("total", [10, 30, 200])
def test_intervals_of_shares_cover_what_they_say(share, total):
    """Exactly, by the binomial law; near 0 Wilson's interval covers a little less at some totals."""
    hits = range(total + 1)
    law = reference.binom.pmf(hits, total, share)
    covered = [low <= share <= high for low, high in (statistics.interval(k, total) for k in hits)]
    assert law @ covered >= ENOUGH - 0.02


@pytest.mark.parametrize("total", [20, 60, 200])
def test_intervals_of_paired_shares_cover_what_they_say(total):
    rng = np.random.default_rng(total)
    cells = rng.choice(4, size=(400, total), p=(0.5, 0.2, 0.1, 0.2))
    hits = [
        holds(newcombe_paired(torch.from_numpy(row < 2), torch.from_numpy(row % 2 == 0)), 0.1)
        for row in cells
    ]
    check_coverage(hits, most=1)
