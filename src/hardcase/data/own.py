"""A user's own images: class folders, CSV tables, NumPy files, Parquet files, runs.

Every reader returns `OwnData`. Folders and tables are streams: nothing is decoded before it is
needed.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from hardcase.cache import open_npz, parquet_groups, regular, unpacked
from hardcase.data.files import Array, Bytes, ImageSet, Labels, Sizing, Stream, decoded
from hardcase.errors import HardcaseError, reading
from hardcase.registry import data
from hardcase.tensors import to_tensor
from hardcase.types import Images

IMAGES = ("image", "images", "img", "x", "pixel_values")
PATHS = ("path", "file", "filename", "file_name", "picture")
LABELS = (
    *("label", "labels", "fine_label", "y", "class"),
    *("target", "targets", "category", "expected"),
)
"""What people call their columns and arrays of images, of paths to them, and of classes."""
MOST_CLASSES = 1_000_000
_SPLIT = ("train and test never overlap", "fixed split")


@dataclass(frozen=True, slots=True)
class OwnData:
    """The result of a reader; `divided`: the source has a split, and this is a part of it."""

    images: ImageSet
    divided: bool


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}/{i:05d}" for i in range(count))


def names_by_number(table: Mapping[int, str], least: int = 0) -> tuple[str, ...]:
    """Names of classes from a table; those that it leaves out are named by their number."""
    count = max(least, max(table, default=-1) + 1)
    return tuple(str(table.get(number, number)) for number in range(count))


def natural(text: str) -> tuple[list[str | int], str]:
    """A sorting key that puts ``2`` before ``10`` and ignores case."""
    parts: list[str | int] = [*re.split(r"(\d+)", text.lower())]
    parts[1::2] = [int(digits) for digits in parts[1::2]]
    return parts, text


def class_names(labels: Labels, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names, or as many numbers as the labels need."""
    if names:
        return tuple(names)
    count = int(labels.max(initial=-1)) + 1
    if count > MOST_CLASSES:
        raise HardcaseError(
            f"the largest label is {count - 1}; without names, at most {MOST_CLASSES:,} classes are"
            " taken as meant.",
            fix="count the classes from 0, without gaps",
        )
    return tuple(str(i) for i in range(count))


def labelled(
    labels: Sequence[Any], classes: Sequence[str], count: int, name: str
) -> tuple[Labels, tuple[str, ...]]:
    """Class numbers and names of `count` images from labels that are numbers or names."""
    if len(labels) != count:
        raise HardcaseError(
            f"{name}: {count} images, but {len(labels)} labels.", fix="one label for each image"
        )
    kinds = {type(each) for each in labels}
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        y = np.asarray(labels, dtype=np.int64)
        names = class_names(y, classes)
    elif all(issubclass(kind, str) for kind in kinds):
        names = tuple(classes) or tuple(sorted(set(labels), key=natural))
        number = {each: at for at, each in enumerate(names)}
        strange = [each for each in labels if each not in number]
        if strange:
            raise HardcaseError(
                f"{name}: label {strange[0]!r} is none of the {len(names)} classes given."
            )
        y = np.asarray([number[each] for each in labels], dtype=np.int64)
    else:
        kind_names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise HardcaseError(f"{name}: labels are {kind_names}; whole numbers or names are needed.")
    if count and (y.min() < 0 or y.max() >= len(names)):
        raise HardcaseError(
            f"{name}: labels run from {y.min()} to {y.max()} for {len(names)} classes.",
            "Labels count from 0.",
            fix="labels - 1, if they count from 1",
        )
    return y, names


