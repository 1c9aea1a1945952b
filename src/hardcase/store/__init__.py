"""The run folder: immutable Parquet parts, one per shard, written whole or not at all."""

from hardcase.store.deltas import pack_deltas, unpack_deltas
from hardcase.store.folder import SCHEMA, Packed, Store, refuse_used
from hardcase.store.lock import locked
from hardcase.store.mending import Mended, mend_papers, mend_shards
from hardcase.store.tables import (
    findings_table,
    overlay,
    read_images,
    seeds_table,
    spent_table,
    summarise,
    table,
    to_parquet,
)  # fmt: skip

__all__ = [
    "SCHEMA", "Mended", "Packed", "Store", "findings_table", "locked", "mend_papers", "mend_shards", "overlay",
    "pack_deltas", "read_images", "refuse_used", "seeds_table", "spent_table", "summarise", "table", "to_parquet",
    "unpack_deltas",
]  # fmt: skip
