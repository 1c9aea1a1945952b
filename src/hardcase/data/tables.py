"""Parquet files with encoded images: Hugging Face data sets, and the findings of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from hardcase.data.formats import Labels
from hardcase.data.pictures import decode_all
from hardcase.data.records import Table, class_names, natural, numbered, whole_numbers
from hardcase.errors import Problem

IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img"), ("label", "labels", "expected")


def read_parquet(path: Path, options: dict[str, str], split: str) -> Table:
    """One file, or all ``*.parquet`` below a folder; files named ``train*`` and ``test*`` are the source's own split."""
    files = sorted(path.rglob("*.parquet"), key=lambda file: natural(str(file))) if path.is_dir() else [path]
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise Problem(f"there are no Parquet files in {path}.")
    divided = all(any(file.name.startswith(part) for file in files) for part in ("train", "test"))
    wanted = [file for file in files if file.name.startswith(split)] if divided and split != "all" else files
    prefix = path.resolve().stem
    return _read(wanted, files, f"{prefix}/{split}" if divided else prefix, path, divided=divided)


def read_run(path: Path, options: dict[str, str], split: str) -> Table:
    """Every finding of a run under its expected label. A run is not divided: both splits are all of it."""
    files = sorted((path / "findings").glob("part-*.parquet"), key=lambda file: natural(file.name))
    if not (path / "run.json").exists() and not files:
        raise Problem(
            f"{path} is not a run: it has neither run.json nor findings.", fix="run:RUN with the --out folder"
        )
    if not files:
        raise Problem(f"the run {path} has no findings yet.", fix=f"hardcase status {path}")
    return _read(files, files, path.resolve().name, path, divided=True)


def _read(wanted: list[Path], every: list[Path], prefix: str, where: Path, *, divided: bool) -> Table:
    """The images of the `wanted` files; `every` file counts for the number of classes."""
    columns = _columns(every[0])
    image, label = _column(columns, IMAGE_COLUMNS, where), _column(columns, LABEL_COLUMNS, where)
    table = _open(wanted, [image, label, *(name for name in ("id",) if name in columns)], where)
    if not table.num_rows:
        raise Problem(f"{where} holds no images.", f"Read {len(wanted)} Parquet files without rows.")
    ids = _ids(table, prefix)
    x = decode_all(_encoded(table.column(image), ids, where), bytes, [f"{name} in {where}" for name in ids])
    names = _named(table, label) or _named_by_run(every[0].parent.parent)
    used = _labels(table if names else _open(every, [label], where), label, where)
    return Table(x=x, y=_labels(table, label, where), id=ids, classes=class_names(used, names), divided=divided)


def _labels(table: pa.Table, label: str, where: Path) -> Labels:
    column = table.column(label)
    if column.null_count:
        raise Problem(f"{where}: {column.null_count} of {len(column)} labels are missing in column {label}.")
    return whole_numbers(column.to_numpy(), f"{where}, column {label}")


def _columns(file: Path) -> list[str]:
    try:
        return list(parquet.read_schema(file).names)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(file, error) from error


def _open(files: list[Path], columns: list[str], where: Path) -> pa.Table:
    """The columns of several files as one table with the description of the first."""
    tables = []
    for file in files:
        missing = set(columns) - set(_columns(file))
        if missing:
            raise Problem(f"{file} lacks column {', '.join(sorted(missing))}, which other files of {where} have.")
        try:
            tables.append(parquet.ParquetFile(file).read(columns=columns))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(file, error) from error
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise Problem(f"the Parquet files of {where} do not fit together: {error}.") from error


def _unreadable(file: Path, error: Exception) -> Problem:
    return Problem(f"cannot read {file} as Parquet: {(str(error).splitlines() or [''])[0]}.")


def _column(columns: list[str], names: tuple[str, ...], where: Path) -> str:
    found = next((name for name in names if name in columns), None)
    if found is None:
        raise Problem(
            f"{where} has no column {' or '.join(names)}; it has {', '.join(columns)}.",
            "An image set has a column of encoded images and a column of class numbers.",
            fix="rename the columns to image and label",
        )
    return found


def _ids(table: pa.Table, prefix: str) -> tuple[str, ...]:
    if "id" in table.column_names and pa.types.is_string(table.schema.field("id").type):
        return tuple(f"{prefix}/{name}" for name in table.column("id").to_pylist())
    return numbered(prefix, table.num_rows)


def _encoded(column: pa.ChunkedArray, ids: tuple[str, ...], where: Path) -> list[bytes]:
    """The encoded bytes of every image, from ``{bytes, path}`` or from a plain column of bytes."""
    merged = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_struct(merged.type) and merged.type.get_field_index("bytes") >= 0:
        merged = merged.field("bytes")
    if not (pa.types.is_binary(merged.type) or pa.types.is_large_binary(merged.type)):
        raise Problem(f"{where}: images are stored as {merged.type}; encoded images (PNG, JPEG) are needed.")
    if merged.null_count:
        first = ids[merged.is_null().to_pylist().index(True)]
        raise Problem(f"{where}: {merged.null_count} images have no content, the first is {first}.")
    return list(merged.to_pylist())


def _named(table: pa.Table, label: str) -> list[str] | None:
    """The class names in the file's ``huggingface`` metadata, if it has any."""
    try:
        described: dict[str, Any] = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        return [str(name) for name in described["info"]["features"][label]["names"]]
    except (ValueError, KeyError, TypeError):
        return None


def _named_by_run(folder: Path) -> list[str] | None:
    """The class names in a run's record, if `folder` is a run."""
    try:
        return [str(name) for name in json.loads((folder / "run.json").read_text())["classes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
