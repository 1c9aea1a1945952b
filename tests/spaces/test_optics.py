import math

import pytest
import torch

from hardcase.randomness import stream
from hardcase.spaces.appearance import appearance
from hardcase.spaces.optics import content_key, convolved, lattice, mirrored
from hardcase.types import Seeds


def decoded(text, x, **codes):
    space = appearance(text, shape=tuple(x.shape[1:]))
    z = torch.zeros(len(x), space.size)
    for name, code in codes.items():
        z[:, space.names.index(name)] = code
    return space.decode(z, Seeds(z, x, torch.zeros(len(x)).long(), torch.arange(len(x))))


def grey(level=0.4, side=32, channels=3):
    return torch.full((1, channels, side, side), level)


def noise(side=32):
    return torch.rand(2, 3, side, side, generator=stream(0))


def test_a_stop_is_twice_the_linear_light():
    dark = decoded("light", grey(), exposure=-1.0)
    assert torch.allclose((dark / grey()) ** 2.2, torch.tensor(0.5), atol=1e-5)
    bright = decoded("light", grey(), exposure=1.0)
    assert torch.allclose((bright / grey()) ** 2.2, torch.tensor(2.0), atol=1e-4)


def test_the_opposite_exposure_undoes():
    x = 0.6 * noise()
    assert torch.allclose(
        decoded("light", decoded("light", x, exposure=0.8), exposure=-0.8), x, atol=1e-5
    )


def test_exposure_and_shade_together_stay_within_the_stops():
    space = appearance("light(stops=0.5)", shape=(3, 32, 32))
    z = torch.zeros(1, space.size)
    z[:, [i for i, name in enumerate(space.names) if name.startswith(("exposure", "shade"))]] = 1.0
    x = space.decode(z, Seeds(z, grey(), torch.zeros(1).long(), torch.arange(1)))
    assert torch.allclose((x / grey()) ** 2.2, torch.tensor(2**0.5), atol=1e-4)


def test_shade_is_luminance_only():
    space = appearance("light", shape=(3, 32, 32))
    z = torch.zeros(1, space.size)
    z[:, -16:] = torch.rand(16, generator=stream(1)) * 2 - 1
    x = space.decode(z, Seeds(z, grey(), torch.zeros(1).long(), torch.arange(1)))
    assert x.std() > 0.02
    assert torch.equal(x[:, 0], x[:, 1])
    assert torch.equal(x[:, 0], x[:, 2])


def test_white_balance_keeps_luminance():
    warm = decoded("light", grey(), temperature=1.0)
    red, green, blue = (float(warm[0, i, 0, 0]) for i in range(3))
    assert red > green > blue
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    assert luminance == pytest.approx(0.4**2.2, rel=0.05)
    green_cast = decoded("light", grey(), tint=1.0)
    assert green_cast[0, 1, 0, 0] > green_cast[0, 0, 0, 0]


def test_gamma_and_contrast():
    assert torch.allclose(decoded("light", grey(), gamma=1.0), grey() ** 1.25, atol=1e-5)
    assert torch.allclose(decoded("light", grey(), contrast=-1.0), grey(0.425), atol=1e-5)


def test_blur_keeps_the_mean_of_an_even_image_and_spreads_a_point():
    assert torch.allclose(decoded("focus", grey(), defocus=1.0, motion=1.0), grey(), atol=1e-5)
    point = torch.zeros(1, 1, 224, 224)
    point[..., 112, 112] = 1.0
    disc = decoded("focus", point, defocus=1.0)
    assert disc.sum() == pytest.approx(1.0, abs=1e-3)
    radius = 0.012 * 224
    down, right = torch.meshgrid(torch.arange(224) - 112, torch.arange(224) - 112, indexing="ij")
    distance = (down**2 + right**2).sqrt()
    assert disc[0, 0][distance > radius + 1].abs().max() < 1e-5
    assert disc[0, 0][distance <= radius].min() > 0.5 * disc.max()
    line = decoded("focus", point, motion=1.0, angle=0.5)
    spread = (line[0, 0] * torch.stack([down, right])).abs().sum((1, 2))
    across = (line[0, 0] * (down - right).abs()).sum()
    assert spread[0] == pytest.approx(float(spread[1]), rel=1e-3)
    assert across < spread.sum() / 3


def test_convolution_agrees_with_sums_over_the_window():
    x = noise(20)
    kernel = torch.rand(2, 5, 5, generator=stream(4))
    kernel = kernel / kernel.sum((1, 2), keepdim=True)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    flipped = kernel.flip(1, 2).repeat_interleave(3, 0)[:, None]
    expected = torch.nn.functional.conv2d(padded.reshape(1, 6, 24, 24), flipped, groups=6)
    assert torch.allclose(convolved(x, kernel), expected.reshape(x.shape), atol=1e-5)


def test_kernels_larger_than_the_image_still_blur():
    x = torch.rand(1, 1, 8, 8, generator=stream(0))
    out = decoded("focus(motion=3.0)", x, motion=1.0)
    assert out.isfinite().all()
    assert out.std() < x.std()


def test_mirrored_reflects_without_repeating_the_edge():
    line = torch.arange(5.0)
    assert mirrored(line, 2, 0).tolist() == [2, 1, 0, 1, 2, 3, 4, 3, 2]
    assert torch.equal(mirrored(line, 0, 0), line)


def test_fog_veils_and_snow_and_rain_brighten_some_of_a_dark_image():
    dark = 0.1 * noise(128)
    foggy = decoded("weather", dark, fog=1.0)
    assert 0.35 < foggy.mean() < 0.6
    assert foggy.std() < 0.08
    for name in ("rain", "snow"):
        changed = decoded("weather", dark, **{name: 1.0}) - dark
        share = float((changed.amax(1) > 0.1).float().mean())
        assert 0.003 < share < 0.2, name
    side = [
        decoded("weather", 0.1 * noise(28), snow=1.0),
        decoded("weather", 0.1 * noise(224), snow=1.0),
    ]
    for x in side:
        assert float((x.amax(1) > 0.4).float().mean()) < 0.2


def test_patterns_follow_from_the_image_alone():
    x = noise()
    key = content_key(x)
    assert key[0] != key[1]
    assert torch.equal(content_key(x.flip(0)), key.flip(0))
    almost = x.clone()
    almost[0, 0, 0, 0] = 1 - almost[0, 0, 0, 0]
    assert content_key(almost)[0] != key[0]
    once = decoded("weather", x, snow=1.0)
    alone = decoded("weather", x[1:], snow=1.0)
    assert torch.equal(once[1:], alone)


def test_lattice_numbers_are_even_and_independent_of_their_count():
    key = torch.tensor([1, 2])
    numbers = lattice(key, 20_000, salt=3)
    assert torch.equal(lattice(key, 100, salt=3), numbers[:, :100])
    assert numbers.min() >= 0
    assert numbers.max() < 2**32
    for bit in range(32):
        assert float((numbers >> bit & 1).double().mean()) == pytest.approx(0.5, abs=0.02)
    uniform = numbers.double() / 2**32
    assert float(torch.corrcoef(uniform)[0, 1].abs()) < 4 / math.sqrt(20_000)
    assert float(torch.corrcoef(torch.stack([uniform[0, 1:], uniform[0, :-1]]))[0, 1].abs()) < 0.03
    assert not torch.equal(lattice(key, 100, salt=4), numbers[:, :100])
