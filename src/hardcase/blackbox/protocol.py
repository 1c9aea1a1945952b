"""The Open Inference Protocol v2 as pure functions: a request into bytes, bytes into an answer, JSON or binary tensors.

https://github.com/kserve/open-inference-protocol; the binary form is Triton's extension of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hardcase.blackbox.layout import Array

KINDS = {
    "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "|u1", "INT8": "|i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
}  # fmt: skip
LARGEST_BATCH = 65_536
"""Images that a model may demand at once; a request is filled up to that number."""
LENGTH = "inference-header-content-length"


class Garbled(ValueError):  # noqa: N818 - what happened
    """An answer that is not one of this protocol."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor of a model: its name, its type, its shape with the batch axis first (None: any size)."""

    name: str
    kind: str
    shape: tuple[int | None, ...]


def encode(array: Array, given: Spec, wanted: Spec, *, binary: bool) -> tuple[dict[str, str], bytes]:
    """Headers and body of the request for `array`."""
    one: dict[str, Any] = {"name": given.name, "shape": list(array.shape), "datatype": given.kind}
    if not binary:
        body = json.dumps({"inputs": [{**one, "data": []}], "outputs": [{"name": wanted.name}]}).encode()
        head, tail = body.split(b'"data": []', 1)
        return {"Content-Type": "application/json"}, head + b'"data": [' + _numbers(array) + b"]" + tail
    data = array.astype(KINDS[given.kind], copy=False).tobytes()
    asked = {"name": wanted.name, "parameters": {"binary_data": True}}
    header = json.dumps(
        {"inputs": [{**one, "parameters": {"binary_data_size": len(data)}}], "outputs": [asked]}
    ).encode()
    return {"Content-Type": "application/octet-stream", LENGTH: str(len(header))}, header + data


def decode(headers: Mapping[str, str], body: bytes, wanted: Spec) -> Array:
    """The tensor that an answer holds; anything else than a whole and well-formed one is `Garbled`."""
    size = headers.get(LENGTH)
    try:
        cut = len(body) if size is None else int(size)
        said = json.loads(body[:cut])
        outputs = said["outputs"]
        one = next((out for out in outputs if out["name"] == wanted.name), outputs[0])
        shape, kind = tuple(int(length) for length in one["shape"]), np.dtype(KINDS[one["datatype"]])
        before = sum(_binary_size(out) or 0 for out in outputs[: outputs.index(one)])
        flat = _values(one, body[cut + before :], kind)
        return flat.reshape(shape)
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise Garbled(f"an answer that cannot be read ({type(error).__name__}: {str(error)[:100]})") from error


def specs(body: bytes) -> tuple[Spec, Spec, str]:
    """Input, output and identity (name, versions, platform) from a model's metadata."""
    try:
        said = json.loads(body)
        (given,) = said["inputs"]
        wanted = said["outputs"][0]
        identity = json.dumps([said["name"], said.get("versions"), said.get("platform")])
        return _spec(given), _spec(wanted), identity
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise Garbled(f"metadata that cannot be used ({type(error).__name__}: {str(error)[:100]})") from error


def _spec(said: Mapping[str, Any]) -> Spec:
    kind = str(said["datatype"])
    if kind not in KINDS:
        raise ValueError(f"tensors of {kind[:20]}")
    shape = tuple(None if int(size) < 1 else int(size) for size in said["shape"])
    if shape and (shape[0] or 1) > LARGEST_BATCH:
        raise ValueError(f"{shape[0]} images at once")
    return Spec(str(said["name"]), kind, shape)


def _values(one: Mapping[str, Any], binary: bytes, kind: np.dtype[Any]) -> Array:
    size = _binary_size(one)
    if size is None:
        return np.asarray(one["data"], dtype=np.float64 if kind.kind == "f" else np.int64).ravel().astype(kind)
    if not 0 <= size <= len(binary):
        raise ValueError(f"{len(binary)} bytes follow instead of {size}")
    return np.frombuffer(binary[:size], kind)


def _binary_size(one: Mapping[str, Any]) -> int | None:
    size = (one.get("parameters") or {}).get("binary_data_size")
    return None if size is None else int(size)


def _numbers(array: Array) -> bytes:
    """The numbers of an array, each in the fewest digits that give it back; images have few different ones."""
    different, where = np.unique(array, return_inverse=True)
    words = np.array([str(value) for value in different], dtype=object)
    return ",".join(words[where.ravel()]).encode()
