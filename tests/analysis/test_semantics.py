"""Features of pictures that were drawn with known ones, and tags: words for thirds of measures, columns of data."""

import pytest
import torch

from hardcase.analysis import semantics
from hardcase.analysis.semantics import FEATURES, measure, measured, moved, noticeable
from hardcase.errors import HardcaseError
from hardcase.tensors import from_bytes

NAMES = [feature.name for feature in FEATURES]


WHITE = (1.0, 1.0, 1.0)


def bar(*, width=4, level=1.0, ground=0.0, right=0, down=0, lean=0.0, length=16, colour=WHITE):
    """An upright bar on an even ground; `lean` columns to the right for each row up."""
    size = 32
    x = torch.full((size, size), float(ground))
    for row in range((size - length) // 2, (size + length) // 2):
        shift = round(lean * (size / 2 - row))
        first = size // 2 - width // 2 + right + shift
        x[row + down, first : first + width] = level
    return (x[None] * torch.tensor(colour)[:, None, None])[None]


def change(name, seed, test):
    return float(moved(seed, test)[0, NAMES.index(name)])


def value(name, image):
    return float(measured(image)[0, NAMES.index(name)])


@pytest.mark.parametrize(
    ("name", "seed", "test"),
    [
        ("brightness", bar(level=0.5), bar(level=0.9)),
        ("contrast", bar(level=0.5), bar(level=0.9)),
        ("background", bar(), bar(ground=0.3)),
        ("figure", bar(level=0.5), bar(level=0.9)),
        ("saturation", bar(), bar(colour=(1.0, 0.5, 0.5))),
        ("stroke", bar(width=2), bar(width=6)),
        ("slant", bar(), bar(lean=0.5)),
        ("x", bar(), bar(right=5)),
        ("y", bar(), bar(down=5)),
        ("scale", bar(length=10), bar(length=24)),
    ],
)
def test_a_feature_that_rises_is_seen_to_rise_and_back_to_fall(name, seed, test):
    assert change(name, seed, test) > 0.01
    assert change(name, test, seed) == pytest.approx(-change(name, seed, test), abs=1e-6)


def test_lengths_are_shares_of_the_side():
    assert change("x", bar(), bar(right=8)) == pytest.approx(0.25, abs=0.01)
    assert change("y", bar(), bar(down=-4)) == pytest.approx(-0.125, abs=0.01)
    assert value("stroke", bar(width=4, length=28)) == pytest.approx(4 / 32, rel=0.2)
    assert value("slant", bar(lean=0.5)) == pytest.approx(0.5, rel=0.1)
    assert value("background", bar(ground=0.3)) == pytest.approx(0.3, abs=1e-6)


def test_moving_a_figure_changes_its_place_alone_and_dark_ones_are_measured_alike():
    change = moved(bar(), bar(right=5, down=2))[0]
    still = [i for i, name in enumerate(NAMES) if name not in ("x", "y")]
    assert change[still].abs().max() < 1e-3
    light, dark = bar(level=0.8, right=3, lean=0.25), 1 - bar(level=0.8, right=3, lean=0.25)
    for name in ("x", "y", "slant", "stroke", "scale"):
        assert value(name, dark) == pytest.approx(value(name, light), abs=1e-3)


def test_hue_is_an_angle_and_takes_the_shorter_way():
    red, green, blue = (bar(colour=c) for c in ((1.0, 0, 0), (0, 1.0, 0), (0, 0, 1.0)))
    assert change("hue", red, green) == pytest.approx(1 / 3, abs=1e-3)
    assert change("hue", red, blue) == pytest.approx(-1 / 3, abs=1e-3)
    assert value("hue", bar()) == 0
    assert value("saturation", red) == pytest.approx(1, abs=1e-3)

    grey = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = measured(grey)
    assert found.shape == (4, len(FEATURES))
    assert not found[:, [NAMES.index("hue"), NAMES.index("saturation")]].any(), "grey has neither"


def test_detail_is_the_energy_of_short_waves():
    place = torch.arange(32).float()
    long, short = (0.5 + 0.4 * torch.sin(2 * torch.pi * place / period) for period in (16, 3.2))
    assert value("detail", long.expand(1, 1, 32, 32)) < 0.01
    assert value("detail", short.expand(1, 1, 32, 32)) > 0.99


def test_measures_are_finite_for_an_even_picture_and_rows_do_not_know_each_other():
    assert measured(torch.zeros(2, 3, 8, 8)).isfinite().all()
    assert measured(torch.zeros(0, 3, 8, 8)).shape == (0, len(FEATURES))
    x = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(measured(x)[2:3], measured(x[2:3]))


def test_noise_of_a_few_grey_levels_moves_nothing_that_a_person_could_see():
    """Five grey levels of noise on digits: no feature may seem to move in more than a few of them."""
    rng = torch.Generator().manual_seed(0)
    seeds = from_bytes(toy_digits())
    noisy = (seeds + 0.02 * torch.randn(seeds.shape, generator=rng)).clamp(0, 1)
    change = moved(seeds, noisy) / noticeable()
    share = dict(zip(NAMES, (change.abs() > 1).float().mean(0).tolist()))
    assert max(share[name] for name in ("x", "y", "stroke")) <= 0.05
    assert share["brightness"] == 0


def toy_digits(count=40):
    """Bars of different place and width on black."""
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for i in range(count):
        left = 8 + i % 8
        x[i, 0, 5:23, left : left + 2 + i % 3] = 255
    return x


def test_a_pixel_is_noticed_and_a_twentieth_is_not():
    seeds = from_bytes(toy_digits(8))
    column = NAMES.index("x")
    one = moved(seeds, seeds.roll(1, 3)) / noticeable()
    assert bool((one[:, column] >= 0.95).all())
    part = 0.95 * seeds + 0.05 * seeds.roll(1, 3)
    assert bool(((moved(seeds, part) / noticeable())[:, column].abs() < 0.2).all())


def test_noise_of_equal_size_is_of_equal_size_and_says_nothing_of_place():
    rng = torch.Generator().manual_seed(0)
    seeds = bar().expand(64, -1, -1, -1) * 0.5 + 0.25
    tests = bar(right=3).expand(64, -1, -1, -1) * 0.5 + 0.25
    random = semantics.equal_noise(seeds, tests, rng=rng)
    size = [(x - seeds).flatten(1).norm(dim=1) for x in (tests, random)]
    assert torch.allclose(size[0], size[1], rtol=0.1)
    column = NAMES.index("x")
    own, noise = (moved(seeds, x)[:, column] / noticeable()[column] for x in (tests, random))
    assert bool((own > 1).all())
    assert float((noise > 1).float().mean()) < 0.3


def photographs(count=30, side=32, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, side, side, generator=rng)


def digits(count=30, side=28):
    x = torch.zeros(count, 1, side, side)
    for i in range(count):
        x[i, 0, 5:20, 8 + i % 7 : 11 + i % 7 + i % 3] = 0.3 + 0.02 * i
    return x


def test_thirds_leave_out_what_is_constant_or_not_a_number():
    speed = torch.tensor([1, 2, 3, 4, 5, float("nan")])
    values = {"brightness": torch.arange(6.0), "scale": torch.ones(6), "speed": speed}
    tags = semantics.thirds(values)
    assert tags.names == ("dark", "bright", "low speed", "high speed")
    assert tags.family == ("brightness", "brightness", "speed", "speed")
    assert tags.has[:, 0].tolist() == [True, True, False, False, False, False]
    assert not tags.has[5, 2:].any(), "what is not a number is in no third"
    assert len(semantics.thirds({"scale": torch.ones(6)})) == 0


def test_columns_of_words_numbers_and_answers():
    table = {"camera": ["a", "b", "b", "c"] * 15, "night": [True, False] * 30}
    tags = semantics.columns({**table, "speed": list(range(60)), "same": ["x"] * 60})
    assert tags.names == ("camera: a", "camera: b", "camera: c", "night", "low speed", "high speed")
    assert tags.has[:, 0].sum() == 15
    rare = semantics.columns({"camera": ["a"] * 99 + ["b"]})
    assert rare.names == ("camera: a",)
    assert len(semantics.columns({})) == 0
    with pytest.raises(HardcaseError, match="same images"):
        semantics.join(tags, rare)
    with pytest.raises(HardcaseError, match="two tags"):
        semantics.join(tags, tags)


def test_measures_of_photographs_move_with_what_they_name():
    x = photographs()
    plain, measures = semantics.photograph_measures(x), semantics.photograph_measures
    dark, smooth = measures(x / 2), measures(torch.nn.functional.avg_pool2d(x, 3, 1, 1))
    grey = measures(x.mean(1, keepdim=True).expand_as(x))
    lowered = {"brightness": dark, "contrast": dark, "sharpness": smooth, "edges": smooth}
    for name, found in {**lowered, "colourfulness": grey, "saturation": grey}.items():
        assert bool((found[name] < plain[name]).all()), name
    assert set(measures(x[:, :1])) == set(lowered)


def test_colourfulness_is_that_of_its_authors():
    x = photographs(2).double()
    red, green, blue = x[0]
    across, along = red - green, (red + green) / 2 - blue
    centre = (across.mean() ** 2 + along.mean() ** 2).sqrt()
    expected = float((across.var() + along.var()).sqrt() + 0.3 * centre)
    found = semantics.photograph_measures(x)["colourfulness"][0]
    assert float(found) == pytest.approx(expected)


def test_everything_together():
    x = digits()
    assert semantics.kind_of(x) == "figure"
    assert semantics.kind_of(photographs()) == "photograph"
    tags = measure(x, table={"writer": ["a", "b"] * 15, "speed": list(range(30))})
    named = {"dark", "bright", "thin strokes", "figure left", "low speed", "writer: a"}
    assert named <= set(tags.names)
    assert "hue" not in tags.family
    assert torch.equal(measure(x, batch=7).has, measure(x).has)
    x = photographs()
    assert set(measure(x).family) == set(semantics.photograph_measures(x))
    assert set(measure(x, kind="figure").family) <= set(semantics.figure_measures(x))
    with pytest.raises(HardcaseError, match="no images"):
        measure(x[:0])


def test_images_that_come_a_few_at_a_time_have_the_tags_of_all_together():
    figures = digits(4, side=32).expand(-1, 3, -1, -1)  # what comes first is not what most are
    x = (torch.cat([figures, photographs(26)]) * 255).round().to(torch.uint8)
    tags = measure(x)
    found = semantics.measure_parts(lambda: iter(x.split(4)))
    assert set(tags.family) == set(semantics.photograph_measures(from_bytes(x)))
    assert found.names == tags.names
    assert torch.equal(found.has, tags.has)
    assert semantics.images_together((1, 3, 224, 224)) == 27
    assert semantics.images_together((1, 1, 28, 28)) == 256
