"""Whatever networks return: the same objects from every form, with gradients where there are any."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hardcase.claims import load
from hardcase.claims.annotations import load_annotations
from hardcase.claims.answers import Layout, answering, softmax_odds, standard_outputs
from hardcase.claims.load import claim_model, load_claim_model
from hardcase.claims.subjects import ABSENT, Detections, strongest
from hardcase.errors import HardcaseError
from hardcase.models.load import Loading
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_subject

SIZE = (40, 80)
"""Height and width."""
BOXES = torch.tensor([[[8.0, 4, 24, 20], [40, 10, 72, 30]], [[0, 0, 16, 16], [30, 5, 50, 35]]])
LABELS = torch.tensor([[1, 0], [2, 1]])
SCORES = torch.tensor([[0.9, 0.6], [0.7, 0.8]])
CLASSES = 3
SHARE = torch.tensor([80.0, 40, 80, 40])
DENSE = torch.zeros(2, 2, CLASSES).scatter(2, LABELS[..., None], SCORES[..., None])
CENTRED = torch.cat([(BOXES[..., :2] + BOXES[..., 2:]) / 2, BOXES[..., 2:] - BOXES[..., :2]], -1)
DETR = torch.cat([DENSE, 1 - DENSE.sum(2, keepdim=True)], 2).clamp_min(1e-9).log()
"""Logits with a last one for no object, whose softmax gives the scores."""
YOLO = torch.cat([CENTRED, DENSE], 2)
OBJECTNESS = torch.full((2, 2, 1), 0.5)
BACKGROUND = torch.cat([torch.zeros(2, 2, 1), DENSE], 2)
BATCHED = {"boxes": BOXES, "labels": LABELS, "scores": SCORES}
FOUR = [(BOXES / SHARE)[..., [1, 0, 3, 2]], LABELS.float(), SCORES, torch.tensor([2.0, 2.0])]
NAMES = ("detection_boxes", "detection_classes", "detection_scores")
SUPPRESSED = torch.cat([BOXES, SCORES[..., None], LABELS[..., None].float()], 2)
FORMS = {
    "torchvision's list": ([{k: v[i] for k, v in BATCHED.items()} for i in range(2)], "auto"),
    "batched dictionary": (BATCHED, "auto"),
    "scores of all classes": ({"boxes": BOXES, "scores": DENSE}, "auto"),
    "shares of the image": ({"boxes": BOXES / SHARE, "scores": DENSE}, "ssd"),
    "with background": ({"boxes": BOXES / SHARE, "scores": BACKGROUND}, "ssd"),
    "TensorFlow's names": (dict(zip(NAMES, FOUR)), "ssd"),
    "TensorFlow's four": (FOUR, "auto"),
    "Hugging Face's": (SimpleNamespace(logits=DETR, pred_boxes=CENTRED / SHARE), "auto"),
    "detr without names": ([DETR, CENTRED / SHARE], "detr"),
    "yolo": (YOLO.transpose(1, 2), "yolo"),
    "yolo, rows first": (YOLO, "yolo"),
    "yolo with objectness": (torch.cat([CENTRED, OBJECTNESS, DENSE * 2], 2), "yolo"),
    "yolo that suppresses": (SUPPRESSED, "yolo"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_objects(form):
    returned, head = FORMS[form]
    found = standard_outputs(returned, Layout("boxes", CLASSES, head), SIZE)
    assert found.logits.shape == (2, 2, CLASSES)
    assert torch.allclose(found.boxes, BOXES, atol=1e-4)
    own = found.logits.gather(2, LABELS[..., None]).squeeze(2)
    assert torch.allclose(own.sigmoid(), SCORES, atol=1e-3)
    others = found.logits.scatter(2, LABELS[..., None], ABSENT)
    assert float(others.max()) < -8


def test_images_with_fewer_boxes_are_filled_up():
    one = {name: values[0] for name, values in BATCHED.items()}
    returned = [one, {name: value[:0] for name, value in one.items()}]
    found = standard_outputs(returned, Layout("boxes", CLASSES), SIZE)
    assert float(found.logits[1].max()) == ABSENT
    assert int((strongest(found).scores > ABSENT).sum()) == 2
    four = [*FOUR[:3], torch.tensor([1.0, 2.0])]
    found = standard_outputs(four, Layout("boxes", CLASSES), SIZE)
    assert float(found.logits[0, 1].max()) < -8 < 0 < float(found.logits[1, 1].max())


@pytest.mark.parametrize(
    ("returned", "layout"),
    [
        (BATCHED, Layout("boxes")),  # classes unknown
        (torch.zeros(2, 11, 50), Layout("boxes", 3, "yolo")),  # neither 4 + 3 nor 5 + 3
        ({"heat": torch.zeros(2, 5)}, Layout("boxes", 3, "ssd")),
        ({"logits": torch.zeros(2, 5, 4)}, Layout("boxes", 3, "detr")),
        (torch.zeros(2, 3, 4, 4), Layout("tags")),
        (torch.zeros(2, 3), Layout("masks")),
    ],
)
def test_answers_that_do_not_fit_are_problems(returned, layout):
    with pytest.raises(HardcaseError):
        standard_outputs(returned, layout, SIZE)


def test_odds_of_a_softmax():
    logits = torch.randn(5, 4, dtype=torch.float64) * 3
    p = logits.softmax(1)
    assert torch.allclose(softmax_odds(logits), torch.log(p / (1 - p)), atol=1e-5)


# Modules of torch.


class Detr(nn.Module):
    """A detector in Hugging Face's form, small and random."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(id2label={0: "cat", 1: "dog"})
        self.body = nn.Conv2d(3, 4, 8, 8)
        self.logits = nn.Linear(4, 3)
        self.boxes = nn.Linear(4, 4)

    def forward(self, pixel_values):
        rows = self.body(pixel_values).flatten(2).transpose(1, 2)
        return SimpleNamespace(logits=self.logits(rows), pred_boxes=self.boxes(rows).sigmoid())


