"""The difference estimator: unbiased however bad the judge, and covering."""

import numpy as np
import pytest

from hardcase_study.confirmed import Rated, confirmed_rate, outcome


def drawn_once(rng, judge_right, share=0.3):
    """A population of 300 failing of 400 searched images; returns the estimate and the truth."""
    truth = rng.random(300) < 0.6
    judge = np.where(rng.random(300) < judge_right, truth, ~truth)
    rated = []
    sizes = {}
    for word, inside in (("yes", judge), ("no", ~judge)):
        rows = np.flatnonzero(inside)
        number = max(2, round(share * len(rows)))
        sizes[word] = len(rows)
        for i in rng.permutation(rows)[:number]:
            said = "confirmed" if truth[i] else "rejected"
            rated.append(Rated(word, bool(judge[i]), said, number / len(rows)))
    return confirmed_rate(rated, sizes, int(judge.sum()), 400), truth.sum() / 400


@pytest.mark.parametrize("judge_right", [0.5, 0.8, 0.97])
def test_unbiased_and_covering_however_bad_the_judge(judge_right):
    rng = np.random.default_rng(0)
    pairs = [drawn_once(rng, judge_right) for _ in range(300)]
    errors = np.array([found.value - truth for found, truth in pairs])
    assert abs(errors.mean()) < 3 * errors.std() / 300**0.5 + 1e-3
    covered = np.mean([found.low <= truth <= found.high for found, truth in pairs])
    assert covered >= 0.92


def test_a_good_judge_makes_it_sharper():
    rng = np.random.default_rng(1)
    widths = {
        right: np.mean([f.high - f.low for f, _ in (drawn_once(rng, right) for _ in range(50))])
        for right in (0.5, 0.97)
    }
    assert widths[0.97] < 0.7 * widths[0.5]


def test_everything_rated_leaves_nothing_to_estimate():
    rated = [Rated("a", True, "confirmed", 1.0)] * 3 + [Rated("a", True, "undecided", 1.0)]
    found = confirmed_rate(rated, {"a": 4}, judged=4, searched=10)
    assert (found.low, found.value, found.high) == (0.3, 0.3, 0.3)
    assert (found.rated, found.failing, found.undecided) == (4, 4, 1)
    assert "4 of 4 rated" in str(found)


def test_what_was_rated_earlier_is_known_and_outside_of_the_strata():
    rated = [Rated("a", False, "confirmed", 0.5), Rated("a", False, "rejected", 0.5)]
    found = confirmed_rate(rated, {"a": 4}, judged=0, searched=20, before=(6, 5))
    assert found.value == pytest.approx((5 + 2) / 20)
    assert (found.rated, found.failing) == (8, 10)


def test_agreement_without_exception_is_no_certainty():
    rated = [Rated("a", True, "confirmed", 0.1)] * 5
    found = confirmed_rate(rated, {"a": 50}, judged=50, searched=100)
    assert found.low < found.value == 0.5


def test_a_majority_of_all_answers_decides():
    assert outcome(["5", "5", "3"], "5") == "confirmed"
    assert outcome(["none", "none", "5"], "5") == "rejected"
    assert outcome(["5", "unsure"], "5") == "undecided"
    assert outcome(["unsure", "unsure", "5"], "5") == "undecided"
    assert outcome(["5", "5", "3", "3"], "5") == "undecided"
