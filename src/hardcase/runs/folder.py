"""One run folder: how it begins, what is put into it, and how it is read."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.torch import load, save

from hardcase import cache
from hardcase.cache import is_temporary, make_folder, sweep, unwritable
from hardcase.config import loads
from hardcase.environment import redact
from hardcase.errors import Problem
from hardcase.runs import tables
from hardcase.runs.directory import (
    FOLDERS,
    LARGE,
    NOFOLLOW,
    Directory,
    plain,
    read_plain,
    refuse_links,
)
from hardcase.runs.identity import run_digest
from hardcase.runs.ledger import (
    SEEDS,
    Entry,
    Ledger,
    file_seal,
    files_of,
    read_json,
    sealed,
    sound_beginning,
    storable,
    unsealed,
    wrong_record,
)
from hardcase.tensors import digest_tensors
from hardcase.types import State

# What the guides of a shard have learned, as safetensors with a checksum inside; no pickle.


def pack_deltas(deltas: Mapping[str, State]) -> bytes:
    named = {
        f"{guide}/{name}": value.cpu().contiguous()
        for guide, state in deltas.items()
        for name, value in state.items()
    }
    return bytes(save(named, metadata={"check": digest_tensors(named)})) if named else b""


def unpack_deltas(data: bytes, *, where: str = "the guides' state") -> dict[str, State]:
    """The deltas in `data`; a content that is not the one that was packed is a problem that names
    `where`.
    """
    if not data:
        return {}
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        check = json.loads(data[8 : 8 + size])["__metadata__"]["check"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{where} is damaged: {error}") from error
    if check != digest_tensors(tensors):
        raise Problem(f"{where} is damaged: its content is not the one that was stored")
    deltas: dict[str, State] = {}
    for name, value in tensors.items():
        guide, _, key = name.partition("/")
        deltas.setdefault(guide, {})[key] = value
    return deltas


# One writer a run folder: the lock goes with the process, however that ends.

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`, or say who is. The operating system frees the lock of a
    process that died.
    """
    make_folder(folder)
    try:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o644)
    except OSError as error:
        raise unwritable(folder / NAME, error) from error
    handle = plain(handle, folder / NAME)
    refuse_links(folder, FOLDERS)
    try:
        if not _take(handle):
            who = os.read(handle, 200).decode(errors="replace").strip()
            raise Problem(
                f"another process is writing to {folder}: {who or 'unknown'}.",
                "Two writers would search the same shards twice.",
                fix=f"wait for it, or stop it; hardcase status {folder} shows where it stands",
            )
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """False if someone else has it.

    Where the platform or the file system knows no locks, users take care themselves.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


# One run folder: how it begins, what is put into it, and how it is read.

SCHEMA = 1
TABLE = "seeds.parquet"
"""The table of all seeds."""
_PART = re.compile(r"part-(\d+)\.parquet")
_BEGINNING = {NAME, "config.toml", TABLE, "log.txt", *FOLDERS}
_FACTS = [name for name in tables.FINDINGS if name != "image"]
_SEED_FACTS = [name for name in tables.SEEDS if name != "image"]
"""What is known of findings and of seeds beside their images, which are read when they are
wanted.
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """The files of one finished shard, as bytes: small enough to travel from a worker,
    written by the owner of the folder.
    """

    part: bytes
    seeds: bytes
    deltas: bytes

    def files(self, number: int) -> dict[str, bytes]:
        """What is written under which name, in this order: the part's presence means that the shard
        is done.
        """
        deltas = {f"state/deltas-{number:05d}.safetensors": self.deltas} if self.deltas else {}
        return {
            **deltas,
            f"state/seeds-{number:05d}.parquet": self.seeds,
            f"findings/part-{number:05d}.parquet": self.part,
        }