def as_whole_numbers(labels: Array, where: str) -> Labels:
    """Labels as int64, a label per image; a single column is accepted."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise HardcaseError(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}; one whole number per"
            " image is needed.",
            fix="save class numbers counted from 0 (for one-hot labels: labels.argmax(1))",
        )
    return flat.astype(np.int64)


# Images and labels in a NumPy ``.npz`` file.


@data("npz:PATH", needs="8-bit images, or floats in 0..1", laws=_SPLIT)
def read_npz(path: Path, split: str) -> OwnData:
    """NumPy arrays `images` (or x) and `labels` (or y), and class names in `classes` if there are
    any.

    With `x_train`, `y_train`, `x_test`, `y_test` the split of the file.
    """
    fix = "np.savez(path, images=..., labels=...)"
    why = "Arrays of Python objects need unpickling, which can run code, and are not read."
    with reading(f"cannot read {path} as npz", why, fix=fix), open_npz(path) as arrays:
        divided = {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys()
        parts = ["_train", "_test"] if divided else [""]

        def pick(keys: tuple[str, ...], part: str) -> Array:
            key = first_key(list(arrays), [f"{key}{part}" for key in keys], str(path))
            picked: Array = arrays[key]
            return picked

        labels = {part: pick(LABELS, part) for part in parts}
        named = [str(name) for name in np.ravel(arrays.get("classes", []))]
        wanted = [part for part in parts if part in ("", f"_{split}") or split == "all"]
        images = [to_nchw(to_uint8(pick(IMAGES, part), str(path)), str(path)) for part in wanted]
    y = {part: as_whole_numbers(values, str(path)) for part, values in labels.items()}
    ids = list[str]()
    for part, x in zip(wanted, images):
        ids += numbered(f"{path.stem}{part.replace('_', '/')}", len(x))
        if len(x) != len(y[part]):
            raise HardcaseError(
                f"{path}: {len(x)} images, but {len(y[part])} labels.",
                fix="save one label for each image",
            )
    pixels = to_tensor(np.concatenate(images))
    chosen = to_tensor(np.concatenate([y[part] for part in wanted]))
    classes = class_names(np.concatenate(list(y.values())), named)
    return OwnData(Images(pixels, chosen, tuple(ids), classes), divided)


def to_uint8(images: Array, where: str) -> Bytes:
    """8-bit images as they are, floats in [0, 1] rounded to 8 bits, anything else refused."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise HardcaseError(
            f"{where}: images are {images.dtype}; 8-bit (uint8) or floats in 0..1 are needed.",
            fix="images.astype(np.uint8), if the values lie in 0..255",
        )
    low = float(images.min(initial=0.0))
    high = float(images.max(initial=0.0))
    if not (low >= 0 and high <= 1):
        raise HardcaseError(
            f"{where}: float images range over {low:.4g}..{high:.4g}; 0..1 is needed.",
            "Normalised images cannot be turned back into 8 bits here; normalisation belongs to the"
            " model.",
            fix="divide by 255 if they range over 0..255, or undo the normalisation",
        )
    return np.rint(images.astype(np.float64) * 255).astype(np.uint8)


def to_nchw(images: Bytes, where: str) -> Bytes:
    """N x H x W, N x H x W x C or N x C x H x W, told apart by which axis has 1 or 3 entries."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise HardcaseError(
            f"{where}: images have shape {images.shape}; 3 axes (grey) or 4 axes are needed."
        )
    first, last = (images.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        could = "either axis 1 or axis 3" if first else "neither axis 1 nor axis 3"
        raise HardcaseError(
            f"{where}: images have shape {images.shape}; {could} could be 1 or 3 channels.",
            fix="1 (grey) or 3 (colour) channels, and images that are larger than 3 pixels",
        )
    return images if first else images.transpose(0, 3, 1, 2)


# Image files in class folders, or with the class number at the start of their names.

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"}
)


def file_stream(
    files: Sequence[Path], y: Labels, ids: Sequence[str], classes: tuple[str, ...], sizing: Sizing
) -> Stream:
    """Image files with their labels, before anything is decoded."""

    def read(row: int) -> Bytes:
        return decoded(file_bytes(files[row]), sizing, str(files[row]))

    names = [shown_name(name) for name in ids]
    shown = tuple(map(shown_name, classes))
    return Stream(read, torch.arange(len(files)), to_tensor(y), shown, 0, names.__getitem__)


def shown_name(name: str) -> str:
    """A name of the file system, whose bytes may be no UTF-8, as text that can be stored."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def file_bytes(path: Path) -> bytes:
    with reading(f"cannot read the image {path}"):
        return regular(path).read_bytes()


