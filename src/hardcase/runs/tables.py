"""The tables of a run folder: findings and seeds, as Parquet that the `datasets` library reads as
images.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import UInt8
from torch import Tensor

from hardcase import tensors
from hardcase.cache import unpacked
from hardcase.data.formats import parquet_groups
from hardcase.errors import Problem
from hardcase.runs.files import LARGE, checksum, in_pieces, opened
from hardcase.tensors import from_bytes, length
from hardcase.types import KINDS, Findings

__all__ = [
    *("FINDINGS", "PATHS", "SEEDS", "SPENDING", "SPENT", "VERDICTS", "findings_table"),
    *("group_rows", "overlay", "parquet", "read", "read_groups", "seeds_table", "spent_table"),
    *("summarise", "table", "to_parquet"),
]

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FINDINGS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "seed": pa.string(),
    "kind": pa.string(),
    "image": _IMAGE,
    "expected": pa.int32(),
    "predicted": pa.int32(),
    "confidence": pa.float32(),
    "score": pa.float32(),
    "queries": pa.int64(),
    "method": pa.string(),
    "oracle": pa.string(),
    "peer_predicted": pa.list_(pa.int32()),
    "distance": pa.float32(),
    "l2": pa.float32(),
    "linf": pa.float32(),
    "code": pa.list_(pa.float32()),
    "witnessed": pa.bool_(),
    "witness_margin": pa.float32(),
}
SPENT: dict[str, pa.DataType] = {
    "id": pa.string(),
    "status": pa.string(),
    "looked": pa.int64(),
    "failing": pa.int64(),
    "queries": pa.int64(),
    "gradients": pa.int64(),
    "peer_queries": pa.int64(),
    "witness_queries": pa.int64(),
    "witness_gradients": pa.int64(),
    "surrogate_queries": pa.int64(),
    "surrogate_gradients": pa.int64(),
}
"""What a finished shard says of its seeds."""
SPENDING = tuple(SPENT)[4:]
"""What is metered."""
SEEDS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "image": _IMAGE,
    "label": pa.int32(),
    "predicted": pa.int32(),
    "confidence": pa.float32(),
    **{name: kind for name, kind in SPENT.items() if name != "id"},
}
VERDICTS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "valid": pa.bool_(),
    "label_kept": pa.bool_(),
}
"""What a judge says at least."""
PATHS: dict[str, pa.DataType] = {"id": pa.string(), "share": pa.float32(), "image": _IMAGE}
"""Images on the way to some of the findings."""
_GAPS = ("code", "valid", "label_kept", "witnessed", "witness_margin")
"""Columns in which nothing may stand."""
SMALL = 2**26
"""Bytes of a file that is read in one go."""
GROUP = 2**25
"""Pixel values of the seeds that are one row group: what is in memory at once."""
_REPEATED = ["seed", "kind", "method", "oracle", "status"]
"""Columns of few different values."""


def findings_table(
    findings: Findings,
    seeds: UInt8[Tensor, "t c h w"],
    ids: Sequence[str],
    *,
    method: str,
    oracle: str,
    witnesses: int = 0,
) -> pa.Table:
    """Findings as a table.

    `seeds` and `ids` are the image and the name of the seed of each finding.
    """
    images = tensors.encode_all(findings.x.cpu())
    change = (from_bytes(findings.x.cpu()) - from_bytes(seeds)).flatten(1)
    kinds = [KINDS[kind] for kind in findings.kind.tolist()]
    gaps = [None] * len(findings)
    columns: dict[str, Any] = {
        "id": [_content_hash(name, kind, image) for name, kind, image in zip(ids, kinds, images)],
        "seed": list(ids),
        "kind": kinds,
        "image": _images(images),
        "method": [method] * len(images),
        "oracle": [oracle] * len(images),
        "peer_predicted": _lists(findings.peer_predicted),
        "l2": length(change),
        "linf": change.abs().amax(1) if len(change) else change.sum(1),
        "code": _lists(findings.code) if findings.code.shape[1] else [None] * len(images),
        **{
            name: getattr(findings, name)
            for name in ("expected", "predicted", "confidence", "score", "queries", "distance")
        },
        "witnessed": findings.witnessed if witnesses else gaps,
        "witness_margin": findings.witness_margin if witnesses else gaps,
    }
    return table(columns, FINDINGS)


def group_rows(shape: Sequence[int]) -> int:
    """How many seeds of these channels, height and width are one row group."""
    return max(256, GROUP // math.prod(shape))


def seeds_table(columns: Mapping[str, Any], images: UInt8[Tensor, "n c h w"]) -> pa.Table:
    """Seeds' rows as a table; `columns` lacks only the image."""
    return table({**columns, "image": _images(tensors.encode_all(images))}, SEEDS)


