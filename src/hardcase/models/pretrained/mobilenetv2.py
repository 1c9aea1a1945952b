"""MobileNetV2, in the layout of torchvision's weights.

M. Sandler, A. Howard, M. Zhu, A. Zhmoginov, L.-C. Chen, "MobileNetV2: inverted residuals and linear
bottlenecks", CVPR 2018. Own code, because torchvision has it only together with its binary parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["MOBILENETV2", "MobileNetV2"]

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and first stride of each stage."""


def _conv_unit(
    before: int, after: int, *, kernel: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; a shortcut where sizes allow it."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_conv_unit(before, inner, kernel=1))
        layers += [
            _conv_unit(inner, inner, stride=stride, groups=inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and before == after

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        out: Tensor = self.conv(x)
        if self.residual:
            return out + x
        return out


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1, with random weights."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_unit(3, 32, stride=2)]
        before = 32
        for expansion, after, blocks, stride in STAGES:
            for number in range(blocks):
                first = stride if number == 0 else 1
                layers.append(InvertedResidual(before, after, first, expansion))
                before = after
        layers.append(_conv_unit(before, 1280, kernel=1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


def from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights as they are: the names are the same."""
    state: dict[str, Tensor] = torch.load(
        next(iter(files.values())), map_location="cpu", weights_only=True
    )
    return state


MOBILENETV2 = (MobileNetV2, from_package)
