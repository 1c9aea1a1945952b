"""The run folder: immutable Parquet parts, one per shard, written whole or not at all."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import UInt8
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hardcase import png
from hardcase.cache import make_folder, write_atomically
from hardcase.errors import Problem
from hardcase.tensors import digest, from_bytes
from hardcase.types import KINDS, Findings, State

SCHEMA = 1
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_COLUMNS: dict[str, pa.DataType] = {
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
}
_SEEDS: dict[str, pa.DataType] = {
    "id": pa.string(),
    "image": _IMAGE,
    "label": pa.int32(),
    "predicted": pa.int32(),
    "confidence": pa.float32(),
    "status": pa.string(),
    "looked": pa.int64(),
    "failing": pa.int64(),
    "queries": pa.int64(),
    "gradients": pa.int64(),
    "peer_queries": pa.int64(),
}


@dataclass(frozen=True, slots=True)
class Packed:
    """The files of one finished shard, as bytes: small enough to travel from a worker, written by the owner of the folder."""

    part: bytes
    seeds: bytes
    deltas: bytes


def findings_table(
    findings: Findings, seeds: UInt8[Tensor, "t c h w"], ids: Sequence[str], *, method: str, oracle: str
) -> pa.Table:
    """Findings as a table. `seeds` and `ids` are the image and the name of the seed of each finding."""
    images = [png.encode(image) for image in findings.x]
    change = (from_bytes(findings.x.cpu()) - from_bytes(seeds)).flatten(1)
    kinds = [KINDS[kind] for kind in findings.kind.tolist()]
    columns: dict[str, Any] = {
        "id": [digest([name, kind, image]) for name, kind, image in zip(ids, kinds, images)],
        "seed": list(ids),
        "kind": kinds,
        "image": [{"bytes": image, "path": None} for image in images],
        "expected": findings.expected.tolist(),
        "predicted": findings.predicted.tolist(),
        "confidence": findings.confidence.tolist(),
        "score": findings.score.tolist(),
        "queries": findings.queries.tolist(),
        "method": [method] * len(images),
        "oracle": [oracle] * len(images),
        "peer_predicted": findings.peer_predicted.tolist(),
        "distance": findings.distance.tolist(),
        "l2": change.norm(dim=1).tolist(),
        "linf": (change.abs().amax(1) if len(change) else change.sum(1)).tolist(),
        "code": findings.code.tolist() if findings.code.shape[1] else [None] * len(images),
    }
    return _table(columns, _COLUMNS)


def seeds_table(columns: Mapping[str, Any], images: UInt8[Tensor, "n c h w"]) -> pa.Table:
    """Seeds' rows as a table; `columns` lacks only the image."""
    pictures = [{"bytes": png.encode(image), "path": None} for image in images]
    return _table({**columns, "image": pictures}, _SEEDS)


