import pickle
from dataclasses import fields

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.imaging.noise import content_key, grain
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.randomness import Rng, stream
from hardcase.searches.gradient import AdamAscent
from hardcase.spaces.appearance import PARTS, Appearance, appearance
from hardcase.spaces.parts import Camera, Light, Warp
from hardcase.testing import check_method, check_space
from hardcase.types import Budget, Method, Seeds, Space

SPACES = [*PARTS, "camera*light", "warp*light", "*".join(PARTS)]
SHAPES = [(1, 28, 28), (3, 32, 32), (3, 65, 49)]


def photographs(count=3, shape=(3, 32, 32), seed=0, dtype=torch.float32):
    """Smooth random images with some texture, on the 8-bit grid, with black and white in them."""
    rng = stream(seed, "photographs")
    coarse = torch.rand(count, shape[0], 5, 5, generator=rng)
    x = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic", align_corners=True)
    x = x + 0.1 * torch.rand(x.shape, generator=rng)
    return ((x * 1.4 - 0.2).clamp(0, 1) * 255).round().to(dtype) / 255


def seeds(x):
    return Seeds(torch.zeros(len(x), 1), x, torch.zeros(len(x)).long(), torch.arange(len(x)))


def somewhere(space, count=3, seed=0, size=0.5, dtype=torch.float32):
    z = size * torch.randn(count, space.size, generator=stream(seed, "codes"))
    return space.project(z.to(dtype), seeds(photographs(count, space.shape)))


@pytest.mark.parametrize("name", SPACES)
def test_spaces_obey_the_laws(name):
    check_space(appearance(name, shape=(1, 8, 8)), tolerance=0.0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SPACES)
def test_code_zero_is_the_image_itself_and_the_ends_of_the_range_are_images(name, shape):
    space = appearance(name, shape=shape)
    origin = seeds(photographs(2, shape))
    z, context = space.encode(origin.x, origin.y, Rng.numbered(0, "space", 2))
    assert z.shape == (2, space.size)
    assert not z.any()
    assert context == {}
    assert torch.equal(space.decode(z, origin), origin.x)
    for sign in (-9.0, 9.0):
        z = space.project(torch.full((2, space.size), sign), origin)
        x = space.decode(z, origin)
        assert x.shape == origin.x.shape
        assert x.dtype == torch.float32
        assert x.isfinite().all()
        assert x.min() >= -1e-5
        assert x.max() <= 1 + 1e-5
        assert torch.equal(space.decode(z, origin), x)


@pytest.mark.parametrize("name", SPACES)
def test_every_coordinate_changes_the_image_and_has_a_slope_at_the_seed(name):
    """A search starts at code 0: a coordinate without a slope there would never be used."""
    space = appearance(name, shape=(3, 32, 32))
    x = photographs(1)
    weight = torch.rand(x.shape, generator=stream(1))
    z = torch.zeros(1, space.size, requires_grad=True)
    (gradient,) = torch.autograd.grad((space.decode(z, seeds(x)) * weight).sum(), z)
    counted = torch.tensor([c.counts for c in space.coordinates])
    assert gradient.isfinite().all()
    assert (gradient[0, counted] != 0).all()
    one_by_one = 0.5 * torch.eye(space.size)[counted]
    changed = space.decode(one_by_one, seeds(x.expand(len(one_by_one), -1, -1, -1)))
    assert ((changed - x).flatten(1).abs().amax(1) > 1 / 255).all()


