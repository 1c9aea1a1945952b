"""Risk: counted over all images, unbiased, the same in any batch; comparisons that may not tell."""

import numpy as np
import pytest
import torch
from torch import nn

import hardcase as hc
from conditions.toys import darkness, exposure, grey
from hardcase.conditions.risk import answered, measure_risk, rows_together
from hardcase.errors import HardcaseError
from hardcase.statistics import decide


def test_the_share_of_failing_draws_is_the_volume_of_the_box_that_fails():
    # 128/255 * 2^(s/2.2) < 0.4 for s below -0.717 stops: 14.1 % of ±1 stop
    expected = (1 - 2.2 * np.log2((128 / 255) / 0.4)) / 2
    table = measure_risk(darkness(), grey(64), exposure(), samples=64)
    assert table.value == pytest.approx(expected, abs=0.01)
    low, high = table.images_like_these
    assert low <= expected <= high
    assert table.excess.mean() == pytest.approx(table.value)
    assert table.samples == 64


def test_all_images_count_also_those_that_are_misread_as_they_are():
    both = grey(40)
    both.x[20:] = 26
    table = measure_risk(darkness(), both, exposure(), samples=16)
    assert table.clean.tolist() == [False] * 20 + [True] * 20
    assert table.value > 0.5
    told = table.to_json()
    assert (told["unmodified"]["value"], told["unmodified"]["failing"]) == (0.5, 20)
    assert told["gap"]["value"] == pytest.approx(table.value - 0.5)
    assert told["gap"]["low"] <= told["gap"]["value"] <= told["gap"]["high"]


def test_the_same_figures_in_any_batch_and_for_a_seed_alone():
    whole = measure_risk(darkness(), grey(24), exposure(), samples=16)
    parts = measure_risk(darkness(), grey(24), exposure(), samples=16, rows=40)
    assert torch.equal(whole.failing, parts.failing)
    assert torch.equal(whole.shown_pattern, parts.shown_pattern)
    assert torch.equal(whole.shown_seed, parts.shown_seed)
    assert len(whole.shown_seed) == min(60, int(whole.failing.sum()))
    assert set(whole.shown_predicted.tolist()) == {1}
    assert bool((whole.failing[whole.shown_seed] > 0).all())
    one = measure_risk(darkness(), grey(24).take(torch.tensor([7])), exposure(), samples=16)
    assert one.failing[0] == whole.failing[7]
    few = measure_risk(darkness(), grey(24), exposure(), samples=4)
    assert torch.equal(few.failed, whole.failed[:, :4]), "the first of many are those of fewer"


def test_without_conditions_unmodified_images_are_measured_alone():
    table = measure_risk(darkness(), grey(24), None)
    assert (table.samples, len(table)) == (0, 24)
    assert not table.clean.any()


def test_a_tie_is_what_the_order_of_the_outputs_decides():
    logits = torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 1.0], [torch.nan, 1.0]])
    found = answered(logits, torch.tensor([0, 1, 1, 1]))
    assert found.failed.tolist() == [False, True, True, True]
    assert found.tied.tolist() == [True, True, False, False]


def test_answers_that_are_no_numbers_fail_and_bad_input_is_refused():
    class Broken(nn.Module):
        def forward(self, x):
            return torch.full((len(x), 2), torch.nan)

    broken = hc.Subject(Broken(), classes=("light", "dark"), name="broken")
    assert measure_risk(broken, grey(4), exposure(), samples=4).value == 1
    with pytest.raises(HardcaseError, match="0 samples"):
        measure_risk(darkness(), grey(2), exposure(), samples=0)


def test_a_worse_model_fails_the_comparison_the_same_passes_and_few_seeds_cannot_tell():
    box = exposure()
    good = measure_risk(darkness(0.36), grey(200), box, samples=16)
    bad = measure_risk(darkness(0.45), grey(200), box, samples=16)
    worse = bad.shares - good.shares
    assert decide(worse, 0.02, -1.0).outcome == "fail"
    assert decide(-worse, 0.02, -1.0).outcome == "pass"
    assert decide(0 * worse[:5], 0.02, -1.0).outcome == "inconclusive"


def test_photographs_are_changed_a_tile_at_a_time_and_digits_hundreds():
    assert rows_together((3, 224, 224)) == 16
    assert rows_together((3, 1024, 1024)) == 16  # a network is never given less than a tile
    assert rows_together((1, 28, 28)) >= 512
