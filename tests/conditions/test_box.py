"""Boxes of declared conditions: nested, as wide as declared, drawn from evenly and redrawn."""

import numpy as np
import pytest
import torch

import hardcase as hc
from hardcase.conditions.box import condition_box, conditions_digest, sobol
from hardcase.conditions.declared import DECLARABLE, PROFILES, Conditions, DeclaredRange
from hardcase.corruptions import CORRUPTIONS
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, keys_of
from hardcase.types import Seeds

SHAPE = (3, 32, 32)


def rng_of(count, seed=0):
    return Rng(seed, "test", keys_of([f"seed {i}" for i in range(count)]))


def box_of(**declared):
    return condition_box(Conditions(declared), SHAPE)


def origin_of(count, shape=SHAPE, pattern=None):
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    context = {} if pattern is None else {"pattern": pattern}
    return Seeds(torch.zeros(count, 1), x, torch.zeros(count).long(), torch.arange(count), context)


def two_patterns():
    """One image twice, for two draws of what is random."""
    one = origin_of(1).take(torch.zeros(2).long())
    return Seeds(one.z, one.x, one.y, one.id, {"pattern": torch.tensor([1, 2])})


@pytest.mark.parametrize("name", DECLARABLE)
def test_a_code_at_the_end_of_the_box_is_the_declared_value(name):
    row = DECLARABLE[name]
    low = row.least if row.least < row.neutral else row.neutral
    high = row.neutral + (row.most - row.neutral) / 4
    if name == "jpeg":
        low, high = 60, 100
    if row.least < 0:
        low = -high
    box = condition_box(Conditions({name: DeclaredRange(name, low, high)}), SHAPE)
    for end, code in ((high, box.high), (low, box.low)):
        if name == "jpeg":
            code = box.low if code is box.high else box.high
        whole = box.whole(torch.tensor([code]))
        value = box.space.values(whole)[0, box.columns[0]].item()
        coordinate = box.space.coordinates[box.columns[0]]
        if box.fields and end == low:
            continue  # a field has no opposite: its range is that of its length
        scale = 1.0
        if row.unit == "%" and coordinate.side is not None and coordinate.unit == "px":
            scale = coordinate.side / 100
        assert value == pytest.approx(end * scale, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 48, 40)])
def test_draws_of_every_profile_lie_in_their_box_and_neutral_is_the_image(name, shape):
    box = condition_box(Conditions.load(name), shape)
    drawn = box.draw(rng_of(3), torch.arange(3), 8)
    z = drawn.z.flatten(0, 1)
    assert bool((box.gauge(z) <= 1 + 1e-6).all())
    of = torch.arange(3).repeat_interleave(8)
    origin = origin_of(3, shape).take(of)
    assert torch.allclose(box.project(z, origin), z, atol=1e-6)
    assert torch.equal(box.decode(torch.zeros_like(z), origin), origin.x)
    assert not torch.equal(box.decode(z, origin), origin.x)


def test_boxes_are_nested_and_the_gauge_is_their_scale():
    box = box_of(rotation="-4..8 deg", bend="0..5 %", motion="0..4 %")
    drawn = box.draw(rng_of(40), torch.arange(40), 4).z.flatten(0, 1)
    origin = origin_of(1).take(torch.zeros(160).long())
    gauge = box.gauge(drawn)
    for scale in (0.25, 0.5):
        inner = box.scaled(scale).project(drawn, origin)
        assert bool((box.gauge(inner) <= scale + 1e-6).all())
    scaling = torch.tensor(box.counts)
    half = torch.where(scaling, drawn / 2, drawn)
    assert torch.allclose(box.gauge(half), gauge / 2, atol=1e-6)
    assert torch.isinf(box_of(noise="0..8 levels").gauge(torch.tensor([[-0.1]])))


def test_amplitudes_of_a_field_are_even_between_nothing_and_the_range():
    box = box_of(bend="0..5 %")
    sizes = box.gauge(box.draw(rng_of(64), torch.arange(64), 16).z.flatten(0, 1))
    shares = [(sizes <= part).double().mean().item() for part in (0.25, 0.5, 0.75)]
    assert shares == pytest.approx([0.25, 0.5, 0.75], abs=0.04)


