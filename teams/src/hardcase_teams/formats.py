"""Readers of annotated images: COCO JSON, YOLO folders, Pascal VOC, tables of tags, masks as PNG,
data sets of Hugging Face.

Each finds the files and reads what is said of them; no image is decoded here. Own code, because
what is needed of these forms is a few lines of JSON, XML or text, while the libraries that know
them bring compiled parts (`pycocotools`), OpenCV (`supervision`) or a database (FiftyOne). Of YAML
only a list of names is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hardcase.cache import named_path, regular
from hardcase.claims.annotations import RawAnnotations, numbered_labels, voc_box
from hardcase.data.own import (
    IMAGES,
    PATHS,
    csv_rows,
    file_bytes,
    first_key,
    image_files,
    natural,
    numbered,
    rows_of_split,
    shown_name,
)
from hardcase.data.sources import IMAGE_KEYS
from hardcase.errors import HardcaseError, reading
from hardcase.registry import data

__all__ = ["read_coco", "read_masks", "read_tags", "read_voc", "read_yolo"]

_NEEDS = "images of several sizes with ?resize=320 or ?resize=320&crop=center"


@data("coco:FILE.json", needs=_NEEDS, task="boxes")
def read_coco(path: Path, split: str, *, images: str = "") -> RawAnnotations:
    """Boxes of COCO's JSON: images, annotations and categories.

    Crowds are left out.

    Args:
        path: The JSON file.
        split: ``train``, ``test`` or ``all``.
        images: The folder of the images; by default ``images`` beside the file, or its folder.
    """
    with reading(f"cannot read {path} as COCO's JSON"):
        stated = json.loads(regular(path).read_text(encoding="utf-8"))
        names = {int(each["id"]): str(each["name"]) for each in stated["categories"]}
        listed = [(str(each["id"]), str(each["file_name"])) for each in stated["images"]]
        objects = [
            (str(each["image_id"]), int(each["category_id"]), [float(one) for one in each["bbox"]])
            for each in stated["annotations"]
            if "bbox" in each and not each.get("iscrowd")
        ]
    order = {number: at for at, number in enumerate(sorted(names))}
    strange = [category for _, category, _ in objects if category not in order]
    if strange:
        raise HardcaseError(
            f"{path}: {len(strange)} boxes are of category {strange[0]}, which it does not name."
        )
    folder = named_path(images) if images else _beside(path, listed)
    files = _present([folder / name for _, name in listed], path, "?images=DIR after the file")
    held: dict[str, list[tuple[int, list[float]]]] = {number: [] for number, _ in listed}
    for image, category, box in objects:
        if image in held:
            held[image].append((order[category], box))
    rows = [held[number] for number, _ in listed]
    return RawAnnotations(
        read=files.__getitem__,
        names=_ids(path.stem, files, folder),
        classes=tuple(names[number] for number in sorted(names)),
        labels=[[label for label, _ in row] for row in rows],
        boxes=[[box for _, box in row] for row in rows],
        form="xywh",
    )


def _beside(path: Path, listed: Sequence[tuple[str, str]]) -> Path:
    inner = path.parent / "images"
    if any((inner / name).is_file() for _, name in listed):
        return inner
    return path.parent


def _present(files: list[Path], where: Path, fix: str) -> list[Path]:
    """The files, refused where one is not there."""
    gone = [file for file in files if not file.is_file()]
    if gone:
        raise HardcaseError(
            f"{len(gone)} of {len(files)} images that {where} names are not there, the first is"
            f" {gone[0]}.",
            fix=fix,
        )
    return files


def _ids(home: str, files: Sequence[Path], root: Path) -> list[str]:
    def below(file: Path) -> str:
        return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name

    return [shown_name(f"{home}/{below(file)}") for file in files]


@data("yolo:DIR", needs=_NEEDS, task="boxes")
def read_yolo(path: Path, split: str) -> RawAnnotations:
    """Boxes as YOLO keeps them: a text file for each image, and names in a YAML file.

    An image below a folder ``images`` has its text below ``labels``; others have it beside them.
    Folders ``train`` and ``val`` or ``test`` are the source's own split. Outlines count as the
    boxes around them; an image without a text shows nothing.

    Args:
        path: The folder.
        split: ``train``, ``test`` or ``all``.
    """
    names = _yaml_names(path, ("names", "classes"))
    found = [file for file in _files_below(path) if "masks" not in file.relative_to(path).parts]
    files, divided = _own_split(found, path, split)
    texts = [_counterpart(file, path, "labels", (".txt",)) for file in files]
    if not any(text is not None for text in texts):
        raise HardcaseError(f"none of the {len(files)} images in {path} has a text file of boxes.")
    objects = [[] if text is None else _yolo_lines(text, len(names)) for text in texts]
    return RawAnnotations(
        read=files.__getitem__,
        names=_ids(path.resolve().name, files, path),
        classes=names,
        labels=[[label for label, _ in row] for row in objects],
        boxes=[[box for _, box in row] for row in objects],
        form="share",
        divided=divided,
    )


def _yolo_lines(text: Path, classes: int) -> list[tuple[int, list[float]]]:
    objects = []
    lines = file_bytes(text).decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        with reading(f"cannot read line {number} of {text}"):
            label, *values = [float(word) for word in line.split()]
            if len(values) > 4 and len(values) % 2 == 0:
                values = _around(values)
            if len(values) != 4 or label != int(label):
                raise ValueError("a class and four numbers are needed")
        if not 0 <= label < classes:
            raise HardcaseError(
                f"line {number} of {text} is of class {int(label)}; {classes} have a name.",
                fix="a YAML file with the names of all classes",
            )
        objects.append((int(label), values))
    return objects


def _around(outline: list[float]) -> list[float]:
    """Centre and size of the box around an outline."""
    ends = [(min(axis), max(axis)) for axis in (outline[0::2], outline[1::2])]
    return [*((low + high) / 2 for low, high in ends), *(high - low for low, high in ends)]


def _files_below(path: Path) -> list[Path]:
    if not path.is_dir():
        raise HardcaseError(f"{path} is not a folder.")
    found = image_files(path)
    if not found:
        raise HardcaseError(f"there are no images in {path}.")
    return found


PARTS = {"train": "train", "val": "test", "valid": "test", "validation": "test", "test": "test"}


def _own_split(files: list[Path], root: Path, split: str) -> tuple[list[Path], bool]:
    """The files of a split, where folders name both; and whether they do."""

    def named(file: Path) -> str:
        words = [re.sub(r"\d+$", "", word.lower()) for word in file.relative_to(root).parts[:-1]]
        return next((PARTS[word] for word in words if word in PARTS), "")

    sides = [named(file) for file in files]
    if not {"train", "test"} <= set(sides):
        return files, False
    chosen = [file for file, side in zip(files, sides) if split == "all" or side == split]
    return chosen, True


def _counterpart(file: Path, root: Path, folder: str, endings: Sequence[str]) -> Path | None:
    """The file that says what is in an image: below another folder, or beside it."""
    inside = list(file.relative_to(root).parts)
    places = [file.parent]
    if "images" in inside:
        inside[inside.index("images")] = folder
        places.insert(0, (root / Path(*inside)).parent)
    tried = (place / f"{file.stem}{ending}" for place in places for ending in endings)
    return next((each for each in tried if each != file and each.is_file()), None)


def _yaml_names(path: Path, keys: Sequence[str]) -> tuple[str, ...]:
    """Names of the classes from a YAML file, or from ``classes.txt`` with one a line."""
    plain = path / "classes.txt"
    texts = [
        file_bytes(file).decode("utf-8", "replace")
        for pattern in ("*.yaml", "*.yml")
        for file in sorted(path.glob(pattern))
    ]
    for key in keys:
        for text in texts:
            found = names_in_yaml(text, key)
            if found:
                return found
    if plain.is_file():
        lines = file_bytes(plain).decode("utf-8", "replace").splitlines()
        return tuple(line.strip() for line in lines if line.strip())
    return ()


def names_in_yaml(text: str, key: str) -> tuple[str, ...]:
    """The names below a key of a YAML text: a list or numbered lines, in one line or in several.

    Example:
        >>> names_in_yaml("path: .\\nnames:\\n  0: cat\\n  2: 'dog'\\n", "names")
        ('cat', '1', 'dog')
    """
    more = r"(?:[ \t]+.*|[ \t]*-.*|[ \t]*#.*|[ \t]*$)"
    found = re.search(rf"^{key}:[ \t]*(.*(?:\n{more})*)", text, re.M)
    if found is None:
        return ()
    block = re.sub(r"(^|\s)#.*", "", found[1])
    if block.strip()[:1] in ("[", "{"):
        inner = re.split(r"[]}]", block.strip()[1:])[0]
        items = [item.strip() for item in inner.replace("\n", " ").split(",")]
    else:
        items = [re.sub(r"^-\s*", "", line.strip()) for line in block.splitlines()]
    table: dict[int, str] = {}
    for item in filter(None, items):
        pair = re.fullmatch(r"[\"']?(\d{1,5})[\"']?\s*:\s*(.*)", item)
        number = int(pair[1]) if pair else len(table)
        word = pair[2] if pair else item
        table[number] = word.strip().strip("\"'")
    return tuple(table.get(number, str(number)) for number in range(1 + max(table, default=-1)))


@data("voc:DIR", needs=_NEEDS, task="boxes")
def read_voc(path: Path, split: str) -> RawAnnotations:
    """Boxes of Pascal VOC: ``Annotations`` as XML, images in ``JPEGImages``.

    Lists ``train`` and ``val`` or ``test`` in ``ImageSets/Main`` are the source's own split.

    Args:
        path: The folder of one year, such as ``VOC2012``.
        split: ``train``, ``test`` or ``all``.
    """
    texts = sorted((path / "Annotations").glob("*.xml"), key=lambda file: natural(file.name))
    if not texts:
        raise HardcaseError(
            f"there are no XML files in {path / 'Annotations'}.", fix="voc:.../VOC2012"
        )
    listed = {part: _listed(path, words) for part, words in _LISTS.items()}
    divided = all(listed.values())
    if divided and split != "all":
        texts = [text for text in texts if text.stem in listed[split]]
    found = [_voc_file(text) for text in texts]
    words = sorted({word for _, objects in found for word, _ in objects}, key=natural)
    number = {word: at for at, word in enumerate(words)}
    folder = path / "JPEGImages"
    if not folder.is_dir():
        folder = path / "images"
    files = _present([folder / name for name, _ in found], path, "images in JPEGImages")
    return RawAnnotations(
        read=files.__getitem__,
        names=_ids(path.resolve().name, files, folder),
        classes=tuple(words),
        labels=[[number[word] for word, _ in objects] for _, objects in found],
        boxes=[[box for _, box in objects] for _, objects in found],
        divided=divided,
    )


_LISTS = {"train": ("train",), "test": ("test", "val")}


def _listed(path: Path, words: Sequence[str]) -> set[str]:
    lists = [path / "ImageSets" / "Main" / f"{word}.txt" for word in words]
    first = next((file for file in lists if file.is_file()), None)
    if first is None:
        return set()
    lines = file_bytes(first).decode("utf-8", "replace").splitlines()
    return {line.split()[0] for line in lines if line.split()}


def _voc_file(text: Path) -> tuple[str, list[tuple[str, list[float]]]]:
    """The name of the image, and class and box of each object; pixels count from 1 there."""
    content = file_bytes(text)
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise HardcaseError(
            f"{text} defines entities, which may unfold to any size; it is not read."
        )
    with reading(f"cannot read {text} as Pascal VOC"):
        root = ElementTree.fromstring(content)
        objects = []
        for each in root.iter("object"):
            box = each.find("bndbox")
            assert box is not None, "an object without bndbox"
            place = {part.tag: part.text or "" for part in box}
            objects.append((each.findtext("name", "").strip(), voc_box(place)))
        return root.findtext("filename", f"{text.stem}.jpg").strip(), objects


@data("tags:FILE.csv", needs=f"a column path; {_NEEDS}", task="tags")
def read_tags(path: Path, split: str) -> RawAnnotations:
    """Which classes each image holds: a table with a column of 0 and 1 for each class, or one
    column ``labels`` with names separated by ``|``.

    Args:
        path: The table; relative paths in it are looked for beside it.
        split: ``train``, ``test`` or ``all``, where a column ``split`` names them.
    """
    rows = csv_rows(path)
    where = first_key(rows[0], (*PATHS, *IMAGES), str(path))
    listed = next((key for key in ("labels", "tags") if key in rows[0]), "")
    every = [row for row in rows if None not in row.values()]
    if len(every) < len(rows):
        raise HardcaseError(
            f"{path}: {len(rows) - len(every)} rows are shorter than the first line."
        )
    if listed:
        words = [[word.strip() for word in row[listed].split("|") if word.strip()] for row in rows]
        classes = tuple(sorted({word for row in words for word in row}, key=natural))
    else:
        classes = tuple(key for key in rows[0] if key not in (where, "split"))
        words = [[key for key in classes if _is_set(row[key], key, path)] for row in rows]
    number = {word: at for at, word in enumerate(classes)}
    chosen = rows_of_split(rows, split)
    files = [path.parent / rows[i][where] for i in chosen]
    _present(files, path, "paths that exist, from the folder of the table")
    return RawAnnotations(
        read=files.__getitem__,
        names=_ids(path.stem, files, path.parent),
        classes=classes,
        labels=[[number[word] for word in words[i]] for i in chosen],
        divided="split" in rows[0],
    )


def _is_set(word: str, column: str, path: Path) -> bool:
    known: Mapping[str, bool] = {"1": True, "0": False, "": False, "-1": False}
    plain = word.strip().removesuffix(".0")
    if plain not in known:
        raise HardcaseError(
            f"{path}: column {column} holds {word!r}; 0 and 1 are needed.",
            fix="one column of 0 and 1 for each class, or one column labels with cat|dog",
        )
    return known[plain]


@data("masks:DIR", needs=f"PNG masks that hold class numbers; {_NEEDS}", task="masks")
def read_masks(path: Path, split: str) -> RawAnnotations:
    """The class of each pixel, as PNG: ``masks/NAME.png`` for ``images/NAME.jpg``, or beside it as
    ``NAME.png`` or ``NAME_mask.png``.

    Names of the classes are in a YAML file below ``classes`` or ``names``, or in ``classes.txt``;
    255, and classes called unlabeled or background, are pixels of nothing.

    Args:
        path: The folder.
        split: ``train``, ``test`` or ``all``, where folders name them.
    """
    names = _yaml_names(path, ("classes", "names"))
    endings = (".png", "_mask.png")
    found, divided = _own_split(_files_below(path), path, split)
    pairs = [(file, _counterpart(file, path, "masks", endings)) for file in found]
    masks = {mask for _, mask in pairs if mask is not None}
    images = [(file, mask) for file, mask in pairs if file not in masks and not _is_mask(file)]
    whole = [(file, mask) for file, mask in images if mask is not None]
    if not whole:
        raise HardcaseError(
            f"none of the {len(images)} images in {path} has a mask.",
            fix="masks/NAME.png for images/NAME.jpg",
        )
    notes: tuple[str, ...] = ()
    if len(whole) < len(images):
        gone = next(file for file, mask in images if mask is None)
        notes = (
            f"{len(images) - len(whole)} of {len(images)} images have no mask and are left out,"
            f" the first is {shown_name(gone.name)}.",
        )
    return RawAnnotations(
        read=[file for file, _ in whole].__getitem__,
        names=_ids(path.resolve().name, [file for file, _ in whole], path),
        classes=names or tuple(map(str, range(255))),
        labels=[[] for _ in whole],
        masks=[mask for _, mask in whole].__getitem__,
        divided=divided,
        notes=notes,
    )


def _is_mask(file: Path) -> bool:
    return "masks" in file.parts or file.stem.endswith("_mask")


OBJECT_KEYS = ("objects", "annotations", "target", "labels", "faces")
BOX_KEYS = ("bbox", "boxes", "bboxes", "box")
CLASS_KEYS = ("category", "categories", "label", "labels", "category_id", "class", "classes")


def read_hugging_face(data: Any) -> RawAnnotations:
    """A data set with a column of images and one of objects: boxes, as COCO has them, and
    categories.
    """
    image = first_key(data.column_names, IMAGE_KEYS, "the data set")
    held = first_key(data.column_names, OBJECT_KEYS, "the data set")
    table = [_columns(one) for one in data[held]]
    given = [one[first_key(list(one), CLASS_KEYS, held)] for one in table]
    labels, names = numbered_labels(given, _stated_names(data.features[held]))
    return RawAnnotations(
        read=lambda row: data[row][image],
        names=numbered("dataset", len(table)),
        classes=names,
        labels=labels,
        boxes=[one[first_key(list(one), BOX_KEYS, held)] for one in table],
        form="xywh",
        divided=True,
    )


def _columns(objects: Any) -> Mapping[str, Any]:
    """Objects as columns, whether they are kept so or as a list of rows."""
    if isinstance(objects, Mapping):
        return objects
    keys = objects[0].keys() if objects else (BOX_KEYS[0], CLASS_KEYS[0])
    return {key: [each[key] for each in objects] for key in keys}


def _stated_names(feature: Any) -> tuple[str, ...]:
    """The names of the categories in the description of a column, wherever it keeps them."""
    inner = getattr(feature, "feature", feature)
    columns = inner if isinstance(inner, Mapping) else {}
    kinds = [columns[key] for key in CLASS_KEYS if key in columns]
    stated = [getattr(getattr(kind, "feature", kind), "names", None) for kind in kinds]
    return tuple(map(str, next(filter(None, stated), ())))
