"""ResNet-50 as Keras has it, with its weights from the shards of a tfjs file, and AugNet.

K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016.
Differences of the Keras edition, which these weights belong to: convolutions have biases, the
stride of a stage lies in its first 1x1 convolution, and batch normalisation adds 1e-3. The weights
expect blue, green, red; their first layer is turned round when they are read, so that the network
takes red, green, blue like every other.

AugNet is a ResNet-50 taught without labels that two views of one image are alike: M. Chen,
Z. Chang, H. Lu, B. Yang, Z. Li, L. Guo, Z. Wang, "AugNet: end-to-end unsupervised visual
representation learning with image augmentation", 2021. It names no class; its 768 numbers say how
alike images look. Its layers are torchvision's: the stride of a stage lies in the 3x3 convolution,
convolutions have no biases, and batch normalisation adds 1e-5, which is folded into the weights
when they are read.

Own code, because these are the weights of ImageNet under a permissive licence that a package client
can bring to a machine without a hub, and no library reads them without TensorFlow.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.data.files import Array
from hardcase.errors import HardcaseError

STAGES = (3, 4, 6, 3)
EPSILON = 1e-3


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut; every layer fires once."""

    def __init__(
        self, before: int, width: int, strides: tuple[int, int], *, projected: bool
    ) -> None:
        super().__init__()
        first, second = strides
        self.conv1 = nn.Conv2d(before, width, 1, first)
        self.norm1 = nn.BatchNorm2d(width, EPSILON)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1)
        self.norm2 = nn.BatchNorm2d(width, EPSILON)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, 4 * width, 1)
        self.norm3 = nn.BatchNorm2d(4 * width, EPSILON)
        self.shortcut = nn.Sequential()
        if projected:
            self.shortcut.add_module("conv", nn.Conv2d(before, 4 * width, 1, first * second))
            self.shortcut.add_module("norm", nn.BatchNorm2d(4 * width, EPSILON))
        self.relu3 = nn.ReLU()

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        inner = self.relu1(self.norm1(self.conv1(x)))
        inner = self.relu2(self.norm2(self.conv2(inner)))
        out: Tensor = self.relu3(self.norm3(self.conv3(inner)) + self.shortcut(x))
        return out


def resnet50(*, width: int = 64, classes: int = 1000, stride_first: bool = True) -> nn.Sequential:
    """The network, with random weights.

    With `stride_first` the stride of a stage lies in its first 1x1 convolution, as in Keras, else
    in the 3x3 convolution after it, as in torchvision.
    """
    layers = OrderedDict[str, nn.Module]()
    layers["conv1"] = nn.Conv2d(3, width, 7, 2, 3)
    layers["norm1"] = nn.BatchNorm2d(width, EPSILON)
    layers["relu1"] = nn.ReLU()
    layers["pool1"] = nn.MaxPool2d(3, 2, 1)
    before = width
    for stage, count in enumerate(STAGES):
        inner = width * 2**stage
        for number in range(count):
            first = number == 0
            strides = (1, 1)
            if first and stage:
                strides = (2, 1) if stride_first else (1, 2)
            layers[f"block{stage + 2}{'abcdef'[number]}"] = Bottleneck(
                before, inner, strides, projected=first
            )
            before = 4 * inner
    layers["pool2"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["logits"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


def from_shards(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of `resnet50` from ``model.json`` and the shards that it names."""
    arrays = dict(_arrays(files))
    state = dict[str, Tensor]()
    for name, (kind, theirs) in _layout().items():
        try:
            state |= _weights(kind, name, theirs, arrays)
        except KeyError as error:
            raise HardcaseError(
                f"model.json lacks the weights {error}; it describes another network."
            ) from error
    state["conv1.weight"] = state["conv1.weight"].flip(1)  # blue, green, red to red, green, blue
    return state


def _arrays(files: Mapping[str, Path]) -> Iterator[tuple[str, Array]]:
    """Name and values of every weight in a tfjs file."""
    groups = json.loads(files["model.json"].read_text(encoding="utf-8"))["weightsManifest"]
    for group in groups:
        data = b"".join(files[Path(name).name].read_bytes() for name in group["paths"])
        at = 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32":
                raise HardcaseError(
                    f"weight {entry['name']} is {entry['dtype']}; float32 is known."
                )
            count = math.prod(entry["shape"])
            if at + 4 * count > len(data):
                raise HardcaseError(f"the shards end before weight {entry['name']}.")
            yield entry["name"], np.frombuffer(data, "<f4", count, at).reshape(entry["shape"])
            at += 4 * count


def _layout() -> dict[str, tuple[str, str]]:
    """Kind and Keras name of each of our layers that has weights."""
    layout = {
        "conv1": ("conv", "conv1"),
        "norm1": ("norm", "bn_conv1"),
        "logits": ("dense", "fc1000"),
    }
    for stage, count in enumerate(STAGES, 2):
        for letter in "abcdef"[:count]:
            ours = f"block{stage}{letter}"
            for number, branch in enumerate(("2a", "2b", "2c"), 1):
                layout[f"{ours}.conv{number}"] = ("conv", f"res{stage}{letter}_branch{branch}")
                layout[f"{ours}.norm{number}"] = ("norm", f"bn{stage}{letter}_branch{branch}")
            if letter == "a":
                layout[f"{ours}.shortcut.conv"] = ("conv", f"res{stage}a_branch1")
                layout[f"{ours}.shortcut.norm"] = ("norm", f"bn{stage}a_branch1")
    return layout


NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def _weights(kind: str, ours: str, theirs: str, arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of one layer, from what Keras calls `theirs`."""
    if kind == "norm":
        state = {name: _tensor(arrays[f"{theirs}/{other}"]) for name, other in NORM.items()}
        state["num_batches_tracked"] = torch.tensor(0)
    else:
        kernel = _tensor(arrays[f"{theirs}/kernel"])
        axes = (3, 2, 0, 1) if kind == "conv" else (1, 0)  # h w in out -> out in h w
        state = {"weight": kernel.permute(axes).contiguous()}
        state["bias"] = _tensor(arrays[f"{theirs}/bias"])
    return {f"{ours}.{name}": value for name, value in state.items()}


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))


RESNET50 = (resnet50, from_shards)


THEIR_EPSILON = 1e-5
NUMBERS = 768
_LEAVES = {"bn": "norm", "conv": "conv"}


def augnet(*, width: int = 64, numbers: int = NUMBERS) -> nn.Sequential:
    """The network, with random weights; `width` is that of the first stage."""
    net = resnet50(width=width, classes=numbers, stride_first=False)
    net.add_module("tanh", nn.Tanh())
    return net


def from_torchvision(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
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
    raise HardcaseError(f"the package has a weight {name!r} that no ResNet-50 has.")


AUGNET = (augnet, from_torchvision)
