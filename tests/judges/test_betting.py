"""The betting sequence: exact at the end, unbiased on the way, and true whenever one looks."""

from itertools import pairwise

import numpy as np
import pytest

from hardcase.judges.betting import BettingSequence, answers_needed


def drawn(rng, kept, predicted, *, uniform, until=None):
    """A sequence over all things, drawn by doubt; stopped where `until` says so."""
    seen = BettingSequence(len(kept))
    left = np.arange(len(kept))
    while len(left) and not (until and until(seen)):
        p = predicted[left]
        doubt = np.sqrt(p * (1 - p)) + 1e-9
        chances = uniform / len(left) + (1 - uniform) * doubt / doubt.sum()
        place = rng.choice(len(left), p=chances)
        seen.enter(chances, p, place, bool(kept[left[place]]), distance=0.05)
        left = np.delete(left, place)
    return seen


def test_when_all_were_asked_the_share_is_known_exactly():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        kept = rng.random(30) < rng.random()
        seen = drawn(rng, kept, rng.random(30), uniform=0.5)
        assert seen.low == pytest.approx(kept.mean()) == pytest.approx(seen.high)
        assert seen.estimate == pytest.approx(kept.mean(), abs=0.05)


def test_intervals_only_shrink_and_never_leave_what_is_possible():
    rng = np.random.default_rng(3)
    kept = rng.random(80) < 0.7
    ends = []
    drawn(rng, kept, rng.random(80), uniform=0.2, until=lambda s: ends.append((s.low, s.high)))
    assert all(a[0] <= b[0] and a[1] >= b[1] for a, b in pairwise(ends))


def test_a_share_is_refused_wrongly_in_at_most_one_of_twenty_runs_at_any_time():
    """The guarantee itself: the truth is left out at *some* moment in at most 5 %."""
    lost = 0
    for seed in range(200):
        rng = np.random.default_rng((1, seed))
        predicted = rng.beta(2, 2, 60)
        kept = rng.random(60) < predicted**2  # the predictions are wrong
        seen = drawn(rng, kept, predicted, uniform=0.2)
        lost += seen.low != seen.low or not seen.low <= kept.mean() + 1e-9 <= seen.high + 2e-9
    assert lost <= 16  # 10 are expected at most; 16 is beyond 97.5 % of a binomial


def test_the_estimate_is_unbiased_after_a_fixed_number_of_answers():
    errors = []
    for seed in range(400):
        rng = np.random.default_rng((2, seed))
        predicted = rng.beta(2, 1, 50)
        kept = rng.random(50) < 1 - predicted  # the predictions are upside down
        seen = drawn(rng, kept, predicted, uniform=0.3, until=lambda s: s.answers == 15)
        errors.append(seen.estimate - kept.mean())
    assert abs(np.mean(errors)) < 3 * np.std(errors) / 20


def test_good_predictions_need_fewer_answers_than_none():
    def precise(seen):
        return seen.high - seen.low <= 0.1 + 1e-9

    answers = {"judge": [], "none": []}
    for seed in range(6):
        for name in answers:
            rng = np.random.default_rng((5, seed))
            p = rng.beta(1.2, 0.4, 200)
            kept = rng.random(200) < p
            predicted = p if name == "judge" else np.full(200, p.mean())
            uniform = 0.5 if name == "judge" else 1.0
            seen = drawn(rng, kept, predicted, uniform=uniform, until=precise)
            answers[name].append(seen.answers)
    assert np.mean(answers["judge"]) < 0.9 * np.mean(answers["none"])


def test_the_forecast_is_about_what_it_takes():
    answers = []
    forecasts = []
    for seed in range(8):
        rng = np.random.default_rng((6, seed))
        p = rng.beta(1.5, 0.7, 200)
        kept = rng.random(200) < p
        seen = drawn(rng, kept, p, uniform=0.5, until=lambda s: s.high - s.low <= 0.1 + 1e-9)
        answers.append(seen.answers)
        forecasts.append(answers_needed(200, float(np.sqrt(p * (1 - p)).mean() ** 2), 0.05))
    assert 0.8 < np.mean(forecasts) / np.mean(answers) < 1.25
    assert answers_needed(50, 0.25, 1e-9) == 50
