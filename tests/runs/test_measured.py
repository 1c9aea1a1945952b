"""A row for every image: bits of samples, what is paired with other runs, what is reserved."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hardcase.conditions import Conditions, condition_box
from hardcase.conditions.risk import measure_risk
from hardcase.errors import HardcaseError
from hardcase.randomness import reserved
from hardcase.runs.measured import (
    MEASURED,
    Measured,
    Measurement,
    MeasureTask,
    packed_bits,
    rows_of,
    unpacked_bits,
)
from hardcase.testing.toys import toy_images, toy_subject

BOX = condition_box(Conditions({"rotation": "±40 deg", "exposure": "±2 stops"}), (1, 8, 8))
OWN = Measurement(model=toy_subject(), box=BOX, baselines=(toy_subject(5.0),))


def measured(images, own=OWN):
    number, part, summary = MeasureTask(0, images).work(own)
    assert (number, summary["images"]) == (0, len(images))
    return part, summary


def rows(images, own=OWN):
    tables = own.tables(images)
    table = rows_of(images, tables[0], tables[1:], reserve=own.reserve)
    assert table.column_names == list(MEASURED)
    return Measured.of(table, own.samples)


@pytest.mark.parametrize("samples", [0, 1, 4, 63, 64])
def test_bits_are_read_back(samples):
    failed = np.random.default_rng(0).random((9, samples)) < 0.5
    assert (unpacked_bits(packed_bits(failed), samples) == failed).all()


def test_rows_say_what_measuring_says():
    images = toy_images(24)
    found = rows(images)
    table = measure_risk(OWN.model, images, BOX)
    assert (found.failed == table.failed.numpy()).all()
    assert (found.wrong == table.clean.numpy()).all()
    assert found.id == images.id
    assert (found.reserved == reserved(images.id).numpy()).all()
    assert not rows(images, replace(OWN, reserve=False)).reserved.any()
    figures = found.figures()
    assert figures["value"] == pytest.approx(table.value)
    assert (figures["failing"], figures["images"], figures["samples"]) == (
        found.failed.sum(),
        24,
        4,
    )
    assert found.beside(0)["difference"]["value"] == pytest.approx(
        found.failed.mean() - found.baseline_failed[0].mean()
    )


def test_a_shard_gives_the_same_bytes_alone_and_beside_others():
    images = toy_images(24)
    whole = rows(images)
    some = rows(images.take(torch.tensor([3, 17])))
    assert (some.failed == whole.failed[[3, 17]]).all()
    assert some.digest == (whole.digest[3], whole.digest[17])
    assert measured(images)[0] == measured(images)[0]


def test_without_conditions_the_rate_is_that_of_unmodified_images():
    found = rows(toy_images(12), replace(OWN, box=None, samples=0))
    assert found.samples == 0
    assert found.figures()["value"] == found.wrong.mean()


def test_ties_widen_the_interval_both_ways():
    found = rows(toy_images(24))
    tied = replace(found, tied=np.ones_like(found.tied))
    plain, wide = found.figures(), tied.figures()
    assert wide["low"] <= plain["low"] <= plain["high"] <= wide["high"]
    assert (wide["low"], wide["ties"]) == (0.0, 24)
    nothing = found.shares * 0
    assert tied.difference(nothing)["high"] >= found.difference(nothing)["high"]


def test_only_the_same_samples_of_the_same_images_are_paired():
    found = rows(toy_images(24))
    few = found.take(np.arange(5, 20)).first_samples(2)
    mine, theirs = found.same_samples(few)
    assert (len(mine), mine.samples) == (15, 2)
    assert (mine.failed == theirs.failed).all()
    with pytest.raises(HardcaseError, match="no image in common"):
        found.same_samples(replace(few, id=tuple(f"other {name}" for name in few.id)))
    with pytest.raises(HardcaseError, match="other images"):
        found.same_samples(replace(few, digest=("",) * len(few)))
