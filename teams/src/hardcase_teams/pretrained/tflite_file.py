"""TFLite files that ``hardcase fetch model`` brings: kept as the bytes they are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.errors import HardcaseError, reading


class TfLiteFile(nn.Module):
    """A TFLite file as it is, which can only be asked: so many bytes, and those of its names."""

    def __init__(self, file: int, labels: int) -> None:
        super().__init__()
        self.register_buffer("file", torch.zeros(file, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(labels, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        raise HardcaseError(
            "a TFLite file is no module of torch.", fix="--task, which runs it as it is"
        )


def tflite_from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The bytes of the network, and of the names beside it or inside it."""
    network = next(path for name, path in files.items() if name.endswith(".tflite"))
    text = next((path for name, path in files.items() if name.endswith(".txt")), None)
    with reading(f"cannot read {network.name}"):
        content = network.read_bytes()
        if text is not None:
            names = text.read_bytes()
        else:
            with zipfile.ZipFile(network) as packed:
                names = packed.read("labelmap.txt")
    return {"file": _bytes(content), "labels": _bytes(names)}


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


TFLITE = (TfLiteFile, tflite_from_package)
