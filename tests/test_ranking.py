"""Ranking: scores against naive forms and dnn-tip, orders, and how good they were."""

import math
import warnings

import numpy
import pytest
import torch

from hardcase.errors import Problem
from hardcase.ranking import (
    SCORES,
    apfd,
    by_answer,
    deepgini,
    entropy,
    near_failures,
    order,
    small_margin,
    surprise,
    table,
)


def answers(count=300, classes=5, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed)) * 3


def naive_apfd(wrong, ranked):
    """Area below the curve of errors found, by the trapezoid of each image."""
    found = area = 0
    for row in ranked:
        before = found
        found += wrong[row]
        area += (before + found) / 2
    return area / (len(ranked) * sum(wrong))


def test_scores_are_what_their_papers_say():
    p = answers().softmax(1)
    for row in range(20):
        values = p[row].tolist()
        best = sorted(values, reverse=True)
        assert float(deepgini(p)[row]) == pytest.approx(1 - sum(v * v for v in values), abs=1e-6)
        assert float(small_margin(p)[row]) == pytest.approx(1 - (best[0] - best[1]), abs=1e-6)
        assert float(entropy(p)[row]) == pytest.approx(
            -sum(v * math.log(v) for v in values), abs=1e-5
        )
    assert float(entropy(torch.tensor([[1.0, 0.0]]))[0]) == 0


@pytest.mark.parametrize("name", SCORES)
def test_unsure_answers_come_first(name):
    logits = torch.tensor([[9.0, 0, 0], [1.0, 1, 1], [2.0, 0, 0], [float("nan"), 0, 0]])
    assert order(by_answer(name, logits)).tolist() == [3, 1, 2, 0]


def test_apfd_is_the_area_and_that_of_dnn_tip():
    rng = torch.Generator().manual_seed(0)
    wrong, ranked = torch.rand(200, generator=rng) < 0.2, torch.randperm(200, generator=rng)
    assert apfd(wrong, ranked) == pytest.approx(naive_apfd(wrong.tolist(), ranked.tolist()))
    best = order(wrong.double())
    assert apfd(wrong, best) > 0.85
    assert apfd(wrong, best) + apfd(wrong, best.flip(0)) == pytest.approx(1)
    assert math.isnan(apfd(torch.zeros(3, dtype=torch.bool), torch.arange(3)))
    with pytest.raises(Problem, match="each of them once"):
        apfd(wrong, ranked[:-1].repeat(2)[:200])
    theirs = pytest.importorskip("dnn_tip.apfd", reason="pip install --no-deps dnn-tip")
    assert apfd(wrong, ranked) == pytest.approx(
        theirs.apfd_from_order(wrong.numpy(), ranked.numpy()), abs=1e-9
    )


def test_an_order_by_score_is_within_a_hundredth_of_dnn_tip():
    theirs = pytest.importorskip("dnn_tip.apfd", reason="pip install --no-deps dnn-tip")
    prioritizers = pytest.importorskip("dnn_tip.prioritizers")
    logits = answers()
    truth = (logits + answers(seed=1) / 2).argmax(1)
    wrong = logits.argmax(1) != truth
    for name in SCORES:
        score = by_answer(name, logits)
        index = numpy.array(list(prioritizers.ctm(score.numpy())))
        assert apfd(wrong, order(score)) == pytest.approx(
            theirs.apfd_from_order(wrong.numpy(), index), abs=0.01
        )
        assert apfd(wrong, order(score)) > 0.6


def traces(seed=0, count=300):
    predicted = torch.arange(count) % 3
    values = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return values + 2 * predicted[:, None], predicted


def test_surprise_orders_as_dnn_tip_does():
    from hardcase.criteria.surprise import Distance, Likelihood, Traces

    (known, label), (points, predicted) = traces(), traces(1, 90)
    fitted = Traces(known, label, label)
    ours = {
        "dsa": surprise(Distance.fit(fitted), points, predicted),
        "lsa": surprise(Likelihood.fit(fitted), points, predicted),
    }
    assert all(bool(value.isfinite().all()) for value in ours.values())
    unseen = surprise(Distance.fit(fitted), points[:2], torch.tensor([7, 0]))
    assert order(unseen).tolist() == [0, 1], "a class without traces is infinitely surprising"
    peer = pytest.importorskip("dnn_tip.surprise", reason="pip install --no-deps dnn-tip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = torch.from_numpy(
            peer.DSA(known.numpy(), label.numpy())(points.numpy(), predicted.numpy())
        )
    wrong = torch.rand(90, generator=torch.Generator().manual_seed(2)) < 0.3
    assert apfd(wrong, order(ours["dsa"])) == pytest.approx(
        apfd(wrong, order(theirs.float())), abs=0.01
    )


def test_near_failures_first():
    features = torch.tensor([[0.0, 0], [5.0, 0], [2.0, 0]])
    failures = torch.tensor([[4.9, 0], [9.0, 9.0]])
    assert order(near_failures(features, failures)).tolist() == [1, 2, 0]
    assert torch.allclose(
        near_failures(features, failures, batch=2), near_failures(features, failures)
    )
    with pytest.raises(Problem, match="no found failure"):
        near_failures(features, failures[:0])


def test_the_table_says_which_score_suits():
    wrong = torch.tensor([True, False, False, False, True, False, False, False, False, False])
    rows = table({"good": wrong.double(), "bad": -wrong.double()}, wrong)
    assert [row["score"] for row in rows] == ["good", "bad"]
    assert rows[0]["errors in the first 20%"] == 1.0
    assert rows[1]["errors in the first 10%"] == 0.0
    with pytest.raises(Problem, match="deepgini"):
        by_answer("gini", answers())
