"""What ARGUS's authors published, number by number. No torch."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A row of Tables 1 and 3; `er` and `sr` are percentages."""

    mse: float
    ssim: float
    ld: float
    er: float
    sr: float

    def cells(self) -> list[str]:
        return [
            f"{self.mse:.4f}",
            f"{self.ssim:.4f}",
            f"{self.ld:.1f}",
            f"{self.er:.2f} %",
            f"{self.sr:g} %",
        ]


_METHODS = (
    "ARGUS 0.1",
    "ARGUS 0.2",
    "ARGUS 0.3",
    "diffchaser",
    "adapt@paper",
    "dlfuzz@adapt",
    "deepxplore@adapt",
)
_ROWS = {
    "lenet4": (
        (0.0011, 0.9869, 3.1, 23.48, 100), (0.0015, 0.9147, 5.3, 32.24, 100), (0.0083, 0.8638, 7.5, 45.56, 100),
        (0.0237, 0.6254, 2.6, 2.51, 100), (0.0168, 0.7212, 3.7, 18.81, 100), (0.0441, 0.5273, 1.2, 11.24, 80),
        (0.0195, 0.7091, 2.6, 12.55, 70),
    ),
    "lenet5": (
        (0.0012, 0.9902, 3.6, 20.94, 100), (0.0019, 0.9094, 5.1, 31.34, 100), (0.0066, 0.8768, 8.6, 43.75, 100),
        (0.0184, 0.6537, 2.4, 2.23, 100), (0.0187, 0.7502, 3.4, 19.62, 100), (0.0383, 0.6429, 1.2, 8.35, 90),
        (0.0181, 0.7248, 2.4, 14.23, 85),
    ),
    "vgg16": (
        (0.0035, 0.9247, 4.1, 30.28, 100), (0.0074, 0.7992, 5.3, 40.12, 100), (0.0136, 0.6447, 8.8, 55.13, 100),
        (0.0391, 0.5328, 4.5, 10.93, 100), (0.0210, 0.5625, 8.1, 43.77, 100), (0.0765, 0.4933, 6.9, 38.09, 96),
        (0.0223, 0.5692, 7.4, 35.94, 100),
    ),
    "resnet18": (
        (0.0036, 0.9152, 4.4, 29.40, 100), (0.0076, 0.8224, 6.1, 39.96, 100), (0.0148, 0.6601, 8.9, 48.02, 100),
        (0.0581, 0.5219, 4.2, 2.23, 100), (0.0927, 0.5542, 8.2, 38.93, 100), (0.0513, 0.4521, 7.9, 39.13, 100),
        (0.0891, 0.5182, 8.1, 29.34, 100),
    ),
    "vgg19": (
        (0.0050, 0.8801, 16.0, 38.13, 100), (0.0120, 0.7443, 30.3, 46.24, 100), (0.0209, 0.5751, 46.7, 61.37, 100),
        (0.0864, 0.3283, 6.1, 5.20, 43.5), (0.0433, 0.3827, 25.9, 14.92, 100), (0.1037, 0.3283, 5.3, 8.93, 92.4),
        (0.0538, 0.3972, 4.6, 10.30, 40.2),
    ),
    "resnet50": (
        (0.0051, 0.8992, 18.2, 36.55, 100), (0.0125, 0.7479, 32.1, 49.23, 100), (0.0208, 0.5831, 41.3, 62.84, 100),
        (0.0829, 0.3211, 2.9, 1.30, 72.4), (0.0438, 0.3949, 23.1, 18.03, 94), (0.1047, 0.3028, 7.5, 12.29, 54.8),
        (0.0529, 0.4101, 9.4, 9.25, 62.4),
    ),
}  # fmt: skip
PAPER = {
    (model, method): Published(*row)
    for model, rows in _ROWS.items()
    for method, row in zip(_METHODS, rows, strict=True)
}
ABLATION = {
    "full": Published(0.0076, 0.8224, 6.1, 39.96, 100),
    "no VQ": Published(0.0243, 0.6594, 6.0, 32.28, 100),
    "no discriminators": Published(0.0301, 0.6971, 6.1, 36.94, 100),
}
"""Table 4: ResNet18 on CIFAR-10 at λ = 0.2."""
_ADDED = ("Random", "ARGUS-0.1", "ARGUS-0.2", "ARGUS-0.3")
RETRAINED = {
    "lenet5": (98.12, dict(zip(_ADDED, (98.21, 98.43, 99.28, 99.18)))),
    "resnet18": (85.24, dict(zip(_ADDED, (85.72, 86.29, 87.46, 88.02)))),
    "resnet50": (75.52, dict(zip(_ADDED, (75.79, 75.93, 76.21, 76.47)))),
}
"""Table 2: accuracy before, and after retraining with 1,000 added images, in percent (ResNet50: top-1 of the first 50 classes)."""


def published_name(model: str) -> str:
    """The paper's name for a network of ours.

    Example:
        >>> published_name("zoo:resnet50-imagenet"), published_name("lenet5-lecun")
        ('resnet50', 'lenet5')
    """
    return model.removeprefix("zoo:").removesuffix("-imagenet").removesuffix("-lecun")
