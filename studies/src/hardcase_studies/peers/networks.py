"""The network that all libraries attack: a published one where its weights are at hand, else a small one of the zoo."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.models.zoo import trained_classifier
from hardcase.tensors import from_bytes
from hardcase.types import Images
from hardcase_studies.bench import Bench

__all__ = ["attacked", "resnet"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, with which `akamaster/pytorch_resnet_cifar10` trains on CIFAR-10."""
DEPTHS = {"resnet20": 3, "resnet32": 5, "resnet56": 9}
"""Blocks of each of three stages, by prefix of the weights."""


class Block(nn.Module):
    """Two convolutions beside a shortcut without weights (option A of He et al., CVPR 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride = stride
        self.missing = (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.bn1(self.conv1(x)))
        inner = self.bn2(self.conv2(inner))
        if self.stride > 1:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.missing, self.missing))
        return functional.relu(inner + x)


class CifarResNet(nn.Module):
    """A residual network for 32 x 32 images in [0, 1], its normalisation inside."""

    mean: Tensor
    std: Tensor

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).reshape(1, 3, 1, 1))
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1((x - self.mean) / self.std)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


def _stage(before: int, after: int, blocks: int, *, stride: int) -> nn.Sequential:
    rest = [Block(after, after, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(before, after, stride), *rest)


def resnet(path: Path, name: str = "resnet20") -> nn.Module:
    """A network of `akamaster/pytorch_resnet_cifar10` (BSD-2-Clause) from a file of its weights."""
    weights = {
        key.removeprefix(f"{name}."): value
        for key, value in load_file(path).items()
        if key.startswith(f"{name}.")
    }
    if not weights:
        raise HardcaseError(f"{path} holds no weights of {name}.", f"known: {', '.join(DEPTHS)}")
    net = CifarResNet(DEPTHS[name])
    missing = net.load_state_dict(weights, strict=False).missing_keys
    if absent := [
        key for key in missing if key not in ("mean", "std") and "num_batches" not in key
    ]:
        raise HardcaseError(f"{path} lacks {absent[0]} of {name}.")
    return net.eval().requires_grad_(False)


def attacked(bench: Bench, count: int) -> tuple[nn.Module, Tensor, Tensor, str]:
    """A network, images that it reads rightly with their labels, and what it is in words.

    ``--set model=FILE.safetensors`` with ``--data cifar10``: the published ResNet-20; otherwise LeNet-5 of the zoo.
    """
    test = load(bench.data, split="test")
    given = str(bench.options.get("model", ""))
    if given:
        net = resnet(Path(given))
        name = "ResNet-20 of CIFAR-10 (akamaster/pytorch_resnet_cifar10)"
    else:
        net, _ = trained_classifier("lenet5", load(bench.data, split="train"), test)
        net = net.eval().requires_grad_(False)
        name = f"LeNet-5 of {bench.data}"
    net = net.to(bench.device)
    chosen = _read_rightly(net, test, count)
    x, y = from_bytes(chosen.x).to(bench.device), chosen.y.to(bench.device)
    return net, x, y, f"{name}, {len(chosen)} images that it reads rightly"


def _read_rightly(net: nn.Module, images: Images, count: int) -> Images:
    some = images.sample(count=min(2 * count, len(images)), seed=0)
    device = next(net.parameters()).device
    with torch.no_grad():
        right = net(from_bytes(some.x).to(device)).argmax(1).cpu() == some.y
    return some.take(right.nonzero().squeeze(1)[:count])
