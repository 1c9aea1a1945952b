"""What a row says a method needs is what a model is really asked for: no more, no less."""

import pytest
import torch

from hardcase.models.adapters import LabelOnly
from hardcase.oracles import MIN_MARGIN
from hardcase.registry import parts
from hardcase.testing.methods import search, toy_method
from hardcase.testing.toys import Counting, toy_subject, toy_world
from hardcase.types import Answer

METHODS = parts("method")
TAKES_MORE = {"natural-blackbox"}
"""Works with labels alone, and follows scores where they are offered: needs are the least."""


class Asked(Counting):
    """Remembers whether layers were tapped and whether anything came back through the network."""

    def __init__(self):
        super().__init__(toy_subject())
        self.tapped = self.graded = False

    def __call__(self, x, taps=None):
        answer = super().__call__(x, taps)
        self.tapped |= bool(taps)
        for told in (answer.logits, *(answer.activations or {}).values()):
            if told.requires_grad:
                told.register_hook(self._came_back)
        return answer

    def _came_back(self, gradient):
        self.graded = True


class LabelsAsScores(LabelOnly):
    """Says no more than the label, and calls that scores, so that no method refuses it.

    An answer that two classes share is left as it is: no oracle takes it for one label.
    """

    offers = "scores"

    def __call__(self, x, taps=None):
        logits = self.model(x).logits
        best = logits.softmax(1).topk(2).values
        shared = (best[:, 0] - best[:, 1] < MIN_MARGIN)[:, None]
        return Answer(torch.where(shared, logits, super().__call__(x, taps).logits))


def searched(row, subject):
    world = toy_world()
    given = {"images": world.seeds(row)(5), "peers": world.peers(row), "subject": subject}
    return search(toy_method(row), **given).findings


def alike(one, two):
    return one.x.shape == two.x.shape and torch.equal(one.x.cpu(), two.x.cpu())


@pytest.mark.parametrize("row", METHODS.values(), ids=lambda row: row.name)
def test_a_method_needs_what_it_asks_for(row):
    subject = Asked()
    found = searched(row, subject)
    asked = "gradients" if subject.graded else "activations" if subject.tapped else "scores"
    if asked == "scores":
        told = searched(row, LabelsAsScores(toy_subject()))
        if alike(found, told) or (row.name in TAKES_MORE and len(told)):
            asked = "label"
    assert toy_method(row).needs == asked
