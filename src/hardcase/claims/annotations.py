"""Annotated images: what is in each of them and where, from the formats that people have.

``load_annotations("coco:instances.json?images=photos")`` reads files; data sets of Hugging Face and
torchvision are given as objects. Boxes and masks follow the size that images are given; boxes that
cannot be meant are left out, counted and said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from PIL import Image, ImageOps
from torch import Tensor

from hardcase import registry
from hardcase.cache import named_path
from hardcase.claims.subjects import Annotation, Task
from hardcase.companions import teams_module
from hardcase.data.files import FORMATS, Sizing, Stream, peeked
from hardcase.data.own import file_bytes, names_by_number, natural, numbered
from hardcase.data.sources import SPLITS, image_pixels, part_of, spec_options
from hardcase.errors import HardcaseError, choice, reading
from hardcase.tensors import digest, digest_tensors
from hardcase.types import Images

__all__ = ["AnnotatedImages", "RawAnnotations", "load_annotations"]

READERS = ("coco", "yolo", "voc", "tags", "masks")
"""Forms of annotated data that ``hardcase_teams`` reads."""
NONE = 255
"""Class of pixels of which nothing is known."""
HELD = 2**32
"""Bytes of images that are held at once, at most."""
SLACK = 1.0
"""Pixels by which a box may reach beyond its image without a word."""
SEEN = 0.5
"""Share of a box that a crop must leave, or the box is left out."""
Boxes = npt.NDArray[np.float64]
Form = Literal["xyxy", "xywh", "share"]
"""Corners, corner and size, or centre and size as shares of the image."""
SPELLED = {"xyxy": "two corners (XYXY)", "xywh": "corner and size (XYWH)"}


@dataclass(frozen=True, slots=True)
class AnnotatedImages:
    """Images with what is known of each.

    Args:
        images: The images; their labels are all 0 and say nothing.
        annotations: One for each image.
        notes: What a user should know of them: boxes that were cut, images without an object.
    """

    images: Images
    annotations: tuple[Annotation, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.annotations)

    @property
    def hash(self) -> str:
        """Of the images and of all that is known of them."""
        parts = [self.images.hash]
        for each in self.annotations:
            parts.append(
                digest_tensors({"labels": each.labels, "boxes": each.boxes, "mask": each.mask})
            )
        return digest(parts)

    def take(self, rows: Int[Tensor, " r"]) -> AnnotatedImages:
        """Some of them."""
        chosen = tuple(self.annotations[row] for row in rows.tolist())
        return AnnotatedImages(self.images.take(rows), chosen, self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnnotations:
    """What a reader found, before any image is decoded.

    Args:
        read: The image of a row: a path, encoded bytes, an opened image or an array.
        names: A name for every image.
        classes: Names of the classes.
        labels: Class of each object of each image.
        boxes: Box of each object of each image; nothing where there are none.
        form: What the numbers of a box mean.
        masks: The mask of a row, in the same forms as `read`; None where there are none.
        divided: Whether the source has a split of its own, and this is one part.
        notes: What a user should know of it.
    """

    read: Callable[[int], Any]
    names: Sequence[str]
    classes: tuple[str, ...]
    labels: Sequence[Sequence[int]]
    boxes: Sequence[Sequence[Sequence[float]]] = ()
    form: Form = "xyxy"
    masks: Callable[[int], Any] | None = None
    divided: bool = False
    notes: tuple[str, ...] = ()


def load_annotations(
    data: Any,
    split: str = "test",
    task: Task = "boxes",
    *,
    count: int = 0,
    seed: int = 0,
    resize: int = 0,
    crop: int = 0,
) -> AnnotatedImages:
    """The annotated images that `data` names or is.

    Args:
        data: ``canvas5k``, ``coco:FILE.json?images=DIR``, ``yolo:DIR``, ``voc:DIR``,
            ``tags:FILE.csv``, ``masks:DIR``, each with ``?resize=320&crop=center`` if need be; or
            a data set of Hugging Face or torchvision; or `AnnotatedImages`.
        split: ``train`` or ``test``; data without a split is divided 80 : 20 by content, and with
            ``?split=all`` either is everything.
        task: What is to be known of the images.
        count: Images that are chosen at random; 0: all.
        seed: The choice follows from it.
        resize: See `hardcase.data.files.Sizing`; for data that is given as an object.
        crop: Likewise.

    Raises:
        HardcaseError: If there are no such data, or nothing of this task is known of them.
    """
    if task == "classes":
        raise HardcaseError(
            "images with one class each are no annotated images.", fix="hc.data.load"
        )
    if split not in SPLITS:
        raise choice("split", split, SPLITS)
    if isinstance(data, AnnotatedImages):
        return _for_task(_chosen(data, count, seed), task)
    sizing = Sizing(resize=resize, crop=crop)
    title, wanted = "annotated images", split
    if isinstance(data, str):
        title = data
        kind, _, rest = data.partition(":")
        rows = {name.partition(":")[0]: row for name, row in _rows(kind).items()}
        if kind in READERS:
            teams_module("formats", f"data {kind}:...", "teams")
        if kind not in rows:
            raise choice("annotated data set", data, tuple(_rows()))
        if ":" not in rows[kind].name:
            annotated: AnnotatedImages = rows[kind](split)
            return _for_task(_chosen(annotated, count, seed), task)
        raw, sizing, wanted = _opened(rows[kind], rest, split)
    elif hasattr(data, "features") and hasattr(data, "column_names"):
        what = "a data set of Hugging Face with objects"
        raw = teams_module("formats", what, "teams").read_hugging_face(data)
    else:
        raw = _torchvision(data)
    return _for_task(_assembled(raw, title, (split, wanted), sizing, task, (count, seed)), task)


def _rows(wanted: str = "") -> dict[str, registry.Part]:
    """The forms of annotated data; of those of plug-ins, the one that is `wanted`."""
    every = registry.parts("data", wanted).items()
    return {name: row for name, row in every if "task" in row.facts}


def _opened(row: registry.Part, rest: str, split: str) -> tuple[RawAnnotations, Sizing, str]:
    """What a reader finds at ``PATH?option=value``, the size of its images, and the part."""
    text, _, query = rest.partition("?")
    if not text:
        raise HardcaseError(f"{row.name} names no path.", fix=row.name)
    path = named_path(text)
    if not path.exists():
        raise HardcaseError(f"{path} does not exist.", f"Looked from {Path.cwd()}.", fix=row.name)
    choices = {name: each.choices for name, each in registry.options_of(row).items()}
    sizes: dict[str, tuple[str, ...]] = {"resize": (), "crop": ()}
    spec_choices = spec_options(row.name, {**choices, **sizes, "split": ("all",)}, query)
    sizing = Sizing.of({key: spec_choices.pop(key) for key in sizes if key in spec_choices})
    wanted = spec_choices.pop("split", split)
    return row(path, wanted, **spec_choices), sizing, wanted


def _chosen(annotated: AnnotatedImages, count: int, seed: int) -> AnnotatedImages:
    if not 0 < count < len(annotated):
        return annotated
    images = annotated.images
    numbered_rows = replace(images, context={"row": torch.arange(len(images))})
    rows = numbered_rows.sample(count=count, seed=seed).context["row"]
    return annotated.take(rows)


def _for_task(annotated: AnnotatedImages, task: Task) -> AnnotatedImages:
    """Only what a task needs, after looking whether it is there."""
    each = annotated.annotations
    there = {
        "boxes": any(len(annotation.boxes) for annotation in each),
        "tags": any(len(annotation.labels) for annotation in each),
        "masks": any(bool((annotation.mask != NONE).any()) for annotation in each),
    }
    if not there[task]:
        others = [name for name, labelled in there.items() if labelled]
        raise HardcaseError(
            f"{annotated.images.name} has no {task}.",
            f"It has {' and '.join(others) or 'nothing that is annotated'}.",
            fix=f"--task {others[0]}" if others else "",
        )
    none = torch.zeros(0, 4), torch.zeros(0, 0, dtype=torch.int16)
    if task == "boxes":
        reduced = [replace(annotation, mask=none[1]) for annotation in each]
    elif task == "tags":
        reduced = [Annotation(torch.unique(annotation.labels), *none) for annotation in each]
    else:
        labels = [
            torch.unique(annotation.mask[annotation.mask != NONE]).long() for annotation in each
        ]
        reduced = [
            Annotation(labels_of, none[0], annotation.mask)
            for labels_of, annotation in zip(labels, each)
        ]
    bare = sum(not len(annotation.labels) for annotation in reduced)
    notes = annotated.notes
    if bare:
        notes += (f"{bare} of {len(reduced)} images show nothing that is annotated.",)
    return AnnotatedImages(annotated.images, tuple(reduced), notes)


# From raw annotations to images of one size and boxes in their pixels.


def _assembled(
    raw: RawAnnotations,
    title: str,
    parts: tuple[str, str],
    sizing: Sizing,
    task: Task,
    choice_of: tuple[int, int],
) -> AnnotatedImages:
    split, wanted = parts
    names, y = list(raw.names), torch.zeros(len(raw.names), dtype=torch.int64)
    if not names:
        raise HardcaseError(f"{title} holds no images.")

    def read(row: int) -> npt.NDArray[np.uint8]:
        return image_pixels(raw.read(row), sizing, names[row])

    rows = torch.arange(len(names))
    stream = Stream(read, rows, y, raw.classes, 0, names.__getitem__, title, split)
    stream = part_of(peeked(stream), raw.divided, wanted, title)
    count, seed = choice_of
    if 0 < count < len(stream):
        stream = stream.sample(count=count, seed=seed)
    if len(stream) * math.prod(stream.shape) > HELD:
        raise HardcaseError(
            f"the {len(stream):,} images of {title} take more than {HELD / 2**30:.0f} GB.",
            fix="?resize=320 after the path, or fewer of them (--images)",
        )
    images = stream.images()
    chosen = stream.rows.tolist()
    sizes = [_size(raw.read(row)) for row in chosen]
    tally = Tally()
    corners = _corners(raw, chosen, sizes, tally)
    annotations = []
    for at, row in enumerate(chosen):
        labels, boxes = np.asarray(raw.labels[row], dtype=np.int64), corners[at]
        if raw.boxes:
            inside, boxes = _framed(boxes, sizes[at], sizing, tally)
            labels = labels[inside]
        mask = np.zeros((0, 0), dtype=np.int16)
        if raw.masks is not None and task == "masks":
            mask = _mask(raw.masks(row), sizing, sizes[at], raw.classes, names[row], tally)
        tensors = map(torch.from_numpy, (labels, boxes.astype(np.float32), mask))
        annotations.append(Annotation(*tensors))
    return AnnotatedImages(images, tuple(annotations), (*raw.notes, *tally.notes()))


WORDS = {
    "zero": "boxes have no area and are left out",
    "outside": "boxes lie outside their image and are left out",
    "cut": "boxes reach beyond their image and are cut",
    "cropped": "boxes are left out because the crop shows less than half of them",
    "unknown": "masks hold classes without a name; those pixels count for nothing",
}


@dataclass(slots=True)
class Tally:
    """What was odd about the boxes and masks of a set, counted."""

    counts: Counter[str] = field(default_factory=Counter)
    boxes: int = 0
    said: list[str] = field(default_factory=list)

    def notes(self) -> tuple[str, ...]:
        total = f" of {self.boxes}" if self.boxes else ""
        odd = [
            f"{self.counts[key]}{total} {words}."
            for key, words in WORDS.items()
            if self.counts[key]
        ]
        return (*self.said, *odd)


def _corners(
    raw: RawAnnotations, rows: Sequence[int], sizes: Sequence[tuple[int, int]], tally: Tally
) -> list[Boxes]:
    """The boxes of these rows as corners in pixels.

    Where the numbers fit the images better when read as corner and size instead of two corners, or
    the other way round, they are read so, and it is said.
    """
    if not raw.boxes:
        return [np.zeros((0, 4)) for _ in rows]
    with reading("boxes are not four numbers each"):
        boxes_of = [np.asarray(raw.boxes[row], dtype=np.float64).reshape(-1, 4) for row in rows]
        if [len(corners) for corners in boxes_of] != [len(raw.labels[row]) for row in rows]:
            raise ValueError("some have no class")
    tally.boxes = sum(map(len, boxes_of))
    if raw.form == "share":
        return [_as_corners(corners, "share", size) for corners, size in zip(boxes_of, sizes)]
    # Files rarely say which form their boxes have. All boxes of a set decide together, as a single
    # box often fits both readings.
    largest = max((float(corners.max()) for corners in boxes_of if len(corners)), default=0.0)
    if 0 < largest <= 1:
        tally.said.append("the numbers of the boxes lie between 0 and 1: read as shares of images.")
        scales = [np.array([*size, *size]) for size in sizes]
        boxes_of = [corners * scale for corners, scale in zip(boxes_of, scales)]
    other: Form = "xywh" if raw.form == "xyxy" else "xyxy"
    fits = {
        form: sum(
            _fitting(_as_corners(corners, form, size), size)
            for corners, size in zip(boxes_of, sizes)
        )
        for form in (raw.form, other)
    }
    best: Form = raw.form
    if fits[other] > fits[raw.form]:
        best = other
        tally.said.append(
            f"boxes are read as {SPELLED[other]}, which fits {fits[other]} of {tally.boxes};"
            f" as {SPELLED[raw.form]}, {fits[raw.form]} would fit."
        )
    return [_as_corners(corners, best, size) for corners, size in zip(boxes_of, sizes)]


def _as_corners(boxes: Boxes, form: Form, size: tuple[int, int]) -> Boxes:
    first, second = boxes[:, :2], boxes[:, 2:]
    if form == "xywh":
        return np.concatenate([first, first + second], 1)
    if form == "share":
        return np.concatenate([first - second / 2, first + second / 2], 1) * [*size, *size]
    return boxes


def _fitting(boxes: Boxes, size: tuple[int, int]) -> int:
    """How many boxes have an area and lie in their image."""
    area = (boxes[:, 2:] > boxes[:, :2]).all(1)
    slack = SLACK + 0.01 * max(size)
    inside = (boxes >= -slack).all(1) & (boxes[:, 2:] <= np.array(size) + slack).all(1)
    return int((area & inside).sum())


def _framed(
    boxes: Boxes, size: tuple[int, int], sizing: Sizing, tally: Tally
) -> tuple[npt.NDArray[np.int64], Boxes]:
    """The boxes that can be meant, in pixels of the image that is kept, and their numbers."""
    limit = np.array([*size, *size], dtype=np.float64)
    # Order matters: first boxes without an area, then those outside the image, then those that
    # resizing and cropping remove. A box that is dropped is counted under its first fault only.
    inside = np.clip(boxes, 0, limit)
    sides = boxes[:, 2:] - boxes[:, :2]
    good = np.isfinite(boxes).all(1) & (sides > 0).all(1)
    tally.counts["zero"] += int((~good).sum())
    there = (inside[:, 2:] > inside[:, :2]).all(1)
    tally.counts["outside"] += int((good & ~there).sum())
    framed = good & there
    tally.counts["cut"] += int((np.abs(boxes - inside)[framed] > SLACK).any(1).sum())
    (width, height), (left, top) = sizing.frame(size)
    scale = np.array([width / size[0], height / size[1]] * 2)
    moved = inside * scale - [left, top, left, top]
    end = [sizing.crop or width, sizing.crop or height]
    shown = np.clip(moved, 0, [*end, *end])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = _area(shown) / _area(moved)
    uncropped = framed & (share >= SEEN)
    tally.counts["cropped"] += int((framed & ~uncropped).sum())
    rows = np.flatnonzero(uncropped)
    return rows, shown[rows]


def _area(boxes: Boxes) -> Boxes:
    sides: Boxes = (boxes[:, 2:] - boxes[:, :2]).clip(0)
    area: Boxes = sides[:, 0] * sides[:, 1]
    return area


def _opened_image(item: Any) -> Image.Image:
    """An image, or a mask, before its pixels are read."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, Mapping):
        item = item.get("bytes") or Path(str(item.get("path")))
    if isinstance(item, Tensor | np.ndarray):
        array = np.asarray(item)
        if array.ndim == 3 and array.shape[0] in (1, 3):
            array = array.transpose(1, 2, 0)
        flat = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
        return Image.fromarray(np.ascontiguousarray(flat.astype(np.uint8)))
    with reading("cannot read an image" if isinstance(item, bytes) else f"cannot read {item}"):
        content = item if isinstance(item, bytes) else file_bytes(Path(item))
        return Image.open(BytesIO(content), formats=FORMATS)


