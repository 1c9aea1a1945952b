"""Regions: found where failures are, measured on images that did not choose them, else nothing."""

import numpy as np
import pytest
import torch

import hardcase as hc
from conditions.toys import darkness, exposure, grey
from hardcase.conditions import condition_box
from hardcase.conditions.box import samples_of
from hardcase.conditions.region import (
    Limit,
    Region,
    RegionTable,
    choose_region,
    region_of_shard,
    samples_inside,
    worst_region,
)
from hardcase.conditions.risk import measure_risk
from hardcase.randomness import reserved

SHAPE = (1, 16, 16)


def box_of(**ranges):
    return condition_box(hc.Conditions(ranges), SHAPE)


def chosen(model, images, box, seed=0, **how):
    table = measure_risk(model, images, box, samples=4, seed=seed)
    region = choose_region(box, images.id, table.failed, seed=seed, unmodified=table.clean, **how)
    return table, region


def test_the_region_in_which_all_failures_lie_is_found_named_and_measured():
    # 128/255 * 2^(s/2.2) < 0.4 for s below -0.717 stops of ±1
    images, box, model = grey(300), exposure(), darkness()
    table, region = chosen(model, images, box)
    assert str(region) == "exposure under -0.75 stops"
    assert region.rate == 1
    open_images = {name for name, held in zip(images.id, reserved(images.id).tolist()) if not held}
    assert {name for name, _ in region.examples} <= open_images
    assert len({name for name, _ in region.examples}) == 6
    drawn = samples_of(box, images.id, 4, seed=0)
    for name, k in region.examples:
        row = images.id.index(name)
        assert bool(table.failed[row, k])
        assert bool(region.contains(box, drawn.z[row, k : k + 1])[0])
    parts = [
        region_of_shard(
            model, images.take(rows), box, region, seed=0, failed=table.failed[rows], rows=9
        )
        for rows in (torch.arange(120), torch.arange(120, 300))
    ]
    found = worst_region(region, parts)
    assert found.value == 1
    assert 0.97 < found.low <= 1
    assert found.images == int(reserved(images.id).sum())
    assert not {*parts[0].id, *parts[1].id} & open_images
    assert found.to_json()["words"] == "exposure under -0.75 stops"


def test_nothing_is_told_where_nothing_stands_out():
    box = exposure()
    assert chosen(darkness(0.0), grey(100), box)[1] is None, "nothing fails"
    table, region = chosen(darkness(2.0), grey(100), box)
    assert bool(table.failed.all())
    assert region is None, "everything fails"
    assert worst_region(None, []) is None
    some = Region((Limit("exposure", "over", 0.5, 0.5),), 0.25, 0.5)
    names = tuple(map(str, range(200)))
    same = torch.tensor([0.0, 0.1] * 100)
    assert worst_region(some, [RegionTable(names, (), same, same)]) is None


def test_limits_say_which_side_of_which_value_in_the_units_of_the_declaration():
    grey_box = condition_box(
        hc.Conditions({"rotation": "±30 deg", "bend": "0..4 %", "jpeg": "60..100"}), (1, 28, 28)
    )
    z = samples_of(grey_box, [f"i/{i}" for i in range(400)], 4, seed=0).z.flatten(0, 1)
    facts = grey_box.describe(z)
    for limit, name, inside in (
        (Limit("rotation", "over", 0.5, 15.0), "rotation", lambda v: v > 15),
        (Limit("rotation", "under", 0.5, -15.0), "rotation", lambda v: v < -15),
        (Limit("rotation", "beyond", 0.25, 7.5), "rotation", lambda v: abs(v) > 7.5),
        (Limit("bend", "over", 0.5, 2.0), "bend", lambda v: v > 2),
        (Limit("jpeg", "under", 0.25, 90.0), "JPEG quality", lambda v: v < 90),
    ):
        expected = [bool(inside(row[name][0])) for row in facts]
        found = Region((limit,), 0.1, 0.1).contains(grey_box, z).tolist()
        assert np.mean([one != other for one, other in zip(found, expected)]) < 0.002, str(limit)
    assert str(Limit("rotation", "beyond", 0.25, 7.5)) == "rotation beyond ±7.5 deg"
    assert str(Limit("bend", "over", 0.5, 2.0)) == "bend over 2 %"
    assert str(Limit("jpeg", "under", 0.25, 90.0)) == "jpeg under 90"


def test_margins_find_a_region_of_which_hardly_any_sample_fails_yet():
    images, box = grey(160), exposure()
    drawn = samples_of(box, images.id, 4, seed=0)
    failed = torch.zeros(160, 4, dtype=torch.bool)
    failed[0, 0] = True
    margins = -drawn.z[:, :, box.owner.index("exposure")]  # darker is harder
    region = choose_region(box, images.id, failed, seed=0, margins=margins)
    assert region.limits[0].condition == "exposure"
    assert region.limits[0].side == "under"


def test_labels_alone_choose_the_region_by_what_failed():
    images, box, model = grey(300), exposure(), darkness(0.37)
    table, region = chosen(model, images, box)
    labels = torch.where(table.failed, 1.0, -1.0)
    same = choose_region(box, images.id, table.failed, seed=0, margins=labels)
    assert same.limits == region.limits
    alike = choose_region(box, images.id, table.failed, seed=0, margins=0 * labels)
    assert alike.limits == region.limits


def law(box, z, image, kind):
    """The chance that each sample fails."""
    corner = (z[..., 0] > 0.5) & (z[..., 1] > 0.5)
    base = 0.02 + 0.3 * (image < 0.03)
    return base + 0.25 * corner.double() * (kind == "corner")


def simulated(rng, kind, count, number):
    """One run: what was chosen, what was told, and the true rate there."""
    box = box_of(fading="0..40 %", noise="0..10 levels", rotation="±8 deg", shear="±10 %")
    names = [f"{number}/{i}" for i in range(count)]
    hard = torch.from_numpy(rng.random((count, 1)))
    z = samples_of(box, names, 4, seed=number).z
    failed = torch.from_numpy(rng.random((count, 4))) < law(box, z, hard, kind)
    region = choose_region(box, names, failed, seed=number)
    if region is None:
        return None, 0.0
    held = reserved(names)
    own = [name for name, is_held in zip(names, held.tolist()) if is_held]
    inside, _, valid = samples_inside(box, own, region, 4, seed=number)
    assert bool(valid.all())
    fails = torch.from_numpy(rng.random((len(own), 4))) < law(box, inside, hard[held], kind)
    table = RegionTable(tuple(own), (), fails.double().mean(1), failed[held].double().mean(1))
    many, _, _ = samples_inside(box, [str(i) for i in range(2000)], region, 4, seed=1)
    people = torch.from_numpy(rng.random((2000, 1)))
    return worst_region(region, [table]), float(law(box, many, people, kind).mean())


@pytest.mark.parametrize(("kind", "count", "repeats"), [("null", 400, 60), ("corner", 1000, 25)])
def test_a_null_shows_nothing_and_a_corner_is_found_with_a_bound_that_holds(kind, count, repeats):
    rng = np.random.default_rng(3)
    found = [simulated(rng, kind, count, number) for number in range(repeats)]
    told = [(one, truth) for one, truth in found if one is not None]
    most = 0.05 * repeats + 2.6 * (0.05 * 0.95 * repeats) ** 0.5
    if kind == "null":
        assert len(told) <= most
    else:
        assert len(told) >= 0.8 * repeats
        assert sum(one.low > truth for one, truth in told) <= most
        assert np.median([truth for _, truth in told]) > 0.1, "the corner, or nearly"
