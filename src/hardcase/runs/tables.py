"""The tables of a run folder, as Parquet that the `datasets` library reads as images."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from hardcase import tensors
from hardcase.cache import parquet_groups, unpacked
from hardcase.campaign.claims import CLAIMED, stored_label
from hardcase.campaign.record import Campaign
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.models.health import answers
from hardcase.plain import opened
from hardcase.runs.files import LARGE
from hardcase.tensors import from_bytes, length
from hardcase.types import KINDS, Findings

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FINDINGS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "original": pa.string(),
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
SPENDING = (
    *("queries", "gradients", "peer_queries", "witness_queries", "witness_gradients"),
    *("surrogate_queries", "surrogate_gradients"),
)
"""What is metered."""
SPENT: dict[str, pa.DataType] = {
    **dict.fromkeys(("id", "status"), pa.string()),
    **dict.fromkeys(("evaluated", "failing", *SPENDING), pa.int64()),
}
"""What a finished shard says of its seeds."""
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
    "verdict": pa.string(),
    "by": pa.string(),
}
"""What a judge says at least: its verdict (`hardcase.types.VERDICT_WORDS`), and who decided."""
_GAPS = ("code", "witnessed", "witness_margin")
"""Columns in which nothing may stand."""
SMALL = 2**26
"""Bytes of a file that is read at once."""
GROUP = 2**25
"""Pixel values of the images in a row group: this much is in memory at once, ..."""
ROWS = 2**16
"""... and how many originals these are at most, however small their images."""
_REPEATED = ["original", "kind", "method", "oracle", "status"]
"""Columns with a small number of values."""


def findings_table(
    findings: Findings,
    seeds: UInt8[Tensor, "t c h w"],
    ids: Sequence[str],
    *,
    method: str,
    oracle: str,
    witnesses: int = 0,
) -> pa.Table:
    """Findings as a table; `seeds` and `ids` are the image and the name of the seed of each."""
    images = tensors.encode_all(findings.x.cpu())
    change = (from_bytes(findings.x.cpu()) - from_bytes(seeds)).flatten(1)
    kinds = [KINDS[kind] for kind in findings.kind.tolist()]
    gaps = [None] * len(findings)
    columns: dict[str, Any] = {
        "id": [tensors.digest(parts) for parts in zip(ids, kinds, images)],
        "original": list(ids),
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
    """How many images of these channels, height and width form a row group."""
    return min(ROWS, max(256, GROUP // math.prod(shape)))


def seeds_table(columns: Mapping[str, Any], images: UInt8[Tensor, "n c h w"]) -> pa.Table:
    """Seeds' rows as a table; `columns` lacks only the image."""
    return table({**columns, "image": _images(tensors.encode_all(images))}, SEEDS)


# Which images a run starts from: asked of the model once, then read from the run folder.

UNUSABLE = ("skipped: misclassified", "skipped: non-finite", "skipped: target")
"""Seeds that are not searched from; those of the target's class have no other class to reach.
"""


def asked_seeds(campaign: Campaign, images: ImageSet) -> list[pa.Table]:
    """The model's answers on every image, and which images wait for their search, in row groups
    without the columns that were stored before.
    """
    rows = []
    for part in images.shards(group_rows(images.shape)):
        logits = answers(campaign.subject, part, campaign.batch)
        probabilities = logits.softmax(1)
        fate = torch.zeros_like(part.y)
        if campaign.target is not None:
            fate[part.y == campaign.target] = 3
        fate[logits.argmax(1) != part.y] = 1
        fate[~logits.isfinite().all(1)] = 2
        label = probabilities.argmax(1)
        if CLAIMED in part.context:
            label = stored_label(label, logits.shape[1], True)
        columns = {
            "predicted": label,
            "confidence": probabilities.amax(1),
            "status": [("waiting", *UNUSABLE)[status] for status in fate.tolist()],
        }
        rows.append(table(columns, {name: SEEDS[name] for name in columns}))
    return rows


def with_images(rows: Sequence[pa.Table], images: ImageSet) -> Iterator[pa.Table]:
    """The table of images as a run begins with it, in row groups."""
    for part, row in zip(images.shards(group_rows(images.shape)), rows):
        columns = {
            "id": part.id,
            "label": part.y,
            **dict(zip(row.column_names, row.columns)),
            **dict.fromkeys(("evaluated", "failing", *SPENDING), [0] * len(part)),
        }
        yield seeds_table(columns, part.x)


def usable_rows(rows: Iterable[pa.Table]) -> Int[Tensor, " u"]:
    """The positions of the images that are searched from."""
    skipped = [pc.is_in(part["status"], pa.array(UNUSABLE)).to_numpy() for part in rows]
    return torch.from_numpy(np.flatnonzero(~np.concatenate(skipped)))


def table(columns: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pa.Table:
    """Columns (lists, arrays or tensors) as a table that other programs show with its images."""
    arrays = list[Any]()
    for name, kind in types.items():
        values = columns[name]
        if isinstance(values, Tensor):
            values = values.cpu().numpy()
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array(values, kind)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=_schema(tuple(types.items())))


