"""Supports against loops that say the same row by row, and their gradients."""

import pytest
import torch

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.claims import subjects
from hardcase.claims.subjects import (
    ABSENT,
    FLOOR,
    OVERLAP,
    Detections,
    box_support,
    claim_logits,
    cut_of,
)
from hardcase.oracles import LeavesLabel
from hardcase.tensors import margin
from hardcase.types import WAYS, Probe, Seeds

CLASSES = 3


def claims_of(kind, label, box=None, mask=None):
    count = len(label)
    return Claims(
        torch.full((count,), CLAIM_KINDS.index(kind)),
        torch.tensor(label),
        torch.zeros(count, 4) if box is None else box,
        torch.zeros(count, 0, 0, dtype=torch.uint8) if mask is None else mask,
        torch.ones(count, dtype=torch.bool),
    )


def drawn(rows=40, boxes=6, seed=0):
    luck = torch.Generator().manual_seed(seed)
    corner = torch.rand(rows, boxes, 2, generator=luck) * 10
    size = torch.rand(rows, boxes, 2, generator=luck) * 8 + 1
    logits = torch.randn(rows, boxes, CLASSES + 1, generator=luck) * 4
    place = torch.rand(rows, 2, generator=luck) * 10
    box = torch.cat([place, place + 6], 1)
    label = torch.randint(CLASSES, (rows,), generator=luck).tolist()
    return Detections(torch.cat([corner, corner + size], 2), logits), box, label


def overlap(one, two):
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    both = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, two)]
    return both / (sum(areas) - both)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_a_box_at_a_place_is_the_best_of_a_loop(threshold):
    found, box, label = drawn()
    cut = cut_of(threshold)
    said = box_support(found, claims_of("at", label, box), cut)
    ways = set()
    for row in range(len(label)):
        best, instead, beside = FLOOR, (cut, CLASSES), False
        for place, scores in zip(found.boxes[row].tolist(), found.logits[row].tolist()):
            share = overlap(place, box[row].tolist())
            own = scores[label[row]] - cut
            if share >= OVERLAP:
                best = max(best, own)
                others = [(s, k) for k, s in enumerate(scores) if k != label[row]]
                instead = max(instead, *others)
            elif share >= 0.1 and own > 0:
                beside = True
        assert said.value[row].item() == pytest.approx(best, abs=1e-5)
        expected = instead[1] if instead[1] < CLASSES else CLASSES + int(beside)
        assert said.instead[row].item() == expected
        ways.add(min(expected, CLASSES + 2))
    assert {CLASSES, CLASSES + 1} <= ways
    assert min(ways) < CLASSES


def test_what_has_no_box_is_asked_of_all_boxes():
    found, _, label = drawn()
    for kind, sign in (("has", 1), ("has-not", -1)):
        said = box_support(found, claims_of(kind, label), cut_of(0.6))
        best = found.logits.amax(1)[torch.arange(len(label)), torch.tensor(label)]
        torch.testing.assert_close(said.value, sign * (best - cut_of(0.6)))
    assert (said.instead == CLASSES + WAYS.index("false alarm")).all()


def test_the_share_of_a_mask_is_counted():
    luck = torch.Generator().manual_seed(1)
    logits = torch.randn(12, CLASSES + 1, 6, 5, generator=luck)
    mask = (torch.rand(12, 6, 5, generator=luck) < 0.4).byte()
    label = torch.randint(CLASSES, (12,), generator=luck).tolist()
    said = subjects.mask_support(logits, claims_of("covers", label, mask=mask), cut_of(0.25))
    for row in range(12):
        pixels = logits[row].argmax(0)[mask[row].bool()].tolist()
        share = min(max(pixels.count(label[row]) / len(pixels), 1e-3), 1 - 1e-3)
        expected = torch.tensor(share).logit().item() - cut_of(0.25)
        assert said.value[row].item() == pytest.approx(expected, abs=1e-4)
        others = [pixels.count(k) for k in range(CLASSES + 1) if k != label[row]]
        told = said.instead[row].item()
        counted = pixels.count(told if told < CLASSES else CLASSES)
        assert counted == max(others)


def test_gradients_lower_the_support_and_values_stay_exact():
    found, box, label = drawn(rows=8)
    logits = found.logits.clone().requires_grad_()
    boxes = found.boxes.clone().requires_grad_()
    said = box_support(Detections(boxes, logits), claims_of("at", label, box), 0.0)
    plain = box_support(found, claims_of("at", label, box), 0.0)
    assert torch.equal(said.value.detach(), plain.value)
    slopes = torch.autograd.grad(said.value.sum(), [logits, boxes])
    own = slopes[0][torch.arange(8)[:, None], torch.arange(6), torch.tensor(label)[:, None]]
    torch.testing.assert_close(own.sum(1), torch.ones(8))  # a weighted mean of all boxes
    assert all(gradient.isfinite().all() for gradient in slopes)
    assert slopes[1].abs().sum() > 0


def test_logits_of_claims_read_as_those_of_classes():
    found, box, label = drawn()
    claims = claims_of("at", label, box)
    said = box_support(found, claims, 0.0)
    logits = claim_logits(said, claims, CLASSES)
    y = claims.label
    torch.testing.assert_close(margin(logits, y), -said.value)
    own = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(own, said.value.sigmoid())
    made = logits.argmax(1) == y
    assert torch.equal(made, said.value > 0)
    assert torch.equal(logits.argmax(1)[~made], said.instead[~made])
    x = torch.zeros(len(y), 1, 2, 2)
    origin = Seeds(torch.zeros(len(y), 1), x, y, y)
    fails = LeavesLabel()(Probe(origin.z, x, logits, origin))
    assert torch.equal(fails, said.value <= -2 * torch.atanh(torch.tensor(1e-4)))


def test_what_leaves_the_frame_is_never_lost():
    one = claims_of("has", [0, 1])
    outside = Claims(one.kind, one.label, one.box, one.mask, torch.tensor([True, False]))
    logits = torch.full((2, CLASSES + 1), -5.0)
    kept = claim_logits(subjects.tag_support(logits, outside, 0.0), outside, CLASSES)
    assert (kept.argmax(1) == outside.label).tolist() == [False, True]


def test_a_classifier_has_what_it_shows_most():
    logits = torch.tensor([[2.0, 1.0, 0.0, ABSENT], [0.0, 3.0, 1.0, 4.0]])
    said = subjects.class_support(logits, claims_of("has", [0, 1]))
    assert said.value.tolist() == [1.0, -1.0]
    assert said.instead.tolist() == [1, CLASSES]  # what is no class of the data has no name
