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


class Picky(nn.Module):
    """The nearest of six colours, for images normalised as `wanted`, from `first` on, in `order`."""

    def __init__(
        self, wanted="none (images in 0..1)", *, order=None, first=0, end="logits", size=None
    ):
        super().__init__()
        mean, std = (torch.tensor(values) for values in USUAL[wanted])
        self.register_buffer("std", std)
        self.register_buffer("expected", (COLOURS - mean) / std)
        self.order = torch.arange(6) if order is None else order
        self.first = first
        self.end = end
        self.size = size

    def forward(self, x):
        if self.size is not None and x.shape[2] != self.size:
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({x.shape[2]})")
        gap = (x.mean((2, 3))[:, None] - self.expected) * self.std
        logits = -gap.square().sum(2)[:, self.order] * 200
        logits = torch.cat([logits.new_full((len(x), self.first), -1e3), logits], 1)
        ends = {
            "softmax": lambda: logits.softmax(1),
            "sigmoid": logits.sigmoid,
            "logits": lambda: logits,
        }
        return ends[self.end]()


def names(net, images=None, **options):
    found = diagnose(net.eval(), images or photographs(), **options)
    return [mistake.name for mistake in found.mistakes]


def test_a_good_model_has_none():
    found = diagnose(Picky().eval(), photographs())
    assert found.mistakes == ()
    assert found.accuracy > 0.95


@pytest.mark.parametrize(
    "wanted", ["ImageNet", "to -1..1", "images in 0..255", "Caffe (0..255 minus the mean)"]
)
def test_a_missing_normalisation(wanted):
    found = diagnose(Picky(wanted).eval(), photographs())
    assert [mistake.name for mistake in found.mistakes] == ["normalisation"]
    assert "--set subject.mean=" in found.mistakes[0].fix
    assert found.mistakes[0].accuracy > 0.9 > found.accuracy


@pytest.mark.parametrize(
    ("net", "wanted"),
    [
        (Picky("to -1..1"), True),
        (Picky("images in 0..255"), True),
        (Picky(), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(2, 6)), False),
    ],
    ids=["clearly wanted", "0..255", "none", "a network that fails"],
)
def test_a_normalisation_that_a_network_clearly_wants_is_taken_unasked(net, wanted):
    found = settled(net.eval(), photographs())
    assert (found is not None) == wanted
    if found:
        assert found.accuracy > 0.95
        assert diagnose(net, photographs(), mean=found.mean, std=found.std).mistakes == ()


class Before(nn.Module):
    """Something that a network does to its images first."""

    def __init__(self, change, net=None):
        super().__init__()
        self.change, self.net = change, net or Picky()

    def forward(self, x):
        return self.net(self.change(x))


def test_exchanged_colours_and_light():
    swapped = Before(lambda x: x.flip(1))
    assert names(swapped) == ["BGR"]
    assert settled(swapped.eval(), photographs()) is None, "colours are not exchanged unasked"
    assert names(Before(lambda x: 1 - x)) == ["inverted"]


def test_labels_from_one_and_a_background_output():
    images = photographs()
    shifted = replace(images, y=images.y + 1, classes=tuple("-abcdef"))
    assert names(nn.Sequential(Picky(), nn.ConstantPad1d((0, 1), -1e3)), shifted) == [
        "labels from 1"
    ]
    assert names(Picky(first=1)) == ["background"]


def test_another_order_of_classes():
    found = diagnose(Picky(order=torch.tensor([3, 5, 0, 4, 1, 2])).eval(), photographs())
    assert [mistake.name for mistake in found.mistakes] == ["class order"]
    assert found.mistakes[0].accuracy > 0.9


@pytest.mark.parametrize("end", ["softmax", "sigmoid"])
def test_what_stands_behind_the_logits(end):
    assert names(Picky(end=end)) == [end]


def test_training_mode_is_told_and_left_as_it_was():
    net = nn.Sequential(Picky(), nn.Dropout(0.5)).train()
    found = diagnose(net, photographs())
    assert found.mistakes[0].name == "training mode"
    assert net[1].training


@pytest.mark.parametrize(
    ("net", "images", "name", "words"),
    [
        (Picky(size=224), None, "size", "resize=224"),
        (nn.Conv2d(1, 6, 3), None, "channels", "grey"),
        (
            nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            bars(12),
            "channels",
            "colour",
        ),
        (nn.Conv2d(3, 6, 3), None, "outputs", "head"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), None, "outputs", "trained for"),
    ],
    ids=["size", "grey network", "colour network", "no head", "too few outputs"],
)
def test_models_that_do_not_fit(net, images, name, words):
    found = diagnose(net.eval(), images or photographs())
    assert found.accuracy is None
    assert found.mistakes[-1].name == name
    assert words in str(found)


def test_broken_numbers_types_and_returns():
    typed = nn.Linear(3, 6).double()
    odd = Before(lambda x: x.mean((2, 3)), lambda x: {"a": x, "b": x})
    assert names(nn.Sequential(Picky(), Before(lambda x: x * float("nan"), nn.Identity()))) == [
        "nan"
    ]
    assert names(Before(lambda x: x.mean((2, 3)), typed)) == ["type"]
    assert names(odd) == ["returned"]


def test_missing_weights():
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 6)
    )
    nn.init.zeros_(net[-1].weight)
    assert names(net) == ["no weights"]


def test_a_network_of_another_scale():
    coarse = Before(lambda x: x if x.shape[2] >= 96 else x * 0 + 0.5)  # sees noise in small images
    found = diagnose(coarse.eval(), photographs())
    assert found.mistakes[0].name == "size"
    assert "?resize=" in found.mistakes[0].fix


def test_rows_and_columns_exchanged():
    images = bars(60)
    net = Bars()
    assert not names(net, images)
    turned = replace(images, x=images.x.transpose(2, 3).contiguous())
    assert names(net, turned) == ["transposed"]


class Bars(nn.Module):
    """Reads which column is bright, never which row."""

    def __init__(self):
        super().__init__()
        images = bars(300, seed=3)
        mean = torch.stack([images.x[images.y == k].float().mean(0) for k in range(3)]) / 255
        self.register_buffer("mean", mean.flatten(1) - mean.flatten(1).mean(0))

    def forward(self, x):
        return 10 * x.flatten(1) @ self.mean.T - 5 * self.mean.square().sum(1)


def test_channels_last():
    class Last(nn.Module):
        def forward(self, x):
            if x.shape[-1] != 3:
                raise RuntimeError("expected N x H x W x C")
            return x.mean((1, 2)) @ torch.eye(3, 6)

    found = diagnose(Last().eval(), photographs())
    assert found.mistakes[0].name == "channels last"


def test_outputs_that_are_constant_or_softmaxed_twice():
    constant = Before(lambda x: torch.arange(6.0).expand(len(x), 6), nn.Identity())
    assert "the same class for 100 %" in str(diagnose(constant.eval(), photographs()))
    assert names(nn.Sequential(Picky(end="softmax"), nn.Softmax(1)))[0] == "double softmax"
