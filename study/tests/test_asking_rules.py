"""Questions: drawn with stored chances, stopped when decided, true at stopping."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.special import expit

from hardcase_study import asking as questions
from hardcase_study.asking import UNIFORM, BettingSequence, FindingPopulation, RatingSession


@pytest.mark.parametrize("choose", ["random", "doubt"])
def test_every_chance_is_known_before_the_answer(choose):
    people, kept = crowd(np.random.default_rng(0), 80)
    session = RatingSession(people, 30, choose=choose)
    while (draw := session.draw()) is not None:
        assert draw.number not in session.answers
        alike = 1 / (80 - draw.number)
        if choose == "random":
            assert draw.probability == pytest.approx(alike)
        assert draw.probability >= UNIFORM * alike - 1e-12
        assert draw.knew == draw.number
        session.answer(draw.number, bool(kept[draw.row]))
    assert len({draw.row for draw in session.draws}) == 30


def test_the_same_answers_lead_to_the_same_questions_and_a_session_goes_on_from_what_is_stored():
    people, kept = crowd(np.random.default_rng(1), 60)
    whole = played(people, kept, budget=20, seed=4)
    again = played(people, kept, budget=20, seed=4)
    assert whole.draws == again.draws
    half = {number: whole.answers[number] for number in range(10)}
    later = RatingSession(people, 20, None, 4, draws=whole.draws[:10], answers=half)
    while (draw := later.draw()) is not None:
        later.answer(draw.number, bool(kept[draw.row]))
    assert later.draws == whole.draws
    assert later.status() == whole.status()


def test_answers_that_come_late_count_in_the_order_of_their_draws():
    people, kept = crowd(np.random.default_rng(2), 40)
    session = RatingSession(people, 12)
    first, second, third = session.draw(), session.draw(), session.draw()
    assert [draw.knew for draw in (first, second, third)] == [0, 0, 0]
    session.answer(second.number, bool(kept[second.row]))
    session.answer(third.number, bool(kept[third.row]))
    assert session.status().answers == 0
    session.answer(first.number, bool(kept[first.row]))
    assert session.status().answers == 3


def test_doubt_draws_more_questions_than_certainty_only_where_it_is_asked_to():
    chances = np.concatenate([np.full(50, 0.998), np.full(50, 0.5)])
    people = FindingPopulation(tuple(map(str, range(100))), chances, 100)
    share = {}
    for choose in ("random", "doubt"):
        session = played(people, chances > 0.6, budget=20, choose=choose)
        share[choose] = sum(draw.row >= 50 for draw in session.draws)
    assert share["doubt"] >= 12
    assert share["random"] < share["doubt"]


def test_a_limit_far_away_is_decided_by_few_answers_and_a_near_one_by_many():
    people, kept = crowd(np.random.default_rng(5), 120)
    rate = kept.mean()
    far = played(people, kept, budget=120, limit=0.05).status()
    near = played(people, kept, budget=120, limit=rate - 0.05).status()
    assert far.decision == near.decision == "above the limit"
    assert far.answers < 25 < near.answers
    assert played(people, kept, budget=120, limit=0.99).status().decision == "within the limit"


def test_it_stops_when_the_rate_is_precise_and_says_how_many_more_otherwise():
    people, kept = crowd(np.random.default_rng(6), 100, attempted=400)
    end = played(people, kept, budget=100).status()
    assert end.decision == "precise"
    assert end.high - end.low <= 0.1 + 1e-9
    assert end.answers < 60
    short = played(people, kept, budget=10).status()
    assert short.decision == "open"
    assert 0 < short.more <= 90
    assert 0 < short.progress < 1


def test_coverage_at_stopping_and_bias_in_made_crowds():
    for given in ({"budget": 80}, {"budget": 12}, {"budget": 60, "limit": 0.5}):
        holds, errors, _ = at_stopping(20, size=80, **given)
        assert holds.mean() >= 0.95 - 1.96 * (0.05 * 0.95 / 20) ** 0.5
        assert abs(errors.mean()) <= 3 * errors.std() / 20**0.5 + 0.005


@pytest.mark.long
def test_coverage_at_stopping_in_two_thousand_made_crowds():
    """Four ways to stop, 500 crowds each; a third of the judges know nothing."""
    ways = ({"size": 100, "searched": 250, "budget": 100}, {"size": 60, "budget": 60})
    ways += ({"size": 100, "budget": 15}, {"size": 100, "budget": 60, "limit": 0.55})
    holds, errors = [], []
    for number, way in enumerate(ways):
        held, wrong, _ = at_stopping(500, first=10_000 * number, **way)
        holds.append(held.mean())
        errors.append(wrong)
    assert min(holds) >= 0.95
    at_budget = errors[2]  # a fixed number of answers: exactly unbiased but for the ends
    assert abs(at_budget.mean()) <= 3 * at_budget.std() / 500**0.5
    assert max(abs(each.mean()) for each in errors) <= 0.01


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
    answers, forecasts = [], []
    for seed in range(8):
        rng = np.random.default_rng((6, seed))
        p = rng.beta(1.5, 0.7, 200)
        kept = rng.random(200) < p
        seen = drawn(rng, kept, p, uniform=0.5, until=lambda s: s.high - s.low <= 0.1 + 1e-9)
        answers.append(seen.answers)
        doubt = float(np.sqrt(p * (1 - p)).mean() ** 2)
        forecasts.append(questions.answers_needed(200, doubt, 0.05))
    assert 0.8 < np.mean(forecasts) / np.mean(answers) < 1.25
    assert questions.answers_needed(50, 0.25, 1e-9) == 50


def crowd(rng, size, *, attempted=None, spread=1.5, shift=-0.4, slope=0.8):
    """A population whose judge ranks well but is not calibrated, and the answers about it."""
    odds = rng.normal(1.3, spread, size)
    kept = rng.random(size) < expit(slope * odds + shift)
    names = tuple(f"f{i}" for i in range(size))
    return FindingPopulation(names, expit(odds), attempted or size), kept


def played(people, kept, *, budget, limit=None, seed=0, choose="random"):
    """A session that is answered to its end."""
    session = RatingSession(people, budget, limit, seed, choose=choose)
    while (draw := session.draw()) is not None:
        session.answer(draw.number, bool(kept[draw.row]))
    return session


def at_stopping(crowds, *, size, budget, attempted=None, limit=None, first=0):
    """For many crowds: whether the interval holds when one stops, the error, and the answers."""
    holds, errors, answers = [], [], []
    for number in range(first, first + crowds):
        shift = (-0.4, -1.5, 0.6)[number % 3]
        slope = (0.8, 0.1, 1.2)[number // 3 % 3]  # also a judge that knows nothing
        rng, how = np.random.default_rng((11, number)), {"shift": shift, "slope": slope}
        people, kept = crowd(rng, size, attempted=attempted, **how)
        end = played(people, kept, budget=budget, limit=limit, seed=number).status()
        truth = kept.sum() / people.attempted
        holds.append(end.low - 1e-9 <= truth <= end.high + 1e-9)
        errors.append(end.value - truth)
        answers.append(end.answers)
    return np.array(holds), np.array(errors), np.array(answers)
