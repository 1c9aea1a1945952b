"""Pictures of annotated images: each object in its place and colour."""

import numpy as np
import torch
from PIL import Image

from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.load import colour_of, draw_annotation
from hardcase.claims.subjects import Annotation
from hardcase.cli.inspect import _annotations
from hardcase.types import Images

NO_MASK = torch.zeros(0, 0, dtype=torch.int16)


def test_a_box_is_drawn_where_it_is():
    image = torch.zeros(1, 40, 80, dtype=torch.uint8)
    known = Annotation(torch.tensor([1]), torch.tensor([[20.0, 10, 60, 30]]), NO_MASK)
    drawn = np.asarray(draw_annotation(image, known, ("a", "b"), side=160))
    assert drawn.shape == (80, 160, 3)
    ours = (drawn == colour_of(1)).all(2)
    down, across = np.nonzero(ours)
    assert (across.min(), across.max(), down.min(), down.max()) == (40, 120, 20, 60)


def test_a_mask_tints_its_pixels_only():
    image = torch.full((3, 20, 20), 100, dtype=torch.uint8)
    mask = torch.full((20, 20), 255, dtype=torch.int16)
    mask[10:] = 0
    drawn = np.asarray(
        draw_annotation(
            image, Annotation(torch.zeros(0).long(), torch.zeros(0, 4), mask), ("a",), side=20
        )
    )
    assert (drawn[:10] == 100).all()
    assert (drawn[10:] != 100).any(2).all()


def test_doctor_draws_and_says_what_is_odd(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    x = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    images = Images(x, torch.zeros(2).long(), ("a", "b"), ("cat",))
    tags = Annotation(torch.tensor([0]), torch.zeros(0, 4), NO_MASK)
    lines = list(_annotations(AnnotatedImages(images, (tags, tags), ("one is odd.",))))
    assert [line.state for line in lines] == ["warning", "ok"]
    with Image.open(tmp_path / "doctor" / "annotations.png") as drawn:
        assert drawn.size == (2 * 244, 244)
