"""A network that names what is dark, and even grey images: which conditions fail is known."""

import torch
from torch import nn

import hardcase as hc
from hardcase.conditions import condition_box
from hardcase.types import Images

CLASSES = ("light", "dark")


class Darkness(nn.Module):
    """Names class 1 where the mean of an image is below a threshold; `masked`: no gradient."""

    def __init__(self, threshold=0.4, *, masked=False):
        super().__init__()
        self.masked = masked
        self.threshold = nn.Parameter(torch.tensor(threshold), requires_grad=False)

    def forward(self, x):
        dark = 1000 * (self.threshold - x.mean((1, 2, 3)))
        if self.masked:
            dark = dark.sign() + 0 * dark
        return torch.stack([-dark, dark], 1)


def darkness(threshold=0.4, **how):
    return hc.Subject(Darkness(threshold, **how), classes=CLASSES, name="darkness")


def grey(count=12, level=128):
    x = torch.full((count, 1, 16, 16), level).to(torch.uint8)
    names = tuple(f"grey/{i}" for i in range(count))
    return Images(x, torch.zeros(count).long(), names, CLASSES, "grey")


def exposure(text="±1 stops"):
    """The box of a range of light, with a shift that changes no answer."""
    return condition_box(hc.Conditions({"exposure": text, "shift": "±5 %"}), (1, 16, 16))
