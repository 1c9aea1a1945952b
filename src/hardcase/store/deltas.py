"""What the guides of a shard have learned, as safetensors with a checksum inside; no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load, save

from hardcase.errors import Problem
from hardcase.tensors import digest_tensors
from hardcase.types import State


def pack_deltas(deltas: Mapping[str, State]) -> bytes:
    named = {
        f"{guide}/{name}": value.cpu().contiguous() for guide, state in deltas.items() for name, value in state.items()
    }
    return bytes(save(named, metadata={"check": digest_tensors(named)})) if named else b""


def unpack_deltas(data: bytes, *, where: str = "the guides' state") -> dict[str, State]:
    """The deltas in `data`; a content that is not the one that was packed is a problem that names `where`."""
    if not data:
        return {}
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        check = json.loads(data[8 : 8 + size])["__metadata__"]["check"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{where} is damaged: {error}") from error
    if check != digest_tensors(tensors):
        raise Problem(f"{where} is damaged: its content is not the one that was stored")
    deltas: dict[str, State] = {}
    for name, value in tensors.items():
        guide, _, key = name.partition("/")
        deltas.setdefault(guide, {})[key] = value
    return deltas
