"""Secrets of this process are struck out of whatever leaves it: errors, logs, files, pages.

Call sites need not know of them: every exit passes its text through `redact`.
"""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from functools import lru_cache
from typing import Any
from urllib.parse import quote

NAMES = (
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
    values = (os.environ.get(name, "").strip() for name in NAMES)
    return tuple(value for value in values if len(value) >= SHORTEST)


def redact(text: str) -> str:
    """`text` without any live secret, in the forms in which others repeat them, whole or cut off.

    Example:
        >>> import os
        >>> os.environ["HARDCASE_TOKEN"] = "s3cr3t-and-long"
        >>> redact("401: Bearer s3cr3t-and-long is wrong; s3cr3t-and-l")
        '401: Bearer *** is wrong; ***'
        >>> del os.environ["HARDCASE_TOKEN"]
    """
    for secret in live():
        for form in _forms(secret):
            text = _strike(text, form)
    return text


def redacted(value: Any) -> Any:
    """A tree of JSON with every text in it redacted."""
    if not live():
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): redacted(inner) for key, inner in value.items()}
    return [redacted(inner) for inner in value] if isinstance(value, list | tuple) else value


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