def test_points_fill_a_cube_more_evenly_than_independent_ones_and_belong_to_their_seed():
    points = sobol(rng_of(200), torch.arange(200), 64, 3)
    inside = (points < 0.5).all(2).double().mean(1)
    assert inside.mean().item() == pytest.approx(1 / 8, abs=0.002)
    independent = (1 / 8 * 7 / 8 / 64) ** 0.5
    assert inside.std().item() < independent / 3
    alone = sobol(Rng(0, "test", keys_of(["seed 7"])), torch.tensor([0]), 64, 3)
    assert torch.equal(alone[0], points[7])
    assert torch.equal(sobol(rng_of(3), torch.arange(3), 16, 3), points[:3, :16])


def test_what_is_random_in_a_condition_is_redrawn():
    box = condition_box(Conditions({"noise": "0..40 levels", "rain": "0..90 %"}), SHAPE)
    z = torch.ones(2, box.size)
    same = torch.zeros(2).long()
    once = box.decode(z, origin_of(1, pattern=torch.tensor([1])).take(same))
    assert torch.equal(once[0], once[1])
    twice = box.decode(z, two_patterns())
    assert torch.equal(twice[0], once[0])
    assert not torch.equal(twice[0], twice[1])


def test_distributions_other_than_uniform():
    box = condition_box(Conditions({"rotation": "normal(2, 3) deg"}), SHAPE)
    drawn = box.draw(rng_of(200), torch.arange(200), 16).z
    degrees = box.space.values(box.whole(drawn.reshape(-1, 1)))[:, box.columns[0]]
    assert degrees.mean().item() == pytest.approx(2, abs=0.1)
    assert degrees.std().item() == pytest.approx(3, abs=0.15)


def test_a_sampler_of_ones_own_and_rows_of_a_table_are_drawn(tmp_path):
    file = tmp_path / "field.csv"
    file.write_text("rotation,exposure\n8,1\n-8,-1\n4,0.5\n")
    box = condition_box(Conditions({}, table=str(file)), SHAPE)
    z = box.draw(rng_of(30), torch.arange(30), 16).z.flatten(0, 1)
    assert torch.allclose(z[:, 0], z[:, 1], atol=1e-6), "columns stay correlated"
    assert set((z[:, 0] * 8).round(decimals=3).tolist()) == {-8.0, 4.0, 8.0}
    file = tmp_path / "ours.py"
    file.write_text("def twice(u):\n    return {'rotation': 2 * u[:, 0]}\n")
    declared = {"rotation": "±8 deg"}
    box = condition_box(Conditions(declared, sampler=f"{file}:twice"), SHAPE)
    z = box.draw(rng_of(5), torch.arange(5), 8).z
    assert bool(((z >= 0) & (z <= 0.25)).all())


@pytest.mark.parametrize("given", ["u[:1, 0]", "u[:, 0] / 0", "np.nan * u[:, 0]"])
def test_a_sampler_that_gives_too_little_or_no_numbers_is_refused(tmp_path, given):
    file = tmp_path / "ours.py"
    file.write_text(f"import numpy as np\ndef bad(u):\n    return {{'rotation': {given}}}\n")
    declared = Conditions({"rotation": "±8 deg"}, sampler=f"{file}:bad")
    with np.errstate(all="ignore"), pytest.raises(HardcaseError, match="were asked for"):
        condition_box(declared, SHAPE)


