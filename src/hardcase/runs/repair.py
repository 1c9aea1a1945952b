"""The papers of a run folder put right before its search goes on.

What is damaged is set aside under another name, never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hardcase.cache import sweep
from hardcase.config import loads
from hardcase.errors import Problem
from hardcase.runs.directory import FOLDERS, read_plain
from hardcase.runs.folder import Store, set_aside
from hardcase.runs.identity import FREE
from hardcase.runs.verify import CHANGING


class Mended(NamedTuple):
    """`record`: what the run is; `notes`: what was put right, in words."""

    record: dict[str, Any]
    notes: list[str]


def mend_papers(folder: Path) -> Mended:
    """Restore run.json and config.toml from what was kept when the run began,
    and sweep up half-written files.
    """
    store = Store.open(folder)
    sweep(folder, *(folder / name for name in FOLDERS))
    begun = store.begun()
    if begun is None:
        return Mended(store.record(), [])
    record, notes = _record(store, begun["record"])
    return Mended(record, [*notes, *_config(store, begun["config"])])


def _record(store: Store, begun: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with everything that never changes as it was at the beginning;
    judges and others may have added to it.
    """
    kept = {key: value for key, value in begun.items() if key not in CHANGING}
    try:
        now = store.record()
        spoilt = [key for key, value in kept.items() if now.get(key) != value]
        if store.seal is False:  # what does not show in the beginning is not believed either
            now = {}
            spoilt = spoilt or ["its checksum"]
    except Problem:
        now = {}
        spoilt = ["all of it"]
    if not spoilt:
        return {**begun, **now}, []
    place = set_aside(store.folder / "run.json")
    record = {**begun, **now, **kept}
    store.write_record(record)
    why = (
        f"was damaged ({', '.join(spoilt)}) and is set aside as {place.name}"
        if place
        else "was missing"
    )
    return record, [f"run.json {why}; it is written anew from the beginning of the run"]


def _config(store: Store, begun: str) -> list[str]:
    path = store.folder / "config.toml"
    try:
        now = loads(read_plain(path).decode())
        changed = sorted(_changes(loads(begun), now))
    except (OSError, ValueError, RecursionError):
        changed = ["all of it"]
    if not changed:
        return []
    place = set_aside(path)
    store.write("config.toml", begun.encode())
    why = (
        f"was changed or damaged ({', '.join(changed)}) and is set aside as {place.name}"
        if place
        else "was missing"
    )
    return [f"config.toml {why}; the run goes on as it began"]


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    return (
        key for key in then.keys() | now.keys() if key not in FREE and then.get(key) != now.get(key)
    )
