"""What is read from a run folder is checked before anybody uses it: whoever can write there can write anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = (int, float)
RECORD: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("schema", "seed", "seeds", "threads"), (int,)),
    **dict.fromkeys(("hardcase", "created", "method", "model", "data", "split", "device"), (str,)),
    **dict.fromkeys(("complete", "bitwise", "deterministic"), (bool,)),
    **dict.fromkeys(("versions", "budget", "hashes", "totals", "funnel", "skipped", "findings", "kinds"), (dict,)),
    **dict.fromkeys(("accuracy", "judge", "service", "shrink", "generator"), (dict, type(None))),
    **dict.fromkeys(("argv", "classes", "image", "notes", "citations"), (list,)),
    "finished": (str, type(None)),
    "coverage": (list, type(None)),
    "elapsed": _NUMBER,
}  # fmt: skip
"""What the entries of run.json are, where they are there."""
_ITEMS = {"argv": str, "classes": str, "notes": str, "citations": str, "image": int}


def wrong_record(record: Any) -> str:
    """What is wrong with the content of run.json; nothing, if that is sound."""
    if not isinstance(record, dict):
        return "it is not an object"
    for key, kinds in RECORD.items():
        if key in record and not _is(record[key], kinds):
            return f"{key} is {str(record[key])[:40]!r}"
    for key, kind in _ITEMS.items():
        if not all(_is(item, (kind,)) for item in record.get(key, ())):
            return f"{key} holds something else than it should"
    return ""


def sound_beginning(said: Any) -> bool:
    """Whether this is what a run keeps of its beginning."""
    return (
        isinstance(said, dict)
        and isinstance(said.get("config"), str)
        and isinstance(said.get("record"), dict)
        and not wrong_record(said["record"])
    )


def sound_line(said: Any) -> bool:
    """Whether this is a line of the ledger: a shard's number, its files' sizes and checksums, its counts."""
    if not (isinstance(said, dict) and type(said.get("shard")) is int):
        return False
    files, summary = said.get("files"), said.get("summary")
    if not (isinstance(files, dict) and isinstance(summary, dict)):
        return False
    return all(_whole(pair, 2) for pair in files.values()) and _sound_summary(summary)


def _sound_summary(summary: Mapping[str, Any]) -> bool:
    confusions, service, kinds = (summary.get(name) or {} for name in ("confusions", "service", "kinds"))
    return (
        all(type(summary.get(name, 0)) is int for name in ("seeds", "queries", "gradients", "failing", "findings"))
        and (not confusions or (isinstance(confusions, list) and all(_whole(row, 3) for row in confusions)))
        and all(isinstance(counts, dict) and _whole(list(counts.values()), len(counts)) for counts in (service, kinds))
    )


def _whole(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and (not row or set(map(type, row)) == {int})


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """Like isinstance, but true and false are no numbers."""
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
