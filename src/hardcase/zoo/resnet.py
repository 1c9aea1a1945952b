"""ResNet-18 for small images.

K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016. Differences, as usual for
32x32: a 3x3 first convolution of stride 1 and no pooling after it.
"""

from __future__ import annotations

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; every layer is its own module and fires once."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut.add_module("conv", nn.Conv2d(before, width, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(width))
        self.relu2 = nn.ReLU()

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu2(inner + self.shortcut(x))
        return out


def resnet18(channels: int, size: int, classes: int, *, width: int = 64) -> nn.Sequential:
    """Four stages of two blocks, `width` to 8 x `width` channels. Any `size`: the last layer averages over the picture."""
    layers = OrderedDict[str, nn.Module]()
    layers["conv1"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    layers["norm1"] = nn.BatchNorm2d(width)
    layers["relu1"] = nn.ReLU()
    before = width
    for stage in range(1, 5):
        after = width * 2 ** (stage - 1)
        layers[f"block{stage}_1"] = Block(before, after, 1 if stage == 1 else 2)
        layers[f"block{stage}_2"] = Block(after, after, 1)
        before = after
    layers["pool1"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["logits"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


def resnet18_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """`resnet18` at a quarter of its width."""
    return resnet18(channels, size, classes, width=16)
