"""The ledger: one line for every stored shard, with the size and checksum of its files and the
counts they add.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from hardcase.runs.directory import LARGE, Directory, checksum, in_pieces, opened, read_plain

# What is read from a run folder is checked before anybody uses it: whoever can write there can
# write anything.

Shape = Any
"""What a value must be: a type or several; one of a set of words; ``[shape]`` a list of such; an
object with these entries where they are there (a name with ``!`` must be, one with ``?`` may be
nothing); ``...`` stands for every other name.
"""
LARGEST = 2**63
"""Numbers of a run are smaller than this."""
_NONE = type(None)
_NUMBER = (int, float)
_WORDS = {...: (str, _NONE)}
_COUNTS = {...: (int, _NONE)}
_RATE = {
    "hits!": int,
    "total!": int,
    "share!": (*_NUMBER, _NONE),
    "low!": _NUMBER,
    "high!": _NUMBER,
}
_QUESTION = {
    "auroc!": {"value!": (*_NUMBER, _NONE)},
    "tpr!": _RATE,
    "tnr!": _RATE,
    "undecided!": _RATE,
}
_ERRORS = {
    "images!": int,
    "valid!": _QUESTION,
    "label_kept!": _QUESTION,
    "confirmed!": {"precision!": _RATE, "recall!": _RATE},
}
_PEOPLE = ("low!", "value!", "high!", "attempted!", "rated!", "failing!")
_AXIS = {"name!": str, "low!": _NUMBER, "high!": _NUMBER, "cells!": int}
RECORD: dict[Any, Shape] = {
    **dict.fromkeys(("schema", "seed", "seeds", "shards", "threads"), int),
    **dict.fromkeys(("hardcase", "created", "method", "model", "data", "split", "device"), str),
    **dict.fromkeys(("complete", "bitwise", "deterministic"), bool),
    **dict.fromkeys(("totals", "funnel", "skipped", "findings", "kinds"), _COUNTS),
    **{name: [str] for name in ("argv", "classes", "notes", "citations", "judge_features")},
    **dict.fromkeys(("finished", "baseline", "precision"), (str, _NONE)),
    "versions": _WORDS,
    "identity": {"digest": str, "parts": {...: str}},
    "answers": {...: [(*_NUMBER, _NONE)]},
    "hashes": {"subject": str, "data": str, "generator": (str, _NONE), "parameters": {...: str}},
    "budget": {"time": (str, *_NUMBER, _NONE), ...: (*_NUMBER, _NONE)},
    "options": {...: (str, bool, *_NUMBER, _NONE, list)},
    "image": [int],
    "elapsed": _NUMBER,
    "tile": (int, _NONE),
    "accuracy?": {"value": (*_NUMBER, _NONE), "images": int},
    "verdicts?": {...: [int]},
    "judge?": {
        **dict.fromkeys(("name", "standing", "weights", "data"), (str, _NONE)),
        "accuracy": (*_NUMBER, _NONE),
        "calibrated": (bool, _NONE),
        "calibration?": _ERRORS,
        "elsewhere?": _ERRORS,
        "members": (dict, _NONE),
        "rules": (dict, _NONE),
        "groups": [dict],
        "silence?": {...: (dict, list, *_NUMBER, _NONE)},
        "independence": (dict, _NONE),
    },
    "service?": _COUNTS,
    "shrink?": {"needed?": _COUNTS, ...: (str, *_NUMBER, _NONE)},
    "generator?": {
        **dict.fromkeys(("measured_images",), (int, _NONE)),
        **dict.fromkeys(("reconstruction_accuracy", "ssim"), (*_NUMBER, _NONE)),
        **dict.fromkeys(("kind", "name", "weights"), str),
    },
    "generated seeds?": {
        **dict.fromkeys(("painted!", "read by the subject!"), int),
        "recognised!": (int, _NONE),
        "by!": (dict, list),
    },
    "witnesses?": {"models": [str], "margin": _NUMBER, "independence": dict},
    "space?": {"text": str, "name": str, "shape": [int]},
    "map?": {"kind!": frozenset({"figure", "photograph"}), "axes!": [_AXIS]},
    "coverage?": [
        {"criterion": str, "before": (*_NUMBER, _NONE), "after": (*_NUMBER, _NONE)},
    ],
    "people?": {
        **dict.fromkeys(("rated!", "confirmed!", "undecided!"), int),
        "rate?": dict.fromkeys(_PEOPLE, _NUMBER),
        "studies": [str],
        "findings": {...: str},
    },
}  # fmt: skip
"""What the entries of run.json are, where they are there."""


def wrong_record(record: Any) -> str:
    """What is wrong with the content of run.json; nothing, if that is sound."""
    wrong = _amiss(record, RECORD)
    if wrong is not None:
        return wrong.strip() or "it is not an object"
    shape = record.get("image", [1, 1, 1])
    if len(shape) != 3 or min(shape) < 1:
        return f"image is {str(shape)[:40]}"
    return "" if record.get("classes", [""]) else "it names no class"


def _amiss(record: Any, shape: Shape) -> str | None:
    """Where a value is not of its shape, and what stands there; None if it is."""
    waiting: list[tuple[str, Any, Shape]] = [("", record, shape)]
    while waiting:
        path, value, shape = waiting.pop()
        inside: list[tuple[str, Any, Shape]] | None = None
        if isinstance(shape, dict):
            inside = _entries(value, shape)
        elif isinstance(shape, list) and isinstance(value, list):
            inside = [(str(i), one, shape[0]) for i, one in enumerate(value)]
        elif isinstance(shape, frozenset):
            inside = [] if isinstance(value, str) and value in shape else None
        elif not isinstance(shape, list) and _is(value, shape):
            inside = []
        if inside is None:
            return f"{path} is {str(value)[:40]!r}"
        waiting += [(f"{path}.{name}".strip("."), one, inner) for name, one, inner in inside]
    return None


def _entries(value: Any, shape: Mapping[Any, Shape]) -> list[tuple[str, Any, Shape]] | None:
    """The entries of an object with their shapes; None if it is none, or lacks one."""
    if not isinstance(value, dict):
        return None
    known = {
        str(name).rstrip("?!"): (name, inner) for name, inner in shape.items() if name is not ...
    }
    if any(str(name).endswith("!") and key not in value for key, (name, _) in known.items()):
        return None
    pairs = []
    for key, one in value.items():
        name, inner = known.get(key, (..., shape.get(..., object)))
        if one is not None or not str(name).endswith("?"):
            pairs.append((str(key)[:40], one, inner))
    return pairs


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
        all(_is(summary.get(name, 0), int) for name in numbers)
        and isinstance(confusions, list)
        and all(_whole(row, 3) for row in confusions)
        and all(
            isinstance(counts, dict) and _whole(list(counts.values()), len(counts))
            for counts in tallies
        )
    )


def _whole(row: Any, length: int) -> bool:
    return (
        isinstance(row, list)
        and len(row) == length
        and (not row or (set(map(type, row)) == {int} and max(map(abs, row)) < LARGEST))
    )


def _is(value: Any, kinds: Any) -> bool:
    """Like isinstance, but true and false are no numbers, and numbers are below `LARGEST`."""
    if isinstance(value, bool):
        return kinds is object or kinds is bool or (isinstance(kinds, tuple) and bool in kinds)
    if isinstance(value, int | float) and not abs(value) < LARGEST:
        return False
    return isinstance(value, kinds)


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

    Args:
        directory: The run folder.
        run: Says whose shards these are: the identity of the campaign; lines of another one mean
            nothing here.
    """

    def __init__(self, directory: Directory, run: Callable[[], str] = str) -> None:
        self.directory = directory
        self.run = run
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
                own = self.run()
                sound = (one for one in said if sound_line(one))
                ours = (one for one in sound if not own or one.get("run", own) == own)
                self.known = {one["shard"]: _entry(one) for one in ours}
        return self.known

    def seal(self, number: int, name: str, *, anew: bool = False) -> tuple[int, int] | None:
        """Size and checksum of a file as its entry has them; `anew`: as the ledger says by now."""
        if anew:
            self.known = None
        entry = self.read().get(number)
        return None if entry is None else entry.files.get(name)

    def add(self, number: int, entry: Entry) -> None:
        """Enter a stored shard."""
        self.read()[number] = entry
        said = {"shard": number, "files": entry.files, "summary": entry.summary, "run": self.run()}
        body = json.dumps(said, separators=(",", ":"))
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


def file_seal(path: Path, size: int | None = None) -> list[int] | None:
    """Size and checksum of a file; one that has another `size` than it should is not read."""
    try:
        if size is not None and os.lstat(path).st_size != size:
            return []
        with opened(path, most=LARGE if size is None else size) as file:
            return [*checksum(in_pieces(file))]
    except (OSError, ValueError):
        return None