def spent_table(columns: Mapping[str, Any]) -> pa.Table:
    """What became of the seeds of a shard; their images are in the run's own table."""
    return table(columns, SPENT)


def table(columns: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Columns (lists, arrays or tensors) as a table with the description by which other programs
    show its images.
    """
    schema = _schema(tuple(types.items()))
    return pa.Table.from_arrays(
        [_array(columns[name], kind) for name, kind in types.items()], schema=schema
    )


@cache
def _schema(types: tuple[tuple[str, pa.DataType], ...]) -> pa.Schema:
    features = {"info": {"features": {name: _feature(kind) for name, kind in types}}}
    return pa.schema(list(types), metadata={"huggingface": json.dumps(features)})


def to_parquet(rows: pa.Table) -> bytes:
    """A table as one Parquet file with one row group."""
    return b"".join(parquet([rows]))


class _Sink(io.RawIOBase):
    """Takes what is written until somebody asks for it."""

    def __init__(self) -> None:
        self.size = 0
        self.pieces = list[bytes]()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        self.size += len(self.pieces[-1])
        return len(self.pieces[-1])

    def tell(self) -> int:
        return self.size

    def drained(self) -> bytes:
        taken = b"".join(self.pieces)
        self.pieces.clear()
        return taken


def parquet(groups: Iterable[pa.Table]) -> Iterator[bytes]:
    """The pieces of one Parquet file, a row group for each table; at least one table is needed.

    An empty one makes no row group: readers stumble over a group of no rows.
    """
    sink = _Sink()
    writer: pq.ParquetWriter | None = None
    for rows in groups:
        writer = writer or pq.ParquetWriter(
            sink,
            rows.schema,
            compression="snappy",
            write_page_checksum=True,
            write_statistics=False,
            use_dictionary=[name for name in _REPEATED if name in rows.column_names],
        )
        if len(rows):
            writer.write_table(rows)
        yield sink.drained()
    assert writer is not None
    writer.close()
    yield sink.drained()


def read(
    path: Path,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
    *,
    stored: Callable[[int, int], bool] | None = None,
    most: int = LARGE,
) -> pa.Table:
    """What `read_groups` reads, as one table."""
    return pa.concat_tables(read_groups(path, types, columns, stored=stored, most=most))


def read_groups(
    path: Path,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
    *,
    stored: Callable[[int, int], bool] | None = None,
    only: Collection[int] = (),
    most: int = LARGE,
) -> Iterator[pa.Table]:
    """The row groups of a table, one after the other, with their checksums verified and their
    columns (those of `types`, or some of them) checked; a damaged table is named.

    Args:
        path: The file.
        types: All columns that it has.
        columns: Those that are wanted; all of them if None.
        stored: Says whether size and checksum of the file are those of what was written. What is
            not does not reach Arrow, which a flipped bit can end together with the process. None:
            it was asked before.
        only: The numbers of the wanted row groups; all of them if there is none.
        most: Bytes that the file may have.
    """
    try:
        with opened(path, most=most) as file:
            if stored is not None and not stored(*checksum(in_pieces(file))):
                raise ValueError("its content is not the one that was stored")
        with pq.ParquetFile(path, page_checksum_verification=True) as whole:
            wanted = {name: types[name] for name in columns or types}
            groups = only or range(whole.num_row_groups)
            for rows in parquet_groups(whole, groups, columns, unpacked(path, SMALL)):
                yield _named(_checked(rows, wanted), types)
    except (OSError, pa.ArrowException, ValueError, LookupError, TypeError, MemoryError) as error:
        folder = path.parent if path.name == "seeds.parquet" else path.parent.parent
        raise Problem(
            f"{path} is damaged: {(str(error).splitlines() or [''])[0]}",
            fix=f"hardcase resume {folder} sets it aside and redoes it",
        ) from error


def _checked(rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """`rows`, if every column is there, of its type, without gaps where none may be,
    and made of valid text.
    """
    for name, kind in types.items():
        column = rows.column(name)
        if column.type != kind or (column.null_count and name not in _GAPS):
            raise ValueError(
                f"column {name} holds {column.type} with {column.null_count} gaps instead of {kind}"
            )
    rows.validate(full=True)
    return rows


def _named(rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """`rows`, if their ids are those of findings wherever they have to be: other words could be
    paths.
    """
    known = any(types is one for one in (FINDINGS, VERDICTS, PATHS))
    if not known or "id" not in rows.column_names:
        return rows
    good = pc.match_substring_regex(rows["id"], r"\A[0-9a-f]{16}\z")
    if not pc.all(good).as_py() and len(rows):
        raise ValueError("column id holds something else than the digests of findings")
    return rows


def overlay(seeds: pa.Table, spent: pa.Table) -> pa.Table:
    """The table of all seeds with what finished shards say of theirs."""
    where = pc.index_in(seeds["id"], value_set=spent["id"].combine_chunks())
    for name in SPENT:
        if name != "id":
            place = seeds.column_names.index(name)
            new = pc.coalesce(spent[name].take(where), seeds[name])
            seeds = seeds.set_column(place, seeds.schema.field(name), new)
    return seeds


def summarise(findings: pa.Table, spent: pa.Table) -> dict[str, Any]:
    """The counts of a shard: seeds, costs, findings by kind, and which labels were mistaken for
    which.
    """
    kinds = findings["kind"].to_pylist()
    seeds = findings["seed"].to_pylist()
    pairs = Counter(zip(findings["expected"].to_pylist(), findings["predicted"].to_pylist()))
    return {
        "seeds": len(spent),
        **{name: sum(spent[name].to_pylist()) for name in SPENDING},
        "failing": len({seed for seed, kind in zip(seeds, kinds) if kind == KINDS[0]}),
        "findings": len(findings),
        "kinds": dict(Counter(kinds)),
        "confusions": [[*pair, times] for pair, times in sorted(pairs.items())],
    }


def _content_hash(seed: str, kind: str, image: bytes) -> str:
    """`tensors.digest` of the three, in one go: it is taken of every finding."""
    parts = (seed.encode(), b"\0", kind.encode(), b"\0", image, b"\0")
    return sha256(b"".join(parts)).hexdigest()[:16]


def _array(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, Tensor):
        values = values.cpu().numpy()
    return pa.array(values, kind)


def _images(images: Sequence[bytes]) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [pa.array(images, pa.binary()), pa.nulls(len(images), pa.string())], fields=list(_IMAGE)
    )


def _lists(rows: Tensor) -> pa.ListArray:
    """A row of numbers per row."""
    count, width = rows.shape
    kind = np.float32 if rows.is_floating_point() else np.int32
    values = rows.detach().cpu().reshape(-1).numpy().astype(kind, copy=False)
    offsets = width * np.arange(count + 1, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """How the `datasets` library is told of a column, so that it shows images."""
    if kind == _IMAGE:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": _feature(kind.value_type)}
    return {"_type": "Value", "dtype": {"float": "float32"}.get(str(kind), str(kind))}
