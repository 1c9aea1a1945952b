"""Files of a run folder: plain, of a bounded size; small ones are JSON with a checksum and a fixed
schema; the ledger lists the stored shards.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import monotonic
from types import GenericAlias
from typing import Annotated, Any, Literal
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hardcase.cache import flush_files, make_folder, turn, unwritable
from hardcase.environment import redact, secrets
from hardcase.errors import HardcaseError
from hardcase.plain import DEEPEST, opened, read_plain

LOCK = ".lock"
FOLDERS = ("measured", "findings", "verdicts", "state")
"""The folders inside a run folder."""
LARGE = 2**31
"""Bytes, at most, of a file of results that is read at once."""
CHECK = "checksum"
_PIECE = 2**20


def require_plain(path: Path) -> None:
    """Raise unless `path` is a plain file with no other name, or missing."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise HardcaseError(
            f"{path} is not a plain file of this folder.",
            "Nothing is written through links or pipes.",
        )


def append_plain(path: Path, data: bytes) -> None:
    """Append `data` to a file, which is created if it is missing."""
    require_plain(path)
    with path.open("ab") as file:
        file.write(data)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise if any folder inside is a link."""
    for name in names:
        if (folder / name).is_symlink():
            raise HardcaseError(
                f"{folder / name} is a link.", "Nothing is written or renamed through links."
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`, or say who is."""
    make_folder(folder)
    path = folder / LOCK
    require_plain(path)
    refuse_links(folder, FOLDERS)
    with ExitStack() as stack:
        try:
            held = stack.enter_context(turn(path, wait=False))
        except OSError as error:
            raise unwritable(path, error) from error
        if not held:
            who = path.read_text(errors="replace")[:200].strip()
            raise HardcaseError(
                f"another process is writing to {folder}: {who}.",
                "Two writers would search the same shards twice.",
                fix=f"wait for it, or stop it; hardcase status {folder} shows where it stands",
            )
        with suppress(OSError):  # a full disk: the lock holds all the same
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield


def has_writer(folder: Path) -> bool | None:
    """Whether a process writes to `folder` at this moment; None where that cannot be known."""
    try:
        import fcntl

        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file frees it again
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no such locks here, or a copy without the lock
        return None
    return False


# --- checksums


def size_and_crc(data: bytes) -> list[int]:
    """Size and checksum of a file's content."""
    return [len(data), crc32(data)]


def file_size_and_crc(path: Path, size: int = LARGE) -> list[int] | None:
    """Size and checksum of a file of at most `size` bytes; None of any other."""
    check = 0
    try:
        with opened(path, most=size) as file:
            while piece := file.read(_PIECE):
                check = crc32(piece, check)
            return [file.tell(), check]
    except (OSError, ValueError):
        return None


def checked_json(content: Mapping[str, Any]) -> bytes:
    """`content` as readable JSON with its checksum."""
    body = storable({name: value for name, value in content.items() if name != CHECK})
    return json.dumps({**body, CHECK: _sum(body)}, indent=2).encode()


def read_checked_json(data: bytes) -> tuple[Any, bool | None]:
    """What a file says, and whether its checksum is right; None if it has none."""
    content = read_json(data)
    if not isinstance(content, dict) or CHECK not in content:
        return content, None
    check = content.pop(CHECK)
    return content, check == _sum(content)


def _sum(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def storable(value: Any) -> Any:
    """A tree of JSON as it may be stored: no secret in it, nothing where a number is none."""
    text = json.dumps(value, ensure_ascii=False)
    hidden = [json.dumps(secret, ensure_ascii=False)[1:-1] for secret in secrets()]
    return json.loads(redact(text, hidden), parse_constant=lambda word: None)


def as_json(value: Any) -> Any:
    """A tree as JSON reads it back: nothing where a number is none."""
    return json.loads(json.dumps(value), parse_constant=lambda word: None)


def read_json(data: bytes) -> Any:
    """What JSON says, if it says each thing once, in numbers that are numbers, and not too deeply;
    else a `ValueError`.

    Example:
        >>> read_json(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it says something twice
    """
    content = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_once)
    level: list[Any] = [content]
    for _ in range(DEEPEST):
        lists: list[Iterable[Any]] = [value for value in level if isinstance(value, list)]
        lists += [value.values() for value in level if isinstance(value, dict)]
        level = [inner for values in lists for inner in values]
        if not level:
            return content
    raise ValueError("it is nested too deeply")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"it holds {word}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("it says something twice")
    return unique


