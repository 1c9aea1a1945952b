"""What the process runs in: version, memory, arithmetic, and secrets, which are struck out of
whatever leaves the process.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unicodedata import category

VERSION = "0.1.0"
PRECISIONS = ("strict", "tf32", "bf16")
"""Arithmetic on a device: plain float32, TensorFloat-32 products, or bfloat16 inside networks."""

ADDRESS_SPACE = 2_500_000_000
"""Bytes that PyTorch, Arrow and SciPy map before anything is computed, with room for a small run.
Below that they hang, crash or call good files damaged, each as luck has it."""

_TRIM_THRESHOLD = -1  # names of glibc's malloc.h
_MMAP_THRESHOLD = -3
_LARGE = 2**28
_KEPT = 2**29


def keep_freed() -> bool:
    """Keep the memory that tensors give back, where the C library is glibc: steps of training and
    of gradient search then take less time. Large blocks still go back at once.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(tune(_MMAP_THRESHOLD, _LARGE)) and bool(tune(_TRIM_THRESHOLD, _KEPT))


@contextmanager
def arithmetic(precision: str, device: str) -> Iterator[None]:
    """Deterministic kernels and a precision of `PRECISIONS` on a GPU, while this lasts; elsewhere
    nothing changes.
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


# --- secrets, and words of others

_SECRETS = (
    *("HARDCASE_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
)
"""Environment variables that hold secrets."""
_PASSWORD = re.compile(r"""(\w://[^\s/:@"']{0,200}:)[^\s/@"']{1,200}@""")
"""A password inside an address."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How words begin that a spreadsheet takes for a formula."""


def redact(text: str, hidden: Iterable[str] | None = None) -> str:
    """`text` without the secrets of this process, and without passwords in addresses.

    Args:
        text: What leaves the process.
        hidden: The secrets, where they were looked up before.

    Example:
        >>> redact("postgresql://ann:pass@host/db")
        'postgresql://ann:***@host/db'
    """
    for secret in secrets() if hidden is None else hidden:
        text = text.replace(secret, "***")
    return _PASSWORD.sub(r"\1***@", text) if "@" in text else text


def secrets() -> list[str]:
    """The secrets of this process; of less than four letters, every other word would be spoilt."""
    values = (os.environ.get(name, "").strip() for name in _SECRETS)
    return [secret for secret in values if len(secret) >= 4]


def redacted(value: Any, clean: Callable[[str], str] | None = None) -> Any:
    """A tree of JSON with every text cleaned, by default of secrets."""
    clean = clean or partial(redact, hidden=secrets())
    tree: Any = [value]
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        places = list(part) if isinstance(part, dict) else range(len(part))
        for place in places:
            inner = part[place]
            if isinstance(inner, str):
                part[place] = clean(inner)
            elif isinstance(inner, dict):
                part[place] = {clean(str(key)): each for key, each in inner.items()}
                waiting.append(part[place])
            elif isinstance(inner, list | tuple):
                part[place] = list(inner)
                waiting.append(part[place])
    return tree[0]


def for_people(value: Any) -> Any:
    """A tree of JSON as it goes into a page: every text in it redacted and legible."""
    return redacted(value, lambda text: sanitize(redact(text)))


def sanitize(text: str) -> str:
    """`text` without signs that command a terminal or turn the direction of reading.

    Example:
        >>> sanitize("cat\\x1b[2J\\u202egod")
        'cat\\ufffd[2J\\ufffdgod'
    """
    if text.isprintable():
        return text
    kinds = ("Zs", "Co")  # spaces, and what fonts define for themselves
    words = (sign in "\n\t" or sign.isprintable() or category(sign) in kinds for sign in text)
    return "".join(sign if good else "\ufffd" for sign, good in zip(text, words))


def one_line(text: str) -> str:
    """A name as words on a single line."""
    return sanitize(" ".join(text.splitlines())).replace("\t", " ")


def escape_csv(value: Any) -> Any:
    """A value that no spreadsheet reads as a formula: text that begins like a formula gets a quote.

    Example:
        >>> escape_csv("=HYPERLINK(1)"), escape_csv("cat"), escape_csv(-1.5)
        ("'=HYPERLINK(1)", 'cat', -1.5)
    """
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


class Redacting(logging.Formatter):
    """A formatter of log lines, tracebacks included, that strikes out secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def duration(seconds: float, gap: str = " ") -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min; `gap` stands between a number and its unit."""
    if seconds < 10:
        return f"{seconds:.1f}{gap}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{gap}min {rest}{gap}s" if minutes else f"{rest}{gap}s"
    return f"{minutes // 60:,}{gap}h {minutes % 60}{gap}min"