@data(
    "folder:PATH",
    needs="PNG, JPEG or other images; of several sizes with ?resize=224&crop=center",
    laws=_SPLIT,
)
def read_folder(
    path: Path,
    split: str,
    *,
    labels: Literal["folder", "prefix"] = "folder",
    resize: str = "0",
    crop: str = "0",
) -> OwnData:
    """Image files in class folders; ?labels=prefix reads the number before the first _.

    All images below the path; if it has folders ``train`` and ``test``, those of the split only.

    Args:
        path: The folder.
        split: ``train``, ``test`` or ``all``.
        labels: Where the class of an image is written.
        resize: Pixels of the shorter side, or of both without `crop`; 0 leaves the size.
        crop: Side of the square that is cut from the middle; ``center`` cuts what `resize` says.
    """
    if not path.is_dir():
        raise HardcaseError(
            f"{path} is not a folder.",
            fix="folder:PATH takes a folder; for files: npz:PATH, parquet:PATH",
        )
    # parts of the data hold folders; classes called train and test do not
    halves = [path / "train", path / "test"]
    divided = all(
        part.is_dir() and any(inner.is_dir() for inner in part.iterdir()) for part in halves
    )
    parts = ("train", "test") if divided else ("",)
    labelled_files = [(part, file) for part in parts for file in image_files(path / part)]
    if not labelled_files:
        raise HardcaseError(
            f"there are no images in {path}.",
            f"Looked for {', '.join(sorted(SUFFIXES))} at any depth.",
        )
    if labels == "prefix":
        y = np.array([_prefix(file) for _, file in labelled_files], dtype=np.int64)
        classes = class_names(y, None)
    else:
        inside = [folder for part in parts for folder in (path / part).iterdir()]
        names = {folder.name for folder in inside if folder.is_dir()}
        shown = [name for name in names if not _hidden(Path(name))]
        classes = tuple(sorted(shown, key=natural))
        y = _labels_by_folder(path, labelled_files, classes)
    rows = [
        i for i, (part, _) in enumerate(labelled_files) if part in ("", split) or split == "all"
    ]
    files = [labelled_files[i][1] for i in rows]
    home = path.resolve().name
    ids = [f"{home}/{file.relative_to(path).as_posix()}" for file in files]
    sizing = Sizing.of({"resize": resize, "crop": crop})
    return OwnData(file_stream(files, y[rows], ids, classes, sizing), divided)


def image_files(root: Path) -> list[Path]:
    """The image files below `root` in natural order, hidden ones left out."""
    with reading(f"cannot list the files in {root}"):
        files = [
            file
            for file in root.rglob("*")
            if file.suffix.lower() in SUFFIXES
            and file.is_file()
            and not _hidden(file.relative_to(root))
        ]
    return sorted(files, key=lambda file: natural(file.relative_to(root).as_posix()))


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def _labels_by_folder(
    path: Path, files: list[tuple[str, Path]], classes: tuple[str, ...]
) -> Labels:
    places = [file.relative_to(path / part).parts for part, file in files]
    loose = [file for (_, file), parts in zip(files, places) if len(parts) == 1]
    if loose:
        raise HardcaseError(
            f"{len(loose)} of {len(files)} images in {path} lie in no class folder, the first is"
            f" {loose[0]}.",
            "The folder that holds an image names its class.",
            fix="move them into class folders, or for names such as 7_photo.png:"
            f" --data 'folder:{path}?labels=prefix'",
        )
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[parts[0]] for parts in places], dtype=np.int64)


def _prefix(file: Path) -> int:
    match = re.match(r"(\d{1,6})_", file.name)
    if match is None:
        raise HardcaseError(
            f"the name of {file} does not start with a class number and _.",
            "With ?labels=prefix every image is named like 7_photo.png; classes count from 0.",
        )
    return int(match[1])


# A CSV table of paths and labels.


