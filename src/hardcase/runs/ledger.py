"""The ledger: one line for every stored shard, with the size and checksum of its files and the
counts they add.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any
from zlib import crc32

from hardcase import cache
from hardcase.cache import flush_files, unwritable
from hardcase.environment import redact, redacted
from hardcase.runs.directory import LARGE, Directory, read_plain

# What is read from a run folder is checked before anybody uses it: whoever can write there can
# write anything.

_NUMBER = (int, float)
RECORD: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("schema", "seed", "seeds", "shards", "threads"), (int,)),
    **dict.fromkeys(("hardcase", "created", "method", "model", "data", "split", "device"), (str,)),
    **dict.fromkeys(("complete", "bitwise", "deterministic"), (bool,)),
    **dict.fromkeys(
        ("versions", "budget", "hashes", "identity", "answers", "totals", "funnel", "skipped"),
        (dict,),
    ),
    **dict.fromkeys(("findings", "kinds"), (dict,)),
    **dict.fromkeys(
        ("accuracy", "verdicts", "judge", "service", "shrink", "generator", "witnesses", "space"),
        (dict, type(None)),
    ),
    **dict.fromkeys(("argv", "classes", "image", "notes", "citations"), (list,)),
    "judge_features": (list,),
    "finished": (str, type(None)),
    "coverage": (list, type(None)),
    "elapsed": _NUMBER,
}
"""What the entries of run.json are, where they are there."""
_ITEMS = {
    **dict.fromkeys(("argv", "classes", "notes", "citations", "judge_features"), str),
    "image": int,
}


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
    shape = record.get("image", [1, 1, 1])
    if len(shape) != 3 or min(shape) < 1:
        return f"image is {str(shape)[:40]}"
    return "" if record.get("classes", [""]) else "it names no class"


def sound_beginning(said: Any) -> bool:
    """Whether this is what a run keeps of its beginning."""
    return (
        isinstance(said, dict)
        and isinstance(said.get("config"), str)
        and isinstance(said.get("record"), dict)
        and not wrong_record(said["record"])
    )


def sound_line(said: Any) -> bool:
    """Whether this is a line of the ledger: a shard's number, sizes and checksums of exactly the
    files that it has, its counts.
    """
    if not (isinstance(said, dict) and type(said.get("shard")) is int):
        return False
    files = said.get("files")
    summary = said.get("summary")
    if not (isinstance(files, dict) and isinstance(summary, dict)):
        return False
    needed, perhaps = files_of(said["shard"])
    known = {*needed} <= files.keys() <= {*needed, *perhaps}
    return known and all(_whole(pair, 2) for pair in files.values()) and _sound_summary(summary)


def files_of(number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the files of a shard (or of what else has a line): those it has, and those it
    may have.
    """
    if number < 0:
        return ({SEEDS: "seeds.parquet", PATHS: "state/paths.parquet"}.get(number, ""),), ()
    part = f"findings/part-{number:05d}.parquet"
    return (part, f"state/seeds-{number:05d}.parquet"), (f"state/deltas-{number:05d}.safetensors",)


def _sound_summary(summary: Mapping[str, Any]) -> bool:
    confusions = summary.get("confusions", [])
    tallies = [summary.get(name, {}) for name in ("service", "kinds")]
    numbers = ("seeds", "queries", "gradients", "failing", "findings")
    return (
        all(type(summary.get(name, 0)) is int for name in numbers)
        and isinstance(confusions, list)
        and all(_whole(row, 3) for row in confusions)
        and all(
            isinstance(counts, dict) and _whole(list(counts.values()), len(counts))
            for counts in tallies
        )
    )


def _whole(row: Any, length: int) -> bool:
    return (
        isinstance(row, list) and len(row) == length and (not row or set(map(type, row)) == {int})
    )


def _is(value: Any, kinds: tuple[type, ...]) -> bool:
    """Like isinstance, but true and false are no numbers."""
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)


# The ledger: one line for every stored shard, with the size and checksum of its files and the
# counts they add up to.
#
# It is what makes going on quick: nothing else has to be read. It can be lost without loss: a shard
# that it does not know is examined in full and entered again.

OFTEN = 10.0
"""Seconds after which stored files are made to outlive a power cut;
a killed process loses nothing in any case.
"""


