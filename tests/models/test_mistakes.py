"""Natural mistakes with a model and its data: each is named, with what to do."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.models.mistakes import USUAL, diagnose, settled
from hardcase.types import Images
from tiny import bars

COLOURS = torch.rand(6, 3, generator=torch.Generator().manual_seed(5))


def photographs(count=60, size=32):
    y = torch.arange(count) % len(COLOURS)
    noise = 0.1 * torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))
    x = (COLOURS[y][:, :, None, None] + noise).clamp(0, 1)
    ids = tuple(f"p{i:03d}" for i in range(count))
    return Images((x * 255).to(torch.uint8), y, ids, tuple("abcdef"), "folder:photos")


PLAIN = "none (images in 0..1)"


class Picky(nn.Module):
    """The nearest of six colours, for images normalised as `wanted`, from `first` on, in `order`."""

    def __init__(self, wanted=PLAIN, *, order=None, first=0, end="logits", size=None):
        super().__init__()
        mean, std = (torch.tensor(values) for values in USUAL[wanted])
        self.register_buffer("std", std)
        self.register_buffer("expected", (COLOURS - mean) / std)
        self.order = torch.arange(6) if order is None else order
        self.first, self.end, self.size = first, end, size

    def forward(self, x):
        if self.size is not None and x.shape[2] != self.size:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x.shape[2]})")
        gap = (x.mean((2, 3))[:, None] - self.expected) * self.std
        logits = -gap.square().sum(2)[:, self.order] * 200
        logits = torch.cat([logits.new_full((len(x), self.first), -1e3), logits], 1)
        ends = {"softmax": logits.softmax(1), "sigmoid": logits.sigmoid(), "logits": logits}
        return ends[self.end]


class Before(nn.Module):
    """Something that a network does to its images first."""

    def __init__(self, change, net=None):
        super().__init__()
        self.change, self.net = change, net or Picky()

    def forward(self, x):
        return self.net(self.change(x))


class Bars(nn.Module):
    """Reads which column is bright, never which row."""

    def __init__(self):
        super().__init__()
        images = bars(300, seed=3)
        mean = torch.stack([images.x[images.y == k].float().mean(0) for k in range(3)]) / 255
        self.register_buffer("mean", mean.flatten(1) - mean.flatten(1).mean(0))

    def forward(self, x):
        return 10 * x.flatten(1) @ self.mean.T - 5 * self.mean.square().sum(1)


class Last(nn.Module):
    def forward(self, x):
        if x.shape[-1] != 3:
            raise RuntimeError("expected N x H x W x C")
        return x.mean((1, 2)) @ torch.eye(3, 6)


def blind():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6))
    nn.init.zeros_(net[-1].weight)
    return net


PHOTOS = photographs()
FROM_ONE = replace(PHOTOS, y=PHOTOS.y + 1, classes=tuple("-abcdef"))
UPRIGHT = bars(60)
TURNED = replace(UPRIGHT, x=UPRIGHT.x.transpose(2, 3).contiguous())
NAN = Before(lambda x: x * float("nan"), nn.Identity())
MORE = nn.Sequential(Picky(), nn.ConstantPad1d((0, 1), -1e3))
TWICE = nn.Sequential(Picky(end="softmax"), nn.Softmax(1))
MEANS = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
CONSTANT = Before(lambda x: torch.arange(6.0).expand(len(x), 6), nn.Identity())
TINY_BLIND = Before(lambda x: x if x.shape[2] >= 96 else x * 0 + 0.5)  # sees noise in small images
ADAPTED = nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
FLAG = "--set model.mean="

CASES = [
    ("nothing wrong", Picky(), PHOTOS, [], ""),
    ("upright", Bars(), UPRIGHT, [], ""),
    *(
        (name, Picky(name), PHOTOS, ["normalisation"], FLAG)
        for name in ("ImageNet", "to -1..1", "images in 0..255", "Caffe (0..255 minus the mean)")
    ),
    ("BGR", Before(lambda x: x.flip(1)), PHOTOS, ["BGR"], "model.channels=bgr"),
    ("inverted", Before(lambda x: 1 - x), PHOTOS, ["inverted"], FLAG),
    ("transposed", Bars(), TURNED, ["transposed"], "x.transpose(2, 3)"),
    ("labels from 1", MORE, FROM_ONE, ["labels from 1"], "first=1"),
    ("background", Picky(first=1), PHOTOS, ["background"], "model.classes="),
    ("order", Picky(order=torch.tensor([3, 5, 0, 4, 1, 2])), PHOTOS, ["class order"], "classes="),
    ("softmax", Picky(end="softmax"), PHOTOS, ["softmax"], "outputs=probabilities"),
    ("sigmoid", Picky(end="sigmoid"), PHOTOS, ["sigmoid"], "outputs=sigmoid"),
    ("two softmaxes", TWICE, PHOTOS, ["double softmax", "softmax"], "one softmax fewer"),
    ("size", Picky(size=224), PHOTOS, ["size"], "resize=224"),
    ("scale", TINY_BLIND, PHOTOS, ["size"], "?resize="),
    ("grey network", nn.Conv2d(1, 6, 3), PHOTOS, ["channels"], "channels=grey"),
    ("colour network", ADAPTED, bars(12), ["channels"], "channels=colour"),
    ("channels last", Last(), PHOTOS, ["channels last"], "channels=last"),
    ("no head", nn.Conv2d(3, 6, 3), PHOTOS, ["outputs"], "head"),
    ("few outputs", MEANS, PHOTOS, ["outputs"], "trained for"),
    ("NaN", nn.Sequential(Picky(), NAN), PHOTOS, ["nan"], "weights"),
    ("type", nn.Sequential(MEANS, nn.Linear(3, 6).double()), PHOTOS, ["type"], "net.float()"),
    ("returned", Before(MEANS, lambda x: {"a": x, "b": x}), PHOTOS, ["returned"], "logits"),
    ("no weights", blind(), PHOTOS, ["no weights"], "weights.safetensors@"),
    ("constant", CONSTANT, PHOTOS, ["no weights"], "weights.safetensors@"),
]


@pytest.mark.parametrize(
    ("net", "images", "names", "fix"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_every_mistake_is_named_with_what_mends_it(net, images, names, fix):
    found = diagnose(net.eval(), images)
    assert [mistake.name for mistake in found.mistakes] == names
    assert not names or fix in found.mistakes[0].fix
    for mistake in found.mistakes:
        assert mistake.accuracy is None or mistake.accuracy > 0.9 > found.accuracy
    if not names:
        assert found.accuracy > 0.95


@pytest.mark.parametrize(
    ("net", "wanted"),
    [
        (Picky("to -1..1"), True),
        (Picky("images in 0..255"), True),
        (Picky(), False),
        (Before(lambda x: x.flip(1)), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(2, 6)), False),
    ],
    ids=["clearly wanted", "0..255", "none", "exchanged colours", "a network that fails"],
)
def test_a_normalisation_that_a_network_clearly_wants_is_taken_unasked(net, wanted):
    found = settled(net.eval(), PHOTOS)
    assert (found is not None) == wanted
    if found:
        mean, std, _ = found
        assert diagnose(net, PHOTOS, mean=mean, std=std).mistakes == ()


def test_training_mode_is_told_and_left_as_it_was():
    net = nn.Sequential(Picky(), nn.Dropout(0.5)).train()
    found = diagnose(net, PHOTOS)
    assert found.mistakes[0].name == "training mode"
    assert net[1].training