@cache
def _schema(types: tuple[tuple[str, pa.DataType], ...]) -> pa.Schema:
    features = {"info": {"features": {name: _feature(kind) for name, kind in types}}}
    return pa.schema(list(types), metadata={"huggingface": json.dumps(features)})


def to_parquet(rows: pa.Table) -> bytes:
    """A table as a Parquet file with a single row group."""
    sink = io.BytesIO()
    write_parquet(sink, [rows])
    return sink.getvalue()


def write_parquet(sink: Path | io.BytesIO | io.BufferedWriter, groups: Iterable[pa.Table]) -> None:
    """Write a Parquet file, a row group for each table that is not empty."""
    tables = iter(groups)
    first = next(tables)
    with pq.ParquetWriter(
        sink,
        first.schema,
        compression="snappy",
        write_page_checksum=True,
        write_statistics=False,
        use_dictionary=[name for name in _REPEATED if name in first.column_names],
    ) as writer:
        for rows in chain([first], tables):
            if len(rows):
                writer.write_table(rows)


def read(
    path: Path, types: Mapping[str, pa.DataType], columns: Sequence[str] | None = None
) -> pa.Table:
    """The row groups of `read_groups` as a single table."""
    return pa.concat_tables(read_groups(path, types, columns))


def read_groups(
    path: Path,
    types: Mapping[str, pa.DataType],
    columns: Sequence[str] | None = None,
    *,
    only: Collection[int] = (),
    most: int = LARGE,
) -> Iterator[pa.Table]:
    """The row groups of a table, in turn, with their columns checked; a damaged table
    is named.

    Where a file has a checksum, that is compared before: a flipped bit can end Arrow together with
    the process. Nothing is read ahead: Arrow's threads would let go of what Python's file gave them
    when the interpreter ends, and end the process with it. `types` are all columns that it has,
    `only` the numbers of the wanted row groups.
    """
    try:
        with (
            opened(path, most=most) as file,
            pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as table,
        ):
            wanted = {name: types[name] for name in columns or types}
            groups = only or range(table.num_row_groups)
            for rows in parquet_groups(table, groups, columns, unpacked(path, SMALL)):
                _check(rows, wanted, ids=types is FINDINGS or types is VERDICTS)
                yield rows
    except (OSError, pa.ArrowException, ValueError, LookupError, TypeError, MemoryError) as error:
        folder = path.parent if path.name == "images.parquet" else path.parent.parent
        raise HardcaseError(
            f"{path} is damaged: {(str(error).splitlines() or [''])[0]}",
            fix=f"hardcase resume {folder} sets it aside and redoes it",
        ) from error


def _check(rows: pa.Table, types: Mapping[str, pa.DataType], *, ids: bool) -> None:
    """Raise unless every column is there, of its type, without gaps where none may be; and unless
    the `ids` are those of failures, where they have to be: words could be paths.
    """
    for name, kind in types.items():
        column = rows.column(name)
        if column.type != kind or (column.null_count and name not in _GAPS):
            raise ValueError(
                f"column {name} holds {column.type} with {column.null_count} gaps instead of {kind}"
            )
    rows.validate(full=True)
    if ids and "id" in rows.column_names and len(rows):
        good = pc.match_substring_regex(rows["id"], r"\A[0-9a-f]{16}\z")
        if not pc.all(good).as_py():
            raise ValueError("column id holds other values than the digests of failures")


def overlay(seeds: pa.Table, spent: pa.Table) -> pa.Table:
    """The table of all images with what finished shards say of theirs."""
    where = pc.index_in(seeds["id"], value_set=spent["id"])
    for name in SPENT:
        if name != "id":
            place = seeds.column_names.index(name)
            new = pc.coalesce(spent[name].take(where), seeds[name])
            seeds = seeds.set_column(place, seeds.schema.field(name), new)
    return seeds


def summarise(findings: pa.Table, spent: pa.Table) -> dict[str, Any]:
    """The counts of a shard: images, costs, failures by kind, which labels were mistaken."""
    kinds = findings["kind"].to_pylist()
    seeds = findings["original"].to_pylist()
    pairs = Counter(zip(findings["expected"].to_pylist(), findings["predicted"].to_pylist()))
    return {
        "seeds": len(spent),
        **{name: sum(spent[name].to_pylist()) for name in SPENDING},
        "failing": len({seed for seed, kind in zip(seeds, kinds) if kind == KINDS[0]}),
        "findings": len(findings),
        "kinds": dict(Counter(kinds)),
        "confusions": [[*pair, times] for pair, times in sorted(pairs.items())],
    }


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
    """Metadata that makes the `datasets` library show a column as images."""
    if kind == _IMAGE:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": _feature(kind.value_type)}
    return {"_type": "Value", "dtype": {"float": "float32"}.get(str(kind), str(kind))}
