"""Overlap, suppression and average precision, against what they mean."""

import pytest
import torch
from hypothesis import given, strategies as st

from hardcase.claims import subjects as outputs
from hardcase.claims.subjects import ABSENT, Annotation, Detections

side = st.integers(0, 12)


@st.composite
def whole_boxes(draw):
    x, y = draw(side), draw(side)
    return [x, y, x + 1 + draw(side), y + 1 + draw(side)]


def painted(box):
    pixels = torch.zeros(32, 32, dtype=torch.bool)
    pixels[box[1] : box[3], box[0] : box[2]] = True
    return pixels


@given(whole_boxes(), whole_boxes())
def test_overlap_counts_pixels(one, two):
    a, b = painted(one), painted(two)
    wanted = float((a & b).sum()) / float((a | b).sum())
    found = outputs.overlap(torch.tensor([one]).float(), torch.tensor([two]).float())
    assert float(found) == pytest.approx(wanted, abs=1e-6)


@given(whole_boxes())
def test_corners_undo_centre_and_size(box):
    x0, y0, x1, y1 = box
    given = torch.tensor([[(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0]])
    assert torch.allclose(outputs.corners(given), torch.tensor([box]).float())


def test_one_box_is_left_for_one_object_of_a_class():
    boxes = torch.tensor([[[0.0, 0, 10, 10], [1, 0, 11, 10], [30, 30, 40, 40]]])
    logits = torch.full((1, 3, 2), ABSENT)
    logits[0, 0, 0], logits[0, 1, 0], logits[0, 1, 1], logits[0, 2, 0] = 2.0, 3.0, 1.0, 0.5
    found = outputs.strongest(Detections(boxes, logits))
    kept = found.kept[0] & (found.scores[0] > ABSENT)
    kept = set(zip(found.labels[0, kept].tolist(), found.scores[0, kept].tolist()))
    assert kept == {(0, 3.0), (1, 1.0), (0, 0.5)}


def named(boxes, labels, scores):
    boxes, scores = (torch.tensor([values]).float() for values in (boxes, scores))
    kept = torch.ones(1, len(labels), dtype=torch.bool)
    return outputs.FoundObjects(boxes, torch.tensor([labels]), scores, kept)


def known(boxes, labels):
    nothing = torch.zeros(0, 0).short()
    return [Annotation(torch.tensor(labels), torch.tensor(boxes).float(), nothing)]


A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [0, 40, 10, 50]


@pytest.mark.parametrize(
    ("boxes", "labels", "scores", "wanted"),
    [
        ([A, B], [0, 0], [2.0, 1.0], 1.0),  # both found
        ([A], [0], [2.0], 0.5),  # one of two
        ([A, A], [0, 0], [2.0, 1.0], 0.5),  # the second box of an object finds nothing
        ([C, A, B], [0, 0, 0], [3.0, 2.0, 1.0], 2 / 3),  # a false alarm first: 1/2, then 2/3
        ([A, B], [1, 0], [2.0, 1.0], 0.5),  # the right place under the wrong name
    ],
)
def test_average_precision_by_hand(boxes, labels, scores, wanted):
    each = outputs.average_precision(named(boxes, labels, scores), known([A, B], [0, 0]), 3)
    assert float(each[0]) == pytest.approx(wanted)
    assert bool(each[2].isnan())
