"""MAITE's protocols of image classification and object detection: our models and image sets as
theirs, and theirs as ours. Nothing here needs `maite`: its protocols are structural.

Theirs of object detection: ``hc.run(MaiteDetector(model), annotations_from_maite(data),
task="boxes")``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.answers import AskedNetwork, Layout, standard_outputs
from hardcase.claims.subjects import ClaimModel, Detections, strongest
from hardcase.data.own import names_by_number
from hardcase.errors import HardcaseError
from hardcase.tensors import digest, to_grid
from hardcase.types import Answer, Images, Model, Offer, Tap

if TYPE_CHECKING:  # for those who check MAITE's entry points statically
    from maite.protocols import DatasetMetadata, DatumMetadata, ModelMetadata


WEAKEST = 0.05
"""Probability from which on a box is told: metrics of detectors want weak ones too."""


class MaiteModel:
    """A model as `maite.protocols.image_classification.Model`."""

    def __init__(self, subject: Model, classes: Sequence[str] = ()) -> None:
        self.subject = subject
        names = dict(enumerate(classes))
        self.metadata: ModelMetadata = {"id": subject.name, "index2label": names}

    def __call__(self, input_batch: Sequence[Any], /) -> list[np.ndarray]:
        """Logits of images (channels, height, width) in [0, 1]."""
        with torch.no_grad():
            logits = self.subject(_stacked(input_batch).to(self.subject.device)).logits
        return list(logits.float().cpu().numpy())


class MaiteDataset:
    """An image set as `maite.protocols.image_classification.Dataset`: images in [0, 1], one-hot
    targets."""

    def __init__(self, images: Images) -> None:
        self.images = images
        names = dict(enumerate(images.classes))
        self.metadata: DatasetMetadata = {"id": images.name, "index2label": names}

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, np.ndarray, DatumMetadata]:
        image = _image(self.images, index)
        target = np.eye(len(self.images.classes), dtype=np.float32)[int(self.images.y[index])]
        return image, target, {"id": self.images.id[index]}


class MaiteBoxes(NamedTuple):
    """Objects in an image, as `maite.protocols.object_detection.ObjectDetectionTarget`."""

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


class MaiteDetectionModel:
    """A detector as `maite.protocols.object_detection.Model`: one box for each object."""

    def __init__(self, subject: ClaimModel) -> None:
        if subject.task != "boxes":
            raise HardcaseError(f"{subject.name} answers {subject.task}; a detector answers boxes.")
        self.subject = subject
        names = dict(enumerate(subject.class_names))
        self.metadata: ModelMetadata = {"id": subject.name, "index2label": names}

    def __call__(self, input_batch: Sequence[Any], /) -> list[MaiteBoxes]:
        """Objects in images (channels, height, width) in [0, 1]."""
        x = _stacked(input_batch).to(self.subject.device)
        with torch.no_grad():
            said = self.subject.read(self.subject.model(x).logits, x)
        assert isinstance(said, Detections)
        own = said.logits[..., : len(self.subject.class_names)]
        found = strongest(Detections(said.boxes, own))
        scores = found.scores.sigmoid()
        told = found.kept & (scores >= WEAKEST)
        return [
            MaiteBoxes(*(part[rows].cpu().numpy() for part in (boxes, labels, sure)))
            for boxes, labels, sure, rows in zip(found.boxes, found.labels, scores, told)
        ]


class MaiteDetectionDataset:
    """Images with boxes as `maite.protocols.object_detection.Dataset`."""

    def __init__(self, annotated: AnnotatedImages) -> None:
        self.annotated = annotated
        names = dict(enumerate(annotated.images.classes))
        self.metadata: DatasetMetadata = {"id": annotated.images.name, "index2label": names}

    def __len__(self) -> int:
        return len(self.annotated)

    def __getitem__(self, index: int, /) -> tuple[np.ndarray, MaiteBoxes, DatumMetadata]:
        images = self.annotated.images
        image = _image(images, index)
        known = self.annotated.annotations[index]
        sure = np.ones(len(known.labels), dtype=np.float32)
        target = MaiteBoxes(known.boxes.numpy(), known.labels.numpy(), sure)
        return image, target, {"id": images.id[index]}


def _stacked(arrays: Sequence[Any] | np.ndarray) -> Float[Tensor, "m *rest"]:
    return torch.stack([torch.as_tensor(np.asarray(array)) for array in arrays]).float()


def _image(images: Images, index: int) -> np.ndarray:
    if not -len(images) <= index < len(images):
        raise IndexError(f"image {index} of {len(images)}")
    image: np.ndarray = images.x[index].float().div(255).numpy()
    return image


class FromMaite:
    """A MAITE model as a model that can only be queried.

    Args:
        model: An implementation of `maite.protocols.image_classification.Model` that takes
            images in [0, 1].
        outputs: ``logits``, or ``probabilities``, whose logarithm then stands for the logits.

    Example:
        >>> import hardcase as hc
        >>> from hardcase_teams.maite import FromMaite, MaiteModel
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = FromMaite(MaiteModel(toy_subject()))
        >>> hc.check(subject, toy_images(16)).accuracy
        1.0
    """

    offers: Offer = "scores"
    device = torch.device("cpu")

    def __init__(self, model: Any, *, outputs: str = "logits") -> None:
        if outputs not in ("logits", "probabilities"):
            raise HardcaseError(f"outputs is {outputs!r}; it is 'logits' or 'probabilities'.")
        self.model = model
        self.name = str(model.metadata["id"])
        self.hash = f"maite:{self.name}"
        self.probabilities = outputs == "probabilities"

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        said = self.model(list(x.detach().cpu().numpy()))
        logits = _stacked(said)
        return Answer(logits.clamp_min(1e-12).log() if self.probabilities else logits)


def images_from_maite(dataset: Any) -> Images:
    """A MAITE data set as an image set: images in [0, 1], or 8-bit, all of one size."""
    rows = [dataset[index] for index in range(len(dataset))]
    pixels = [torch.as_tensor(np.asarray(image)) for image, _, _ in rows]
    if len({tuple(one.shape) for one in pixels}) != 1:
        raise HardcaseError(
            "the images of this MAITE data set differ in size, or there are none.",
            fix="resize them to the size that the model takes",
        )
    x = torch.stack(pixels)
    if x.dtype != torch.uint8:
        if float(x.min()) < 0 or float(x.max()) > 1:
            span = f"{float(x.min()):.3g} to {float(x.max()):.3g}"
            raise HardcaseError(
                f"the images of this MAITE data set reach from {span}, not from 0 to 1."
            )
        x = (255 * to_grid(x.float())).round().to(torch.uint8)
    y = torch.tensor([int(np.asarray(target).argmax()) for _, target, _ in rows])
    count = len(np.asarray(rows[0][1]))
    classes = names_by_number(dataset.metadata.get("index2label", {}), count)
    ids = tuple(str(metadata["id"]) for _, _, metadata in rows)
    return Images(x, y, ids, classes, name=str(dataset.metadata["id"]))


class MaiteDetector(AskedNetwork):
    """A MAITE object-detection model as one that can only be asked."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = str(model.metadata["id"])
        self.hash = digest(["maite", self.name])
        self.class_names = names_by_number(model.metadata.get("index2label", {}))
        self.layout = Layout("boxes", len(self.class_names))

    def ask(self, x: Float[Tensor, "m c h w"]) -> Tensor | Detections:
        height, width = x.shape[2:]
        said = list(self.model(list(x.numpy())))
        keys = ("boxes", "scores", "labels")
        rows = [{key: np.asarray(getattr(one, key)) for key in keys} for one in said]
        return standard_outputs(rows, self.layout, (height, width))


def annotations_from_maite(dataset: Any, *, resize: int = 0, crop: int = 0) -> AnnotatedImages:
    """A MAITE data set of object detection as annotated images."""
    items = [dataset[row] for row in range(len(dataset))]
    if not all(hasattr(one, "boxes") and hasattr(one, "labels") for _, one, _ in items):
        raise HardcaseError(
            f"the targets of {dataset.metadata.get('id')} have no boxes and labels.",
            fix="images_from_maite, where they are classes",
        )
    known = [{"boxes": one.boxes, "labels": np.asarray(one.labels)} for _, one, _ in items]
    most = max((int(label) for one in known for label in one["labels"]), default=-1)
    pairs = _Pairs(
        [(np.asarray(item[0]), one) for item, one in zip(items, known)],
        names_by_number(dataset.metadata.get("index2label", {}), most + 1),
    )
    found = load_annotations(pairs, resize=resize, crop=crop)
    names = tuple(str(item[2]["id"]) for item in items)
    return replace(found, images=replace(found.images, id=names, name=dataset.metadata["id"]))


class _Pairs:
    """Images with what is known of them, as torchvision's data sets give them."""

    def __init__(self, items: Sequence[Any], classes: tuple[str, ...]) -> None:
        self.items = items
        self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]