TURNED = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""


def _size(item: Any) -> tuple[int, int]:
    """Width and height of an image that stands upright."""
    image = _opened_image(item)
    width, height = image.size
    if image.getexif().get(0x0112) in TURNED:
        return height, width
    return width, height


VOID = frozenset({"unlabeled", "unlabelled", "background", "void", "ignore", "none"})
"""Names of classes that say that nothing is known."""


def _mask(
    item: Any,
    sizing: Sizing,
    size: tuple[int, int],
    classes: tuple[str, ...],
    name: str,
    tally: Tally,
) -> npt.NDArray[np.int16]:
    """The class of each pixel, in the size of the image."""
    image = _opened_image(item)
    if image.mode not in ("L", "P", "1", "I;16", "I"):
        raise HardcaseError(
            f"the mask of {name} is of Pillow mode {image.mode}; class numbers are needed.",
            fix="PNG masks of one channel (L or P) that hold a class number in each pixel",
        )
    if _size(image) != size:
        raise HardcaseError(
            f"the mask of {name} is {image.size[0]}×{image.size[1]}, the image is"
            f" {size[0]}×{size[1]}."
        )
    upright = ImageOps.exif_transpose(image)
    plain = Image.fromarray(np.asarray(upright).astype(np.int32))
    values = np.asarray(sizing.apply(plain, Image.Resampling.NEAREST)).astype(np.int16)
    nothing = [number for number, word in enumerate(classes) if word.lower() in VOID]
    unknown = (values < 0) | ((values != NONE) & (values >= len(classes)))
    tally.counts["unknown"] += int(unknown.any())
    gone = unknown | np.isin(values, nothing)
    return np.where(gone, NONE, values).astype(np.int16)