@data(
    "csv:PATH",
    needs="columns path and label; a column split with train and test divides it",
    laws=_SPLIT,
)
def read_csv(path: Path, split: str, *, resize: str = "0", crop: str = "0") -> OwnData:
    """A table with a column of image paths and a column of labels (numbers or names).

    Args:
        path: The file; relative paths in it start at its folder.
        split: ``train``, ``test`` or ``all``.
        resize: Pixels of the shorter side, or of both without `crop`; 0 leaves the size.
        crop: Side of the square that is cut from the middle; ``center`` cuts what `resize` says.
    """
    return table(path, split, Sizing.of({"resize": resize, "crop": crop}))


def table(path: Path, split: str, sizing: Sizing, classes: Sequence[str] = ()) -> OwnData:
    """`read_csv`, with names for the classes where the labels are numbers."""
    rows = csv_rows(path)
    where = first_key(rows[0], (*PATHS, *IMAGES), str(path))
    what = first_key(rows[0], LABELS, str(path))
    words: list[Any] = [row[what] for row in rows]
    if all(word.isdigit() for word in words) and not classes:
        words = [int(word) for word in words]
    y, names = labelled(words, classes, len(rows), str(path))
    divided = "split" in rows[0]
    chosen = rows_of_split(rows, split)
    files = [path.parent / rows[i][where] for i in chosen]
    ids = [f"{path.stem}/{file.name}" for file in files]
    return OwnData(file_stream(files, y[chosen], ids, names, sizing), divided)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table with a line of names at its top."""
    with (
        reading(f"{path} cannot be read as CSV"),
        regular(path).open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = list(csv.DictReader(file))
    if not rows:
        raise HardcaseError(f"{path} holds no rows.", fix="a first line with the words path,label")
    return rows


def rows_of_split(rows: Sequence[dict[str, str]], split: str) -> list[int]:
    """The rows that a column ``split`` names for a split; all of them where there is none."""
    if "split" not in rows[0]:
        return list(range(len(rows)))
    parts = ("train", "test") if split == "all" else (split,)
    return [i for part in parts for i, row in enumerate(rows) if row["split"] in (part, "")]


def first_key(table: Sequence[str] | dict[str, Any], names: Sequence[str], name: str) -> str:
    """The first of these names that a table has."""
    present = list(table)
    match = next((key for key in names if key in present), None)
    if match is None:
        raise HardcaseError(
            f"{name} has no {' or '.join(names[:3])}; it has {', '.join(map(str, present))}.",
            fix=f"call it {names[0]}",
        )
    return match


# Parquet files with encoded images: Hugging Face data sets, and the failures of a run.


@data("parquet:PATH", needs="columns image and label (or expected)", laws=_SPLIT)
def read_parquet(path: Path, split: str) -> OwnData:
    """Parquet file or folder with encoded images and labels, as Hugging Face data sets and failures
    are.

    A file, or all ``*.parquet`` below a folder; files named ``train*`` and ``test*`` are the
    split of the source.
    """
    files = [path]
    if path.is_dir():
        parts = sorted(path.rglob("*.parquet"), key=lambda file: natural(str(file)))
        files = [file for file in parts if not file.name.startswith(".")]
    if not files:
        raise HardcaseError(f"there are no Parquet files in {path}.")
    prefix = path.resolve().stem
    if not all(any(file.name.startswith(part) for file in files) for part in ("train", "test")):
        return _read(files, files, prefix, path, divided=False)
    wanted = [file for file in files if split == "all" or file.name.startswith(split)]
    return _read(wanted, files, f"{prefix}/{split}", path, divided=True)


@data("run:RUN", needs="a run folder", undivided=True)
def read_run(path: Path, split: str) -> OwnData:
    """The failures of a run under the labels that they should have had.

    A run is not divided: both splits are all of it.
    """
    files = sorted((path / "findings").glob("part-*.parquet"), key=lambda file: natural(file.name))
    if not (path / "run.json").exists() and not files:
        raise HardcaseError(
            f"{path} is not a run: it has neither run.json nor failures.",
            fix="run:RUN with the --out folder",
        )
    if not files:
        raise HardcaseError(f"the run {path} has no failures yet.", fix=f"hardcase status {path}")
    return _read(files, files, path.resolve().name, path, divided=True)


def _read(
    wanted: list[Path], every: list[Path], prefix: str, where: Path, *, divided: bool
) -> OwnData:
    """The images of the `wanted` files; `every` file counts for the number of classes."""
    with reading(f"cannot read {every[0]} as Parquet"):
        columns = list(parquet.read_schema(regular(every[0])).names)
    image = first_key(columns, IMAGES, str(where))
    label = first_key(columns, LABELS, str(where))
    table = _open(wanted, [image, label, *(name for name in ("id",) if name in columns)], where)
    if not table.num_rows:
        raise HardcaseError(
            f"{where} holds no images.", f"Read {len(wanted)} Parquet files without rows."
        )
    ids = _ids(table, prefix)
    encoded = _encoded(table.column(image), ids, where)
    names = _stated_names(table, label, every[0].parent.parent)
    used = _labels(table if names else _open(every, [label], where), label, where)

    def read(row: int) -> Bytes:
        return decoded(encoded[row], Sizing(), f"{ids[row]} in {where}")

    y = to_tensor(_labels(table, label, where))
    rows = torch.arange(len(ids))
    stream = Stream(read, rows, y, class_names(used, names), 0, ids.__getitem__)
    return OwnData(stream.images(), divided)


def _labels(table: pa.Table, label: str, where: Path) -> Labels:
    column = table.column(label)
    if column.null_count:
        raise HardcaseError(
            f"{where}: {column.null_count} of {len(column)} labels are missing in column {label}."
        )
    return as_whole_numbers(column.to_numpy(), f"{where}, column {label}")


def _open(files: list[Path], columns: list[str], where: Path) -> pa.Table:
    """The columns of files as a single table with the description of the first."""
    tables: list[pa.Table] = []
    for file in files:
        with (
            reading(f"cannot read {file} as Parquet"),
            parquet.ParquetFile(regular(file)) as opened,
        ):
            missing = set(columns) - set(opened.schema_arrow.names)
            if missing:
                raise HardcaseError(
                    f"{file} lacks column {', '.join(missing)} of other files of {where}."
                )
            groups = range(opened.num_row_groups)
            tables += parquet_groups(opened, groups, columns, unpacked(file))
    with reading(f"the Parquet files of {where} do not fit together"):
        return pa.concat_tables(tables, promote_options="permissive")


def _ids(table: pa.Table, prefix: str) -> tuple[str, ...]:
    if "id" in table.column_names and pa.types.is_string(table.schema.field("id").type):
        return tuple(f"{prefix}/{name}" for name in table.column("id").to_pylist())
    return numbered(prefix, table.num_rows)


def _encoded(column: pa.ChunkedArray, ids: tuple[str, ...], where: Path) -> list[bytes]:
    """The encoded bytes of every image, from ``{bytes, path}`` or from a plain column of bytes."""
    merged = pa.concat_arrays(column.chunks)
    if pa.types.is_struct(merged.type) and merged.type.get_field_index("bytes") >= 0:
        merged = merged.field("bytes")
    if not (pa.types.is_binary(merged.type) or pa.types.is_large_binary(merged.type)):
        raise HardcaseError(
            f"{where}: images are stored as {merged.type}; encoded images (PNG, JPEG) are needed."
        )
    if merged.null_count:
        first = ids[merged.is_null().to_pylist().index(True)]
        raise HardcaseError(
            f"{where}: {merged.null_count} images have no content, the first is {first}."
        )
    return list(merged.to_pylist())


def _stated_names(table: pa.Table, label: str, run: Path) -> list[str] | None:
    """The class names in the file's ``huggingface`` metadata or in a run's record, if any."""
    unstated = (OSError, ValueError, KeyError, TypeError, RecursionError)
    with suppress(*unstated):
        described = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        return [str(name) for name in described["info"]["features"][label]["names"]]
    with suppress(*unstated):
        if (run / "run.json").is_file():  # a pipe would be waited for
            return [str(name) for name in json.loads((run / "run.json").read_text())["classes"]]
    return None
