"""Least scale and worst case: what is known of toys is found, and masked gradients are noticed."""

import math

import pytest
import torch
from torch import nn

from conditions.toys import darkness, exposure, grey
from hardcase.conditions import measure_risk, measure_worst
from hardcase.conditions.worst import bisected, most_questions
from hardcase.errors import HardcaseError
from hardcase.types import Answer

LEAST = 2.2 * math.log2((128 / 255) / 0.4)
"""Stops by which a grey of 128 must be darkened to have a mean of 0.4."""


class OnlyLabels:
    """A model that tells its label and nothing else."""

    name = "labels"
    hash = "labels"
    offers = "label"
    device = torch.device("cpu")

    def __call__(self, x, taps=None):
        dark = x.mean((1, 2, 3)) < 0.4
        return Answer(nn.functional.one_hot(dark.long(), 2).float() * 50)


def test_the_least_scale_of_a_known_threshold_is_found():
    found = measure_worst(darkness(), grey(), exposure())
    assert found.least["gradients"].tolist() == pytest.approx([LEAST] * 12, abs=0.02)
    assert found.least_scale.tolist() == pytest.approx([LEAST] * 12, abs=0.02)
    assert [row["share"] for row in found.curve()] == [0, 0, 1, 1]
    assert found.alone["exposure"].tolist() == pytest.approx([LEAST] * 12, abs=0.03)
    assert bool(found.alone["shift"].isinf().all())
    assert found.comparable
    report = found.to_json()
    assert report["worst_case"]["value"] == 1
    assert report["least_scale"]["quantiles"]["0.5"] == pytest.approx(LEAST, abs=0.02)
    assert report["least_scale"]["alone"]["shift"] == {"0.1": None, "0.5": None}


def test_nothing_is_found_where_nothing_fails_and_misread_images_need_no_change():
    gentle = measure_worst(darkness(), grey(), exposure("±0.5 stops"), alone=False)
    assert bool(gentle.least_scale.isinf().all())
    assert gentle.to_json()["worst_case"]["value"] == 0
    wrong = measure_worst(darkness(), grey(level=50), exposure(), alone=False)
    assert wrong.least_scale.tolist() == [0.0] * 12
    assert [row["share"] for row in wrong.curve()] == [1, 1, 1, 1]


def test_a_model_without_gradients_is_searched_by_queries():
    found = measure_worst(OnlyLabels(), grey(), exposure(), queries=100)
    assert set(found.least) == {"queries"}
    assert found.beaten is None
    assert found.comparable
    assert found.least_scale.tolist() == pytest.approx([LEAST] * 12, abs=0.3)
    assert bool((found.least_scale >= LEAST - 0.02).all()), "an upper bound is never below"


def test_masked_gradients_are_not_comparable():
    masked = darkness(masked=True)
    table = measure_risk(masked, grey(), exposure(), samples=32)
    assert bool((table.failing > 0).all())
    found = measure_worst(masked, grey(), exposure(), table=table, alone=False)
    assert bool((found.least["draws"] >= LEAST - 0.02).all())
    assert found.least_scale.tolist() == pytest.approx([LEAST] * 12, abs=0.15)
    clear = measure_worst(masked, grey(), exposure(), table=table, queries=0, alone=False)
    assert clear.beaten == (clear.least["gradients"] > clear.least["draws"] + 0.1).double().mean()
    assert clear.beaten > 0.02
    assert not clear.comparable


def test_what_made_another_model_fail_is_tried_and_more_questions_never_find_less():
    other = measure_worst(darkness(), grey(), exposure(), alone=False)
    found = measure_worst(darkness(masked=True), grey(), exposure(), others=[other], queries=0)
    assert found.least["other models"].tolist() == pytest.approx([LEAST] * 12, abs=0.02)
    with pytest.raises(HardcaseError, match="of 12 images are given for 3"):
        measure_worst(darkness(), grey(3), exposure(), others=[other])
    shares = [row["share"] for row in other.doubling()]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_bisection_keeps_to_the_failing_side():
    edge = torch.tensor([0.3, 0.8, 2.0])
    low, high, failed = bisected(lambda at: at >= edge, torch.ones(3), 10)
    assert failed.tolist() == [True, True, False]
    assert bool(((low < edge) & (edge <= high))[:2].all())
    assert (high - low)[:2].tolist() == pytest.approx([2**-10] * 2)


@pytest.mark.parametrize("level", [128, 250])
def test_no_more_is_asked_than_was_said_before(level):
    """Images that never fail take every gradient; 16 are asked at once, without padding."""
    own = darkness()
    asked = {True: 0, False: 0}

    def count(net, given, out):
        asked[given[0].requires_grad] += len(given[0]) / 16

    own.net.register_forward_hook(count)
    measure_worst(own, grey(16, level), exposure())
    questions, gradients = most_questions(own, exposure())
    assert 0.5 * questions < asked[False] <= questions
    assert asked[True] == gradients if level == 250 else 0 < asked[True] < gradients
    assert most_questions(OnlyLabels(), exposure())[1] == 0