def to_parquet(table: pa.Table) -> bytes:
    """A table as one Parquet file. An empty one has no row group: readers stumble over a group of no rows."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, compression="zstd", write_page_checksum=True) as writer:
        if len(table):
            writer.write_table(table)
    return buffer.getvalue()


class Store:
    """One run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, record: Mapping[str, Any], config: str, seeds: pa.Table) -> Store:
        """A new run folder. A folder with anything in it is refused: nothing that was found is ever overwritten."""
        refuse_used(folder)
        store = cls(folder)
        for name in ("findings", "verdicts", "state"):
            make_folder(folder / name)
        store.write("config.toml", config.encode())
        store.write("seeds.parquet", to_parquet(seeds))
        store.write_record(record)
        return store

    @classmethod
    def open(cls, folder: Path) -> Store:
        if not (folder / "run.json").is_file():
            raise Problem(f"{folder} is not a run folder: it has no run.json.", fix="the folder given to --out")
        return cls(folder)

    def write(self, name: str, data: bytes) -> None:
        write_atomically(self.folder / name, data)

    def write_record(self, record: Mapping[str, Any]) -> None:
        self.write("run.json", json.dumps(record, indent=2).encode())

    def record(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "run.json").read_text()))
        except ValueError as error:
            raise Problem(
                f"{self.folder / 'run.json'} is damaged: {error}.",
                "The findings beside it are still readable as Parquet.",
                fix=f"run again into a new folder: hardcase run {self.folder / 'config.toml'} --out NEW",
            ) from error

    def put(self, number: int, packed: Packed) -> None:
        """Store a finished shard: guide deltas, seeds' rows, then the part whose presence means "done"."""
        self.write(f"state/deltas-{number:05d}.safetensors", packed.deltas)
        self.write(f"state/seeds-{number:05d}.parquet", packed.seeds)
        self.write(f"findings/part-{number:05d}.parquet", packed.part)

    def done(self) -> set[int]:
        return {int(path.stem.removeprefix("part-")) for path in (self.folder / "findings").glob("part-*.parquet")}

    def deltas(self, number: int) -> dict[str, State]:
        path = self.folder / f"state/deltas-{number:05d}.safetensors"
        return unpack_deltas(path.read_bytes())

    def findings(self) -> pa.Table:
        """All findings stored so far, in shard order."""
        return self._read("findings", _COLUMNS)

    def seeds(self) -> pa.Table:
        """Every seed's row; those of finished shards with what was spent on them."""
        base = _checked(self.folder / "seeds.parquet")
        rows = {row["id"]: row for table in self._tables("state", "seeds-*.parquet") for row in table.to_pylist()}
        if not rows:
            return base
        return pa.Table.from_pylist([rows.get(row["id"], row) for row in base.to_pylist()], base.schema)

    def mend(self) -> list[int]:
        """Set aside finished shards that cannot be read any more, so that they are searched again; their numbers."""
        damaged = [number for number in sorted(self.done()) if not self._intact(number)]
        for number in damaged:
            part = self.folder / f"findings/part-{number:05d}.parquet"
            part.rename(part.with_suffix(".parquet.damaged"))
            (self.folder / f"state/seeds-{number:05d}.parquet").unlink(missing_ok=True)
        return damaged

    def _intact(self, number: int) -> bool:
        try:
            self.deltas(number)
            _checked(self.folder / f"state/seeds-{number:05d}.parquet")
            _checked(self.folder / f"findings/part-{number:05d}.parquet")
        except (Problem, OSError, SafetensorError):
            return False
        return True

    def settle(self) -> None:
        """Write what is known of the seeds into `seeds.parquet`."""
        self.write("seeds.parquet", to_parquet(self.seeds()))

    def _read(self, folder: str, columns: Mapping[str, pa.DataType]) -> pa.Table:
        tables = list(self._tables(folder, "part-*.parquet"))
        return pa.concat_tables(tables) if tables else _table({name: [] for name in columns}, columns)

    def _tables(self, folder: str, pattern: str) -> Iterator[pa.Table]:
        return (_checked(path) for path in sorted((self.folder / folder).glob(pattern)))


def refuse_used(folder: Path) -> None:
    """Raise if there is anything in `folder` that a new run would mix with."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        again = f", or go on with it: hardcase resume {folder}" if (folder / "run.json").is_file() else ""
        raise Problem(
            f"{folder} exists and is not empty.",
            "A run never writes over anything.",
            fix=f"another --out{again}",
        )


def pack_deltas(deltas: Mapping[str, State]) -> bytes:
    named = {
        f"{guide}/{name}": value.cpu().contiguous() for guide, state in deltas.items() for name, value in state.items()
    }
    return bytes(save(named))


def unpack_deltas(data: bytes) -> dict[str, State]:
    deltas: dict[str, State] = {}
    for name, value in load(data).items():
        guide, _, key = name.partition("/")
        deltas.setdefault(guide, {})[key] = value
    return deltas


def read_images(column: pa.ChunkedArray) -> UInt8[Tensor, "n c h w"]:
    """The pictures of an image column as one tensor."""
    pictures = [png.decode(item["bytes"].as_py()) for item in column]
    return torch.stack(pictures) if pictures else torch.zeros(0, 1, 1, 1, dtype=torch.uint8)


def _checked(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise Problem(
            f"{path} is damaged: {error}", fix=f"hardcase resume {path.parent.parent} sets it aside and redoes it"
        ) from error


def _table(columns: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> pa.Table:
    features = {"info": {"features": {name: _feature(kind) for name, kind in types.items()}}}
    schema = pa.schema(list(types.items()), metadata={"huggingface": json.dumps(features)})
    return pa.Table.from_pydict({name: columns[name] for name in types}, schema)


def _feature(kind: pa.DataType) -> dict[str, Any]:
    """How the `datasets` library is told of a column, so that it shows pictures."""
    if kind == _IMAGE:
        return {"_type": "Image"}
    if pa.types.is_list(kind):
        return {"_type": "List", "feature": _feature(kind.value_type)}
    return {"_type": "Value", "dtype": {"float": "float32"}.get(str(kind), str(kind))}
