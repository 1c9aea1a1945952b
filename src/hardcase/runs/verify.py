"""A stored run compared with its own checksums and its beginning, and put right before its search
goes on: only `resume` repairs, and what is damaged is set aside, never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hardcase.cache import free, sweep
from hardcase.config import loads
from hardcase.errors import Problem
from hardcase.runs.files import (
    FOLDERS,
    checked_json,
    file_size_and_crc,
    files_of,
    read_checked_json,
    read_plain,
)
from hardcase.runs.folder import BEGUN, Store
from hardcase.runs.identity import FREE, run_digest
from hardcase.runs.tables import VERDICTS, read

CURVES = "curves.json"
"""What ``hardcase curve`` leaves in a run folder."""
REGRESSION = "regression.json"
"""What a search for regressions shows beyond its nulls."""
CONDITIONS = "conditions.json"
"""What happened to every seed under the declared conditions."""
CLAIMS = "claims.json"
"""What is claimed of every seed of a tagger, detector or segmenter."""
BESIDE = (CURVES, REGRESSION, CONDITIONS, CLAIMS)
"""Files that verbs add to a run later, each with its own checksum and the run it is about."""


def keep_beside(store: Store, name: str, content: Mapping[str, Any]) -> None:
    """Add one of `BESIDE` to a run folder."""
    store.write(name, checked_json({**content, "run": store.run}))


def read_beside(store: Store, name: str) -> dict[str, Any] | None:
    """What one of `BESIDE` says; None if it is not there, damaged, or about another run."""
    content = _checked(store.folder / name)
    return content if content.get("run") == store.run else None


def _checked(path: Path) -> dict[str, Any]:
    """What a file says that has the checksum of its content; nothing of any other."""
    with suppress(OSError, ValueError, RecursionError):
        content, intact = read_checked_json(read_plain(path))
        if intact:
            return dict(content)
    return {}


# --- verification


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a run can be believed; unverified is one that stored nothing to compare with."""

    state: Literal["verified", "unverified", "damaged"]
    notes: tuple[str, ...] = ()


def verify(store: Store) -> Verification:
    """Compare everything in a run folder with what was written about it; reads each file once."""
    record = store.record()
    if "identity" not in record and store.intact is not False:
        why = "no identity of its ingredients was stored when it began"
        return Verification("unverified", (f"this run is unverified: {why}",))
    notes = tuple(dict.fromkeys(_notes(store, record)))
    return Verification("damaged" if notes else "verified", notes)


