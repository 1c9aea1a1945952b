"""PNG in a few lines: a writer several times faster than a general one, and a reader for any PNG."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

_GREY, _COLOUR = 0, 2


def encode(image: UInt8[Tensor, "c h w"]) -> bytes:
    """An 8-bit grey or colour image as PNG; the same image always gives the same bytes."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).cpu().numpy()
    lines = np.zeros((height, width * channels + 1), dtype=np.uint8)  # every line starts with filter type 0
    lines[:, 1:] = rows
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _COLOUR, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 1)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def decode(data: bytes) -> UInt8[Tensor, "c h w"]:
    """The image in a PNG, as one or three channels."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        plain = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
        array = np.array(plain)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
