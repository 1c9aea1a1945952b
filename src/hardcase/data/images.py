"""`images_of`: labelled images from whatever a user has them in.

Data sets and loaders of torch, Hugging Face data sets, arrays, lists of images, folders and CSV
tables become `Images` (all in memory) or a `Stream` (decoded when asked for).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hardcase.data import sources as named
from hardcase.data.files import Array, Bytes, Sizing, Stream, decoded, peeked, pixels_of
from hardcase.data.own import (
    IMAGES,
    LABELS,
    PATHS,
    file_bytes,
    known_key,
    labelled,
    numbered,
    table,
    to_nchw,
    to_uint8,
)
from hardcase.errors import Problem
from hardcase.tensors import to_tensor
from hardcase.types import Images

IMAGE_KEYS = (*IMAGES, *PATHS)


def images_of(
    data: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] = (),
    resize: int = 0,
    crop: int = 0,
    name: str = "images",
    split: str = "test",
) -> Images:
    """Labelled images from `data`, decoded and of one size.

    Args:
        data: `Images`, a `Stream`, the name of a data set (``folder:photos``, ``mnist5k``), a CSV
            file of paths and labels, a torch ``Dataset`` or ``DataLoader``, a Hugging Face
            ``Dataset``, a pair (images, labels), an array, or a list of images, paths or
            (image, label) pairs.
        labels: One class number or name for each image, where `data` has none.
        classes: Names of the classes in the order of their numbers, where `data` does not say them.
        resize: See `Sizing`; not for data that is already an array.
        crop: See `Sizing`.
        name: How reports call the data.
        split: Which part of the data this is.

    Example:
        >>> import numpy as np
        >>> images = images_of(np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 0, 1])
        >>> len(images), tuple(images.x.shape)
        (4, (4, 1, 8, 8))
    """
    if isinstance(data, Images | Stream):
        return data.images()
    pair = isinstance(data, tuple) and len(data) == 2 and labels is None
    if pair and len(data[0]) == len(data[1]):
        data, labels = data
    if isinstance(data, DataLoader | IterableDataset):
        return _walked(data, classes, name, split)
    if isinstance(data, np.ndarray | Tensor):
        return _arrays(data, labels, classes, name, split)
    sizing = Sizing(resize=resize, crop=crop)
    sized = sizing or "resize=" in str(data)
    if isinstance(data, str) and not sized and not data.endswith(".csv"):
        return named.load(data, split=split)
    return stream_of(data, labels, classes, sizing, name, split).images()


def is_lazy(data: Any) -> bool:
    """Whether `stream_of` reads it: it has rows that can be asked for one by one."""
    arrays = (tuple, np.ndarray, Tensor, Images, Stream)
    return not isinstance(data, (*arrays, DataLoader, IterableDataset))


def stream_of(
    data: Any,
    labels: Any = None,
    classes: Sequence[str] = (),
    sizing: Sizing | None = None,
    name: str = "images",
    split: str = "test",
) -> Stream:
    """As `images_of`, but nothing is decoded until it is asked for."""
    sizing = sizing or Sizing()
    if isinstance(data, str) and data.startswith("folder:"):
        spec = data
        if sizing and "resize=" not in data and "crop=" not in data:
            where, _, query = data.partition("?")
            spec = f"{where}?{'&'.join(filter(None, [query, str(sizing)]))}"
        found, _ = named.opened(spec, split)
        assert isinstance(found.images, Stream)
        return peeked(replace(found.images, name=data, split=split))
    if isinstance(data, str | Path):
        path = Path(str(data).removeprefix("csv:"))
        stream = table(path, split, sizing, classes).images
        assert isinstance(stream, Stream)
        title = path.stem if name == "images" else name
        return peeked(replace(stream, name=title, split=split))
    if hasattr(data, "features") and hasattr(data, "column_names"):
        items, labels, classes = _hugging_face(data, name)
    elif isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        items, labels, classes = _torch(data, labels, classes, name)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        items, labels = _listed(data, labels, name)
    else:
        raise Problem(
            f"a {type(data).__name__} is no kind of labelled images that is known.",
            "Known are data sets and loaders of torch, Hugging Face data sets, arrays, lists of"
            " images, folder:PATH and CSV.",
        )
    y, names = labelled(_plain(labels), classes, len(data), name)
    undo = _undo(data)
    samples = getattr(data, "samples", None) or (data if isinstance(data, Sequence) else ())
    firsts = [item[0] if isinstance(item, tuple | list) and item else item for item in samples]
    files = {row: Path(it).name for row, it in enumerate(firsts) if isinstance(it, str | Path)}

    def called(row: int) -> str:
        return f"{name}/{files.get(row, f'{row:05d}')}"

    def read(row: int) -> Bytes:
        return image_pixels(items(row), sizing, called(row), undo)

    rows = torch.arange(len(y))
    return peeked(Stream(read, rows, torch.from_numpy(y), names, 0, called, name, split))


Items = Callable[[int], Any]
"""The image of a row, in whatever form the data have it."""


def _torch(
    data: Any, labels: Any, classes: Sequence[str], name: str
) -> tuple[Items, Any, Sequence[str]]:
    """A map-style data set; labels from ``targets`` or ``samples``, else from every item once."""

    def image(row: int) -> Any:
        item = data[row]
        if labels is not None and not isinstance(item, tuple | list | Mapping):
            return item
        return _pair(item, name)[0]

    known = labels
    if known is None:
        known = getattr(data, "targets", None)
    if known is None and hasattr(data, "samples"):
        known = [target for _, target in data.samples]
    if known is None:
        known = [_pair(data[row], name)[1] for row in range(len(data))]
    return image, known, classes or _own_classes(data)


def _hugging_face(data: Any, name: str) -> tuple[Items, Any, Sequence[str]]:
    image = known_key(data.column_names, IMAGE_KEYS, name)
    label = known_key(data.column_names, LABELS, name)
    stated = getattr(data.features[label], "names", None) or ()
    return lambda row: data[row][image], list(data[label]), [str(each) for each in stated]


def _listed(data: Sequence[Any], labels: Any, name: str) -> tuple[Items, Any]:
    """Images, arrays or paths with labels beside them, or pairs of the two."""
    if labels is not None:
        return data.__getitem__, labels
    pairs = [_pair(item, name) for item in data]
    return lambda row: pairs[row][0], [label for _, label in pairs]


def _arrays(
    x: Array | Tensor, labels: Any, classes: Sequence[str], name: str, split: str
) -> Images:
    if labels is None:
        raise Problem(f"{name}: an array of images needs labels.", fix="images_of(images, labels)")
    pixels = to_nchw(to_uint8(_numpy(x), name), name)
    y, names = labelled(_plain(labels), classes, len(pixels), name)
    ids = numbered(name, len(pixels))
    return Images(to_tensor(pixels), torch.from_numpy(y), ids, names, name, split)


def _numpy(x: Any) -> Array:
    return np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)


def _plain(labels: Any) -> list[Any]:
    """Labels as numbers and names of Python."""
    if isinstance(labels, Tensor | np.ndarray):
        if labels.ndim != 1:
            raise Problem(
                f"labels have shape {tuple(labels.shape)}; one for each image is needed.",
                fix="labels.argmax(1)",
            )
        labels = labels.tolist()
    return [each.item() if isinstance(each, Tensor | np.generic) else each for each in labels]


def _walked(data: Iterable[Any], classes: Sequence[str], name: str, split: str) -> Images:
    """The batches of a loader, or the items of an iterable data set, read once."""
    source = getattr(data, "dataset", data)
    undo = _undo(source)
    pixels = list[Bytes]()
    labels = list[Any]()
    for item in data:
        x, y = _pair(item, name)
        array = _numpy(x)
        if array.ndim < 4 and not isinstance(data, DataLoader):
            array = array[None]
            y = [y]
        pixels.append(to_nchw(to_uint8(undo(array), name), name))
        labels += _plain(y)
    if not pixels:
        raise Problem(f"{name} holds no images.")
    return _arrays(np.concatenate(pixels), labels, classes or _own_classes(source), name, split)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    """Image and label of an item or a batch."""
    if isinstance(item, Mapping):
        keys = dict(item)
        return item[known_key(keys, IMAGE_KEYS, name)], item[known_key(keys, LABELS, name)]
    if isinstance(item, Sequence) and len(item) >= 2:
        return item[0], item[1]
    raise Problem(f"{name}: an item is a {type(item).__name__}; an image and its label are needed.")


def _own_classes(source: Any) -> tuple[str, ...]:
    return tuple(map(str, getattr(source, "classes", ()) or ()))


def _undo(source: Any) -> Callable[[Array], Array]:
    """What takes a data set's own normalisation back, so that images are in 0..1 again."""
    steps = getattr(getattr(source, "transform", None), "transforms", ()) or ()
    last = next((step for step in steps if hasattr(step, "mean") and hasattr(step, "std")), None)
    if last is None:
        return np.asarray
    mean = np.asarray(last.mean, dtype=np.float32).reshape(-1, 1, 1)
    std = np.asarray(last.std, dtype=np.float32).reshape(-1, 1, 1)
    return lambda array: np.clip(array * std + mean, 0, 1)


def image_pixels(
    item: Any, sizing: Sizing, where: str, undo: Callable[[Array], Array] = np.asarray
) -> Bytes:
    """Any single image as H x W or H x W x 3."""
    if isinstance(item, Image.Image):
        return pixels_of(item, sizing, where)
    if isinstance(item, Mapping):
        item = item.get("bytes")
    if isinstance(item, str | Path):
        item = file_bytes(Path(item))
    if isinstance(item, bytes):
        return decoded(item, sizing, where)
    if isinstance(item, Tensor | np.ndarray):
        whole: Bytes = to_nchw(to_uint8(undo(_numpy(item))[None], where), where)[0]
        flat: Bytes = whole[0] if len(whole) == 1 else whole.transpose(1, 2, 0)
        if not sizing:
            return flat
        return pixels_of(Image.fromarray(np.ascontiguousarray(flat)), sizing, where)
    raise Problem(f"{where} is a {type(item).__name__}; an image, an array or a path is needed.")