# --- what records must look like to be read at all

Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Side = Annotated[int, Field(gt=0, lt=2**31)]
Number = Annotated[float, Field(gt=-(2.0**63), lt=2.0**63)]
Counts = dict[str, Whole | None]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]
Tree = dict[str, Any]


class _Entries(BaseModel):
    """What stands in a record must be of its type: true and false are no numbers. Further entries
    are allowed.
    """

    model_config = ConfigDict(strict=True, extra="allow")


def _entries(
    kinds: Mapping[str, Any], optional: Mapping[str, Any] | None = None, rest: Any = Any
) -> Any:
    """A model of these entries and of optional ones; `rest` are all others."""
    fields = {name: Field(alias=name) for name in kinds}
    fields |= {name: Field(None, alias=name) for name in optional or {}}
    named = {**kinds, **(optional or {})}
    # under names of their own: an entry may be called as an attribute of models is
    definitions: Any = {f"entry_{i}": (named[name], fields[name]) for i, name in enumerate(named)}
    space = {"__annotations__": {"__pydantic_extra__": dict[str, rest]}}
    base: Any = type("Base", (_Entries,), space)
    return create_model("Entries", __base__=base, **definitions)


def _several(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


def _each(kind: Any, names: str) -> dict[str, Any]:
    """Entries of the same kind."""
    return dict.fromkeys(names.split(), kind)


_INTERVAL = _each(Number, "low high")
_RATE = _entries({**_INTERVAL, **_each(Whole, "hits total"), "share": Number | None})
_AUROC = _entries({"value": Number | None})
_ERROR_RATES = _each(_RATE, "precision precision_where_agreed recall lost_right unsure")
_ERRORS = _entries(
    {
        "images": Whole,
        "label_kept": _entries({"auroc": _AUROC, **_ERROR_RATES}),
        "methods": GenericAlias(dict, (str, _entries(_ERROR_RATES))),
    }
)
_CONTROL = _entries(_each(Whole, "planted kept lost unsure"))
_CONTROLS = _entries(
    {**_each(Whole, "found planted accepted"), "kinds": GenericAlias(dict, (str, _CONTROL))}
)
_AGAINST_PEOPLE = _entries({"method": str, "precision": _RATE, "losses": Whole})
_JUDGE = _entries(
    {},
    {
        **_each(str | None, "name status weights data"),
        "accuracy": Number | None,
        "calibrated": bool | None,
        "calibration": _ERRORS | None,
        "controls": _CONTROLS | None,
        "against_people": _AGAINST_PEOPLE | None,
        **_each(Tree | None, "members rules independence"),
        "groups": list[Tree],
        "high_confidence": dict[str, Tree | list[Any] | Number | None] | None,
    },
)
_PEOPLE_RATE = _entries({**_INTERVAL, **_each(Number, "value searched rated failing")})
_PEOPLE = _entries(
    _each(Whole, "rated confirmed undecided"),
    {"rate": _PEOPLE_RATE | None, "studies": list[str], "findings": dict[str, str]},
)
_AXIS = _entries({**_INTERVAL, "name": str, "cells": Whole})
_MAP = _entries({"kind": Literal["figure", "photograph"], "axes": _several(_AXIS)})
_COVERAGE = _entries({}, {"criterion": str, **_each(Number | None, "before after")})
_LOST = {**_INTERVAL, **_each(Whole, "lost decided shown")}
_MEASURED = {"value": Number, "images_like_these": Pair}
_ESTIMATE = {**_INTERVAL, "value": Number}
_BASELINE = _entries(
    {**_ESTIMATE, "name": str, "images": Whole}
    | _each(_entries(_ESTIMATE), "unmodified difference unmodified_difference"),
    {"training": str},
)
_REGION = _entries({"low": Number, "words": str}, _each(Number | None, "value overall images"))
_RISK = _entries(
    {
        **_ESTIMATE,
        **_each(Whole, "failing samples images of reserved ties"),
        "unmodified": _entries({**_ESTIMATE, "failing": Whole}),
        "gap": _entries(_ESTIMATE),
        "settled": str,
    },
    {
        "baselines": _several(_BASELINE),
        "effects": _several(_entries({**_ESTIMATE, "condition": str})) | None,
        "worst_region": _REGION | None,
        "wider": _several(_entries({**_ESTIMATE, "scale": Number})) | None,
        "lost_labels": _entries(_LOST) | None,
        "lost_labels_people": _entries({**_LOST, "people": Whole}) | None,
    },
)
_PHASE = _entries(
    {"status": Literal["not begun", "running", "done", "skipped", "failed"]},
    {
        "why": str,
        "elapsed": Number,
        "tile": Whole | None,
        "totals": Counts,
        "identity": _entries({}, {"digest": str, "parts": dict[str, str]}),
    },
)
_WORST_CASE = _entries(
    {
        **_MEASURED,
        "seeds": Whole,
        "curve": _several(_entries({**_INTERVAL, **_each(Number, "scale share")})),
        "doubling": _several(_entries({"queries": Whole, "share": Number})),
        "comparable": bool,
    }
)
_LEAST_SCALE = _entries({"quantiles": dict[str, Number | None], "seeds": Whole})
_GENERATOR = _entries(
    {},
    {
        **_each(str, "kind name weights"),
        **_each(Number | None, "reconstruction_accuracy ssim"),
        "measured_images": Whole | None,
    },
)
_GENERATED = _entries(
    {**_each(Whole, "generated"), "correctly_classified": Whole, "verified": Whole | None}
    | {"by": Tree | list[Any]}
)
_HASHES = _entries(
    {}, {**_each(str, "model data"), "generator": str | None, "parameters": dict[str, str]}
)
_SPACE = _entries({}, {**_each(str, "text name"), **_each(list[Whole], "shape columns")})
RUN_RECORD = _entries(
    {},
    {
        **_each(Whole, "schema seed images shards threads"),
        **_each(str, "hardcase created method model data split device"),
        **_each(str | None, "finished baseline precision"),
        **_each(bool, "complete bitwise deterministic"),
        **_each(list[str], "argv notes citations judge_features"),
        **_each(Counts, "totals search_results skipped findings kinds"),
        "service": Counts | None,
        "versions": dict[str, str | None],
        "elapsed": Number,
        "options": dict[str, str | bool | Number | list[Any] | None],
        "classes": Annotated[list[str], Field(min_length=1)],
        "shape": Annotated[list[Side], Field(min_length=3, max_length=3)],
        "budget": _entries({}, {"time": str | Number | None}, Number | None),
        "tile": Whole | None,
        "identity": _entries({}, {"digest": str, "parts": dict[str, str]}),
        "hashes": _HASHES,
        "behaviour": GenericAlias(dict, (str, _entries({"values": str, "within": Number}))),
        "accuracy": _entries({}, {"value": Number | None, "images": Whole}) | None,
        "generator": _GENERATOR | None,
        "generated_images": _GENERATED | None,
        "witnesses": _entries({}, {"models": list[str], "margin": Number, "independence": Tree})
        | None,
        "space": _SPACE | None,
        "map": _MAP | None,
        "judge": _JUDGE | None,
        "verdicts": dict[str, list[Whole]] | None,
        "coverage": _several(_COVERAGE) | None,
        "conditions": dict[str, str] | None,
        "conditions_digest": str | None,
        "risk": _RISK | None,
        "phases": GenericAlias(dict, (str, _PHASE)),
        "given": dict[str, str],
        **_each(Whole, "samples canaries"),
        "keep": str | None,
        "places": list[Tree] | None,
        "lineages": Tree,
        "claims": Tree | None,
        "least_scale": _LEAST_SCALE | None,
        "worst_case": _WORST_CASE | None,
        "rare": _entries({"volume": Number, "seeds": Whole}) | None,
        "people": _PEOPLE | None,
        "shrink": _entries({}, {"needed": Counts | None}, str | Number | None) | None,
    },
)
"""run.json."""
BEGINNING = _entries({"record": RUN_RECORD, "config": str})
"""state/begun.json."""


class _Summary(_Entries):
    """The counts of a shard."""

    seeds: Whole = 0
    queries: Whole = 0
    gradients: Whole = 0
    failing: Whole = 0
    findings: Whole = 0
    canaries: Whole = 0
    elapsed: Number = 0
    kinds: dict[str, Whole] = {}
    service: dict[str, Whole] = {}
    confusions: list[Annotated[list[Whole], Field(min_length=3, max_length=3)]] = []


class _Line(_Entries):
    """A line of the ledger."""

    shard: Whole
    files: dict[str, Annotated[list[Whole], Field(min_length=2, max_length=2)]]
    summary: _Summary
    run: str = ""


def wrong_record(content: Any, kind: type[_Entries] = RUN_RECORD) -> str:
    """What is wrong with the content of run.json, or of another record; nothing, if it is sound."""
    try:
        # as JSON, where objects stand for models; what is no Unicode (half a pair) is no matter
        text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
        kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part)[:40] for part in first["loc"]) or "it"
        return f"{place} is {str(first['input'])[:40]!r}"
    return ""