SAMPLERS = {
    "raises": ("raise RuntimeError('no')", "raised RuntimeError: no"),
    "exits": ("raise SystemExit(0)", "called sys.exit"),
    "returns nothing": ("pass", "returns NoneType"),
    "returns a list": ("return [u[:, 0]]", "returns list"),
    "returns words": ("return {'rotation': ['a'] * len(u)}", "no numbers"),
    "complex": ("return {'rotation': u[:, 0] + 1j}", "complex"),
    "an extra column": ("return {'rotation': u[:, 0], 'blur': u[:, 0]}", "not declared"),
    "outside": ("return {'rotation': u[:, 0] * 1000}", "in row"),
    "a row outside": ("x = u[:, 0] * 8; x[7] = 9; return {'rotation': x}", "9 in row 7"),
    "random": ("import random; return {'rotation': u[:, 0] * random.random()}", "another order"),
    "by position": (
        "import numpy; g = numpy.random.default_rng(0); return {'rotation': g.random(len(u))}",
        "another order",
    ),
    "by the batch": ("return {'rotation': u[:, 0] * (u[0, 0] < u[-1, 0])}", "another order"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_does_not_give_what_is_declared_is_refused_with_the_row(tmp_path, name):
    body, words = SAMPLERS[name]
    file = tmp_path / "ours.py"
    file.write_text(f"def bad(u):\n    {body}\n")
    declared = Conditions({"rotation": "±8 deg"}, sampler=f"{file}:bad")
    with pytest.raises(HardcaseError) as caught:
        condition_box(declared, SHAPE)
    assert words in str(caught.value)
    assert caught.value.code == 2


def test_the_digest_of_conditions_is_of_what_they_draw(tmp_path):
    def digest(**how):
        declared = {"rotation": "±8 deg", "shift": "±5 %"}
        return conditions_digest(Conditions(declared, **how), SHAPE)

    sampler, table = tmp_path / "s.py", tmp_path / "t.csv"
    sampler.write_text("def draw(u): return {'rotation': (u[:, 0] * 2 - 1) * 8}")
    table.write_text("rotation\n8\n-8\n")
    plain = digest()
    assert digest(name="scanner") == plain, "a name alone counts nothing"
    drawn, logged = digest(sampler=f"{sampler}:draw"), digest(table=str(table))
    assert len({plain, drawn, logged}) == 3
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_bytes(sampler.read_bytes())
    assert digest(sampler=f"{elsewhere}:draw") == drawn, "nor does a path"
    sampler.write_text("def draw(u): return {'rotation': u[:, 0] * 0}")
    table.write_text("rotation\n0\n0.01\n")
    assert digest(sampler=f"{sampler}:draw") != drawn
    assert digest(table=str(table)) != logged
    wider = Conditions({"rotation": "±9 deg", "shift": "±5 %"})
    assert conditions_digest(wider, SHAPE) != plain


def test_a_condition_held_at_neutral_leaves_the_others():
    box = condition_box(Conditions({"rotation": "±8 deg", "shift": "±5 %"}), SHAPE)
    z = torch.ones(2, 4, box.size)
    held = box.held(z, "shift")
    assert held.sum(2).tolist() == [[1.0] * 4] * 2


def test_grey_images_lack_colour():
    with pytest.raises(HardcaseError, match="temperature"):
        condition_box(hc.Conditions({"temperature": "±1 stops"}), (1, 28, 28))
    assert "temperature" not in condition_box(Conditions.load("handheld"), (1, 28, 28)).owner


def test_every_corruption_can_be_declared():
    names = [row.option for row in DECLARABLE.values() if row.part == "corruption"]
    assert sorted(names) == sorted(CORRUPTIONS)


def test_severities_of_corruptions_are_coordinates_of_the_box():
    declared = {"corruption": {"fog": "0..3", "gaussian_noise": "0..2 severity"}}
    conditions = Conditions.load({**declared, "rotation": "±8 deg"})
    again = Conditions.load(conditions.to_record())
    assert dict(again.ranges) == dict(conditions.ranges)
    box = condition_box(conditions, SHAPE)
    assert set(box.owner) == {"rotation", "corruption.fog", "corruption.gaussian_noise"}
    place = box.owner.index("corruption.fog")
    drawn = box.draw(rng_of(50), torch.arange(50), 16)
    assert bool((box.gauge(drawn.z.flatten(0, 1)) <= 1).all())
    severity = box.space.values(box.whole(drawn.z.flatten(0, 1)))[:, box.columns[place]]
    assert severity.min().item() == pytest.approx(0, abs=0.02)
    assert severity.mean().item() == pytest.approx(1.5, abs=0.05)
    assert severity.max().item() == pytest.approx(3, abs=0.02)
    z = torch.zeros(1, box.size)
    z[0, place] = 0.5
    assert box.words(z) == ["fog of severity 1.5"]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_random_part_of_a_corruption_is_redrawn_and_severity_0_is_the_image(name):
    box = condition_box(Conditions({f"corruption.{name}": "0..5"}), SHAPE)
    other = two_patterns()
    assert torch.equal(box.decode(torch.zeros(2, 1), other), other.x)
    twice = box.decode(torch.ones(2, 1), other)
    fixed = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness", "contrast", "saturate"}
    fixed |= {"pixelate", "jpeg_compression"}
    assert torch.equal(twice[0], twice[1]) == (name in fixed)


def test_gradients_lead_away_from_the_unchanged_image():
    box = condition_box(Conditions({"corruption.contrast": "0..5"}), SHAPE)
    z = torch.zeros(1, 1, requires_grad=True)
    image = box.decode(z, origin_of(1))
    assert torch.equal(image, origin_of(1).x)
    image.square().sum().backward()
    assert z.grad.abs().item() > 0
