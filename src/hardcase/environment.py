"""What the process runs in: which hardcase this is, how it keeps memory, and its arithmetic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = "0.1.0"
PRECISIONS = ("strict", "tf32", "bf16")
"""Arithmetic on a device: plain float32, TensorFloat-32 products, or bfloat16 inside networks."""

_TRIM_THRESHOLD = -1  # names of glibc's malloc.h
_MMAP_THRESHOLD = -3
LARGE = 2**28
KEPT = 2**29


def keep_freed() -> bool:
    """Memory that tensors give back is kept by the process, where the C library is glibc.

    Steps of training and of gradient search then take a tenth to a third less time. Blocks above
    `LARGE` bytes still go back at once, and so does what lies free beyond `KEPT`.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(tune(_MMAP_THRESHOLD, LARGE)) and bool(tune(_TRIM_THRESHOLD, KEPT))


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Deterministic kernels and the arithmetic of a campaign on a GPU, while this lasts.

    On any other device nothing changes: a CPU computes in float32.

    Args:
        precision: One of `PRECISIONS`.
        device: The kind of device, e.g. ``cuda``.
    """
    if device != "cuda":
        yield
        return
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn
    products = torch.backends.cuda.matmul
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32)
    fast = precision != "strict"
    cudnn.deterministic = True
    cudnn.benchmark = False
    cudnn.allow_tf32 = fast
    products.allow_tf32 = fast
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = before
