"""Agreement against published worked examples, to three digits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from hardcase.randomness import stream
from hardcase.statistics import mean_interval
from hardcase_study.agreement import (
    bradley_terry,
    crossed_interval,
    crossed_mean,
    kendall_w,
    krippendorff_alpha,
    over_units,
)
from tiny import LAWS, check_coverage, holds

_ = np.nan
# K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), section C: four observers,
# twelve units, values missing.
KRIPPENDORFF = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
        [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
    ]
).T
# S. Siegel, "Nonparametric Statistics for the Behavioral Sciences" (1956), ch. 9: three executives
# rank six applicants; and three rankings of ten objects with ties (after Kendall, 1948).
APPLICANTS = np.array([[1, 6, 3, 2, 5, 4], [1, 5, 6, 4, 2, 3], [6, 3, 2, 5, 4, 1]], dtype=float)
TIED = np.array(
    [
        [1, 4.5, 2, 4.5, 3, 7.5, 6, 9, 7.5, 10],
        [2.5, 1, 2.5, 4.5, 4.5, 8, 9, 6.5, 10, 6.5],
        [2, 1, 4.5, 4.5, 4.5, 4.5, 8, 8, 8, 10],
    ]
)
# A. Agresti, "Categorical Data Analysis": wins in the American League, Eastern Division, 1987, and
# the strengths of Milwaukee, Detroit, Toronto, New York, Boston, Cleveland against Baltimore.
BASEBALL = np.array(
    [
        [0, 7, 9, 7, 7, 9, 11], [6, 0, 7, 5, 11, 9, 9], [4, 6, 0, 7, 7, 8, 12], [6, 8, 6, 0, 6, 7, 10],
        [6, 2, 6, 7, 0, 7, 12], [4, 4, 5, 6, 6, 0, 6], [2, 4, 1, 3, 1, 7, 0],
    ],
    dtype=float,
)  # fmt: skip


@pytest.mark.parametrize(
    ("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_krippendorffs_alpha(level, published):
    assert round(krippendorff_alpha(KRIPPENDORFF, level), 3) == published


def test_kendalls_w():
    assert round(kendall_w(APPLICANTS), 3) == 0.162
    assert round(kendall_w(TIED), 3) == 0.828


def test_bradley_terry():
    log = bradley_terry(BASEBALL, prior=0).log
    assert (log - log[-1]).round(2).tolist() == [1.58, 1.44, 1.29, 1.25, 1.11, 0.68, 0.0]


def test_bradley_terry_stays_finite_where_one_never_lost():
    found = bradley_terry(np.array([[0.0, 9], [0, 0]]))
    assert np.isfinite(found.log).all()
    assert found.log[0] > found.log[1]


@given(st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_chance_agrees_as_chance_and_full_agreement_as_one(seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 4, (400, 5)).astype(float)
    for level in ("nominal", "ordinal", "interval"):
        assert abs(krippendorff_alpha(table, level)) < 0.12
        assert krippendorff_alpha(np.repeat(table[:, :1], 3, 1), level) == pytest.approx(1)
    renamed = np.array([3, 0, 2, 1])[table.astype(int)].astype(float)
    assert krippendorff_alpha(renamed) == pytest.approx(krippendorff_alpha(table))


def test_nothing_to_compare_is_no_number():
    assert np.isnan(krippendorff_alpha(np.array([[1.0, np.nan], [np.nan, 2.0]])))
    assert np.isnan(krippendorff_alpha(np.ones((4, 3))))
    assert np.isnan(kendall_w(np.ones((3, 4))))


@pytest.mark.parametrize(("people", "images"), [(3, 8), (5, 20), (12, 30)])
def test_the_interval_over_raters_and_images_covers_and_is_wider_than_over_answers(people, images):
    rng = np.random.default_rng(0)
    inside, widths = 0, []
    rater = np.tile(np.arange(people), images)
    image = np.repeat(np.arange(images), people)
    for _ in range(400):
        values = (
            0.3 * rng.normal(size=people)[rater]
            + 0.5 * rng.normal(size=images)[image]
            + rng.normal(size=len(rater))
        )
        found = crossed_mean(values, rater, image)
        inside += found.low <= 0 <= found.high
        widths.append((found.high - found.low) / (2 * 1.96 * values.std() / len(values) ** 0.5))
    assert inside / 400 >= 0.92
    assert np.mean(widths) > 1.4


def test_two_people_have_no_interval():
    found = crossed_mean(
        np.array([0.0, 1, 1, 0, 1, 1]), np.tile([0, 1], 3), np.repeat([0, 1, 2], 2)
    )
    assert not found.known
    assert found.kind == "(no interval: 2 raters or images)"


@pytest.mark.parametrize("images", [6, 12, 40])
def test_the_interval_of_alpha_covers(images):
    """Three raters who see what is there or guess among four labels; the truth by a large sample."""

    def rated(count, rng):
        sure = rng.random((count, 3)) < 0.7
        own = rng.integers(0, 4, (count, 1))
        return np.where(sure, own, rng.integers(0, 4, (count, 3))).astype(float)

    rng = np.random.default_rng(1)
    truth = krippendorff_alpha(rated(200_000, rng))
    found = [over_units(krippendorff_alpha, rated(images, rng)) for _ in range(300)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.9


def test_crossed_intervals_are_wider_than_those_of_rows_alone():
    rng = stream(1, "crossed")
    raters = torch.randn(1, 8, generator=rng)
    table = torch.randn(60, 1, generator=rng) + 2 * raters + torch.randn(60, 8, generator=rng)
    table[0, 0] = torch.nan
    both = crossed_interval(table)
    images = mean_interval(table[1:].mean(1))
    assert both.low < float(table.nanmean()) < both.high
    assert both.high - both.low > 1.5 * (images.high - images.low)


def test_few_raters_have_no_interval_or_students():
    assert not crossed_interval(torch.rand(9, 2)).known
    assert "t, 3 trainings" in str(crossed_interval(torch.rand(20, 3, generator=stream(0))))


def means_over_trainings(law, count, repeats, rng):
    """Forty images times `count` trainings; a training moves its whole column."""
    draw, truth = LAWS[law]
    hits = []
    for _ in range(repeats):
        table = draw(rng, 40, 1) + draw(rng, 1, count) - truth + 0.3 * rng.normal(size=(40, count))
        hits.append(holds(crossed_interval(torch.from_numpy(table)), truth))
    return hits


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("repeats", [150, pytest.param(2000, marks=pytest.mark.long)])
def test_intervals_over_trainings_cover_what_they_say(law, repeats):
    rng = np.random.default_rng(0)
    for count in (3, 4, 5, 6, 10, 30):
        check_coverage(means_over_trainings(law, count, repeats, rng))
