"""Shares per image of measured runs, alone and in pairs: ties and images that are missing speak both ways."""

import pytest
import torch

import hardcase as hc
from hardcase.errors import HardcaseError
from hardcase.suite.measured import bounds_by_ties, measured_beside, measured_rows, paired_rates
from hardcase.testing.toys import toy_images, toy_subject

GIVEN = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("measured")
    whole = hc.run(toy_subject(), toy_images(60), out=home / "whole", **GIVEN)
    part = hc.run(toy_subject(), toy_images(60), out=home / "part", measure=25, **GIVEN)
    return whole, part


def test_shares_are_those_of_the_record(runs):
    whole, _ = runs
    rows = measured_rows(whole)
    counted, least, most = bounds_by_ties(rows)
    assert counted.mean() == pytest.approx(whole.record["risk"]["value"])
    assert (least <= counted).all()
    assert (counted <= most).all()
    unmodified = bounds_by_ties(rows, unmodified=True)[0]
    assert unmodified.mean() == pytest.approx(whole.record["risk"]["unmodified"]["value"])
    assert measured_beside(whole) == []


def test_a_beginning_is_compared_on_the_common_images(runs):
    whole, part = runs
    assert measured_rows(whole).id[:25] == measured_rows(part).id
    for one, two in ((whole, part), (part, whole)):
        rates = paired_rates(one, two)
        assert (rates.images, rates.missing) == (25, 0)
        assert not rates.values.any()


def test_an_image_that_is_missing_before_the_end_may_fail(runs, tmp_path):
    whole, _ = runs
    names = measured_rows(whole).id
    kept = [row for row, name in enumerate(toy_images(60).id) if name != names[3]]
    less = hc.run(
        toy_subject(), toy_images(60).take(torch.tensor(kept)), out=tmp_path / "less", **GIVEN
    )
    rates = paired_rates(less, whole)
    assert (rates.images, rates.missing) == (59, 1)
    assert (rates.least.sum(), rates.most.sum()) == (0, 1)
    more = paired_rates(whole, less)
    assert (more.images, more.missing) == (59, 0)


def test_other_samples_and_other_labels_are_no_pair(runs, tmp_path):
    whole, _ = runs
    other = hc.run(toy_subject(), toy_images(60), out=tmp_path / "seed", seed=1, **GIVEN)
    with pytest.raises(HardcaseError, match="seed of the samples: 1, there 0"):
        paired_rates(other, whole)
    wide = {**GIVEN, "conditions": {"shift": "±31 %"}}
    wider = hc.run(toy_subject(), toy_images(60), out=tmp_path / "wide", **wide)
    with pytest.raises(HardcaseError, match="conditions: shift ±31 %, there ±30 %"):
        paired_rates(wider, whole)
    images = toy_images(60)
    images.y[:] = images.y.roll(1)
    labelled = hc.run(toy_subject(), images, out=tmp_path / "y", allow_low_accuracy=True, **GIVEN)
    with pytest.raises(HardcaseError, match="other labels"):
        paired_rates(labelled, whole)
