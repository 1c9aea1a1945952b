"""A run folder: how it begins, which files it gets, and how it is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from safetensors import SafetensorError
from safetensors.torch import load, save

from hardcase.cache import is_temporary, make_folder, sweep, write_atomically
from hardcase.config import loads
from hardcase.environment import redact
from hardcase.errors import HardcaseError
from hardcase.plain import read_plain
from hardcase.runs import tables
from hardcase.runs.files import (
    BEGINNING,
    FOLDERS,
    LARGE,
    LOCK,
    SEEDS,
    Entry,
    Ledger,
    as_json,
    checked_json,
    file_size_and_crc,
    files_of,
    locked,
    read_checked_json,
    storable,
    wrong_record,
)
from hardcase.runs.identity import run_digest
from hardcase.types import State

SCHEMA = 2
TABLE = "images.parquet"
"""The table of all seeds."""
BEGUN = "state/begun.json"
"""What a run was when it began: it never changes."""
SEARCH_BEGUN = "state/search.json"
"""What its search added to that when it began: it never changes either."""
_PART = re.compile(r"part-(\d+)\.parquet")
_FACTS = {name: kind for name, kind in tables.FINDINGS.items() if name != "image"}
_SEED_FACTS = [name for name in tables.SEEDS if name != "image"]
"""The columns of findings and of seeds without their images, which are read on demand."""
_Place = tuple[Path, int, int]
"""A row group: its file, its number in that, and its length."""


def pack_deltas(deltas: Mapping[str, State]) -> bytes:
    """What the guides of a shard have learned, as safetensors."""
    named = {
        f"{guide}/{name}": value.cpu().contiguous()
        for guide, state in deltas.items()
        for name, value in state.items()
    }
    return bytes(save(named)) if named else b""


def unpack_deltas(data: bytes, *, where: str = "the guides' state") -> dict[str, State]:
    """The deltas in `data`; what cannot be read is a problem that names `where`."""
    deltas: dict[str, State] = {}
    try:
        tensors = load(data) if data else {}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HardcaseError(f"{where} is damaged: {error}") from error
    for name, value in tensors.items():
        guide, _, key = name.partition("/")
        deltas.setdefault(guide, {})[key] = value
    return deltas


@dataclass(frozen=True, slots=True)
class Packed:
    """The files of a finished shard: they travel from a worker to the owner of the folder."""

    part: bytes
    seeds: bytes
    deltas: bytes


class Store:
    """A run folder; `intact` says whether run.json had the checksum of its content when read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder, lambda: self.run)
        self.measured = Ledger(folder, lambda: self.run, "measure")
        self.intact: bool | None = None
        self._memory: dict[str, Any] | None = None
        self._unwritten = False
        self._parts: list[_Place] = []
        self._groups: tuple[tuple[int, ...], list[_Place]] = ((), [])
        self._held: dict[str, tuple[int, pa.ChunkedArray]] = {}

    @classmethod
    def create(
        cls,
        folder: Path,
        record: Mapping[str, Any],
        config: str,
        seeds: Iterable[pa.Table] | None = None,
    ) -> Store:
        """A new run folder with these contents of run.json and config.toml; with `seeds`, of a run
        that has begun its search. A folder with anything in it is refused.
        """
        refuse_used(folder)
        store = cls(folder)
        config = redact(config)
        record = storable(record)
        store.run = run_digest(record)
        for name in FOLDERS:
            make_folder(folder / name)
        sweep(folder, *(folder / name for name in FOLDERS))
        store.write("config.toml", config.encode())
        if seeds is not None:
            store.write_seeds(seeds)
        store.write(BEGUN, checked_json({"record": record, "config": config}))
        store.write_record(record)
        return store

    def begin_search(
        self, added: Mapping[str, Any], config: str, seeds: Iterable[pa.Table]
    ) -> dict[str, Any]:
        """Write what the search begins with: the table of its images in row groups, the settings
        that were chosen for it, and what it adds to run.json, which is returned.
        """
        config = redact(config)
        added = storable(added)
        self.write_seeds(seeds)
        self.write(SEARCH_BEGUN, checked_json({"record": added, "config": config}))
        self.write("config.toml", config.encode())
        record = {**self.record(), **added}
        self.write_record(record)
        return record

    @property
    def searching(self) -> bool:
        """Whether the search has begun: there is a table of its images."""
        return (self.folder / SEARCH_BEGUN).exists() or SEEDS in self.ledger.read()

    @classmethod
    def open(cls, folder: Path) -> Store:
        """The run in a folder; a folder that holds none is a problem."""
        store = cls(folder)
        if (folder / "run.json").is_file() or store.begun() is not None:
            return store
        if _only_begun(folder):
            again = f"hardcase run {folder / 'config.toml'} --out {folder}"
            raise HardcaseError(
                f"{folder} was left before its search began; there is nothing to go on with.",
                fix=f"{again}, or the first command once more",
            )
        raise HardcaseError(
            f"{folder} is not a run folder: it has no run.json.", fix="the folder given to --out"
        )

    @cached_property
    def run(self) -> str:
        """The identity of the campaign that this folder belongs to; nothing if it stored none."""
        begun = self.begun()
        try:
            return run_digest(begun["record"] if begun else self.record())
        except HardcaseError:
            return ""

    def write(self, name: str, data: bytes, *, flush: bool = True) -> None:
        """Put a file into the folder, complete or not at all."""
        write_atomically(self.path(name), data, flush=flush)

    def path(self, name: str) -> Path:
        """The path of a file; the folder must still be where it was."""
        path = self.folder / name
        if not path.parent.is_dir():
            raise HardcaseError(
                f"{path.parent} was moved, deleted or exchanged while the run was writing to it.",
                "The search has stopped; what was stored before is in the folder that was moved.",
                fix="hardcase resume with the folder's new place",
            )
        return path

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of the folder. Changes of run.json stay in memory and are written
        once at the end, also after an error; nested blocks join the outer block.
        """
        if self._memory is not None:
            yield
            return
        with locked(self.folder):
            self._memory = self.record()
            self._unwritten = False
            try:
                yield
            finally:
                record = self._memory
                self._memory = None
                if self._unwritten:
                    self.write("run.json", checked_json(record))

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write run.json, or let `writing` write it; a damaged file gets no valid checksum."""
        if self._memory is not None:
            if self.intact is not True:
                raise self._damaged(self.folder / "run.json", "its checksum is not its content's")
            self._memory = as_json(record)
            self._unwritten = True
            return
        path = self.folder / "run.json"
        if path.exists():
            self.record()
            if self.intact is not True:
                raise self._damaged(path, "it does not have the checksum of its content")
        self.write("run.json", checked_json(record))

    def write_seeds(self, groups: Iterable[pa.Table]) -> None:
        """Write the table of all seeds, and its line of the ledger."""
        path = write_atomically(self.path(TABLE), partial(tables.write_parquet, groups=groups))
        size, check = file_size_and_crc(path, path.stat().st_size) or (0, 0)
        self.ledger.add(SEEDS, Entry({TABLE: (size, check)}))

    def record(self) -> dict[str, Any]:
        """What run.json says, and what its search began with if that began since."""
        if self._memory is not None:
            return dict(self._memory)
        path = self.folder / "run.json"
        try:
            record, self.intact = read_checked_json(read_plain(path))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(path, str(error)) from error
        wrong = wrong_record(record)
        if wrong:
            raise self._damaged(path, wrong)
        phases = record.get("phases") or {}
        if "identity" not in (phases.get("search") or {}):
            record |= (self._begun(SEARCH_BEGUN) or {"record": {}})["record"]
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
        except (OSError, ValueError, RecursionError) as error:
            raise self._damaged(path, getattr(error, "strerror", None) or str(error)) from error
        return text

    def begun(self) -> dict[str, Any] | None:
        """`record` and `config` as they were when the run, and its search, began, and
        `first_config`, without what the search chose; None if that is unknown.
        """
        first = self._begun(BEGUN)
        if first is None:
            return None
        then = self._begun(SEARCH_BEGUN) or {"record": {}, "config": first["config"]}
        record = {**first["record"], **then["record"]}
        return {"record": record, "config": then["config"], "first_config": first["config"]}

    def _begun(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError, RecursionError):
            content, intact = read_checked_json(read_plain(self.folder / name))
            if intact and not wrong_record(content, BEGINNING):
                loads(content["config"])
                return dict(content)
        return None

    def put_measured(self, number: int, part: bytes, summary: Mapping[str, Any]) -> None:
        """Store a shard of the measurement: its rows, then the line of the ledger that means
        "done".
        """
        (name,), _ = files_of(number, "measure")
        self.write(name, part, flush=False)
        self.measured.add(number, Entry.of({name: part}, summary))

    def measured_parts(self) -> list[Path]:
        """The stored parts of the measurement, as the ledger knows them, in their order."""
        numbers = sorted(self.measured.read())
        return [self._as_stored(n, files_of(n, "measure")[0][0], self.measured) for n in numbers]

    def put(self, number: int, packed: Packed, summary: Mapping[str, Any] | None = None) -> None:
        """Store a finished shard: its files, then the line of the ledger that means "done"."""
        (part, seeds), (deltas,) = files_of(number)
        named = {deltas: packed.deltas, seeds: packed.seeds, part: packed.part}
        files = {name: data for name, data in named.items() if data}
        for name, data in files.items():
            self.write(name, data, flush=False)
        self.ledger.add(number, Entry.of(files, summary or {}))

    def done(self) -> set[int]:
        """The numbers of the shards that are stored."""
        parts = self.parts()
        return {number for number in self.ledger.read() if number in parts}

    def parts(self) -> set[int]:
        """The numbers of the parts that are there, also of those that the ledger does not know."""
        names = map(_PART.fullmatch, _names_in(self.folder / "findings"))
        return {int(name[1]) for name in names if name}

    def deltas(self, number: int) -> dict[str, State]:
        """What the guides of a finished shard have learned."""
        name = f"state/deltas-{number:05d}.safetensors"
        if name not in self.ledger.read()[number].files:
            return {}
        path = self._as_stored(number, name)
        return unpack_deltas(read_plain(path, most=LARGE), where=str(path))

    def findings(self) -> pa.Table:
        """All findings stored so far, in shard order, without their images."""
        nothing = tables.table(dict.fromkeys(_FACTS, ()), _FACTS)
        entries = self.ledger.read()
        parts = dict[str, pa.Table]()
        for number in sorted(self.done()):
            name = files_of(number)[0][0]
            if entries[number].summary.get("findings") == 0:  # as it was stored is all to know
                self._as_stored(number, name)
            else:
                parts[name] = self._table(number, name, tables.FINDINGS, [*_FACTS])
        self._parts = [(self.folder / name, 0, len(part)) for name, part in parts.items()]
        self._held.clear()
        return pa.concat_tables([nothing, *parts.values()])

    def finding_images(self, rows: Sequence[int]) -> list[bytes]:
        """The images of these rows of `findings`, as they are stored."""
        return self._images("findings", self._parts, tables.FINDINGS, rows)

    def seeds(self) -> pa.Table:
        """Every seed's row without its image, with what finished shards spent on it; none before
        the search has begun.
        """
        if not self.searching:
            types = {name: tables.SEEDS[name] for name in _SEED_FACTS}
            return tables.table(dict.fromkeys(types, ()), types)
        groups = list(self.seed_groups(_SEED_FACTS))
        if any(pc.any(pc.equal(group["status"], "waiting")).as_py() for group in groups):
            groups = list(self._with_spent(groups))
        return pa.concat_tables(groups)

    def seed_images(self, rows: Sequence[int]) -> list[bytes]:
        """The images of these rows of `seeds`, as they are stored; none before the search."""
        if not self.searching:
            return []
        path = self.folder / TABLE
        status = os.lstat(path)
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._groups[0] != now:  # compared with its checksum once
            lengths = [len(group) for group in self.seed_groups(["id"])]
            self._groups = (now, [(path, i, length) for i, length in enumerate(lengths)])
            self._held.clear()
        return self._images("seeds", self._groups[1], tables.SEEDS, rows)

    def _images(
        self,
        kind: str,
        places: Sequence[_Place],
        types: Mapping[str, pa.DataType],
        rows: Sequence[int],
    ) -> list[bytes]:
        """The images of rows of a table that lies in `places`; the last table stays in memory."""
        images = [b""] * len(rows)
        ends = np.cumsum([length for _, _, length in places])
        wanted = np.asarray(rows, dtype=np.int64)
        place_of = np.searchsorted(ends, wanted, side="right")
        for number in np.unique(place_of).tolist():
            path, group, length = places[number]
            if self._held.get(kind, (None, None))[0] != number:
                most = path.stat().st_size
                read = tables.read_groups(path, types, ["image"], only=[group], most=most)
                self._held[kind] = (number, next(read)["image"])
            inside = np.flatnonzero(place_of == number)
            for i, row in zip(inside.tolist(), (wanted[inside] - ends[number] + length).tolist()):
                images[i] = self._held[kind][1][row].as_py()["bytes"]
        return images

    def seed_groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The row groups of the table of all seeds, as they are stored."""
        if not self.searching:
            return iter(())
        path = self._as_stored(SEEDS, TABLE)
        most = path.stat().st_size
        return tables.read_groups(path, tables.SEEDS, columns, most=most)

    def settle(self) -> None:
        """Write the columns of the seeds into `images.parquet`, and flush all stored files."""
        self.path(TABLE)  # a folder that was moved away is told before anything else
        self.write_seeds(self._with_spent(self.seed_groups()))
        self.ledger.flush()

    def _with_spent(self, groups: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Row groups of seeds with what finished shards say of them. Both come in the order of the
        seeds, so that only the shards of a group are in memory.
        """
        columns = [*tables.SPENT]
        nothing = tables.table(dict.fromkeys(columns, ()), tables.SPENT)
        parts = (
            self._table(number, f"state/seeds-{number:05d}.parquet", tables.SPENT, columns)
            for number in sorted(self.done())
        )
        shards = filter(len, parts)
        held = list[pa.Table]()
        for group in groups:
            names = {*group["id"].to_pylist()}
            while not held or held[-1]["id"][0].as_py() in names:
                following = next(shards, None)
                if following is None:
                    break
                held.append(following)
            spent = pa.concat_tables([nothing, *held]).combine_chunks()
            yield tables.overlay(group.combine_chunks(), spent)
            held = [table for table in held if table["id"][-1].as_py() not in names]

    def _table(
        self,
        number: int,
        name: str,
        types: Mapping[str, pa.DataType],
        columns: Sequence[str],
    ) -> pa.Table:
        """A table with the content that entry `number` of the ledger names."""
        path = self._as_stored(number, name)
        most = max(LARGE, path.stat().st_size)
        return pa.concat_tables(tables.read_groups(path, types, columns, most=most))

    def _as_stored(self, number: int, name: str, ledger: Ledger | None = None) -> Path:
        """The path of a file with the content that entry `number` of a ledger names."""
        path = self.folder / name
        for anew in (False, True):  # a run that goes on writes anew
            entry = (ledger or self.ledger).read(anew=anew).get(number, Entry({}))
            size, check = entry.files.get(name, (0, 0))
            if file_size_and_crc(path, size) == [size, check]:
                return path
        raise self._damaged(path, "its content is not the one that was stored")

    def _damaged(self, path: Path, why: str) -> HardcaseError:
        return HardcaseError(
            f"{path} is damaged: {why}.",
            "What stands beside it can still be read.",
            fix=f"hardcase resume {self.folder} sets it aside and makes it anew",
        )


def refuse_used(folder: Path) -> None:
    """Raise if there is anything in `folder` that a new run would mix with."""
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if empty or (folder.is_dir() and _only_begun(folder)):
        return
    fix = "another --out"
    if (folder / "run.json").is_file():
        fix += f", or go on with it: hardcase resume {folder}"
    raise HardcaseError(
        f"{folder} exists and is not empty.", "A run never writes over anything.", fix=fix
    )


def _only_begun(folder: Path) -> bool:
    """Whether a run was killed here before its search began: nothing would be lost."""
    if not (folder / LOCK).is_file():
        return False
    inside = {path.name for path in folder.iterdir() if not is_temporary(path)}
    return (
        inside <= {LOCK, "config.toml", TABLE, "log.txt", *FOLDERS}
        and not any((folder / "findings").glob("*"))
        and not any((folder / "verdicts").glob("*"))
    )


def _names_in(folder: Path) -> list[str]:
    """What a folder of a run holds; nothing where there is none, as in what is no run."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
