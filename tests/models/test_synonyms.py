"""Two of ImageNet's names for one thing are no failure."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.models.names import aligned
from hardcase.models.subject import Subject
from hardcase.models.synonyms import COUNT, SAME, merged, same_outputs
from hardcase.oracles import LeavesLabel
from hardcase.testing.toys import toy_images
from hardcase.types import Probe, Seeds

NAMES = [f"class {i}" for i in range(COUNT)]
NAMES[435], NAMES[876] = "bathtub, bathing tub", "tub, vat"
NAMES[638], NAMES[639] = "maillot", "maillot, tank suit"
NAMES[836], NAMES[837] = "sunglass", "sunglasses, dark glasses"
NAMES[134], NAMES[517] = "crane", "crane"


class Names(nn.Module):
    """Answers tub, then bathtub, then crane the machine, whatever it is shown."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        logits = torch.zeros(len(x), COUNT)
        logits[:, 876], logits[:, 435], logits[:, 517] = 9, 8, 7
        return logits + self.weight


def test_only_imagenets_names_are_grouped_and_a_bird_is_no_machine():
    assert same_outputs(NAMES) == ((435, 876), (638, 639), (836, 837))
    assert same_outputs(["bathtub", "tub"]) == ()
    assert all(len(set(words)) == 2 for words in SAME)


def test_a_tub_for_a_bathtub_is_no_failure_and_another_class_is_one():
    x = torch.rand(3, 1, 8, 8)
    label = torch.tensor([435, 435, 134])
    origin = Seeds(x, x, label, torch.arange(3))

    def leaves(classes):
        logits = Subject(Names(), classes=classes)(x).logits
        return LeavesLabel()(Probe(x, x, logits, origin)).tolist()

    assert leaves(NAMES) == [False, False, True]
    plain = [f"class {i}" for i in range(COUNT)]
    assert leaves(plain) == [True, True, True], "without names nobody knows"


def test_labels_of_both_names_are_the_firsts():
    images = replace(toy_images(2), y=torch.tensor([0, 1]), classes=("tub", "crane bird"))
    found = aligned(replace(images, classes=("tub", "class 5")), NAMES)
    assert found.y.tolist() == [435, 5]
    whole = replace(images, y=torch.tensor([876, 637]), classes=tuple(NAMES))
    assert aligned(whole, NAMES).y.tolist() == [435, 637]


def test_the_gradient_goes_to_the_greater_of_the_two():
    logits = torch.tensor([[1.0, 3.0, 0.0, 2.0]], requires_grad=True)
    one = merged(logits, ((0, 1),))
    assert one.tolist() == [[3.0, 0.0, 0.0, 2.0]]
    one[0, 0].backward()
    assert logits.grad.tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("words", SAME)
def test_every_group_says_why(words):
    assert len(SAME[words]) > 10
