"""A stored run compared with what was written about it, and put right before its search goes on.

A run is believed as far as it agrees with its own checksums and with its beginning. Only `resume`
repairs; what is damaged is set aside under another name, never deleted.
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
    read_checked_json,
    read_plain,
)
from hardcase.runs.folder import BEGUN, Store
from hardcase.runs.identity import FREE, Identity
from hardcase.runs.ledger import files_of
from hardcase.runs.tables import VERDICTS, read

__all__ = [
    "BESIDE",
    "CLAIMS",
    "CONDITIONS",
    "CURVES",
    "REGRESSION",
    "Repaired",
    "Verification",
    "keep_beside",
    "read_beside",
    "repair_record",
    "repair_shards",
    "set_aside",
    "verify",
]

CHANGING = (
    *("complete", "finished", "elapsed", "totals", "service", "funnel", "skipped", "findings"),
    *("kinds", "judge", "verdicts", "coverage", "conditions", "risk", "risk_excess"),
    *("least_scale", "worst_case", "rare"),
)
"""What a record says anew each time a run stops or is judged."""
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
    said = _checked(store.folder / name)
    return said if said and said.get("run") == store.run else None


def _checked(path: Path) -> dict[str, Any]:
    """What a file says that has the checksum of its content; nothing of any other."""
    try:
        said, sound = read_checked_json(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if sound else {}


# --- verification


@dataclass(frozen=True, slots=True)
class Verification:
    """How far a run can be believed, and why not: damaged, or unverified because it stored nothing
    to compare with.
    """

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
    if Identity.from_json(record.get("identity")) is None:
        yield "run.json has no valid identity of its ingredients"
    for name in FOLDERS:
        if (store.folder / name).is_symlink():
            yield f"{name}/ is a link that leads out of the run"
    begun = store.begun()
    if begun is None:
        yield "state/begun.json is missing or damaged"
    else:
        spoilt = _other_entries(begun["record"], record)
        if spoilt:
            yield f"run.json is not of the run that began here ({', '.join(spoilt)})"
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
    """The files of every shard and of the seeds against the ledger; the set of shards against the
    beginning.
    """
    entries = store.ledger.read()
    parts = store.parts()
    for number, entry in sorted(entries.items()):
        if number >= 0 and number not in parts:
            yield f"shard {number} is missing"
            continue
        for name, stored in entry.files.items():
            found = file_size_and_crc(store.folder / name, size=stored[0])
            if found != [*stored]:
                yield f"{name} is missing or not what was stored"
    shards = record.get("shards")
    if not isinstance(shards, int):
        yield "run.json does not say how many shards the run has"
        return
    for number in sorted(parts):
        if number >= shards:
            yield f"findings/part-{number:05d}.parquet is not of this run"
    if record.get("complete"):
        lacking = {*range(-1, shards)} - entries.keys()
        if lacking:
            yield f"state/ledger.jsonl is damaged: it lacks {len(lacking)} of its lines"


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


def _other_entries(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The entries of a record that never change, and are not those of the beginning."""
    kept = {name: value for name, value in begun.items() if name not in CHANGING}
    return [name for name, value in kept.items() if now.get(name) != value]


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
    """`record`: what the run is; `notes`: what was put right, in words."""

    record: dict[str, Any]
    notes: list[str]


def repair_record(folder: Path) -> Repaired:
    """Restore run.json and config.toml from what was kept when the run began, that from run.json,
    and sweep up half-written files.
    """
    store = Store.open(folder)
    sweep(folder, *(folder / name for name in FOLDERS))
    begun = store.begun()
    if begun is None:
        record = store.record()
        if store.intact is not True:
            raise Problem(
                f"run.json and {BEGUN} of {folder} are both damaged: nothing says what the run is.",
                "The findings beside them are still readable as Parquet.",
                fix="a new --out",
            )
        set_aside(folder / BEGUN)
        store.write(BEGUN, checked_json({"record": record, "config": store.config()}))
        return Repaired(record, [f"{BEGUN} was damaged or missing; it is written anew"])
    record, notes = _repaired_record(store, begun["record"])
    changed = _other_settings(store, begun["config"])
    if changed:
        why = _why(set_aside(folder / "config.toml"), f"changed or damaged ({', '.join(changed)})")
        store.write("config.toml", begun["config"].encode())
        notes = [*notes, f"config.toml {why}; the run goes on as it began"]
    return Repaired(record, notes)


def _repaired_record(store: Store, begun: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The record with everything that never changes as it was at the beginning; judges and others
    may have added to it.
    """
    now: dict[str, Any] = {}
    try:
        now = store.record()
        spoilt = _other_entries(begun, now)
        if store.intact is not True:  # what does not show in the beginning is not believed either
            now = {}
            spoilt = spoilt or ["its checksum"]
    except Problem:
        spoilt = ["all of it"]
    if not spoilt:
        return {**begun, **now}, []
    record = {**begun, **now, **{name: begun[name] for name in begun if name not in CHANGING}}
    why = _why(set_aside(store.folder / "run.json"), f"damaged ({', '.join(spoilt)})")
    store.write_record(record)
    return record, [f"run.json {why}; it is written anew from the beginning of the run"]


def _why(place: Path | None, what: str) -> str:
    """What was done to a file that was `what`, or not there."""
    return f"was {what} and is set aside as {place.name}" if place else "was missing"


def repair_shards(store: Store, *, shards: int | None = None) -> list[int]:
    """Set aside finished shards whose files are not what was stored, so that they are searched
    again; returns their numbers.

    Args:
        store: The run folder.
        shards: How many shards the run has: parts with other numbers are not its own.
    """
    entries = store.ledger.read()
    strangers = {number for number in store.parts() if shards is not None and number >= shards}
    damaged = {
        number
        for number, entry in entries.items()
        if number >= 0
        and not all(
            file_size_and_crc(store.folder / n, size=s[0]) == [*s] for n, s in entry.files.items()
        )
    }
    for number in strangers | damaged:
        entries.pop(number, None)
        for names in files_of(number):
            for name in names:
                set_aside(store.folder / name)
    return sorted(number for number in damaged if shards is None or number < shards)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file so that nobody takes it for a whole one; returns its new place."""
    if not path.exists():
        return None
    return path.rename(free(path.with_name(f"{path.name}.damaged")))
