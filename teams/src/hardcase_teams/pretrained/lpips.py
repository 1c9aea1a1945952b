"""LPIPS: how far apart two images look, by the features of a network.

R. Zhang, P. Isola, A. Efros, E. Shechtman, O. Wang, "The unreasonable effectiveness of deep
features as a perceptual metric", CVPR 2018: unit features of five layers, squared differences,
weighted per channel, averaged over the image, summed.

Own code, because the packages `lpips` and `torchmetrics` bring the network's weights through
torchvision and a pickle from the web; these come from a pinned package. It holds a pickle of NumPy
arrays, which `torch.load(weights_only=True)` does not read: here only the names that rebuild an
array are known, so that nothing of it is run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.data.files import Array
from hardcase.errors import HardcaseError, reading

try:
    from numpy._core.multiarray import _reconstruct as _rebuild
except ImportError:  # NumPy 1 keeps it elsewhere
    from numpy.core.multiarray import (  # type: ignore[no-redef,unused-ignore]
        _reconstruct as _rebuild,
    )

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
"""Of images in [-1, 1]."""


class Lpips(nn.Module):
    """The distance of two batches of images, row by row, by the features of an AlexNet."""

    shift: Tensor
    scale: Tensor

    def __init__(self, net: str = "alexnet") -> None:  # cards of fetched networks name it
        super().__init__()
        self.stages = _alexnet()
        self.heads = nn.ParameterList(torch.zeros(width) for width in (64, 192, 384, 256, 256))
        self.register_buffer("shift", torch.tensor(SHIFT).reshape(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor(SCALE).reshape(1, 3, 1, 1))

    def features(self, x: Float[Tensor, "m 3 h w"]) -> list[Float[Tensor, "m c i j"]]:
        """Unit features of the five layers, for images in [0, 1]."""
        seen = (2 * x - 1 - self.shift) / self.scale
        found = []
        for stage in self.stages:
            seen = stage(seen)
            found.append(seen / (seen.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return found

    def forward(
        self, x: Float[Tensor, "m 3 h w"], other: Float[Tensor, "m 3 h w"]
    ) -> Float[Tensor, " m"]:
        pairs = zip(self.features(x), self.features(other), self.heads)
        gaps = [
            ((a - b).square() * head[:, None, None]).sum(1).mean((1, 2)) for a, b, head in pairs
        ]
        return torch.stack(gaps).sum(0)


def _alexnet() -> nn.ModuleList:
    pool = nn.MaxPool2d(3, 2)
    return nn.ModuleList(
        [
            nn.Sequential(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU()),
            nn.Sequential(pool, nn.Conv2d(64, 192, 5, padding=2), nn.ReLU()),
            nn.Sequential(pool, nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
        ]
    )


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _rebuild,
    ("numpy._core.multiarray", "_reconstruct"): _rebuild,
}
"""Every name that such a file may use: none opens, imports or calls anything of the user's."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def read_arrays(path: Path) -> dict[str, Array]:
    """Nested dictionaries of arrays in a pickle, as names with ``/``; no more is read."""
    why = "A pickle can run code; only plain NumPy arrays are taken from one."
    with reading(f"{path.name} is not read", why), path.open("rb") as file:
        content = _Reader(file).load()
    return _flat(content, "", path)


def _flat(content: Any, name: str, path: Path) -> dict[str, Array]:
    if isinstance(content, np.ndarray) and content.dtype.kind in "fiub":
        return {name: content}
    if isinstance(content, dict):
        flat: dict[str, Array] = {}
        for key, value in content.items():
            flat |= _flat(value, f"{name}/{key}".lstrip("/"), path)
        return flat
    raise HardcaseError(
        f"{path.name} holds a {type(content).__name__} at {name or 'its top'}; arrays of numbers"
        " are known."
    )


def from_package(files: Mapping[str, Path], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of `Lpips` from the pickled arrays of the package."""
    arrays = read_arrays(next(iter(files.values())))
    net = Lpips()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    convs = [name for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d)]
    try:
        for number, ours in enumerate(convs):
            kernel = torch.from_numpy(arrays[f"AlexNet_0/Conv_{number}/kernel"].copy())
            bias = torch.from_numpy(arrays[f"AlexNet_0/Conv_{number}/bias"].copy())
            state[f"{ours}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()  # h w in out
            state[f"{ours}.bias"] = bias
        for number in range(len(net.heads)):
            head = arrays[f"NetLinLayer_{number}/Conv_0/kernel"]
            state[f"heads.{number}"] = torch.from_numpy(head.copy()).flatten()
    except KeyError as error:
        raise HardcaseError(f"the package lacks the weights {error}.") from error
    return state


LPIPS = (Lpips, from_package)