def test_gradients_pass_through_a_module():
    net = answering(Detr(), "boxes")
    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    found = net(x)
    assert isinstance(found, Detections)
    assert found.logits.shape == (2, 50, 2)
    (gradient,) = torch.autograd.grad(found.logits.sum() + found.boxes.sum(), x)
    assert float(gradient.abs().sum()) > 0
    model = claim_model(Detr(), "boxes", ("dog", "cat"))
    assert model.offers == "gradients"
    assert model.columns == (1, 0)
    assert model(torch.rand(3, 3, *SIZE)).logits.shape[0] == 3


class Listing(nn.Module):
    """A detector in torchvision's form, which names classes of its own number."""

    def __init__(self):
        super().__init__()
        self.num_classes = 7
        self.score = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        scores = self.score * x.mean((1, 2, 3))
        one = {"boxes": BOXES[0], "labels": torch.tensor([1, 6])}
        return [{**one, "scores": score.expand(2)} for score in scores]


def test_a_network_knows_best_how_many_classes_it_has():
    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    found = answering(Listing(), "boxes")(x)
    assert found.logits.shape == (2, 2, 7)
    assert torch.autograd.grad(found.logits.sum(), x)[0].abs().sum() > 0
    x = x.detach()
    model = claim_model(Listing(), "boxes", ("a", "b", "c"))
    said = model.read(model.model(x).logits, x)
    assert said.logits.shape[2] == 4  # the data's, and one for the rest
    wanted = float((0.3 * x[0].mean()).logit())
    assert float(said.logits[0, 0, 1]) == pytest.approx(wanted, abs=1e-4)


def test_taggers_that_end_in_sigmoids_are_recognised():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    plain[1].bias.data = torch.tensor([-3.0, 0.0, 3.0])  # no chance to look like probabilities
    x = torch.rand(6, 1, 4, 4)
    for net in (plain, nn.Sequential(plain, nn.Sigmoid())):
        assert torch.allclose(answering(net, "tags", example=x)(x), plain(x), atol=1e-4)


def test_a_tagger_of_a_file_is_read_as_the_images_show(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6400, 10), torch.nn.Sigmoid())\n"
    )
    known = load_annotations("canvas5k", task="tags", count=4)
    given = {"classes": known.images.classes, "annotated": lambda split: known}
    model = load_claim_model(f"{tmp_path / 'net.py'}:make", Loading(), task="tags", **given)
    logits = model(from_bytes(known.images.x)).logits[:, :10]
    assert float(logits.min()) < 0 < float(logits.max())


WRAPS = [lambda t: t, lambda t: {"out": t}, lambda t: SimpleNamespace(logits=t)]


@pytest.mark.parametrize("wrap", WRAPS)
def test_masks_get_the_size_of_the_image(wrap):
    class Segmenter(nn.Module):
        def forward(self, x):
            return wrap(x[:, :2, ::4, ::4])

    x = torch.rand(2, 3, *SIZE, requires_grad=True)
    said = answering(Segmenter(), "masks")(x)
    assert said.shape == (2, 2, *SIZE)
    assert said.requires_grad


def test_the_class_of_each_pixel_is_enough():
    classes = torch.randint(0, 3, (2, *SIZE))
    said = standard_outputs(classes, Layout("masks", 3), SIZE)
    assert torch.equal(said.argmax(1), classes)


def test_a_fetched_detector_is_witnessed_by_one_of_another_lineage(monkeypatch):
    present = ["efficientdet-lite0", "efficientdet-lite1", "ssd-mobilenet"]
    monkeypatch.setattr(load, "is_fetched", present.__contains__)

    def named(model):
        asked = []
        load.usual_claim_witnesses(model, "boxes", lambda name: asked.append(name) or toy_subject())
        return tuple(asked)

    assert named("zoo:efficientdet-lite0?threshold=0.3") == ("zoo:ssd-mobilenet",)
    assert named("zoo:ssd-mobilenet") == ("zoo:efficientdet-lite0",)
    assert named("zoo:digit-detector") == ("zoo:digit-detector-wide",)
    assert named("net.py:make") == ()
    present.remove("ssd-mobilenet")
    assert named("zoo:efficientdet-lite0") == ()
