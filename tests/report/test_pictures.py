"""Pictures and charts: true to their numbers, and never larger than allowed."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from PIL import Image

from hardcase import tensors
from hardcase.report import pictures


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


ROWS = [
    {"name": "a <b>", "value": 0.1, "low": 0.05, "high": 0.2, "text": "10 %"},
    {"name": "region", "value": 0.4, "low": 0.3, "high": None, "text": "at least 30 %"},
]


def test_whiskers_lie_where_their_numbers_are():
    svg = str(pictures.whiskers(ROWS, limit=0.25, limit_text="limit 25 %", label="rates <b>"))
    tree = ElementTree.fromstring(svg)
    assert tree.get("aria-label") == "rates <b>"
    dots = [float(node.get("cx")[:-1]) for node in tree if node.get("class") == "dot"]
    top = pictures.ticks(0.4)[-1]
    assert dots == pytest.approx([100 * value / top for value in (0.1, 0.4)], abs=0.01)
    lines = [node for node in tree if node.get("class") == "whisker"]
    ends = [float(lines[0].get(name)[:-1]) for name in ("x1", "x2")]
    assert ends == pytest.approx([100 * value / top for value in (0.05, 0.2)], abs=0.01)
    assert len(lines) == 3 + 2, "an interval of one side has one cap"
    [limit] = [node for node in tree if node.get("class") == "limit"]
    assert float(limit.get("x1")[:-1]) == pytest.approx(100 * 0.25 / top, abs=0.01)
    assert {"a <b>", "at least 30 %", "limit 25 %"} <= {node.text for node in tree}


def test_whiskers_show_what_is_below_nothing():
    row = {"name": "less", "value": -0.02, "low": -0.03, "high": -0.01, "text": "-2 pp"}
    tree = ElementTree.fromstring(str(pictures.whiskers([row], unit="pp", label="effects")))
    [dot] = [float(node.get("cx")[:-1]) for node in tree if node.get("class") == "dot"]
    assert 0 < dot < 100


def test_bars_show_rates_and_an_interval_where_there_is_one():
    assert 'width="25.00%"' in pictures.bar({"value": 0.1, "low": None}, 0.4)
    assert "interval" not in pictures.bar({"value": 0.1, "low": None}, 0.4)
    assert 'x1="10.00%" x2="40.00%"' in pictures.bar({"value": 0.5, "low": 0.2, "high": 0.8}, 2)
