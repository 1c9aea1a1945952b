"""Lower-precision copies: what is rounded, to what, and that neighbours never matter."""

import pickle

import pytest
import torch
from torch import nn

from hardcase.errors import HardcaseError
from hardcase.models import quantised
from hardcase.models.subject import Subject
from hardcase.randomness import stream

IMAGES = torch.rand(40, 1, 8, 8, generator=stream(0, "images"))


def net():
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    for value in layers.parameters():
        value.data = torch.randn(value.shape, generator=stream(value.numel())) * 0.3
    return layers


SUBJECT = Subject(net(), name="net")


def copy(name):
    return quantised.lowered(SUBJECT, name, IMAGES)


@pytest.mark.parametrize("name", quantised.PRECISIONS)
def test_a_copy_answers_nearly_alike_row_by_row_and_leaves_the_original(name):
    own, hooks = SUBJECT(IMAGES).logits, hook_counts()
    small = copy(name)
    answers = small(IMAGES).logits
    assert 0 < float((own - answers).abs().max() / own.abs().max()) < 0.05
    assert small.name == f"net@{name}"
    assert small.hash != SUBJECT.hash
    assert small.hash == copy(name).hash
    bright = torch.cat([IMAGES[:1], torch.full_like(IMAGES[:3], 1.0)])
    assert torch.equal(small(bright).logits[0], answers[0]), "neighbours do not matter"
    assert torch.equal(SUBJECT(IMAGES).logits, own)
    assert hook_counts() == hooks
    x = IMAGES.clone().requires_grad_()
    logits = small(x).logits
    assert torch.equal(logits.detach(), answers)
    (gradient,) = torch.autograd.grad(logits.sum(), x)
    (expected,) = torch.autograd.grad(SUBJECT(x).logits.sum(), x)
    assert nn.functional.cosine_similarity(gradient.flatten(), expected.flatten(), dim=0) > 0.95


def hook_counts():
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in SUBJECT.modules()]


def test_half_precision_is_what_casting_gives():
    small = copy("float16").net
    cast = [value.half().float() for value in (IMAGES[:2], net()[0].weight, net()[0].bias)]
    conv = nn.functional.conv2d(*cast).half().float()
    assert torch.equal(small[0](IMAGES[:2]), conv)


def test_eight_bits_have_a_scale_for_each_channel_and_inputs_a_calibrated_range():
    weight = copy("int8").net[3].weight
    for row, own in zip(weight, net()[3].weight.detach(), strict=True):
        scale = own.abs().max() / 127
        assert len(row.unique()) <= 255
        assert float((row - own).abs().max()) <= scale / 2 + 1e-7
        assert torch.allclose(row / scale, (row / scale).round(), atol=1e-3)
    small = quantised.int8(net(), IMAGES * 0.5)
    assert [len(layer._forward_pre_hooks) for layer in small] == [1, 0, 0, 1]
    light, lighter = (small(torch.full_like(IMAGES[:1], level)) for level in (0.9, 5.0))
    assert torch.equal(light, lighter)


def test_infinities_and_nan_stay_and_copies_travel():
    x = IMAGES[:2].clone()
    x[0, 0, 0, 0] = torch.nan
    assert copy("int8")(x).logits[0].isnan().any()
    large = quantised.float16(nn.Linear(2, 1))
    large.weight.data.fill_(6e4)
    assert large(torch.full((1, 2), 6e4)).isinf().all(), "float16 ends at 65504"
    small = pickle.loads(pickle.dumps(copy("int8")))
    assert torch.equal(small(IMAGES).logits, copy("int8")(IMAGES).logits)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(HardcaseError, match="has 0 convolutions"):
        quantised.int8(nn.Sequential(nn.Flatten()), IMAGES)
    with pytest.raises(HardcaseError, match="0 images are given"):
        quantised.int8(SUBJECT, IMAGES[:0])
    with pytest.raises(HardcaseError, match="no precision 'int4'"):
        quantised.lowered(SUBJECT, "int4", IMAGES)