SMOOTH = {*PARTS} - {"sensor"} | {"sensor(quality=100)", "warp*camera*light*focus"}


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_slopes_are_those_of_finite_differences(name):
    space = appearance(name, shape=(3, 20, 17))
    origin = seeds(photographs(1, space.shape, dtype=torch.float64))
    weight = torch.rand(origin.x.shape, generator=stream(2), dtype=torch.float64)
    z = somewhere(space, 1, seed=5, size=0.3, dtype=torch.float64)
    z = z.clamp(-0.9, 0.9) + 0.01 * (z >= 0)

    def height(code):
        images = space.decode(code, seeds(origin.x.expand(len(code), -1, -1, -1)))
        return (images * weight).sum((1, 2, 3))

    variable = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(height(variable).sum(), variable)
    step = 1e-7 * torch.eye(space.size, dtype=torch.float64)
    measured = (height(z + step) - height(z - step)) / 2e-7
    assert torch.allclose(gradient[0], measured, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_rows_do_not_see_each_other(name):
    space = appearance(name, shape=(3, 32, 32))
    x = photographs(6)
    z = somewhere(space, 6)
    weight = torch.rand(x.shape, generator=stream(3))

    def both(rows, images, codes):
        variable = codes[rows].clone().requires_grad_()
        out = space.decode(variable, seeds(images[rows]))
        (gradient,) = torch.autograd.grad((out * weight[rows]).sum(), variable)
        return out.detach(), gradient

    whole, slopes = both(torch.arange(6), x, z)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    moved, moved_slopes = both(order, x, z)
    assert torch.equal(moved, whole[order])
    assert torch.equal(moved_slopes, slopes[order])
    others = torch.cat([x[:1], photographs(5, seed=9)])
    beside, beside_slopes = both(torch.arange(6), others, torch.cat([z[:1], -z[1:]]))
    assert torch.equal(beside[0], whole[0])
    assert torch.equal(beside_slopes[0], slopes[0])


def test_projection_clamps_to_the_range_and_keeps_what_is_inside():
    space = appearance("camera*focus", shape=(3, 32, 32))
    origin = seeds(photographs(2))
    z = space.project(torch.full((2, space.size), -9.0), origin)
    signed = torch.tensor([c.signed for c in space.coordinates])
    assert (z[:, signed] == -1).all()
    assert (z[:, ~signed] == 0).all()
    assert torch.equal(space.project(z, origin), z)
    inside = somewhere(space, 2)
    assert torch.equal(space.project(inside, origin), inside)


def test_a_product_is_the_concatenation_of_its_codes_in_any_order():
    origin = seeds(photographs(2))
    camera = appearance("camera", shape=(3, 32, 32))
    light = appearance("light", shape=(3, 32, 32))
    product = appearance("camera*light", shape=(3, 32, 32))
    assert product.names == [*camera.names, *light.names]
    one, two = somewhere(camera, 2), somewhere(light, 2)
    x = product.decode(torch.cat([one, two], 1), origin)
    assert torch.equal(light.decode(two, seeds(camera.decode(one, origin))), x)
    unlit = product.decode(torch.cat([one, 0 * two], 1), origin)
    assert torch.equal(unlit, camera.decode(one, origin))
    space = appearance("*".join(PARTS), shape=(3, 32, 32))
    z = somewhere(space, 2)
    turned = appearance("*".join(reversed(PARTS)), shape=(3, 32, 32))
    column = [space.names.index(name) for name in turned.names]
    assert torch.equal(turned.decode(z[:, column], origin), space.decode(z, origin))


def test_the_pattern_of_noise_stays_where_it_is_when_the_image_moves():
    space = appearance("camera*light*sensor", shape=(3, 32, 32))
    origin = seeds(0.3 + 0.3 * photographs(1))
    z = torch.zeros(1, space.size)
    z[0, space.names.index("rotation")] = 0.7
    clean = space.decode(z, origin)
    z[0, space.names.index("noise")] = 0.5
    noise = (space.decode(z, origin) - clean) / (0.4 + 0.6 * clean).sqrt()
    assert torch.allclose(noise, 8 / 255 * grain(origin.x, content_key(origin.x)), atol=1e-5)


def test_a_finding_is_told_in_words():
    space = appearance("warp*camera*light*focus*sensor", shape=(3, 224, 224))
    z = torch.zeros(2, space.size)
    codes = {"bend right 2,3": 0.6, "rotation": -6 / 11, "exposure": -0.7, "gamma": 0.001}
    codes |= {"shade 1,1": 0.4, "motion": 0.5, "angle": 1 / 3, "JPEG quality": 0.5}
    for name, code in codes.items():
        z[0, space.names.index(name)] = code
    assert space.words(z) == [
        "0.7 stops darker, bent by up to 3.0 % of the side, tilted 6° anticlockwise, "
        "blurred by a motion of 3.9 px at 30°, JPEG quality 60, lit unevenly by up to 0.4 stops",
        "unchanged",
    ]
    told = space.describe(z)[0]
    assert told["rotation"] == (pytest.approx(-6.0), "°")
    assert told["exposure"] == (pytest.approx(-0.7), "stops")
    assert told["JPEG quality"] == (pytest.approx(60.0), "")
    assert told["bend"] == (pytest.approx(3.0), "% of the side")
    assert not any(name.startswith("bend ") for name in told)


def test_every_end_of_every_range_has_words():
    space = appearance("*".join(PARTS), shape=(3, 224, 224))
    for i, coordinate in enumerate(space.coordinates):
        for code in {1.0, coordinate.lowest_code} - {0.0}:
            z = torch.zeros(1, space.size)
            z[0, i] = code
            said = space.words(z)[0]
            assert (said != "unchanged") == coordinate.counts, coordinate.name


def test_severity_and_distance_are_in_units_of_the_range():
    space = appearance("warp*camera*focus", shape=(1, 28, 28))
    origin = seeds(photographs(3, space.shape))
    names = [group.name for group in space.groups]
    z = torch.zeros(3, space.size)
    z[0, :98] = 1
    z[1, space.names.index("rotation")] = -0.5
    z[1, space.names.index("defocus")] = 0.5
    z[2, space.names.index("angle")] = 1
    severity = space.severity(z)
    assert severity.shape == (3, len(names))
    assert severity[0, names.index("bend")] == pytest.approx(1)
    assert severity[1, names.index("rotation")] == 0.5
    assert torch.allclose(space.distance(z, origin), torch.tensor([1.0, 0.5**0.5, 0.0]))
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(space.distance(z, origin).sum(), z)
    assert gradient.isfinite().all()


def test_groups_can_be_taken_away():
    space = appearance("warp*camera", shape=(1, 28, 28))
    z = somewhere(space, 2)
    names = [group.name for group in space.groups]
    mask = torch.zeros(2, len(names), dtype=torch.bool)
    mask[0, names.index("bend")] = True
    mask[1, names.index("rotation")] = True
    left = space.removed(z, mask)
    assert not left[0, :98].any()
    assert torch.equal(left[0, 98:], z[0, 98:])
    assert left[1, 98] == 0
    assert torch.equal(left[1, :98], z[1, :98])
    assert not space.severity(left)[mask].any()


def test_grey_images_have_no_colour():
    grey = appearance("light", shape=(1, 28, 28))
    colour = appearance("light", shape=(3, 28, 28))
    assert set(colour.names) - set(grey.names) == {"temperature", "tint"}


def test_options_and_names_are_read_from_text():
    space = appearance("warp(points=4, reach=0.02)*light(stops=0.5)", shape=(3, 224, 224))
    assert space.parts == (Warp(points=4, reach=0.02), Light(stops=0.5))
    assert space.name == "warp*light"
    assert space.size == 2 * 16 + 5 + 16
    assert appearance(" camera ( rotation = 5 ) ", shape=(1, 28, 28)).parts == (Camera(rotation=5),)
    for part in PARTS.values():
        assert all(field.kw_only for field in fields(part))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("camra", "no part of appearance 'camra'"),
        ("camera*", "not a product"),
        ("", "not a product|needs a part"),
        ("camera*camera", "'camera' twice"),
        ("warp(point=3)", "no option of warp 'point'"),
        ("warp(points=many)", "not a number"),
        ("warp(points=1)", "points=1"),
        ("warp(points=2.5)", "points=2.5"),
        ("warp(reach=0)", "reach=0"),
        ("focus(motion=-1)", "motion=-1"),
        ("sensor(quality=0)", "quality=0"),
    ],
)
def test_what_does_not_exist_is_refused(text, said):
    with pytest.raises(HardcaseError, match=said):
        appearance(text, shape=(3, 32, 32))


