"""The example that paints other surroundings, with a made-up saliency network and a made-up inpainter."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PATH = Path(__file__).parents[2] / "examples" / "context" / "context.py"


@pytest.fixture(scope="module")
def context():
    spec = importlib.util.spec_from_file_location("context_example", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def picture(seed=0, top=8):
    image = np.random.default_rng(seed).integers(0, 100, (32, 32, 3), dtype=np.uint8)
    image[top : top + 12, 10:22] = 220
    return image


def bright(image):
    return (image.min(2) > 200).astype(float)


def painted_over(image, hole):
    """An inpainter that, as real ones do, also changes what it should keep."""
    return np.full_like(image, 7)


def test_the_object_is_kept_to_the_byte_and_the_rest_changes(context, tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "in" / label).mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / "in" / label / "a.png")
    Image.fromarray(np.full((32, 32, 3), 230, np.uint8)).save(tmp_path / "in/cat/white.png")
    out = tmp_path / "out"
    left = context.write(tmp_path / "in", out, bright, painted_over, draws=3, seed=0)
    assert left == {"cat/white": "the object covers 100% of the picture"}
    made = {path.relative_to(out).as_posix() for path in out.rglob("*.png")}
    assert made == {f"{label}/a-{draw}.png" for label in ("cat", "dog") for draw in range(3)}
    mask = bright(picture()) >= 0.5
    variants = [np.asarray(Image.open(path)) for path in sorted(out.rglob("*.png"))]
    for variant in variants:
        assert np.array_equal(variant[mask], picture()[mask])
        near = context.grown(mask, 2)
        assert np.array_equal(variant[near], picture()[near])
        assert (variant == 7).all(2).mean() > 0.1
    assert not np.array_equal(variants[0], variants[1])


@pytest.mark.parametrize(
    ("chance", "why"),
    [
        (np.zeros((32, 32)), "covers 0%"),
        (np.tile(np.arange(32)[:, None] < 22, (1, 32)).astype(float), "touches"),
        (np.pad(np.full((12, 20), 0.6), ((10, 10), (6, 6))), "doubtful"),
    ],
)
def test_masks_that_cannot_be_trusted_are_refused(context, chance, why):
    how = {"draws": 2, "rng": np.random.default_rng(0)}
    made, reason = context.varied(picture(), lambda image: chance, painted_over, **how)
    assert made == []
    assert why in reason


def test_an_inpainter_of_another_size_is_an_error(context):
    mask, rng = bright(picture()) > 0, np.random.default_rng(0)
    with pytest.raises(ValueError, match="the inpainter gave"):
        context.surroundings(picture(), mask, lambda x, hole: x[:4], rng)