def _notes(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    if store.intact is not True:
        yield "run.json does not have the checksum of its content"
    if not run_digest(record):
        yield "run.json has no valid identity of its ingredients"
    for name in FOLDERS:
        if (store.folder / name).is_symlink():
            yield f"{name}/ is a link that leads out of the run"
    begun = store.begun()
    if begun is None:
        yield "state/begun.json is missing or damaged"
    else:
        if run_digest(begun["record"]) != run_digest(record):
            yield "run.json is not of the run that began here"
        changed = _other_settings(store, begun["config"])
        if changed:
            yield f"config.toml was changed or damaged ({', '.join(changed)})"
    yield from _shards(store, record)
    yield from _verdicts(store, record)
    for name in BESIDE:
        if (store.folder / name).exists() and read_beside(store, name) is None:
            yield f"{name} is damaged, or of another run"
    # a complete run does not change these any more; one that was made from another has none
    if record.get("complete") and (store.folder / "status.json").exists():
        status = _checked(store.folder / "status.json")
        if not status:
            yield "status.json is damaged"
        elif status.get("history") != file_size_and_crc(store.folder / "history.csv"):
            yield "history.csv is not what was stored"


def _shards(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    """Files against the ledger, their number against the record."""
    entries = store.ledger.read()
    for number in sorted(entries):
        for name in _changed_files(store, number):
            yield f"{name} is missing or not what was stored"
    shards = record.get("shards")
    if not isinstance(shards, int):
        yield "run.json does not say how many shards the run has"
        return
    for number in sorted(store.parts()):
        if number >= shards:
            yield f"findings/part-{number:05d}.parquet is not of this run"
    if record.get("complete"):
        lacking = {*range(-1, shards)} - entries.keys()
        if lacking:
            yield f"state/ledger.jsonl is damaged: it lacks {len(lacking)} of its lines"


def _changed_files(store: Store, number: int) -> list[str]:
    """The files of an entry of the ledger that are not what was stored."""
    files = store.ledger.read()[number].files
    return [
        name
        for name, (size, check) in files.items()
        if file_size_and_crc(store.folder / name, size) != [size, check]
    ]


def _verdicts(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    checksums = record.get("verdicts") or {}
    folder = store.folder / "verdicts"
    changed = [
        n for n, stored in checksums.items() if file_size_and_crc(folder / Path(n).name) != stored
    ]
    yield from (f"verdicts/{name} is not what was stored" for name in changed)
    there = {path.name for path in folder.glob("part-*.parquet")}
    if there != {*checksums}:
        yield "verdicts are there that run.json does not name, or the other way round"
    elif there and not changed:
        with suppress(Problem):  # findings that cannot be read are told of elsewhere
            said = [read(folder / name, VERDICTS, ["id"])["id"].to_pylist() for name in there]
            if not {*chain(*said)} <= {*store.findings()["id"].to_pylist()}:
                yield "the verdicts are of another run"


def _other_settings(store: Store, begun: str) -> list[str]:
    """The settings of config.toml that findings depend on, and are not those of the beginning."""
    try:
        then, now = loads(begun), store.settings()
    except (Problem, ValueError):
        return ["all of it"]
    names = sorted((then.keys() | now.keys()) - {*FREE})
    return [name for name in names if then.get(name) != now.get(name)]


# --- repair


class Repaired(NamedTuple):
    """What a run is, and in words what was put right."""

    record: dict[str, Any]
    notes: list[str]


def repair_record(folder: Path) -> Repaired:
    """Restore run.json and config.toml from what the run began with, or that from run.json."""
    store = Store.open(folder)
    sweep(folder, *(folder / name for name in FOLDERS))
    begun = store.begun()
    now: dict[str, Any] = {}
    with suppress(Problem):
        now = store.record()
    if store.intact is not True:
        now = {}
    if begun is None:
        if not now:
            raise Problem(
                f"run.json and {BEGUN} of {folder} are both damaged: nothing says what the run is.",
                "The findings beside them are still readable as Parquet.",
                fix="a new --out",
            )
        set_aside(folder / BEGUN)
        store.write(BEGUN, checked_json({"record": now, "config": store.config()}))
        return Repaired(now, [f"{BEGUN} was damaged or missing; it is written anew"])
    record = {**begun["record"], **now}
    notes = []
    if not now or run_digest(now) != run_digest(begun["record"]):
        record = begun["record"]
        why = _why(set_aside(folder / "run.json"), "damaged")
        store.write_record(record)
        notes.append(f"run.json {why}; it is written anew from the beginning of the run")
    changed = _other_settings(store, begun["config"])
    if changed:
        why = _why(set_aside(folder / "config.toml"), f"changed or damaged ({', '.join(changed)})")
        store.write("config.toml", begun["config"].encode())
        notes.append(f"config.toml {why}; the run goes on as it began")
    return Repaired(record, notes)


def _why(place: Path | None, what: str) -> str:
    """What was done to a file that was `what`, or not there."""
    return f"was {what} and is set aside as {place.name}" if place else "was missing"


def repair_shards(store: Store, *, shards: int | None = None) -> list[int]:
    """Set aside finished shards whose files are not what was stored, so that they are searched
    again, and parts that a run of so many shards has not; returns the numbers of the former.
    """
    entries = store.ledger.read()
    strangers = {number for number in store.parts() if shards is not None and number >= shards}
    damaged = {number for number in entries if number >= 0 and _changed_files(store, number)}
    for number in strangers | damaged:
        entries.pop(number, None)
        for name in sum(files_of(number), ()):
            set_aside(store.folder / name)
    return sorted(damaged - strangers)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file so that nobody takes it for a whole one; returns its new place."""
    if not path.exists():
        return None
    return path.rename(free(path.with_name(f"{path.name}.damaged")))
