"""Pictures and charts: true to their numbers, and never larger than allowed."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase import tensors
from hardcase.report import pictures


def shown(seed, test):
    """The difference of two images, as an array with its opacity."""
    made = pictures.difference(tensors.encode(seed), tensors.encode(test))
    return np.array(Image.open(io.BytesIO(made)))


def test_a_difference_is_clear_where_nothing_changed_and_tinted_where_it_did():
    seed = torch.full((1, 4, 4), 100, dtype=torch.uint8)
    test = seed.clone()
    test[0, 0, 0], test[0, 1, 1], test[0, 2, 2] = 200, 50, 150
    found = shown(seed, test)
    assert found.shape == (4, 4, 4)
    assert (found[..., 3] > 0).sum() == 3
    assert tuple(found[0, 0]) == (*pictures.BRIGHTER, 255)
    assert tuple(found[1, 1, :3]) == pictures.DARKER
    assert tuple(found[2, 2, :3]) == pictures.BRIGHTER
    assert 0 < found[1, 1, 3] == found[2, 2, 3] < 255
    assert not shown(seed, seed)[..., 3].any()


def test_a_colour_that_changes_without_growing_brighter_is_still_seen():
    seed, test = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    seed[0, 0, 0], test[1, 0, 0] = 80, 80
    assert shown(seed, test)[0, 0, 3] == 255


@pytest.mark.parametrize("side", [28, 300])
def test_pictures_are_reduced_only_if_they_must_be(side):
    rng = torch.Generator().manual_seed(0)
    files = {("test", 0, i): tensors.encode(torch.randint(0, 256, (3, side, side), generator=rng, dtype=torch.uint8)) for i in range(30)}  # fmt: skip
    fitted = pictures._fitted(files, list(files), 400_000)
    assert sum(map(len, fitted.uris.values())) <= 400_000
    data = base64.b64decode(fitted.uris["test", 0, 3].partition(",")[2])
    if side == 28:
        assert fitted.width is None
        assert data == files["test", 0, 3]
    else:
        assert max(Image.open(io.BytesIO(data)).size) == fitted.width < side
        assert fitted.uris["test", 0, 3].startswith("data:image/jpeg;")


@pytest.mark.parametrize("largest", [0, 0.003, 1, 7, 10, 99, 100, 101, 2500, 1e6])
def test_ticks_are_few_round_and_reach_the_largest(largest):
    marks = pictures.ticks(largest)
    assert marks[0] == 0
    assert marks[-1] >= largest * 0.999
    assert 2 <= len(marks) <= 6
    assert all(float(mark) == int(mark) for mark in pictures.ticks(largest, whole=True))


def test_a_curve_passes_through_its_numbers():
    rows = [{"q": 10, "n": 1}, {"q": 50, "n": 5}, {"q": 100, "n": 8}]
    svg = str(pictures.steps(rows, "q", "n", x="queries", y="seeds", top=10, label="a <b>"))
    tree = ElementTree.fromstring(svg)
    assert tree.get("aria-label") == "a <b>"
    line = next(node.get("d") for node in tree if node.get("class") == "line")
    across = [float(v) for v in re.findall(r"H([\d.]+)", line)]
    up = [float(v) for v in re.findall(r"V([\d.]+)", line)]
    left, width = 46, pictures.WIDTH - 46 - 20
    assert across == pytest.approx([left + width * q / 100 for q in (10, 50, 100)], abs=0.1)
    bottom, height = pictures.HEIGHT - 42, pictures.HEIGHT - 42 - 14
    highest = pictures.ticks(10, whole=True)[-1]
    assert up == pytest.approx([bottom - height * n / highest for n in (1, 5, 8)], abs=0.1)


def test_bars_show_shares_and_say_nothing_where_nothing_was_counted():
    assert 'width="25.00%"' in pictures.bar(None, 0.25)
    assert "fill" not in pictures.bar(None, None)
    assert 'x1="10.00%" x2="40.00%"' in pictures.bar({"share": 0.5, "low": 0.2, "high": 0.8}, 0.25)
