"""The ledger: one line for every stored shard, with the size and checksum of its files and the counts they add up to.

It is what makes going on quick: nothing else has to be read. It can be lost without loss: a shard that it does not
know is examined in full and entered again.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any
from zlib import crc32

from hardcase import cache
from hardcase.cache import flush_files, unwritable
from hardcase.store.checking import sound_line

OFTEN = 10.0
"""Seconds after which stored files are made to outlive a power cut; a killed process loses nothing in any case."""


SEEDS = -1
"""The line that speaks of ``seeds.parquet`` instead of a shard."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`files`: size and checksum of each file of a shard by its name in the run folder; `summary`: its counts."""

    files: Mapping[str, tuple[int, int]]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(files: Mapping[str, bytes], summary: Mapping[str, Any]) -> Entry:
        return Entry({name: (len(data), crc32(data)) for name, data in files.items()}, summary)


class Ledger:
    """The file ``state/ledger.jsonl`` of a run folder. `torn`: its last line may be half a line, so a new one is begun."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "state" / "ledger.jsonl"
        self.pending: set[Path] = set()
        self.flushed = monotonic()
        self.known: dict[int, Entry] | None = None
        self.torn = True

    def read(self) -> dict[int, Entry]:
        """Every entry that is whole; the last one of a shard counts. The file is read once: a folder has one writer."""
        if self.known is None:
            try:
                lines = self.path.read_bytes().split(b"\n")
            except FileNotFoundError:
                lines = []
            with _uncollected():
                said = _read_all([body for line in lines if (body := _body(line)) is not None])
                self.known = {one["shard"]: _entry(one) for one in said if sound_line(one)}
        return self.known

    def add(self, number: int, entry: Entry) -> None:
        """Enter a stored shard."""
        self.read()[number] = entry
        body = json.dumps({"shard": number, "files": entry.files, "summary": entry.summary}, separators=(",", ":"))
        line = f"{body}\t{crc32(body.encode()):08x}\n".encode()
        try:
            with open(self.path, "ab") as file:
                cache.step("begin", self.path)
                file.write(b"\n" + line[:20] if self.torn else line[:20])
                file.flush()
                cache.step("half", self.path)
                file.write(line[20:])
            self.torn = False
            cache.step("written", self.path)
        except OSError as error:
            self.torn = True
            raise unwritable(self.path, error) from error
        self.pending |= {self.path, *(self.folder / name for name in entry.files)}
        if monotonic() - self.flushed >= OFTEN:
            self.flush()

    def flush(self) -> None:
        """Make everything that was entered outlive a power cut; files first, then the lines that speak of them."""
        flush_files(self.pending - {self.path})
        flush_files(self.pending & {self.path})
        self.pending, self.flushed = set(), monotonic()


def _body(line: bytes) -> bytes | None:
    """What a line says, if its checksum is right."""
    body, tab, check = line.rpartition(b"\t")
    return body if tab and check == b"%08x" % crc32(body) else None


def _read_all(bodies: list[bytes]) -> list[Any]:
    """What the lines say: all in one go, which is quick; one by one, if any of them is not JSON."""
    try:
        return list(json.loads(b"[" + b",".join(bodies) + b"]"))
    except (ValueError, RecursionError):
        return [one for body in bodies if (one := _read_one(body)) is not None]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: many small objects are made that all stay, and looking through them takes longer."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_one(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _entry(said: Mapping[str, Any]) -> Entry:
    return Entry({name: (size, crc) for name, (size, crc) in said["files"].items()}, said["summary"])
