"""Image files in class folders, or with the class number at the start of their names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from hardcase.data.formats import Labels
from hardcase.data.pictures import decode_all
from hardcase.data.records import Table, class_names, natural
from hardcase.errors import Problem

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"})


def read_folder(path: Path, options: dict[str, str], split: str) -> Table:
    """All images below `path`; if it has folders ``train`` and ``test`` of its own, those of the split only."""
    if not path.is_dir():
        raise Problem(f"{path} is not a folder.", fix="folder:PATH takes a folder; for files: npz:PATH, parquet:PATH")
    parts = ("train", "test") if _has_own_split(path) else ("",)
    found = [(part, file) for part in parts for file in picture_files(path / part)]
    if not found:
        raise Problem(f"there are no images in {path}.", f"Looked for {', '.join(sorted(SUFFIXES))} at any depth.")
    if options.get("labels") == "prefix":
        labels = np.array([_prefix(file) for _, file in found], dtype=np.int64)
        classes = class_names(labels, None)
    else:
        classes = _class_folders([path / part for part in parts])
        labels = _labels_by_folder(path, found, classes)
    rows = [i for i, (part, _) in enumerate(found) if part in ("", split) or split == "all"]
    files = [found[i][1] for i in rows]
    ids = tuple(f"{path.resolve().name}/{file.relative_to(path).as_posix()}" for file in files)
    x = decode_all(files, Path.read_bytes, [str(file) for file in files])
    return Table(x=x, y=labels[rows], id=ids, classes=classes, divided=len(parts) > 1)


def picture_files(root: Path) -> list[Path]:
    """The image files below `root` in natural order, hidden ones left out."""
    try:
        found = [
            (file.relative_to(root).as_posix(), file)
            for file in root.rglob("*")
            if file.suffix.lower() in SUFFIXES and file.is_file() and not _hidden(file.relative_to(root))
        ]
    except OSError as error:
        raise Problem(f"cannot list the files in {root}: {error}.") from error
    return [file for _, file in sorted(found, key=lambda pair: natural(pair[0]))]


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)


def _has_own_split(path: Path) -> bool:
    """Both ``train`` and ``test`` are there and hold folders: they are parts of the data, not classes."""
    parts = [path / "train", path / "test"]
    return all(part.is_dir() and any(inner.is_dir() for inner in part.iterdir()) for part in parts)


def _class_folders(roots: list[Path]) -> tuple[str, ...]:
    names = {
        inner.name for root in roots for inner in root.iterdir() if inner.is_dir() and not _hidden(Path(inner.name))
    }
    return tuple(sorted(names, key=natural))


def _labels_by_folder(path: Path, found: list[tuple[str, Path]], classes: tuple[str, ...]) -> Labels:
    places = [file.relative_to(path / part).parts for part, file in found]
    loose = [file for (_, file), parts in zip(found, places) if len(parts) == 1]
    if loose:
        raise Problem(
            f"{len(loose)} of {len(found)} images in {path} lie in no class folder, the first is {loose[0]}.",
            "The folder that holds an image names its class.",
            fix=f"move them into class folders, or for names such as 7_photo.png: folder:{path}?labels=prefix",
        )
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[parts[0]] for parts in places], dtype=np.int64)


def _prefix(file: Path) -> int:
    match = re.match(r"(\d{1,6})_", file.name)
    if match is None:
        raise Problem(
            f"the name of {file} does not start with a class number and _.",
            "With ?labels=prefix every image is named like 7_photo.png; classes count from 0.",
        )
    return int(match[1])
