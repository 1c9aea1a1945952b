"""Digit canvases, and the small networks for them: gradients, what cells learn, what training reaches."""

from dataclasses import replace

import pytest
import torch

from hardcase.claims import networks
from hardcase.claims.annotations import NONE, load_annotations
from hardcase.claims.networks import CANVAS, CellDetector, canvases, cell_targets, detect, tag
from hardcase.claims.subjects import ABSENT, Detections, overlap
from hardcase.errors import HardcaseError
from hardcase.tensors import from_bytes


@pytest.fixture(scope="module")
def every():
    return canvases("test")


@pytest.fixture(scope="module")
def some(every):
    return every.take(torch.arange(24))


def test_canvases_have_their_counts_sizes_and_margins_and_follow_from_their_name(every):
    boxes = torch.cat([one.boxes for one in every.annotations])
    counts = {len(one.labels) for one in every.annotations}
    assert counts == {1, 2, 3, 4}
    assert every.images.x.shape == (1000, 1, CANVAS, CANVAS)
    assert float(boxes.min()) >= networks.MARGIN
    assert float(boxes.max()) <= CANVAS - networks.MARGIN
    assert bool((every.images.y == 0).all())
    for known in every.annotations[:200]:
        among = overlap(known.boxes, known.boxes).fill_diagonal_(0)
        assert float(among.max()) < 0.12
    assert canvases.__wrapped__("test").hash == every.hash


def test_all_ink_lies_in_boxes_and_boxes_are_tight(every):
    for row, known in enumerate(every.annotations[:100]):
        ink, border = every.images.x[row, 0] >= networks.INK, networks.BORDER
        inside = torch.zeros_like(ink)
        for x0, y0, x1, y1 in known.boxes.int().tolist():
            inside[y0:y1, x0:x1] = True
            alone = len(known.boxes) == 1
            edge = ink[y0 + border, x0:x1].any() and ink[y0:y1, x1 - 1 - border].any()
            assert bool(edge) or not alone
        assert not bool((ink & ~inside).any())
        assert bool(((known.mask != NONE) <= ink).all())
        assert set(known.mask[known.mask != NONE].tolist()) == set(known.labels.tolist())


def test_each_task_gets_what_it_needs():
    boxes = load_annotations("canvas5k", task="boxes", count=5)
    tags = load_annotations("canvas5k", task="tags", count=5)
    masks = load_annotations("canvas5k", task="masks", count=5)
    assert boxes.images.id == tags.images.id == masks.images.id
    assert len(boxes) == 5
    for box, named, mask in zip(boxes.annotations, tags.annotations, masks.annotations):
        assert named.labels.tolist() == sorted(set(box.labels.tolist())) == mask.labels.tolist()
        assert not box.mask.numel()
        assert not len(named.boxes)
        assert mask.mask.shape == (CANVAS, CANVAS)


@pytest.mark.parametrize("size", [(80, 80), (64, 96), (30, 45)])
def test_a_detector_takes_any_size_and_has_gradients(size):
    x = torch.rand(2, 1, *size, requires_grad=True)
    found = CellDetector(1, 3).eval()(x)
    count = -(-size[0] // 4) * -(-size[1] // 4)
    assert found.boxes.shape == (2, count, 4)
    assert found.logits.shape == (2, count, 3)
    assert bool((found.boxes[..., 2:] > found.boxes[..., :2]).all())
    (gradient,) = torch.autograd.grad(found.logits.amax() + found.boxes.sum(), x)
    assert float(gradient.abs().sum()) > 0


def test_a_tagger_says_what_its_best_cell_says():
    x = torch.rand(2, 1, 40, 40, requires_grad=True)
    logits = networks.CellTagger(1, 5).eval()(x)
    assert logits.shape == (2, 5)
    (gradient,) = torch.autograd.grad(logits.sum(), x)
    assert float(gradient.abs().sum()) > 0


def test_every_object_has_cells_that_lie_in_it(some):
    classes, boxes = cell_targets(some.annotations, (80, 80))
    middle = networks.cells(20, 20)
    for row, known in enumerate(some.annotations):
        held = classes[row] >= 0
        found, wanted = ({*map(tuple, b.tolist())} for b in (boxes[row, held], known.boxes))
        assert found == wanted
        inside = (middle[held] >= boxes[row, held, :2]) & (middle[held] <= boxes[row, held, 2:])
        assert bool(inside.all())


class Perfect(torch.nn.Module):
    """Says what the targets say."""

    def __init__(self, annotated):
        super().__init__()
        classes, boxes = cell_targets(annotated.annotations, (80, 80))
        held = classes >= 0
        hot = torch.nn.functional.one_hot(classes.clamp_min(0), 10).bool() & held[..., None]
        self.found = Detections(boxes, torch.where(hot, 20.0, ABSENT))

    def forward(self, x):
        return self.found


def test_the_loss_and_the_measure_know_a_perfect_detector(some):
    net = Perfect(some)
    x = from_bytes(some.images.x)
    loss = detect(some).loss(net, x, torch.arange(len(some)), torch.Generator())
    worse = detect(some).loss(CellDetector(1, 10), x, torch.arange(len(some)), torch.Generator())
    assert float(loss) < 1e-3 < float(worse.detach())
    assert networks.mean_precision(net, some) == pytest.approx(1.0)


def test_the_taggers_loss_knows_what_is_there(some):
    known = networks.present(some)
    rows = torch.arange(len(some))
    right = tag(some).loss(lambda x: 40 * known - 20, rows, rows, torch.Generator())
    wrong = tag(some).loss(lambda x: 20 - 40 * known, rows, rows, torch.Generator())
    assert float(right) < 1e-6
    assert float(wrong) > 10
    assert known.sum(1).tolist() == [len(set(one.labels.tolist())) for one in some.annotations]


def test_a_training_is_kept_and_measured(some, tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    told = []
    given = ("digit-detector", some, some)
    net, card = networks.trained_network(*given, epochs=1, progress=told.append)
    assert told
    assert 0 <= card["map50"] <= 1
    assert not net.training
    again, _ = networks.trained_network(*given, epochs=1, progress=told.clear)
    assert told  # nothing was trained
    x = from_bytes(some.images.x[:2])
    assert torch.equal(again(x).logits, net(x).logits)


def split_of(task):
    return [load_annotations("canvas5k", part, task) for part in ("train", "test")]


@pytest.mark.long
@pytest.mark.parametrize("name", ["digit-detector", "digit-detector-wide"])
def test_detectors_reach_their_precision(name):
    _, card = networks.trained_network(name, *split_of("boxes"))
    assert card["map50"] >= 0.95


@pytest.mark.long
def test_the_tagger_reaches_its_accuracy():
    _, card = networks.trained_network("digit-tagger", *split_of("tags"))
    assert card["accuracy"] >= 0.97


def test_a_detector_is_not_trained_without_boxes(some):
    bare = tuple(replace(one, boxes=one.boxes[:0]) for one in some.annotations)
    with pytest.raises(HardcaseError, match="digit-detector"):
        networks.trained_network("digit-detectr", some, some)
    with pytest.raises(HardcaseError, match="boxes"):
        networks.trained_network("digit-detector", replace(some, annotations=bare), some)
