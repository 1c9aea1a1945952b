"""PNG in a few lines: a writer several times faster than a general one, and a reader for any PNG."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from hardcase.errors import Problem

_GREY, _COLOUR = 0, 2


def encode(image: UInt8[Tensor, "c h w"]) -> bytes:
    """An 8-bit grey or colour image as PNG; the same image always gives the same bytes."""
    return encode_all(image[None])[0]


def encode_all(images: UInt8[Tensor, "n c h w"]) -> list[bytes]:
    """Each image as PNG, the same bytes as `encode` gives."""
    count, channels, height, width = images.shape
    lines = np.zeros((count, height, width * channels + 1), dtype=np.uint8)  # every line starts with filter type 0
    lines[:, :, 1:] = images.permute(0, 2, 3, 1).reshape(count, height, width * channels).cpu().numpy()
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _COLOUR, 0, 0, 0)
    head, tail = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header), _chunk(b"IEND", b"")
    return [b"".join((head, _chunk(b"IDAT", zlib.compress(line.data, 1)), tail)) for line in lines]


def decode(data: bytes | None) -> UInt8[Tensor, "c h w"]:
    """The image in a PNG, as one or three channels; nothing else is opened."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data or b""), formats=("PNG",)) as picture:
            plain = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
            array = np.array(plain)
    except Exception as error:  # the reader raises many kinds for a damaged file
        raise Problem(f"a stored image is damaged: {type(error).__name__}: {error}") from error
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
