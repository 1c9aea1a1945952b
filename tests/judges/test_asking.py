"""Questions: drawn with stored chances, stopped when decided, true at stopping."""

import numpy as np
import pytest
from crowds import at_stopping, crowd, played

from hardcase.judges.asking import UNIFORM, Asking, FindingPopulation


def test_every_chance_is_known_before_the_answer_and_at_least_a_fifth_is_uniform():
    people, kept = crowd(np.random.default_rng(0), 80)
    asking = Asking(people, 30)
    while (draw := asking.draw()) is not None:
        assert draw.number not in asking.answers
        assert draw.probability >= UNIFORM / (80 - draw.number) - 1e-12
        assert draw.knew == draw.number
        asking.answer(draw.number, bool(kept[draw.row]))
    assert len({draw.row for draw in asking.draws}) == 30


def test_the_same_answers_lead_to_the_same_questions_and_a_session_goes_on_from_what_is_stored():
    people, kept = crowd(np.random.default_rng(1), 60)
    whole = played(people, kept, budget=20, seed=4)
    again = played(people, kept, budget=20, seed=4)
    assert whole.draws == again.draws
    half = {number: whole.answers[number] for number in range(10)}
    later = Asking(people, 20, None, 4, draws=whole.draws[:10], answers=half)
    while (draw := later.draw()) is not None:
        later.answer(draw.number, bool(kept[draw.row]))
    assert later.draws == whole.draws
    assert later.standing() == whole.standing()


def test_answers_that_come_late_count_in_the_order_of_their_draws():
    people, kept = crowd(np.random.default_rng(2), 40)
    asking = Asking(people, 12)
    first, second, third = asking.draw(), asking.draw(), asking.draw()
    assert [draw.knew for draw in (first, second, third)] == [0, 0, 0]
    asking.answer(second.number, bool(kept[second.row]))
    asking.answer(third.number, bool(kept[third.row]))
    assert asking.standing().answers == 0
    asking.answer(first.number, bool(kept[first.row]))
    assert asking.standing().answers == 3


def test_doubt_draws_more_questions_than_certainty():
    odds = np.concatenate([np.full(50, 6.0), np.zeros(50)])
    people = FindingPopulation(tuple(map(str, range(100))), odds, 0.5, 100)
    asking = played(people, odds > 1, budget=20)
    assert sum(draw.row >= 50 for draw in asking.draws) >= 14


def test_images_that_look_like_asked_ones_are_asked_less():
    looks = np.repeat(np.eye(10), 10, axis=0) * 5
    people = FindingPopulation(tuple(map(str, range(100))), np.zeros(100), 0.5, 100, looks=looks)
    asking = Asking(people, 10)
    first = asking.draw()
    asking.answer(0, True)
    chances = {draw.row: draw.probability for draw in [asking.draw()]}
    look = asking._looks[1]
    twins = look.left // 10 == first.row // 10
    assert look.chances[twins].max() < look.chances[~twins].min()
    assert chances


def test_a_limit_far_away_is_decided_by_few_answers_and_a_near_one_by_many():
    people, kept = crowd(np.random.default_rng(5), 120)
    rate = kept.mean()
    far = played(people, kept, budget=120, limit=0.05).standing()
    near = played(people, kept, budget=120, limit=rate - 0.05).standing()
    assert far.decision == near.decision == "above the limit"
    assert far.answers < 25 < near.answers
    assert played(people, kept, budget=120, limit=0.99).standing().decision == "within the limit"


def test_it_stops_when_the_rate_is_precise_and_says_how_many_more_otherwise():
    people, kept = crowd(np.random.default_rng(6), 100, attempted=400)
    end = played(people, kept, budget=100).standing()
    assert end.decision == "precise"
    assert end.high - end.low <= 0.1 + 1e-9
    assert end.answers < 60
    short = played(people, kept, budget=10).standing()
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
    ways = (
        {"size": 100, "attempted": 250, "budget": 100},
        {"size": 60, "budget": 60},
        {"size": 100, "budget": 15},
        {"size": 100, "budget": 60, "limit": 0.55},
    )
    holds, errors = [], []
    for number, way in enumerate(ways):
        held, wrong, _ = at_stopping(500, first=10_000 * number, **way)
        holds.append(held.mean())
        errors.append(wrong)
    assert min(holds) >= 0.95
    at_budget = errors[2]  # a fixed number of answers: exactly unbiased but for the ends
    assert abs(at_budget.mean()) <= 3 * at_budget.std() / 500**0.5
    assert max(abs(each.mean()) for each in errors) <= 0.01