NAME = "state/ledger.jsonl"
SEEDS = -1
"""The line that speaks of ``seeds.parquet`` instead of a shard."""
PATHS = -2
"""The line that speaks of ``state/paths.parquet``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`files`: size and checksum of each file of a shard by its name in the run folder; `summary`:
    its counts.
    """

    files: Mapping[str, tuple[int, int]]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(files: Mapping[str, bytes], summary: Mapping[str, Any]) -> Entry:
        return Entry({name: (len(data), crc32(data)) for name, data in files.items()}, summary)


class Ledger:
    """The file ``state/ledger.jsonl`` of a run folder.

    `torn`: its last line may be half a line, so a new one is begun.
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.folder = directory.path
        self.path = self.folder / NAME
        self.pending: set[Path] = set()
        self.flushed = monotonic()
        self.known: dict[int, Entry] | None = None
        self.torn = True

    def read(self) -> dict[int, Entry]:
        """Every entry that is whole; the last one of a shard counts.

        The file is read once: a folder has one writer.
        """
        if self.known is None:
            try:
                lines = read_plain(self.path, most=LARGE).split(b"\n")
            except OSError:
                lines = []
            with _uncollected():
                said = _read_all([body for line in lines if (body := _body(line)) is not None])
                self.known = {one["shard"]: _entry(one) for one in said if sound_line(one)}
        return self.known

    def add(self, number: int, entry: Entry) -> None:
        """Enter a stored shard."""
        self.read()[number] = entry
        body = json.dumps(
            {"shard": number, "files": entry.files, "summary": entry.summary}, separators=(",", ":")
        )
        line = f"{body}\t{crc32(body.encode()):08x}\n".encode()
        try:
            with open(self.directory.appending(NAME), "ab") as file:
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
        """Make everything that was entered outlive a power cut; files first,
        then the lines that speak of them.
        """
        flush_files(self.pending - {self.path})
        flush_files(self.pending & {self.path})
        self.pending = set()
        self.flushed = monotonic()


def _body(line: bytes) -> bytes | None:
    """What a line says, if its checksum is right."""
    body, tab, check = line.rpartition(b"\t")
    return body if tab and check == b"%08x" % crc32(body) else None


def _read_all(bodies: list[bytes]) -> list[Any]:
    """What the lines say: all in one go, which is quick; one by one, if any of them is not JSON."""
    try:
        return list(read_json(b"[" + b",".join(bodies) + b"]"))
    except (ValueError, RecursionError):
        return [one for body in bodies if (one := _read_one(body)) is not None]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: many small objects are made that all stay,
    and looking through them takes longer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_one(body: bytes) -> Any:
    try:
        return read_json(body)
    except (ValueError, RecursionError):
        return None


def _entry(said: Mapping[str, Any]) -> Entry:
    return Entry(
        {name: (size, crc) for name, (size, crc) in said["files"].items()}, said["summary"]
    )


# --- seals: files that carry their own checksum

CHECK = "checksum"


def sealed(content: Mapping[str, Any]) -> bytes:
    """`content` as readable JSON that carries its own checksum."""
    body = storable({name: value for name, value in content.items() if name != CHECK})
    return json.dumps({**body, CHECK: _sum(body)}, indent=2).encode()


DEEPEST = 40
"""Levels of objects and lists that a file of a run has at most."""


def read_json(data: bytes) -> Any:
    """What JSON says, if it says each thing once, in numbers that are numbers, and not too deeply;
    else a `ValueError`.

    Example:
        >>> read_json(b'{"a": 1}')
        {'a': 1}
        >>> read_json(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it says 'a' twice
    """
    said = json.loads(data, parse_constant=_no_number, object_pairs_hook=_once)
    level: list[Any] = [said]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return said
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _no_number(word: str) -> None:
    raise ValueError(f"it holds {word}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it says {next(n for n in names if names.count(n) > 1)[:40]!r} twice")
    return found


def storable(value: Any) -> Any:
    """A tree of JSON as it may be stored: no secret in it, nothing where a number is none."""
    text = json.dumps(value)
    clean = redact(text)
    if clean != text:
        clean = json.dumps(redacted(value))  # word by word: a secret may hold signs of JSON
    return json.loads(clean, parse_constant=lambda word: None)


def unsealed(data: bytes) -> tuple[Any, bool | None]:
    """What a file says, and whether its checksum is right; None if it has none."""
    said = read_json(data)
    if not isinstance(said, dict) or CHECK not in said:
        return said, None
    check = said.pop(CHECK)
    return said, check == _sum(said)


def _sum(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def seal_of(data: bytes) -> list[int]:
    """Size and checksum of a file's content."""
    return [len(data), crc32(data)]
