"""Digit canvases: where boxes say there is a digit there is one, and it is all of it."""

import pytest
import torch

from hardcase.claims.annotations import load_annotations
from hardcase.claims.canvas import BORDER, CANVAS, INK, MARGIN, NOTHING, canvases
from hardcase.claims.outputs import overlap


@pytest.fixture(scope="module")
def test_set():
    return canvases("test")


def test_counts_sizes_and_margins(test_set):
    boxes = torch.cat([one.boxes for one in test_set.annotations])
    counts = {len(one.labels) for one in test_set.annotations}
    assert counts == {1, 2, 3, 4}
    assert test_set.images.x.shape == (1000, 1, CANVAS, CANVAS)
    assert float(boxes.min()) >= MARGIN
    assert float(boxes.max()) <= CANVAS - MARGIN
    assert bool((test_set.images.y == 0).all())


def test_all_ink_lies_in_boxes_and_boxes_are_tight(test_set):
    for row, known in enumerate(test_set.annotations[:100]):
        ink = test_set.images.x[row, 0] >= INK
        inside = torch.zeros_like(ink)
        for x0, y0, x1, y1 in known.boxes.int().tolist():
            inside[y0:y1, x0:x1] = True
            alone = len(known.boxes) == 1
            edge = ink[y0 + BORDER, x0:x1].any() and ink[y0:y1, x1 - 1 - BORDER].any()
            assert bool(edge) or not alone
        assert not bool((ink & ~inside).any())
        assert bool(((known.mask != NOTHING) <= ink).all())
        assert set(known.mask[known.mask != NOTHING].tolist()) == set(known.labels.tolist())


def test_digits_share_little(test_set):
    for known in test_set.annotations[:200]:
        among = overlap(known.boxes, known.boxes).fill_diagonal_(0)
        assert float(among.max()) < 0.12


def test_a_canvas_follows_from_its_name(test_set):
    again = canvases.__wrapped__("test")
    assert again.hash == test_set.hash


def test_each_task_gets_what_it_needs():
    boxes = load_annotations("canvas5k", task="boxes", count=5)
    tags = load_annotations("canvas5k", task="tags", count=5)
    masks = load_annotations("canvas5k", task="masks", count=5)
    assert boxes.images.id == tags.images.id == masks.images.id
    assert len(boxes) == 5
    for box, tag, mask in zip(boxes.annotations, tags.annotations, masks.annotations):
        assert tag.labels.tolist() == sorted(set(box.labels.tolist())) == mask.labels.tolist()
        assert not box.mask.numel()
        assert not len(tag.boxes)
        assert mask.mask.shape == (CANVAS, CANVAS)
