"""What a configuration would be allowed to do, and whether this user has allowed it before.

A run folder grants no rights: whatever its files name (code, pickles, addresses, paths) is only
used if the same was started from this account before, or the user says ``--trust-run``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hardcase.cache import cache_folder, write_atomically
from hardcase.errors import Problem
from hardcase.runs.identity import ANOTHER, NONE, Identity, require_same, short, source_digest

_CODE = re.compile(r"(?:.*@)?\s*(.+\.py)(?::\w*)?\s*")
_WEIGHTS = re.compile(r"(.+)@.+\.py:\w+")


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that a configuration would do with the user's rights: `what` in words, `content` as
    a digest.
    """

    what: str
    content: str = ""


def rights(values: Mapping[str, Any]) -> list[Right]:
    """What these settings would execute, unpickle, write or talk to; nothing of it is done here.

    Args:
        values: The raw values of a configuration.

    Example:
        >>> [right.what for right in rights({"model": "zoo:lenet5", "metrics": "/tmp/m.prom"})]
        ['write metrics to /tmp/m.prom']
    """
    found = [
        Right(f"run the Python file {path} (as {key})", _content(path))
        for key, path in _code(values)
    ]
    for key, text in _texts(values):
        weights = _WEIGHTS.fullmatch(text)
        if weights and values.get("trust_pickle"):
            path = Path(weights[1]).expanduser().absolute()
            found.append(Right(f"unpickle {path}, which can run code", _bytes(path)))
        if text.startswith(("http://", "https://")):
            found.append(Right(f"send images to {text[:200]} (as {key})"))
    for key, words in {
        "metrics": "write metrics to",
        "cluster": "send code to the cluster",
    }.items():
        if values.get(key) and values[key] != "auto" and not str(values[key]).startswith("local"):
            found.append(Right(f"{words} {values[key]}"))
    return found


def code_digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the source text that settings name, by their role; modules beside the files are
    part of it.
    """
    return {f"{key} source": _content(path) for key, path in _code(values)}


def same_source(
    record: Mapping[str, Any], config: Any, uses: tuple[str, ...] | None = None
) -> None:
    """Refuse source text that is not the one a run began with, before any of it runs.

    Args:
        record: What the run says of itself.
        config: Its configuration, checked.
        uses: The settings that matter; None: all of them.
    """
    then = Identity.from_json(record.get("identity"))
    values = config.model_dump()
    now = code_digests({key: value for key, value in values.items() if uses is None or key in uses})
    if then is not None:
        stored = {name: then.parts[name] for name in now if name in then.parts}
        require_same(Identity(stored), Identity(now), fix=ANOTHER)


def remember(values: Mapping[str, Any]) -> None:
    """Record that this user started these settings; called by the verbs that name them on the
    command line.
    """
    wanted = rights(values)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(Problem):  # without a cache, going on asks again
        for right in wanted:
            said = {"allowed": now, "right": right.what}
            write_atomically(_record(right), json.dumps(said, indent=1).encode(), flush=False)


def require(values: Mapping[str, Any], folder: Path, *, trusted: bool = False) -> None:
    """Raise, saying what would be done, unless the user allowed it: before, or now with ``--trust-
    run``.
    """
    wanted = [right for right in rights(values) if not _record(right).is_file()]
    if not wanted:
        return
    if trusted:
        remember(values)
        return
    raise Problem(
        f"{folder} was not started from this account as it is now, and going on would",
        *(f"- {right.what}" for right in wanted),
        "A run folder of others can hold anything.",
        fix="--trust-run, if you trust whoever made it and have read what it names",
    )


def _record(right: Right) -> Path:
    """Where it is written that the user has allowed this, with this content."""
    name = short(f"{right.what}\0{right.content}".encode())
    return cache_folder() / "consent" / f"{name}.json"


def _code(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The Python files that settings name, wherever in them."""
    for key, text in _texts(values):
        for piece in text.split(","):
            named = _CODE.fullmatch(piece)
            if named:
                yield key, Path(named[1]).expanduser().absolute()


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}".strip("."))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value, 1):
            yield from _texts(inner, f"{key} {i}".strip())


def _content(path: Path) -> str:
    try:
        return source_digest(path) if path.is_file() else NONE
    except (OSError, ValueError):
        return NONE


def _bytes(path: Path) -> str:
    try:
        return short(path.read_bytes())
    except (OSError, ValueError):
        return NONE
