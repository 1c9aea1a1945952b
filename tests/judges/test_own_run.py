"""A rule fitted to one run: shares without labels, thresholds that promise, answers that move."""

import numpy as np
import pytest
from scipy.special import expit, logit

from hardcase.judges.own_run import _thresholds, mixture_of, own_rule


def made(rng, count, share, *, presumed=0.5, gap=3.0):
    """Log-odds under `presumed` of images of which `share` are so: two normals `gap` apart."""
    truth = rng.random(count) < share
    evidence = np.where(truth, gap / 2, -gap / 2) + rng.normal(size=count)
    return gap * evidence + logit(presumed), truth


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_share_of_a_mixture_is_found_without_labels(share):
    odds, truth = made(np.random.default_rng(0), 2000, share)
    found = mixture_of(odds, 0.5)
    assert found.share == pytest.approx(truth.mean(), abs=0.03)
    assert found.low < found.share < found.high


def test_intervals_of_the_share_narrow_with_more_images():
    rng = np.random.default_rng(1)
    widths = [(m := mixture_of(made(rng, n, 0.7)[0], 0.5)).high - m.low for n in (40, 400)]
    assert widths[1] < widths[0] / 2


def test_what_is_called_yes_is_right_as_often_as_promised_on_a_new_generator():
    rng = np.random.default_rng(2)
    right = said = decided = 0
    for share in (0.2, 0.5, 0.9):
        odds, truth = made(rng, 600, share, presumed=0.8)
        rule = own_rule(odds, 0.8)
        answers = np.array(rule.said(rule.probability(odds)), dtype=object)
        yes = answers == True  # noqa: E712 - None is the third answer
        right += int(truth[yes].sum())
        said += int(yes.sum())
        decided += int((answers != None).sum())  # noqa: E711
    assert right / said >= 0.91
    assert decided >= 0.8 * 1800


def test_answers_move_the_rule_towards_people_and_never_turn_its_order():
    rng = np.random.default_rng(3)
    odds, truth = made(rng, 200, 0.7)
    rows = list(range(60))
    plain = own_rule(odds, 0.5)
    strict = own_rule(odds, 0.5, asked=rows, answers=[False] * 60)
    assert strict.probability(odds).mean() < plain.probability(odds).mean()
    turned = own_rule(odds, 0.5, asked=rows, answers=[not one for one in truth[:60].tolist()])
    assert turned.stretch > 0
    assert strict.answers == 60
    earlier = own_rule(odds, 0.5, earlier=[(float(one), False) for one in odds[:60]])
    assert earlier.reused == 60
    assert earlier.shift == pytest.approx(strict.shift)


def test_thresholds_hold_for_the_images_that_were_not_asked_about():
    odds = np.linspace(-6, 6, 40)
    rule = own_rule(odds, 0.5)
    said = rule.said(rule.probability(odds))
    assert said[0] is False
    assert said[-1] is True
    order = [{False: 0, None: 1, True: 2}[one] for one in said]
    assert order == sorted(order)
    assert rule.probability(odds) == pytest.approx(expit(rule.shift + rule.stretch * odds))
    everybody = own_rule(odds, 0.5, asked=range(40), answers=[True] * 40)
    assert (everybody.low, everybody.high) == (0.5, 0.5)


def test_what_people_refused_counts_among_what_is_refused_and_not_among_what_is_confirmed():
    odds = np.linspace(-3, 3, 60)
    low, high = np.array([_thresholds(odds, np.zeros(1), 0.0, 1.0, count) for count in (0, 20)]).T
    assert low[1] > low[0] > 0
    assert high[1] == high[0] < 1
