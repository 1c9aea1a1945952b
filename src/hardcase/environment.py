"""What the process runs in: which hardcase this is, its memory, its arithmetic, and its secrets.

Secrets are struck out of whatever leaves the process: errors, logs, files, pages. Call sites need
not know of them: every exit passes its text through `redact`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import unicodedata
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import quote

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


# --- secrets

SECRETS = (
    *("HARDCASE_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
)
"""Environment variables that hold secrets."""
STRUCK = "***"
SHORTEST = 4
"""Characters below which a value is not taken for a secret: striking it out would spoil every other
word.
"""
HEAD = 8
"""Characters at the beginning of a secret that are struck out where the rest was cut off."""


def live() -> tuple[str, ...]:
    """The secrets that this process holds now."""
    values = (os.environ.get(name, "").strip() for name in SECRETS)
    return tuple(value for value in values if len(value) >= SHORTEST)


def redact(text: str) -> str:
    """`text` without any live secret, in the forms in which others repeat them, whole or cut off.

    Example:
        >>> import os
        >>> os.environ["HARDCASE_TOKEN"] = "s3cr3t-and-long"
        >>> redact("401: Bearer s3cr3t-and-long is wrong; s3cr3t-and-l")
        '401: Bearer *** is wrong; ***'
        >>> redact("postgresql://ann:pass@host/db")
        'postgresql://ann:***@host/db'
        >>> del os.environ["HARDCASE_TOKEN"]
    """
    for secret in live():
        for form in _forms(secret):
            text = _strike(text, form)
    return _PASSWORD.sub(rf"\1{STRUCK}@", text)


def redacted(value: Any) -> Any:
    """A tree of JSON with every text in it redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): redacted(inner) for key, inner in value.items()}
    return [redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


def for_people(value: Any) -> Any:
    """A tree of JSON as it goes into a page: every text in it redacted and legible."""
    if isinstance(value, str):
        return legible(redact(value))
    if isinstance(value, dict):
        return {legible(redact(str(key))): for_people(inner) for key, inner in value.items()}
    return [for_people(inner) for inner in value] if isinstance(value, list | tuple) else value


def legible(text: str) -> str:
    """`text` without signs that command a terminal or turn the direction of reading.

    Names of classes and files come from others; wherever people read them they are words only.

    Example:
        >>> legible("cat\\x1b[2J\\u202egod")
        'cat\\ufffd[2J\\ufffdgod'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign in "\n\t" or _is_word(sign) else "\ufffd" for sign in text)


def one_line(text: str) -> str:
    """A name as words on one line."""
    return legible(" ".join(text.splitlines())).replace("\t", " ")


def inert(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula: words that begin like one get a quote.

    Example:
        >>> inert("=HYPERLINK(1)"), inert("cat"), inert(-1.5), stirred("'=HYPERLINK(1)")
        ("'=HYPERLINK(1)", 'cat', -1.5, '=HYPERLINK(1)')
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def stirred(text: str) -> str:
    """The text that `inert` was given."""
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _is_word(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) in ("Zs", "Co")


class Redacting(logging.Formatter):
    """A formatter of log lines, tracebacks included, that strikes out secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


@lru_cache(maxsize=16)
def _forms(secret: str) -> tuple[str, ...]:
    """The secret, escaped, quoted, in hexadecimal, backwards, and in base64 at each of the three
    places it can begin.
    """
    raw = secret.encode()
    coded = [b64encode(b"\0" * shift + raw).decode().rstrip("=") for shift in range(3)]
    inner = [text[skip:-1] for text, skip in zip(coded, (0, 2, 3))]
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in secret)
    forms = (
        *(secret, secret[::-1], quote(secret, safe=""), repr(secret)[1:-1]),
        *(raw.hex(), escaped, *inner, *(text.translate(_URL_SAFE) for text in inner)),
    )
    return tuple(dict.fromkeys(form for form in forms if len(form) >= SHORTEST))


_URL_SAFE = str.maketrans("+/", "-_")
_PASSWORD = re.compile(r"""(\w://[^\s/:@"']{0,200}:)[^\s/@"']{1,200}@""")
"""A password inside an address."""


def _strike(text: str, form: str) -> str:
    """`text` without `form`, however it is spelt in capitals, and without what is left of it where
    it was cut off.
    """
    lower, wanted = text.lower(), form.lower()
    if len(lower) != len(text):  # letters whose small form is longer
        lower, wanted = text, form
    head = wanted[:HEAD]
    pieces = []
    at = 0
    while (found := lower.find(head, at)) >= 0:
        end = found + len(head)
        while end < len(lower) and end - found < len(wanted) and lower[end] == wanted[end - found]:
            end += 1
        pieces += [text[at:found], STRUCK]
        at = end
    return "".join([*pieces, text[at:]]) if pieces else text