# --- the ledger: a line for every stored shard, with size and checksum of its files and its counts

LEDGERS = {"measure": "state/measured.jsonl", "search": "state/ledger.jsonl"}
"""The ledger of each phase that has shards."""
OFTEN = 10.0
"""Seconds after which stored files are flushed, so that they outlive a power cut."""
SEEDS = -1
"""The line that speaks of ``images.parquet`` instead of a shard."""


def files_of(number: int, phase: str = "search") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the files of a shard, or of what else has a line: those it has, and may have."""
    if phase == "measure":
        return (f"measured/part-{number:05d}.parquet",), ()
    if number < 0:
        return ("images.parquet" if number == SEEDS else "",), ()
    part = f"findings/part-{number:05d}.parquet"
    return (part, f"state/seeds-{number:05d}.parquet"), (f"state/deltas-{number:05d}.safetensors",)


@dataclass(frozen=True, slots=True)
class Entry:
    """Size and checksum of each file of a shard, by its name in the run folder, and its counts."""

    files: Mapping[str, tuple[int, int]]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(files: Mapping[str, bytes], summary: Mapping[str, Any]) -> Entry:
        """The entry of files with these contents."""
        return Entry({name: (len(data), crc32(data)) for name, data in files.items()}, summary)


class Ledger:
    """Which shards of a phase a run folder holds; the file has a single writer.

    A shard is stored when it has a line. Lines of another campaign than `run` mean nothing.
    """

    def __init__(self, folder: Path, run: Callable[[], str] = str, phase: str = "search") -> None:
        self.folder = folder
        self.run = run
        self.phase = phase
        self.path = folder / LEDGERS[phase]
        self.pending: set[Path] = set()
        self.flushed = monotonic()
        self.known: dict[int, Entry] | None = None

    def read(self, *, anew: bool = False) -> dict[int, Entry]:
        """Every complete entry; the last entry of a shard counts. The file is read once, and
        `anew` where another process may have gone on with the run.
        """
        if self.known is not None and not anew:
            return self.known
        run = self.run()
        self.known = {}
        lines = list[bytes]()
        with suppress(OSError):
            lines = read_plain(self.path, most=LARGE).split(b"\n")
        for line in lines:
            # A line counts only with its checksum: half a line of a killed process, or a flipped
            # bit, is as if it had never been written, and its shard is computed again.
            body, _, check = line.rpartition(b"\t")
            if check != b"%08x" % crc32(body):
                continue
            with suppress(ValidationError):
                said = _Line.model_validate_json(body)
                needed, perhaps = files_of(said.shard, self.phase)
                complete = {*needed} <= said.files.keys() <= {*needed, *perhaps}
                if complete and (not run or said.run in ("", run)):
                    files = {name: (size, crc) for name, (size, crc) in said.files.items()}
                    # The last line of a shard wins: a shard that was damaged and searched again has
                    # two.
                    summary = said.summary.model_dump(exclude_unset=True)
                    self.known[said.shard] = Entry(files, summary)
        return self.known

    def add(self, number: int, entry: Entry) -> None:
        """Enter a stored shard."""
        line = {"shard": number, "files": entry.files, "summary": entry.summary, "run": self.run()}
        body = json.dumps(line, separators=(",", ":"))
        try:  # the line before may be half a line, of a process that was killed
            append_plain(self.path, f"\n{body}\t{crc32(body.encode()):08x}\n".encode())
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.read()[number] = entry
        self.pending |= {self.path, *(self.folder / name for name in entry.files)}
        if monotonic() - self.flushed >= OFTEN:
            self.flush()

    def flush(self) -> None:
        """Make what was entered outlive a power cut: files first, then the lines about them."""
        # The order is the guarantee: a line that survives a power cut speaks of files that survive
        # it.
        flush_files(self.pending - {self.path})
        flush_files(self.pending & {self.path})
        self.pending.clear()
        self.flushed = monotonic()