def test_images_of_another_shape_are_refused():
    given = (photographs(1, (3, 28, 28)), torch.zeros(1).long(), Rng.numbered(0, "space", 1))
    with pytest.raises(HardcaseError, match=r"\(3, 32, 32\), not \(3, 28, 28\)"):
        appearance("camera", shape=(3, 32, 32)).encode(*given)
    with pytest.raises(HardcaseError, match="2 channels"):
        appearance("camera", shape=(2, 32, 32))
    with pytest.raises(HardcaseError, match="channels, height and width"):
        appearance("camera", shape=(32, 32))


def test_a_space_travels_to_workers():
    space = appearance("*".join(PARTS), shape=(3, 32, 32))
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    assert isinstance(again, Space)
    assert isinstance(again, Appearance)
    assert again.keeps_code


@pytest.mark.parametrize("name", ["camera(rotation=90)*light", "warp(reach=0.5)*focus*sensor"])
def test_a_gradient_search_in_these_spaces_obeys_the_laws_of_methods(name):
    def make():
        parts = {"space": appearance(name, shape=(1, 8, 8)), "search": AdamAscent(step_size=0.1)}
        parts |= {"objective": Margin(), "oracle": LeavesLabel(), "needs": "gradients"}
        return Method(name="appearance", **parts, budget=Budget(gradients=40))

    check_method(make)
