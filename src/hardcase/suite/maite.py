"""MAITE's protocols of image classification: our models and image sets as theirs, and theirs as
ours. Nothing here needs `maite`: its protocols are structural.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.tensors import to_grid
from hardcase.types import Answer, Images, Model, Offer, Tap

if TYPE_CHECKING:  # for those who check MAITE's entry points statically
    from maite.protocols import DatasetMetadata, DatumMetadata, ModelMetadata

__all__ = ["FromMaite", "MaiteDataset", "MaiteModel", "images_from_maite"]


class MaiteModel:
    """A subject as `maite.protocols.image_classification.Model`.

    Args:
        subject: Any model of ours.
        classes: Names of its outputs.
    """

    def __init__(self, subject: Model, classes: Sequence[str] = ()) -> None:
        self.subject = subject
        names = dict(enumerate(classes))
        self.metadata: ModelMetadata = {"id": subject.name, "index2label": names}

    def __call__(self, input_batch: Sequence[Any], /) -> list[np.ndarray]:
        """Logits of images (channels, height, width) in [0, 1]."""
        images = torch.stack([torch.as_tensor(np.asarray(one)) for one in input_batch]).float()
        with torch.no_grad():
            logits = self.subject(images.to(self.subject.device)).logits
        return list(logits.float().cpu().numpy())


class MaiteDataset:
    """An image set as `maite.protocols.image_classification.Dataset`: images in [0, 1], one-hot
    targets.

    Args:
        images: Any image set of ours.
    """

    def __init__(self, images: Images) -> None:
        self.images = images
        names = dict(enumerate(images.classes))
        self.metadata: DatasetMetadata = {"id": images.name, "index2label": names}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, np.ndarray, DatumMetadata]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        image = self.images.x[index].float().div(255).numpy()
        target = np.eye(len(self.images.classes), dtype=np.float32)[int(self.images.y[index])]
        return image, target, {"id": self.images.id[index]}


class FromMaite:
    """A MAITE model as a subject that can only be queried.

    Args:
        model: An implementation of `maite.protocols.image_classification.Model` that takes
            images in [0, 1].
        outputs: ``logits``, or ``probabilities``, whose logarithm then stands for the logits.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.suite.maite import FromMaite, MaiteModel
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = FromMaite(MaiteModel(toy_subject()))
        >>> hc.check(subject, toy_images(16)).accuracy
        1.0
    """

    offers: Offer = "scores"
    device = torch.device("cpu")

    def __init__(self, model: Any, *, outputs: str = "logits") -> None:
        if outputs not in ("logits", "probabilities"):
            raise Problem(f"outputs is {outputs!r}; it is 'logits' or 'probabilities'.")
        self.model = model
        self.name = str(model.metadata["id"])
        self.hash = f"maite:{self.name}"
        self.probabilities = outputs == "probabilities"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        said = self.model(list(x.detach().cpu().numpy()))
        logits = torch.stack([torch.as_tensor(np.asarray(one)) for one in said]).float()
        return Answer(logits.clamp_min(1e-12).log() if self.probabilities else logits)


def images_from_maite(dataset: Any) -> Images:
    """A MAITE data set as an image set: images in [0, 1], or 8-bit, all of one size.

    Args:
        dataset: An implementation of `maite.protocols.image_classification.Dataset`.
    """
    rows = [dataset[index] for index in range(len(dataset))]
    pixels = [torch.as_tensor(np.asarray(image)) for image, _, _ in rows]
    if len({tuple(one.shape) for one in pixels}) != 1:
        raise Problem(
            "the images of this MAITE data set differ in size, or there are none.",
            fix="resize them to the size that the model takes",
        )
    x = torch.stack(pixels)
    if x.dtype != torch.uint8:
        if float(x.min()) < 0 or float(x.max()) > 1:
            span = f"{float(x.min()):.3g} to {float(x.max()):.3g}"
            raise Problem(f"the images of this MAITE data set reach from {span}, not from 0 to 1.")
        x = (255 * to_grid(x.float())).round().to(torch.uint8)
    y = torch.tensor([int(np.asarray(target).argmax()) for _, target, _ in rows])
    named = dict(dataset.metadata.get("index2label", {}))
    count = max(len(np.asarray(rows[0][1])), *(int(key) + 1 for key in named), 0)
    classes = tuple(str(named.get(number, number)) for number in range(count))
    ids = tuple(str(metadata["id"]) for _, _, metadata in rows)
    return Images(x, y, ids, classes, name=str(dataset.metadata["id"]))