# Data sets that are given as objects.


def numbered_labels(
    labels: Sequence[Sequence[Any]], names: tuple[str, ...]
) -> tuple[Sequence[Sequence[int]], tuple[str, ...]]:
    """Labels as numbers, and names of the classes, whichever of the two are given."""
    every = {label for row in labels for label in row}
    if any(isinstance(label, str) for label in every):
        names = names or tuple(sorted(every, key=natural))
        return [[names.index(label) for label in row] for row in labels], names
    return labels, names or tuple(map(str, range(1 + max(every, default=0))))


def _torchvision(data: Any) -> RawAnnotations:
    """A map-style data set of pairs: an image, and boxes with labels, the annotations of COCO or
    Pascal VOC, or a mask.
    """
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise HardcaseError(
            f"a {type(data).__name__} is no kind of annotated images that is known.",
            "Known are coco:, yolo:, voc:, tags:, masks:, and data sets of Hugging Face"
            " and torchvision.",
        )
    item = lru_cache(maxsize=4096)(data.__getitem__)
    targets = [item(row)[1] for row in range(len(data))]
    kinds = {type(box).__name__ for box in targets}
    form: Form = "xyxy"
    names = tuple(map(str, getattr(data, "classes", ()) or ()))
    labels, boxes, masks = [list[Any]() for _ in targets], list[Any](), None
    if all(isinstance(box, list) for box in targets):  # CocoDetection
        form = "xywh"
        boxes = [[each["bbox"] for each in box] for box in targets]
        labels = [[int(each["category_id"]) for each in box] for box in targets]
        categories = getattr(getattr(data, "coco", None), "cats", {})
        stated = {number: str(each["name"]) for number, each in categories.items()}
        names = names or names_by_number(stated)
    elif all(isinstance(box, Mapping) and "boxes" in box for box in targets):
        boxes = [np.asarray(box["boxes"], dtype=np.float64).tolist() for box in targets]
        labels = [np.asarray(box["labels"]).astype(int).tolist() for box in targets]
    elif all(isinstance(box, Mapping) and "annotation" in box for box in targets):  # VOCDetection
        objects = [box["annotation"].get("object", []) for box in targets]
        boxes = [[voc_box(each["bndbox"]) for each in box] for box in objects]
        labels = [[each["name"] for each in box] for box in objects]
    elif all(isinstance(box, Image.Image | Tensor | np.ndarray) for box in targets):
        masks = lambda row: item(row)[1]  # noqa: E731 - as short as it is
        pixels = [np.asarray(box) for box in targets]
        most = max(int(box[box != NONE].max(initial=0)) for box in pixels)
        names = names or tuple(map(str, range(most + 1)))
    else:
        raise HardcaseError(
            f"targets are {', '.join(sorted(kinds))}; boxes and labels are needed.",
            fix='items (image, {"boxes": XYXY, "labels": class numbers})',
        )
    numbers, names = numbered_labels(labels, names)
    return RawAnnotations(
        read=lambda row: item(row)[0],
        names=numbered("dataset", len(targets)),
        classes=names,
        labels=numbers,
        boxes=boxes,
        form=form,
        masks=masks,
        divided=True,
    )


def voc_box(stated: Mapping[str, str]) -> list[float]:
    """A box of Pascal VOC, whose pixels count from 1."""
    x0, y0, x1, y1 = (float(stated[key]) for key in ("xmin", "ymin", "xmax", "ymax"))
    return [x0 - 1, y0 - 1, x1, y1]
