"""Putting a run folder right before its search goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from hardcase.cache import is_temporary
from hardcase.config import loads
from hardcase.errors import Problem
from hardcase.runs import tables
from hardcase.runs.directory import read_plain
from hardcase.runs.folder import FOLDERS, Store
from hardcase.runs.identity import FREE
from hardcase.runs.ledger import SEEDS, Entry
from hardcase.runs.verify import CHANGING

# Putting a run folder right before its search goes on. What is damaged is set aside under another
# name, never deleted.


class Mended(NamedTuple):
    """`record`: what the run is; `notes`: what was put right, in words."""

    record: dict[str, Any]
    notes: list[str]


def mend_papers(folder: Path) -> Mended:
    """Restore run.json and config.toml from what was kept when the run began,
    and sweep up half-written files.
    """
    store = Store.open(folder)
    for place in (folder, *(folder / name for name in FOLDERS)):
        for path in place.glob(".*-*"):
            if is_temporary(path):
                path.unlink(missing_ok=True)
    begun = store.begun()
    if begun is None:
        return Mended(store.record(), [])
    record, notes = _record(store, begun["record"])
    return Mended(record, [*notes, *_config(store, begun["config"])])


def mend_shards(
    store: Store, deep: Callable[[str], bool] = lambda name: True, *, shards: int | None = None
) -> list[int]:
    """Set aside finished shards whose files are not what was stored, so that they are searched
    again; their numbers and those of shards that have disappeared.

    Files are compared with the ledger by size, and by content where `deep` says so of their names.
    A run has `shards`
    shards: parts with other numbers are not its own and set aside, ledger lines with other numbers
    mean nothing.
    """
    entries = store.ledger.read()
    sizes = _sizes(store)
    for number in store.done():
        if shards is not None and number >= shards:
            for path in _files(store, number):
                set_aside(path)
    done = store.done()
    highest = max([*done, -1]) + 1 if shards is None else shards

    def whole(name: str, size: int, check: int) -> bool:
        return sizes.get(name) == size and (
            not deep(name) or _checksum(store.folder / name) == check
        )

    damaged = [number for number in entries if number not in done and 0 <= number < highest]
    for number in sorted(done):
        entry = entries.get(number) or _examined(store, number)
        if entry is None or not all(whole(name, *seal) for name, seal in entry.files.items()):
            for path in _files(store, number):
                set_aside(path)
            damaged.append(number)
        elif number not in entries:
            store.ledger.add(number, entry)
    return sorted(damaged)


def seeds_are_whole(store: Store) -> bool:
    """Whether ``seeds.parquet`` is known to be what was stored."""
    entry = store.ledger.read().get(SEEDS)
    return (
        entry is not None
        and _checksum(store.folder / "seeds.parquet") == entry.files["seeds.parquet"][1]
    )


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file so that nobody takes it for a whole one; returns its new place."""
    if not path.exists():
        return None
    names = (path.with_name(f"{path.name}.damaged{'' if i == 1 else f'-{i}'}") for i in count(1))
    new = next(name for name in names if not name.exists())
    return path.rename(new)


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


def _examined(store: Store, number: int) -> Entry | None:
    """The entry of a shard that the ledger does not know, if all its files can be read."""
    files = {str(path.relative_to(store.folder)): path for path in _files(store, number)}
    try:
        spent = tables.read(
            store.folder / f"state/seeds-{number:05d}.parquet", tables.SPENT, list(tables.SPENT)
        )
        findings = tables.read(
            store.folder / f"findings/part-{number:05d}.parquet", tables.FINDINGS
        )
        store.deltas(number)
        content = {name: read_plain(path) for name, path in files.items()}
    except (Problem, OSError):
        return None
    return Entry.of(content, tables.summarise(findings, spent))


def _sizes(store: Store) -> dict[str, int]:
    """The size of every file of a shard, by its name in the run folder."""
    entries = (
        (name, entry) for name in ("findings", "state") for entry in os.scandir(store.folder / name)
    )
    return {f"{name}/{entry.name}": entry.stat().st_size for name, entry in entries}


def _checksum(path: Path) -> int | None:
    try:
        return crc32(read_plain(path))
    except OSError:
        return None


def _files(store: Store, number: int) -> list[Path]:
    names = (
        f"state/deltas-{number:05d}.safetensors",
        f"state/seeds-{number:05d}.parquet",
        f"findings/part-{number:05d}.parquet",
    )
    return [store.folder / name for name in names if (store.folder / name).exists()]
