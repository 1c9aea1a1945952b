"""`check` says what is wrong before any search starts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models.health import check
from hardcase.models.subject import Subject
from hardcase.testing.toys import Quarters, toy_images, toy_subject
from hardcase.types import Images


class Changed(nn.Module):
    """The toy network with its answer changed by a function."""

    def __init__(self, change):
        super().__init__()
        self.quarters, self.change = Quarters(), change

    def forward(self, x):
        return self.change(self.quarters(x))


def checked(change, **how):
    return check(Subject(Changed(change)), toy_images(40), **how)


def test_a_healthy_subject_and_one_that_depends_on_the_batch():
    health = check(toy_subject(), toy_images(40))
    assert health.accuracy == 1.0
    assert health.bitwise
    assert health.notes == ()
    assert "100.0 %" in str(health)
    assert not checked(lambda logits: logits + logits.mean(0) * 1e-3).bitwise


def test_chance_accuracy_says_normalisation_or_class_order():
    words = r"accuracy 0.0 % \(n = 40\); chance is 25 %"
    with pytest.raises(HardcaseError, match=words) as caught:
        checked(lambda logits: -logits)
    assert "normalisation is missing or the class order differs" in str(caught.value)
    assert "--allow-low-accuracy" in str(caught.value)
    health = checked(lambda logits: logits.roll(1, 1), allow_low_accuracy=True)
    assert any("the classes have another order" in note for note in health.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda logits: logits * 0 + torch.tensor([0.0, 0.0, 1.0, 0.0]), "class 2 for 100 %"),
        (lambda logits: logits * torch.nan, "NaN or infinity on all of the 40"),
        (lambda logits: logits[:, :3], "3 outputs, but toy has 4 classes"),
    ],
    ids=["constant", "nan", "too few outputs"],
)
def test_answers_that_stop_a_search(change, words):
    with pytest.raises(HardcaseError, match=words):
        checked(change)


def some_nan(logits):
    return torch.where(logits[:, :1] == logits[:, :1].amin(), torch.nan, logits)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (some_nan, "NaN or infinity on"),
        (lambda logits: torch.cat([logits, logits[:, :1] - 99], 1), "1 outputs more"),
        (lambda logits: logits.softmax(1), "probabilities"),
    ],
    ids=["some nan", "more outputs", "softmax"],
)
def test_answers_that_are_worth_a_note(change, words):
    assert any(words in note for note in checked(change).notes)


def test_a_model_that_changes_its_answer():
    count = 0

    def drift(logits):
        nonlocal count
        count += 1
        return logits + count

    with pytest.raises(HardcaseError, match="changes its answer"):
        checked(drift)


def test_images_that_do_not_fit():
    images, net = toy_images(4), nn.Sequential(nn.Flatten(), nn.Linear(99, 4))
    with pytest.raises(HardcaseError, match="crashes on an image of 1 x 8 x 8"):
        check(Subject(net), images)
    with pytest.raises(HardcaseError, match="no images"):
        check(toy_subject(), toy_images(0))
    with pytest.raises(HardcaseError, match="labels lie outside the 4 classes"):
        check(toy_subject(), replace(images, y=images.y + 2))


def test_a_good_model_of_two_classes_is_better_than_chance():
    y = torch.arange(30) % 2
    x = (200 * y[:, None, None, None].expand(30, 1, 8, 8)).to(torch.uint8)
    images = Images(x, y, tuple(map(str, range(30))), ("dark", "light"))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    net[1].weight.data = torch.stack([-torch.ones(64), torch.ones(64)])
    net[1].bias.data = torch.tensor([20.0, -20.0])
    assert check(Subject(net), images).accuracy == 1.0
    net[1].weight.data *= -1
    net[1].bias.data *= -1
    with pytest.raises(HardcaseError, match="chance is 50 %"):
        check(Subject(net), images)
