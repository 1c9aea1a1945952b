"""Parquet files with encoded images: Hugging Face data sets, and the findings of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardcase.data.pictures import decode_all
from hardcase.data.records import Table, class_names, natural, numbered, whole_numbers
from hardcase.errors import Problem

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img"), ("label", "labels", "expected")


def read_parquet(path: Path, options: dict[str, str], split: str) -> Table:
    """One file, or all ``*.parquet`` below a folder; files named ``train*`` and ``test*`` are the source's own split."""
    files = sorted(path.rglob("*.parquet"), key=lambda file: natural(str(file))) if path.is_dir() else [path]
    files = [file for file in files if not file.name.startswith(".")]
    divided = all(any(file.name.startswith(part) for file in files) for part in ("train", "test"))
    files = [file for file in files if file.name.startswith(split)] if divided else files
    if not files:
        raise Problem(f"there are no Parquet files in {path}.")
    return _read(files, f"{path.stem}/{split}" if divided else path.stem, path, divided=divided)


def read_run(path: Path, options: dict[str, str], split: str) -> Table:
    """Every finding of a run under its expected label. A run is not divided: both splits are all of it."""
    files = sorted((path / "findings").glob("part-*.parquet"), key=lambda file: natural(file.name))
    if not (path / "run.json").exists() and not files:
        raise Problem(
            f"{path} is not a run: it has neither run.json nor findings.", fix="run:RUN takes the --out folder"
        )
    if not files:
        raise Problem(f"the run {path} has no findings yet.", fix=f"hardcase status {path}")
    return _read(files, path.resolve().name, path, divided=True)


def _read(files: list[Path], prefix: str, where: Path, *, divided: bool) -> Table:
    import pyarrow as pa

    parts = [_open(file) for file in files]
    image, label = _column(parts[0], IMAGE_COLUMNS, where), _column(parts[0], LABEL_COLUMNS, where)
    wanted = [image, label, *(["id"] if "id" in parts[0].column_names else [])]
    try:
        table = pa.concat_tables([part.select(wanted) for part in parts], promote_options="permissive")
    except (KeyError, pa.ArrowException) as error:
        raise Problem(f"the Parquet files in {where} do not have the same columns: {error}.") from error
    if not table.num_rows:
        raise Problem(f"{where} holds no images.", f"Read {len(files)} Parquet files without rows.")
    ids = _ids(table, prefix)
    encoded = _encoded(table.column(image), ids, where)
    labels = table.column(label)
    if labels.null_count:
        raise Problem(f"{where}: {labels.null_count} of {len(labels)} labels are missing in column {label}.")
    y = whole_numbers(labels.to_numpy(), len(encoded), f"{where}, column {label}")
    x = decode_all(encoded, bytes, [f"{name} in {where}" for name in ids])
    return Table(x=x, y=y, id=ids, classes=class_names(y, _named(parts[0], label)), divided=divided)


def _open(file: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            wanted = [name for name in (*IMAGE_COLUMNS, *LABEL_COLUMNS, "id") if name in opened.schema_arrow.names]
            return opened.read(columns=wanted)
    except (OSError, pa.ArrowException) as error:
        raise Problem(f"cannot read {file} as Parquet: {str(error).splitlines()[0]}.") from error


def _column(table: pa.Table, names: tuple[str, ...], where: Path) -> str:
    found = next((name for name in names if name in table.column_names), None)
    if found is None:
        raise Problem(
            f"{where} has no column {' or '.join(names)}.",
            "An image set has a column of encoded images and a column of class numbers.",
            fix="rename the columns to image and label",
        )
    return found


def _ids(table: pa.Table, prefix: str) -> tuple[str, ...]:
    import pyarrow as pa

    if "id" in table.column_names and pa.types.is_string(table.schema.field("id").type):
        return tuple(f"{prefix}/{name}" for name in table.column("id").to_pylist())
    return numbered(prefix, table.num_rows)


def _encoded(column: pa.ChunkedArray, ids: tuple[str, ...], where: Path) -> list[bytes]:
    """The encoded bytes of every image, from ``{bytes, path}`` or from a plain column of bytes."""
    import pyarrow as pa

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
        names = described["info"]["features"][label]["names"]
        return [str(name) for name in (names.values() if isinstance(names, dict) else names)]
    except (ValueError, KeyError, TypeError):
        return None