class Store:
    """One run folder. `seal`: whether run.json had the checksum of its content when it was read;
    None: it had none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = Directory(folder)
        self.ledger = Ledger(self.directory, partial(_run_of, folder))
        self.seal: bool | None = None
        self._parts: list[tuple[int, int]] = []
        self._groups: tuple[tuple[int, ...], list[int]] = ((), [])
        self._held: dict[str, tuple[int, pa.ChunkedArray]] = {}

    @classmethod
    def create(
        cls, folder: Path, record: Mapping[str, Any], config: str, seeds: Iterable[pa.Table]
    ) -> Store:
        """A new run folder. A folder with anything in it is refused:
        nothing that was found is ever overwritten.

        Args:
            folder: The folder.
            record: What run.json says.
            config: What config.toml says.
            seeds: The table of all seeds, in row groups.
        """
        refuse_used(folder)
        store = cls(folder)
        record, config = storable(record), redact(config)
        store.belong(run_digest(record))
        try:
            for name in FOLDERS:
                make_folder(folder / name)
            sweep(folder, *(folder / name for name in FOLDERS))
            store.write("config.toml", config.encode())
            store.write_seeds(seeds)
            store.write("state/begun.json", _with_crc({"record": record, "config": config}))
            store.write_record(record)
        except BaseException:
            store.directory.close()
            raise
        return store

    @classmethod
    def open(cls, folder: Path) -> Store:
        if (folder / "run.json").is_file() or cls(folder).begun() is not None:
            return cls(folder)
        if _only_begun(folder):
            raise Problem(
                f"{folder} was left before its search began; there is nothing to go on with.",
                fix=(
                    f"hardcase run {folder / 'config.toml'} --out {folder}, or the first command"
                    " once more"
                ),
            )
        raise Problem(
            f"{folder} is not a run folder: it has no run.json.", fix="the folder given to --out"
        )

    @cached_property
    def run(self) -> str:
        """The identity of the campaign that this folder belongs to; nothing if it stored none."""
        return _run_of(self.folder)

    def belong(self, run: str) -> None:
        """The identity is known already."""
        self.run = run
        self.ledger.run = lambda: run

    def write(self, name: str, data: bytes, *, flush: bool = True) -> None:
        self.directory.write(name, data, flush=flush)

    def write_record(self, record: Mapping[str, Any]) -> None:
        self.write("run.json", sealed(record))

    def write_seeds(self, groups: Iterable[pa.Table]) -> None:
        """The table of all seeds, and its checksum: with it, going on need not read the whole
        table.
        """
        size = check = 0
        with self.directory.writing(TABLE) as file:
            for piece in tables.parquet(groups):
                file.write(piece)
                file.flush()
                size += len(piece)
                check = crc32(piece, check)
                cache.step("half", self.folder / TABLE)
        self.ledger.add(SEEDS, Entry({TABLE: (size, check)}, {}))

    def record(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        try:
            record, self.seal = unsealed(read_plain(path))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(path, str(error)) from error
        wrong = wrong_record(record)
        if wrong:
            raise self._damaged(path, wrong)
        return dict(record)

    def settings(self) -> dict[str, Any]:
        """What config.toml says."""
        return loads(self.config())

    def config(self) -> str:
        """The text of config.toml, which is TOML and a plain file of this folder."""
        path = self.folder / "config.toml"
        try:
            text = read_plain(path).decode()
            loads(text)
            return text
        except (OSError, ValueError, RecursionError) as error:
            raise Problem(
                f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
                fix=f"hardcase resume {self.folder} sets it aside and writes it anew",
            ) from error

    def begun(self) -> dict[str, Any] | None:
        """`record` and `config` as they were when the run began;
        None if that is not known any more.
        """
        try:
            data = read_plain(self.folder / "state/begun.json")
            body, _, check = data.rstrip().rpartition(b"\n")
            said: Any = read_json(body) if check == f"{crc32(body):08x}".encode() else None
        except (OSError, ValueError, RecursionError):
            return None
        return said if sound_beginning(said) else None

    def put(self, number: int, packed: Packed, summary: Mapping[str, Any] | None = None) -> None:
        """Store a finished shard: guide deltas, seeds' rows, then the part whose presence means
        "done", then its ledger line.
        """
        files = packed.files(number)
        for name, data in files.items():
            self.write(name, data, flush=False)
        self.ledger.add(number, Entry.of(files, summary or {}))

    def done(self) -> set[int]:
        """The numbers of the shards whose part is there."""
        names = (_PART.fullmatch(name) for name in os.listdir(self.folder / "findings"))
        return {int(name[1]) for name in names if name}

    def deltas(self, number: int) -> dict[str, State]:
        """What the guides of a finished shard have learned."""
        path = self.folder / f"state/deltas-{number:05d}.safetensors"
        if not path.exists():
            return {}
        return unpack_deltas(read_plain(path, most=LARGE), where=str(path))

    def findings(self) -> pa.Table:
        """All findings stored so far, in shard order, without their images."""
        parts = {
            number: self.table(number, _part(number), tables.FINDINGS, _FACTS)
            for number in sorted(self.done())
        }
        self._parts = [(number, len(part)) for number, part in parts.items()]
        self._held.clear()
        types = {name: tables.FINDINGS[name] for name in _FACTS}
        nothing = tables.table(dict.fromkeys(types, ()), types)
        return pa.concat_tables([*parts.values()] or [nothing])

    def finding_images(self, rows: Sequence[int]) -> list[bytes]:
        """The images of these rows of `findings`, as they are stored."""
        images = [b""] * len(rows)
        for part, places in _places(rows, [length for _, length in self._parts]):
            number = self._parts[part][0]
            if self._held.get("findings", (None, None))[0] != part:
                found = self.table(number, _part(number), tables.FINDINGS, ["image"])
                self._held["findings"] = (part, found["image"])
            for i, place in places:
                images[i] = self._held["findings"][1][place].as_py()["bytes"]
        return images

    def seeds(self) -> pa.Table:
        """Every seed's row without its image; those of finished shards with what was spent on
        them.
        """
        base = self.table(SEEDS, TABLE, tables.SEEDS, _SEED_FACTS)
        waiting = pc.any(pc.equal(base["status"], "waiting")).as_py()
        return tables.overlay(base, self._spent()) if waiting else base

    def seed_images(self, rows: Sequence[int]) -> list[bytes]:
        """The images of these rows of `seeds`, as they are stored."""
        path = self.folder / TABLE
        found = os.lstat(path)
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._groups[0] != now:  # compared with its checksum once
            self._groups = (now, [len(group) for group in self.seed_groups(["id"])])
            self._held.clear()
        images = [b""] * len(rows)
        for part, places in _places(rows, self._groups[1]):
            if self._held.get("seeds", (None, None))[0] != part:
                only = tables.read_groups(
                    path, tables.SEEDS, ["image"], only=[part], most=found.st_size
                )
                self._held["seeds"] = (part, next(only)["image"])
            for i, place in places:
                images[i] = self._held["seeds"][1][place].as_py()["bytes"]
        return images

    def seed_groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The row groups of the table of all seeds, as they are stored."""
        return self._believed(SEEDS, TABLE, tables.SEEDS, columns)

    def settle(self) -> None:
        """Write what is known of the seeds into `seeds.parquet`,
        and make all that was stored outlive a power cut.
        """
        spent = self._spent()
        groups = (group.combine_chunks() for group in self.seed_groups())
        self.write_seeds(tables.overlay(group, spent) for group in groups)
        self.ledger.flush()

    def _spent(self) -> pa.Table:
        """What finished shards say of their seeds."""
        parts = [
            self.table(number, f"state/seeds-{number:05d}.parquet", tables.SPENT, [*tables.SPENT])
            for number in sorted(self.done())
        ]
        nothing = tables.spent_table(dict.fromkeys(tables.SPENT, ()))
        return pa.concat_tables(parts or [nothing]).combine_chunks()

    def table(
        self,
        number: int,
        name: str,
        types: Mapping[str, pa.DataType],
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """One of the run's tables, if its content is the one that entry `number` of the ledger
        names, where there is one.
        """
        return pa.concat_tables(self._believed(number, name, types, columns))

    def _believed(
        self,
        number: int,
        name: str,
        types: Mapping[str, pa.DataType],
        columns: Sequence[str] | None,
    ) -> Iterator[pa.Table]:
        """The row groups of such a table.

        A run that goes on writes anew, so the ledger is read once more before a file is called
        damaged.
        """
        known = self.ledger.seal(number, name)

        def stored(*own: int) -> bool:
            return known in (None, own) or self.ledger.seal(number, name, anew=True) == own

        most = max(LARGE, known[0] if known else 0)
        return tables.read_groups(self.folder / name, types, columns, stored=stored, most=most)

    def _damaged(self, path: Path, why: str) -> Problem:
        return Problem(
            f"{path} is damaged: {why}.",
            "The findings beside it are still readable as Parquet.",
            fix=f"hardcase resume {self.folder} sets it aside and writes it anew",
        )


def _part(number: int) -> str:
    return f"findings/part-{number:05d}.parquet"


def _places(
    rows: Sequence[int], lengths: Sequence[int]
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Which parts of these lengths hold the rows; for each the positions in `rows`, and where in
    the part they lie.
    """
    ends = np.cumsum(lengths)
    wanted = np.asarray(rows, dtype=np.int64)
    part = np.searchsorted(ends, wanted, side="right")
    for one in np.unique(part).tolist():
        own = np.flatnonzero(part == one)
        inside = wanted[own] - (ends[one] - lengths[one])
        yield one, list(zip(own.tolist(), inside.tolist()))


def _run_of(folder: Path) -> str:
    """The identity that a folder has stored. A store and its ledger must not know each other: what
    refers to itself in a circle keeps its handles open.
    """
    store = Store(folder)
    begun = store.begun()
    if begun is not None:
        return run_digest(begun["record"])
    try:
        return run_digest(store.record())
    except Problem:
        return ""


def refuse_used(folder: Path) -> None:
    """Raise if there is anything in `folder` that a new run would mix with."""
    if not folder.exists() or (
        folder.is_dir() and (not any(folder.iterdir()) or _only_begun(folder))
    ):
        return
    again = (
        f", or go on with it: hardcase resume {folder}" if (folder / "run.json").is_file() else ""
    )
    raise Problem(
        f"{folder} exists and is not empty.",
        "A run never writes over anything.",
        fix=f"another --out{again}",
    )


def _only_begun(folder: Path) -> bool:
    """Whether a run was killed here before its folder was complete: nothing was searched,
    nothing would be lost.
    """
    if not (folder / NAME).is_file():
        return False
    inside = {path.name for path in folder.iterdir() if not is_temporary(path)}
    return (
        inside <= _BEGINNING
        and not any((folder / "findings").glob("*"))
        and not any((folder / "verdicts").glob("*"))
    )


def _with_crc(content: Mapping[str, Any]) -> bytes:
    body = json.dumps(content, indent=2).encode()
    return body + f"\n{crc32(body):08x}\n".encode()


# --- shards that are not what was stored


def mend_shards(
    store: Store, deep: Callable[[str], bool] = lambda name: True, *, shards: int | None = None
) -> list[int]:
    """Set aside finished shards whose files are not what was stored, so that they are searched
    again; their numbers and those of shards that have disappeared.

    Files are compared with the ledger by size, and by content where `deep` says so of their names.
    A run has `shards` shards: parts with other numbers are not its own and set aside, ledger lines
    with other numbers mean nothing.
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
            not deep(name) or file_seal(store.folder / name, size=size) == [size, check]
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
    if entry is None:
        return False
    seal = entry.files[TABLE]
    return file_seal(store.folder / TABLE, size=seal[0]) == list(seal)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file so that nobody takes it for a whole one; returns its new place."""
    if not path.exists():
        return None
    names = (path.with_name(f"{path.name}.damaged{'' if i == 1 else f'-{i}'}") for i in count(1))
    new = next(name for name in names if not name.exists())
    return path.rename(new)


def _examined(store: Store, number: int) -> Entry | None:
    """The entry of a shard that the ledger does not know, if all its files can be read and it says
    itself that it is of this run.
    """
    files = {str(path.relative_to(store.folder)): path for path in _files(store, number)}
    try:
        spent = tables.read(
            store.folder / f"state/seeds-{number:05d}.parquet", tables.SPENT, list(tables.SPENT)
        )
        findings = tables.read(
            store.folder / f"findings/part-{number:05d}.parquet", tables.FINDINGS
        )
        store.deltas(number)
        content = {name: read_plain(path, most=LARGE) for name, path in files.items()}
    except (Problem, OSError):
        return None
    if store.run and not tables.belongs(
        spent, store.run, content[f"findings/part-{number:05d}.parquet"]
    ):
        return None
    return Entry.of(content, tables.summarise(findings, spent))


def _sizes(store: Store) -> dict[str, int]:
    """The size of every file of a shard, by its name in the run folder."""
    entries = (
        (name, entry) for name in ("findings", "state") for entry in os.scandir(store.folder / name)
    )
    return {f"{name}/{entry.name}": entry.stat().st_size for name, entry in entries}


def _files(store: Store, number: int) -> list[Path]:
    needed, perhaps = files_of(number)
    names = (store.folder / name for name in (*perhaps, *reversed(needed)))
    return [path for path in names if path.exists()]
