"""Pictures of any size and orientation become images of one size."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from hardcase.data.sizing import Sizing, decoded, stacked
from hardcase.errors import Problem


def ramp(width, height):
    """Brighter to the right."""
    row = np.linspace(0, 255, width).astype(np.uint8)
    return Image.fromarray(np.repeat(row[None], height, 0))


def encoded(picture, **options):
    file = BytesIO()
    picture.save(file, format="PNG" if not options else "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"resize": "32", "crop": "center"}, (32, 32)),
        ({"resize": "40", "crop": "32"}, (32, 32)),
        ({"resize": "32"}, (32, 32)),
        ({"crop": "20"}, (20, 20)),
        ({}, (60, 90)),
    ],
)
def test_sizes(words, expected):
    assert decoded(encoded(ramp(90, 60)), Sizing.of(words), "a").shape == expected


@pytest.mark.parametrize(("crop", "left", "right"), [("center", 85, 170), ("0", 2, 253)])
def test_a_centre_crop_keeps_the_middle_and_resizing_alone_keeps_all(crop, left, right):
    image = decoded(encoded(ramp(90, 30)), Sizing.of({"resize": "30", "crop": crop}), "a")
    assert abs(int(image[:, 0].mean()) - left) <= 8
    assert abs(int(image[:, -1].mean()) - right) <= 8


def test_the_cameras_orientation_is_honoured():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter to the right to see it upright
    image = decoded(encoded(ramp(64, 32), exif=exif, quality=95), Sizing(), "a")
    assert image.shape == (64, 32)
    assert image[0].mean() < image[-1].mean()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"crop": "center"}, "needs resize"),
        ({"resize": "20", "crop": "30"}, "more than resize"),
        ({"resize": "big"}, "no number of pixels"),
        ({"resize": "-3"}, "1 or more"),
    ],
)
def test_mistakes_are_told(words, why):
    with pytest.raises(Problem, match=why):
        Sizing.of(words)


def test_a_picture_that_is_too_small_to_crop_is_told():
    with pytest.raises(Problem, match="no square of 40"):
        decoded(encoded(ramp(30, 30)), Sizing(crop=40), "a")


def test_different_sizes_name_the_remedy():
    pictures = [np.zeros((4, 4), np.uint8), np.zeros((4, 5), np.uint8)]
    with pytest.raises(Problem, match="b is 5×4") as caught:
        stacked(pictures, ["a", "b"])
    assert "?resize=4&crop=center" in caught.value.fix
