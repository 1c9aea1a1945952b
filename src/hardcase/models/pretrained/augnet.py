"""AugNet: a ResNet-50 taught without labels that two views of one image are alike.

M. Chen, Z. Chang, H. Lu, B. Yang, Z. Li, L. Guo, Z. Wang, "AugNet: end-to-end unsupervised visual
representation learning with image augmentation", 2021. It names no class; its 768 numbers say how
alike images look. Its first layers are those of torchvision's ResNet-50: the stride of a stage lies
in the 3x3 convolution, convolutions have no biases, and batch normalisation adds 1e-5, which is
folded into the weights of our own ResNet-50 when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.errors import Problem
from hardcase.models.pretrained.resnet50 import EPSILON, resnet50

__all__ = ["AUGNET", "augnet"]

THEIR_EPSILON = 1e-5
NUMBERS = 768
_LEAVES = {"bn": "norm", "conv": "conv"}


def augnet(*, width: int = 64, numbers: int = NUMBERS) -> nn.Sequential:
    """The network, with random weights; `width` is that of the first stage."""
    net = resnet50(width=width, classes=numbers, stride_first=False)
    net.add_module("tanh", nn.Tanh())
    return net


def from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of `augnet` from the state that the package carries under other names."""
    theirs = torch.load(next(iter(files.values())), map_location="cpu", weights_only=True)
    plain = {name.removeprefix("module.").removeprefix("pre."): v for name, v in theirs.items()}
    state = {_renamed(name): value for name, value in plain.items()}
    for name in [one for one in state if one.endswith(".running_var")]:
        norm = name.removesuffix(".running_var")
        variance = state[name]
        fold = ((variance + EPSILON) / (variance + THEIR_EPSILON)).sqrt()
        state[f"{norm}.weight"] = state[f"{norm}.weight"] * fold
    for name, value in augnet(**options).state_dict().items():
        if name not in state and name.endswith("bias"):  # their convolutions have none
            state[name] = torch.zeros_like(value)
    return state


def _renamed(name: str) -> str:
    """Our name of a weight: ``layer2.0.bn1.bias`` is ``block3a.norm1.bias``."""
    if name.startswith("fc."):
        return name.replace("fc.", "logits.")
    inside = re.fullmatch(r"layer(\d)\.(\d)\.(conv|bn)(\d)\.(\w+)", name)
    if inside:
        stage, number, leaf, place, value = inside.groups()
        return f"block{int(stage) + 1}{'abcdef'[int(number)]}.{_LEAVES[leaf]}{place}.{value}"
    beside = re.fullmatch(r"layer(\d)\.(\d)\.downsample\.(\d)\.(\w+)", name)
    if beside:
        stage, number, place, value = beside.groups()
        leaf = ("conv", "norm")[int(place)]
        return f"block{int(stage) + 1}{'abcdef'[int(number)]}.shortcut.{leaf}.{value}"
    outside = re.fullmatch(r"(conv|bn)1\.(\w+)", name)
    if outside:
        return f"{_LEAVES[outside[1]]}1.{outside[2]}"
    raise Problem(f"the package has a weight {name!r} that no ResNet-50 has.")


AUGNET = (augnet, from_package)
