"""Torch's own int8 copy: it answers nearly alike, row by row, and leaves everything else as it was."""

import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.models import zoo
from hardcase.models.quantised import fx_int8
from hardcase.models.subject import Subject
from hardcase.randomness import stream

IMAGES = torch.rand(40, 1, 12, 12, generator=stream(0, "images"))
SUBJECT = Subject(
    zoo.build_classifier("lenet5", channels=1, size=12, classes=4),
    mean=(0.5,),
    std=(0.25,),
    name="net",
)


@pytest.fixture(scope="module")
def small():
    return fx_int8(SUBJECT, IMAGES)


def test_it_answers_nearly_alike_and_says_what_it_is(small):
    own, other = SUBJECT(IMAGES).logits, small(IMAGES).logits
    assert 0 < float((own - other).abs().max() / own.abs().max()) < 0.2
    assert len(set(other.flatten().tolist())) <= 256, "outputs are whole steps of 8 bits"
    assert (small.name, small.offers) == ("net@fx-int8", "scores")
    assert small.hash == fx_int8(SUBJECT, IMAGES).hash != SUBJECT.hash


def test_a_row_does_not_depend_on_its_neighbours(small):
    bright = torch.cat([IMAGES[:1], torch.ones_like(IMAGES[:3])])
    assert torch.equal(small(bright).logits[0], small(IMAGES).logits[0])


def test_the_original_and_torchs_settings_stay_as_they_were():
    before, engine = SUBJECT(IMAGES).logits, torch.backends.quantized.engine
    fx_int8(SUBJECT, IMAGES)
    assert torch.equal(SUBJECT(IMAGES).logits, before)
    assert torch.backends.quantized.engine == engine
    assert SUBJECT.offers == "gradients"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.Linear(3, 5),
        )

    def forward(self, x):
        return self.last((x + self.norm(self.first(x))).relu().mean((2, 3)))


def test_a_plain_network_with_a_shortcut_is_quantised_too():
    image = torch.rand(8, 3, 16, 16, generator=stream(1, "images"))
    net = Residual().eval()
    small = fx_int8(net, image)
    with torch.no_grad():
        assert float((small(image) - net(image)).abs().max()) < 0.1
    assert any("quantized" in type(module).__module__ for module in small.modules())


def test_what_cannot_be_quantised_is_said():
    class Odd(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(Problem, match="cannot quantise"):
        fx_int8(Odd(), IMAGES)
    with pytest.raises(Problem, match="there are none"):
        fx_int8(SUBJECT, IMAGES[:0])
    elsewhere = nn.Linear(2, 2, device="meta")
    with pytest.raises(Problem, match="run on a CPU; the model is on meta"):
        fx_int8(elsewhere, IMAGES)
