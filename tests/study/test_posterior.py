"""The posterior on a simulated crowd (no people): calibrated, pooled, and what stopping by it saves."""

from collections import Counter

import numpy as np
import pytest

from hardcase.study.crowd import ACCURACY, KEPT, NOTHING, OTHER, SPLIT, SPREAD
from hardcase.study.posterior import certainty, confusion, posterior
from hardcase.study.session import STOP

CATEGORIES = 11
AMBIGUOUS = 11


def simulated(rng, items=300, raters=24, k=5):
    """Truth (11: ambiguous), and answers of a crowd as fitted to the rated digits, ten classes and none."""
    kind = rng.choice(4, items, p=(KEPT, OTHER, NOTHING, SPLIT))
    own = rng.integers(0, 10, items)
    other = (own + rng.integers(1, 10, items)) % 10
    truth = np.select([kind == 0, kind == 1, kind == 2], [own, other, 10], AMBIGUOUS)
    ability = rng.beta(ACCURACY * SPREAD, (1 - ACCURACY) * SPREAD, raters)
    image = np.repeat(np.arange(items), k)
    rater = np.concatenate([rng.permutation(raters)[:k] for _ in range(items)])
    answer = spoken(rng, truth[image], own[image], other[image], ability[rater])
    return truth, own, other, ability, image, rater, answer


def spoken(rng, truth, own, other, ability):
    seen = np.where(truth == AMBIGUOUS, np.where(rng.random(len(truth)) < 0.5, own, other), truth)
    slip = (seen + rng.integers(1, CATEGORIES, len(truth))) % CATEGORIES
    return np.where(rng.random(len(truth)) < ability, seen, slip)


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    made = simulated(rng, items=600)
    return made, posterior(*made[4:7], CATEGORIES, rng)


def test_probabilities_are_frequencies(found):
    """Of the images said to be something with probability 0.9 to 1, as many are."""
    (truth, *_), said = found
    best = said.outcome.argmax(1)
    sure = said.outcome.max(1)
    right = best == truth
    for low, high in ((0.5, 0.9), (0.9, 1.01)):
        inside = (sure >= low) & (sure < high)
        assert inside.sum() > 15
        assert abs(right[inside].mean() - sure[inside].mean()) < 3 * (0.25 / inside.sum()) ** 0.5


def test_credible_sets_cover_the_truth(found):
    (truth, *_), said = found
    order = np.argsort(-said.outcome, axis=1)
    mass = np.take_along_axis(said.outcome, order, 1).cumsum(1)
    size = (mass < 0.95).sum(1)
    place = (order == truth[:, None]).argmax(1)
    assert 0.92 <= (place <= size).mean() <= 1.0


def test_ambiguous_is_an_outcome(found):
    (truth, *_), said = found
    split = truth == AMBIGUOUS
    assert said.outcome[split, -1].mean() > 4 * said.outcome[~split, -1].mean()
    assert 0.05 < said.ambiguous < 0.2


def test_abilities_are_found_and_few_answers_are_pulled_to_the_middle(found):
    (_, _, _, ability, image, rater, answer), said = found
    assert abs(said.ability.mean() - ability.mean()) < 0.03
    keep = (rater != 0) | (np.cumsum(rater == 0) <= 3)
    few = posterior(image[keep], rater[keep], answer[keep], CATEGORIES, np.random.default_rng(1))
    assert abs(few.ability[0] - few.pooled) < 0.06


def test_no_class_is_preferred_beforehand():
    same = np.array([0, 0, 1, 1])
    said = posterior(
        same, np.array([0, 1, 0, 1]), np.array([2, 3, 3, 2]), 5, np.random.default_rng(0)
    )
    assert np.allclose(said.outcome[0, [2, 3]], said.outcome[0, [3, 2]], atol=0.1)


def test_a_cheat_counts_less():
    rng = np.random.default_rng(3)
    _truth, _own, _other, _, image, rater, answer = simulated(rng, items=200, raters=8)
    answer = np.where(rater == 0, rng.integers(0, CATEGORIES, len(answer)), answer)
    said = posterior(image, rater, answer, CATEGORIES, rng)
    assert said.ability[0] < 0.4 < 0.8 < said.ability[1:].min()


def test_a_confusion_matrix_needs_thirty_answers_a_class(found):
    (_, _, _, _, image, rater, answer), said = found
    mine = rater == 0
    assert confusion(said, image[mine], answer[mine], CATEGORIES) is None
    rng = np.random.default_rng(5)
    truth = np.repeat(np.arange(3), 40)
    three = np.repeat(np.arange(120), 3)
    who = np.tile(np.arange(3), 120)
    answers = np.where(rng.random(360) < 0.9, truth[three], (truth[three] + 1) % 3)
    many = posterior(three, who, answers, 3, rng)
    matrix = confusion(many, three[who == 0], answers[who == 0], 3)
    assert matrix is not None
    assert np.allclose(matrix.sum(1), 1)
    assert (np.diag(matrix) > 0.75).all()


def test_stopping_by_the_posterior_saves_a_quarter_of_the_answers_at_no_more_error():
    """Against fixed k = 5; errors are against a majority of 25 other answers, held out from both."""
    rng = np.random.default_rng(0)
    items = 1500
    kind = rng.choice(4, items, p=(KEPT, OTHER, NOTHING, SPLIT))
    own = rng.integers(0, 10, items)
    other = (own + 1) % 10
    truth = np.select([kind == 0, kind == 1, kind == 2], [own, other, 10], AMBIGUOUS)
    ability = rng.beta(ACCURACY * SPREAD, (1 - ACCURACY) * SPREAD, (items, 32))
    votes = np.stack([spoken(rng, truth, own, other, ability[:, j]) for j in range(32)], 1)
    held_out = [Counter(row[7:].tolist()).most_common(1)[0] for row in votes]
    clear = np.array([times >= 0.8 * 25 for _, times in held_out])
    right = np.array([name for name, _ in held_out])
    fixed = np.array([Counter(row[:5].tolist()).most_common(1)[0][0] for row in votes])
    spent = 0
    stopped = np.zeros(items, dtype=np.int64)
    for i, row in enumerate(votes):
        counts = np.zeros(CATEGORIES, dtype=np.int64)
        for vote in row[:7]:
            counts[vote] += 1
            spent += 1
            if counts.sum() >= 2 and certainty(counts) >= STOP:
                break
        stopped[i] = counts.argmax()
    assert clear.mean() > 0.7
    assert spent <= 0.75 * 5 * items
    errors = [(decision != right)[clear].mean() for decision in (stopped, fixed)]
    assert errors[0] <= errors[1] + 0.002
