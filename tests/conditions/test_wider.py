"""Wider ranges: the same samples, farther from the unmodified image, within what is possible."""

import pytest
import torch

import hardcase as hc
from conditions.toys import darkness, exposure, grey
from hardcase.conditions import condition_box
from hardcase.conditions.box import samples_of
from hardcase.conditions.risk import measure_risk
from hardcase.conditions.wider import stretched, wider, wider_of_shard


def test_the_rate_at_the_declared_ranges_is_that_of_the_measurement_and_wider_is_worse():
    images, box, model = grey(200), exposure(), darkness()
    parts = [
        wider_of_shard(model, images.take(rows), box, seed=3, scales=(1.0, 1.25, 1.5), rows=11)
        for rows in (torch.arange(70), torch.arange(70, 200))
    ]
    found = wider(parts)
    table = measure_risk(model, images, box, samples=1, seed=3)
    assert [one.scale for one in found] == [1.0, 1.25, 1.5]
    assert found[0].value == pytest.approx(table.value)
    # fails for less than -0.717 stops of ±1, ±1.25 and ±1.5
    for one in found:
        expected = (1 - 0.717 / one.scale) / 2
        assert one.low < expected < one.high
    assert found[0].value < found[1].value < found[2].value
    assert found[2].to_json()["images"] == 200
    assert wider([]) == []


def test_codes_go_so_many_times_as_far_and_never_beyond_what_is_possible():
    declared = hc.Conditions(
        {"rotation": "±8 deg", "bend": "0..4 %", "fading": "0..80 %", "jpeg": "10..100"}
    )
    box = condition_box(declared, (1, 28, 28))
    z = samples_of(box, [f"i/{i}" for i in range(100)], 2, seed=0).z.flatten(0, 1)
    assert torch.equal(stretched(box, z, 1.0), z)
    for before, after in zip(box.describe(z), box.describe(stretched(box, z, 1.5))):
        assert after["rotation"][0] == pytest.approx(1.5 * before["rotation"][0], abs=1e-4)
        assert after["fading"][0] == pytest.approx(95 / 80 * before["fading"][0], rel=1e-4)
        lost = 100 - before["JPEG quality"][0]
        assert 100 - after["JPEG quality"][0] == pytest.approx(1.1 * lost, abs=1e-3)
    field = box.fields[0]
    longest = field.lengths(stretched(box, z, 1.5)).amax(1) / field.lengths(z).amax(1)
    assert torch.allclose(longest, torch.full_like(longest, 1.5))


def test_severities_of_corruptions_stay_within_the_published_ones():
    box = condition_box(hc.Conditions({"corruption.fog": "0..4"}), (1, 16, 16))
    found = wider([wider_of_shard(darkness(), grey(20), box, seed=0, scales=(2.0,))])
    assert found[0].images == 20
