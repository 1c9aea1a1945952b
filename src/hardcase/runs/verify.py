"""A stored run is believed as far as it agrees with its own checksums and with its beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hardcase.config import loads
from hardcase.runs.directory import FOLDERS, read_plain
from hardcase.runs.identity import FREE, Identity, run_digest
from hardcase.runs.ledger import file_seal, sealed, unsealed

if TYPE_CHECKING:
    from hardcase.runs.folder import Store

CHANGING = (
    *("complete", "finished", "elapsed", "totals", "service", "funnel", "skipped", "findings"),
    *("kinds", "judge", "verdicts", "coverage"),
)
"""What a record says anew each time a run stops or is judged."""


JUDGE = "judge.json"
"""The file in verdicts/ that says whose they are."""
CURVES = "curves.json"
"""What ``hardcase curve`` leaves in a run folder."""
REGRESSION = "regression.json"
"""What a search for regressions shows beyond its nulls."""
BESIDE = (CURVES, REGRESSION)
"""Files that verbs add to a run later, each with its own checksum and the run it is about."""


def keep_beside(store: Store, name: str, content: Mapping[str, Any]) -> None:
    """Add one of `BESIDE` to a run folder."""
    store.write(name, sealed({**content, "run": store.run}))


def read_beside(store: Store, name: str) -> dict[str, Any] | None:
    """What one of `BESIDE` says; None if it is not there, damaged, or about another run."""
    try:
        said, sound = unsealed(read_plain(store.folder / name))
    except (OSError, ValueError, RecursionError):
        return None
    mine = isinstance(said, dict) and said.get("run") == store.run
    return said if sound and mine else None


def read_judge(folder: Path) -> dict[str, Any]:
    """Whose the verdicts of a run are; nothing if that is not known, or damaged."""
    try:
        said, sound = unsealed(read_plain(folder / "verdicts" / JUDGE))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if sound and isinstance(said, dict) else {}


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
    if "identity" not in record and store.seal is not False:
        why = "no identity of its ingredients was stored when it began"
        return Verification("unverified", (f"this run is unverified: {why}",))
    notes = tuple(dict.fromkeys(_notes(store, record)))
    return Verification("damaged" if notes else "verified", notes)


def _notes(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    if store.seal is not True:
        yield "run.json does not have the checksum of its content"
    if Identity.from_json(record.get("identity")) is None:
        yield "run.json has no valid identity of its ingredients"
    for name in FOLDERS:
        if (store.folder / name).is_symlink():
            yield f"{name}/ is a link that leads out of the run"
    yield from _beginning(store, record)
    yield from _shards(store, record)
    for name, seal in (record.get("verdicts") or {}).items():
        if file_seal(store.folder / "verdicts" / Path(str(name)).name) != seal:
            yield f"verdicts/{name} is not what was stored"
    there = {path.name for path in (store.folder / "verdicts").glob("part-*.parquet")}
    if there != {str(name) for name in record.get("verdicts") or {}} - {JUDGE}:
        yield "verdicts are there that run.json does not name, or the other way round"
    whose = read_judge(store.folder)
    if JUDGE in (record.get("verdicts") or {}) and whose.get("run") != run_digest(record):
        yield "the verdicts are of another run"
    for name in BESIDE:
        if (store.folder / name).exists() and read_beside(store, name) is None:
            yield f"{name} is damaged, or of another run"
    if record.get("complete"):
        yield from _small_files(store)


def _beginning(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    """run.json and config.toml against what was kept when the run began."""
    begun = store.begun()
    if begun is None:
        yield "state/begun.json is missing or damaged"
        return
    kept = {name: value for name, value in begun["record"].items() if name not in CHANGING}
    spoilt = [name for name, value in kept.items() if record.get(name) != value]
    if spoilt:
        yield f"run.json is not of the run that began here ({', '.join(spoilt)})"
    try:
        now = loads(read_plain(store.folder / "config.toml").decode())
        then = loads(begun["config"])
    except (OSError, ValueError, RecursionError):
        yield "config.toml is missing or damaged"
        return
    changed = [k for k in then.keys() | now.keys() if k not in FREE and then.get(k) != now.get(k)]
    if changed:
        yield f"config.toml was changed ({', '.join(sorted(changed))})"


def _shards(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    """The files of every shard and of the seeds against the ledger; the set of shards against the
    beginning.
    """
    entries, done = store.ledger.read(), store.done()
    for number, entry in sorted(entries.items()):
        if number >= 0 and number not in done and record.get("complete"):
            yield f"shard {number} is missing"
            continue
        for name, seal in entry.files.items():
            if number in done or number < 0:
                found = file_seal(store.folder / name, size=seal[0])
                if found != list(seal):
                    yield f"{name} is {'missing' if found is None else 'not what was stored'}"
    shards = record.get("shards")
    if not isinstance(shards, int):
        yield "run.json does not say how many shards the run has"
        return
    foreign = sorted(number for number in done if number >= shards)
    if foreign:
        yield f"findings/part-{foreign[0]:05d}.parquet is not of this run"
    if record.get("complete"):
        lost = sorted(set(range(shards)) - done)
        unknown = sorted((done | {-1}) - entries.keys())
        if lost:
            yield f"shard {lost[0]} is missing, though run.json calls the run complete"
        if unknown:
            yield "state/ledger.jsonl is damaged: it lacks files that are there"


def _small_files(store: Store) -> Iterator[str]:
    """status.json and history.csv, which a complete run does not change any more."""
    path = store.folder / "status.json"
    if not path.exists():
        return  # a run that was made from another has none
    try:
        said, sound = unsealed(read_plain(path))
        history = said.get("history")
    except (OSError, ValueError, RecursionError, AttributeError):
        sound = False
    if not sound:
        yield "status.json is damaged"
    elif history != file_seal(store.folder / "history.csv"):
        yield "history.csv is not what was stored"
