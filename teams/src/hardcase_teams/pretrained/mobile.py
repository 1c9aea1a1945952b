"""EfficientNet-Lite 0 to 2 and MobileNetV2: chains of inverted residuals with linear bottlenecks.

M. Tan, Q. Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML
2019; the Lite variants (2020) have ReLU6 in place of swish, no squeeze-and-excitation, and a first
and last stage that are not scaled. Convolutions are padded as TensorFlow pads them: to the output
size ceil(size / stride), the odd pixel right and below. M. Sandler, A. Howard, M. Zhu,
A. Zhmoginov, L.-C. Chen, "MobileNetV2: inverted residuals and linear bottlenecks", CVPR 2018.

Own code, because `timm` and torchvision bring these networks only with binary parts of their own,
and weights from hubs that many machines cannot reach; packages of them are on the usual registry.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError

EPSILON = 1e-3
SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2))
"""Width and depth of each Lite variant, against Lite0."""
LITE_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, first stride, expansion and channels of each stage."""
V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and first stride of each stage."""


class SameConv2d(nn.Conv2d):
    """A convolution padded to ceil(size / stride), as TensorFlow's ``same``."""

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        down = self._missing(x.shape[2], 0)
        right = self._missing(x.shape[3], 1)
        edges = (right // 2, right - right // 2, down // 2, down - down // 2)
        return super().forward(functional.pad(x, edges) if any(edges) else x)

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
        self.project = _unit(SameConv2d(inner, after, 1, bias=False))[:-1]  # linear
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
    for position, (blocks, kernel, first_stride, expansion, channels) in enumerate(LITE_STAGES):
        after = rounded(channels * width)
        if 0 < position < len(LITE_STAGES) - 1:
            blocks = math.ceil(blocks * depth)
        for inner in range(blocks):
            stride = first_stride if inner == 0 else 1
            block = LiteBlock(before, after, kernel, stride, expansion)
            layers[f"block{position + 1}_{inner + 1}"] = block
            before = after
    layers["head"] = _unit(SameConv2d(before, 1280, 1, bias=False))
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["dropout"] = nn.Dropout(0.2)
    layers["logits"] = nn.Linear(1280, classes)
    return nn.Sequential(layers)


def rounded(width: float) -> int:
    """The nearest multiple of 8, never less than 90 % of `width`."""
    near = max(8, int(width + 4) // 8 * 8)
    if near < 0.9 * width:
        return near + 8
    return near


def _state(files: Mapping[str, Path]) -> dict[str, Tensor]:
    """The weights in the one file of a package."""
    (path,) = files.values()
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def lite_from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of `efficientnet_lite` from that of the package, which has other names."""
    children = dict(efficientnet_lite(**options).named_children())
    blocks = [name for name in children if name.startswith("block")]
    return {_renamed(name, blocks): value for name, value in _state(files).items()}


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
    raise HardcaseError(f"the package has a weight {name!r} that no EfficientNet-Lite has.")


LITE = (efficientnet_lite, lite_from_package)


class InvertedResidual(nn.Module):
    """The same block with the names of torchvision's weights, and its padding."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        expand = [_v2_unit(before, inner, kernel=1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            _v2_unit(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.residual = stride == 1 and before == after

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        out: Tensor = self.conv(x)
        if self.residual:
            return out + x
        return out


def _v2_unit(
    before: int, after: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6())


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1, with random weights."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_v2_unit(3, 32, stride=2)]
        before = 32
        for expansion, after, blocks, stride in V2_STAGES:
            for number in range(blocks):
                first = stride if number == 0 else 1
                layers.append(InvertedResidual(before, after, first, expansion))
                before = after
        layers.append(_v2_unit(before, 1280, kernel=1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def v2_from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights as they are: the names are the same."""
    return _state(files)


MOBILENETV2 = (MobileNetV2, v2_from_package)
