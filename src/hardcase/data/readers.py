"""CSV tables and sized folders as readers of `hardcase.data`: a path, options and a split in, a `Table` out."""

from __future__ import annotations

from pathlib import Path

from hardcase.data.images import stream_of
from hardcase.data.own import Table
from hardcase.data.sizing import Sizing
from hardcase.data.streams import Stream


def read_csv(path: Path, options: dict[str, str], split: str) -> Table:
    """``csv:PATH``: columns of paths and labels; a column ``split`` with ``train`` and ``test`` divides it."""
    sizing = Sizing.of(options)
    parts = ("train", "test") if split == "all" and _is_divided(path) else (split,)
    streams = [
        stream_of(path, resize=sizing.resize, crop=sizing.crop, name=path.stem, split=part)
        for part in parts
    ]
    tables = [_table(stream, divided=_is_divided(path)) for stream in streams]
    return tables[0] if len(tables) == 1 else _joined(tables)


def read_sized_folder(path: Path, options: dict[str, str], split: str) -> Table:
    """``folder:PATH?resize=224&crop=center`` for a folder that is not divided into train and test."""
    words = "&".join(f"{key}={value}" for key, value in options.items() if key != "split")
    return _table(stream_of(f"folder:{path}?{words}", split=split), divided=False)


def _is_divided(path: Path) -> bool:
    with path.open(encoding="utf-8-sig") as file:
        return "split" in [word.strip().strip('"') for word in file.readline().split(",")]


def _table(stream: Stream, *, divided: bool) -> Table:
    images = stream.images()
    return Table(
        x=images.x.numpy(),
        y=images.y.numpy(),
        id=images.id,
        classes=images.classes,
        divided=divided,
    )


def _joined(tables: list[Table]) -> Table:
    import numpy as np

    return Table(
        x=np.concatenate([table.x for table in tables]),
        y=np.concatenate([table.y for table in tables]),
        id=tuple(name for table in tables for name in table.id),
        classes=tables[0].classes,
        divided=True,
    )
