"""Which files beside an ONNX file hold its weights, as the file itself lists them; read without any
library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Field numbers of onnx.proto3 on the way from a model to the tensors it holds.
_TENSOR: dict[int, Any] = {13: "external"}
_SPARSE: dict[int, Any] = {1: _TENSOR, 2: _TENSOR}
_GRAPH: dict[int, Any] = {5: _TENSOR, 15: _SPARSE}
_ATTRIBUTE: dict[int, Any] = {
    5: _TENSOR,
    6: _GRAPH,
    10: _TENSOR,
    11: _GRAPH,
    22: _SPARSE,
    23: _SPARSE,
}
_NODE: dict[int, Any] = {5: _ATTRIBUTE}
_GRAPH[1] = _NODE
_MODEL: dict[int, Any] = {7: _GRAPH, 25: {7: _NODE}}
DEEPEST = 50
"""Graphs inside graphs that are looked into."""


def external_files(path: Path) -> list[Path]:
    """The files with weights that the ONNX file `path` names, each once and in order; they need not
    exist.

    Names that lead out of the file's own folder are left out: onnxruntime refuses them.
    """
    try:
        named = dict.fromkeys(_locations(memoryview(path.read_bytes()), _MODEL, 0))
    except (IndexError, ValueError):  # not a protobuf: whoever loads it says so
        return []
    home = path.parent
    inside = [home / name for name in named if _stays_inside(name)]
    return sorted(inside)


def _stays_inside(name: str) -> bool:
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name


def _locations(data: memoryview, schema: Mapping[int, Any], depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        return
    for number, value in _fields(data):
        inner = schema.get(number)
        if inner == "external":
            entry = {key: bytes(text).decode(errors="replace") for key, text in _fields(value)}
            if entry.get(1) == "location":
                yield entry.get(2, "")
        elif inner is not None:
            yield from _locations(value, inner, depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The length-delimited fields of a message; numbers are skipped."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")
