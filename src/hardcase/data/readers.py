"""CSV tables of paths and labels as a form of data: ``csv:PATH``."""

from __future__ import annotations

from pathlib import Path

from hardcase.data.images import is_divided, stream_of
from hardcase.data.own import LabelledArrays
from hardcase.data.sizing import Sizing
from hardcase.data.streams import Stream
from hardcase.registry import data


@data(
    "csv:PATH",
    needs="columns path and label; a column split with train and test divides it",
    laws=("train and test never overlap", "fixed split"),
)
def read_csv(path: Path, split: str, *, resize: str = "0", crop: str = "0") -> LabelledArrays:
    """A table with a column of image paths and a column of labels (numbers or names).

    Args:
        path: The file; relative paths in it are looked for beside it.
        split: ``train``, ``test`` or ``all``.
        resize: Pixels of the shorter side, or of both without `crop`; 0 leaves the size.
        crop: Side of the square that is cut from the middle; ``center`` cuts what `resize` says.
    """
    sizing = Sizing.of({"resize": resize, "crop": crop})
    parts = ("train", "test") if split == "all" and is_divided(path) else (split,)
    streams = [
        stream_of(path, resize=sizing.resize, crop=sizing.crop, name=path.stem, split=part)
        for part in parts
    ]
    tables = [_table(stream, divided=is_divided(path)) for stream in streams]
    return tables[0] if len(tables) == 1 else _joined(tables)


def _table(stream: Stream, *, divided: bool) -> LabelledArrays:
    images = stream.images()
    return LabelledArrays(
        x=images.x.numpy(),
        y=images.y.numpy(),
        id=images.id,
        classes=images.classes,
        divided=divided,
    )


def _joined(tables: list[LabelledArrays]) -> LabelledArrays:
    import numpy as np

    return LabelledArrays(
        x=np.concatenate([table.x for table in tables]),
        y=np.concatenate([table.y for table in tables]),
        id=tuple(name for table in tables for name in table.id),
        classes=tables[0].classes,
        divided=True,
    )
