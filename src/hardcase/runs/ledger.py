"""The ledger: one line for every stored shard, with the size and checksum of its files and the
counts they add; and what each record of a run folder must look like to be read at all.

Whoever can write into a folder can write anything: records are checked before anybody uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal
from zlib import crc32

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hardcase.cache import flush_files, unwritable
from hardcase.runs.files import LARGE, append_plain, read_plain

__all__ = ["PATHS", "SEEDS", "Entry", "Ledger", "files_of", "sound_beginning", "wrong_record"]

# --- records

Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Side = Annotated[int, Field(gt=0, lt=2**31)]
Number = Annotated[float, Field(gt=-(2.0**63), lt=2.0**63)]
Counts = dict[str, Whole | None]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]


class _Entries(BaseModel):
    """What stands in a record must be of its type (true and false are no numbers); entries that
    have a default may be missing, and others may stand beside them.
    """

    model_config = ConfigDict(strict=True, extra="allow")


class _Rate(_Entries):
    hits: Whole
    total: Whole
    share: Number | None
    low: Number
    high: Number


class _Auroc(_Entries):
    value: Number | None


class _Question(_Entries):
    auroc: _Auroc
    tpr: _Rate
    tnr: _Rate
    undecided: _Rate


class _Confirmed(_Entries):
    precision: _Rate
    recall: _Rate


class _Errors(_Entries):
    images: Whole
    valid: _Question
    label_kept: _Question
    confirmed: _Confirmed


class _Judge(_Entries):
    name: str | None = None
    standing: str | None = None
    weights: str | None = None
    data: str | None = None
    accuracy: Number | None = None
    calibrated: bool | None = None
    calibration: _Errors | None = None
    elsewhere: _Errors | None = None
    members: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    groups: list[dict[str, Any]] = []
    silence: dict[str, dict[str, Any] | list[Any] | Number | None] | None = None
    independence: dict[str, Any] | None = None


class _PeopleRate(_Entries):
    low: Number
    value: Number
    high: Number
    attempted: Number
    rated: Number
    failing: Number


class _People(_Entries):
    rated: Whole
    confirmed: Whole
    undecided: Whole
    rate: _PeopleRate | None = None
    studies: list[str] = []
    findings: dict[str, str] = {}


class _Axis(_Entries):
    name: str
    low: Number
    high: Number
    cells: Whole


class _Map(_Entries):
    kind: Literal["figure", "photograph"]
    axes: list[_Axis]


class _Coverage(_Entries):
    criterion: str = ""
    before: Number | None = None
    after: Number | None = None


class _Cost(_Entries):
    condition: str
    cost: Number
    low: Number
    high: Number


class _Reference(_Entries):
    name: str
    training: str
    accuracy: Number
    risk: Number
    difference: Number
    low: Number
    high: Number
    seeds: Whole


class _LostLabels(_Entries):
    lost: Whole
    decided: Whole
    shown: Whole
    low: Number
    high: Number


class _LostByPeople(_LostLabels):
    people: Whole


class _Needed(_Entries):
    effect: Number
    seeds: Whole


class _Risk(_Entries):
    value: Number
    failing: Whole
    draws: Whole
    seeds: Whole
    these_images: Pair
    images_like_these: Pair
    clean_error: Number
    costs: list[_Cost] = []
    references: list[_Reference] = []
    lost_labels: _LostLabels | None = None
    lost_labels_people: _LostByPeople | None = None
    needed: _Needed | None = None


class _RiskExcess(_Entries):
    value: Number
    images_like_these: Pair


class _LeastScale(_Entries):
    quantiles: dict[str, Number | None]
    seeds: Whole


class _ScalePoint(_Entries):
    scale: Number
    share: Number
    low: Number
    high: Number


class _Doubling(_Entries):
    queries: Whole
    share: Number


class _Rare(_Entries):
    volume: Number
    seeds: Whole


class _WorstCase(_Entries):
    value: Number
    images_like_these: Pair
    seeds: Whole
    curve: list[_ScalePoint]
    doubling: list[_Doubling]
    comparable: bool


class _Identity(_Entries):
    digest: str = ""
    parts: dict[str, str] = {}


class _Hashes(_Entries):
    subject: str = ""
    data: str = ""
    generator: str | None = None
    parameters: dict[str, str] = {}


class _Budget(_Entries):
    time: str | Number | None = None
    __pydantic_extra__: dict[str, Number | None]


class _Accuracy(_Entries):
    value: Number | None = None
    images: Whole = 0


class _ShrinkRecord(_Entries):
    needed: Counts | None = None
    __pydantic_extra__: dict[str, str | Number | None]


class _Generator(_Entries):
    measured_images: Whole | None = None
    reconstruction_accuracy: Number | None = None
    ssim: Number | None = None
    kind: str = ""
    name: str = ""
    weights: str = ""


class _GeneratedSeeds(_Entries):
    generated: Whole
    correct: Whole = Field(alias="correctly classified")
    verified: Whole | None
    by: dict[str, Any] | list[Any]


class _Fingerprint(_Entries):
    values: str
    within: Number


class _Witnesses(_Entries):
    models: list[str] = []
    margin: Number = 0
    independence: dict[str, Any] = {}


class _Space(_Entries):
    text: str = ""
    name: str = ""
    shape: list[Whole] = []
    columns: list[Whole] = []


class _Record(_Entries):
    """run.json."""

    form: Whole = Field(1, alias="schema")
    hardcase: str = ""
    versions: dict[str, str | None] = {}
    argv: list[str] = []
    created: str = ""
    finished: str | None = None
    complete: bool = False
    elapsed: Number = 0
    method: str = ""
    options: dict[str, str | bool | Number | list[Any] | None] = {}
    model: str = ""
    baseline: str | None = None
    data: str = ""
    split: str = ""
    classes: Annotated[list[str], Field(min_length=1)] = [""]
    image: Annotated[list[Side], Field(min_length=3, max_length=3)] = [1, 1, 1]
    seed: Whole = 0
    seeds: Whole = 0
    shards: Whole = 0
    budget: _Budget = _Budget()
    device: str = ""
    threads: Whole = 0
    tile: Whole | None = None
    precision: str | None = None
    bitwise: bool = False
    deterministic: bool = False
    identity: _Identity = _Identity()
    hashes: _Hashes = _Hashes()
    behaviour: dict[str, _Fingerprint] = {}
    accuracy: _Accuracy | None = None
    notes: list[str] = []
    citations: list[str] = []
    totals: Counts = {}
    funnel: Counts = {}
    skipped: Counts = {}
    findings: Counts = {}
    kinds: Counts = {}
    service: Counts | None = None
    generator: _Generator | None = None
    generated: _GeneratedSeeds | None = Field(None, alias="generated seeds")
    witnesses: _Witnesses | None = None
    space: _Space | None = None
    map: _Map | None = None
    judge: _Judge | None = None
    judge_features: list[str] = []
    verdicts: dict[str, list[Whole]] | None = None
    coverage: list[_Coverage] | None = None
    conditions: dict[str, str] | None = None
    risk: _Risk | None = None
    risk_excess: _RiskExcess | None = None
    least_scale: _LeastScale | None = None
    worst_case: _WorstCase | None = None
    rare: _Rare | None = None
    people: _People | None = None
    shrink: _ShrinkRecord | None = None


class _BegunRecord(_Entries):
    """state/begun.json."""

    record: _Record
    config: str


class _Summary(_Entries):
    """The counts of a shard."""

    seeds: Whole = 0
    queries: Whole = 0
    gradients: Whole = 0
    failing: Whole = 0
    findings: Whole = 0
    kinds: dict[str, Whole] = {}
    service: dict[str, Whole] = {}
    confusions: list[Annotated[list[Whole], Field(min_length=3, max_length=3)]] = []


class _Line(_Entries):
    """A line of the ledger."""

    shard: Whole
    files: dict[str, Annotated[list[Whole], Field(min_length=2, max_length=2)]]
    summary: _Summary
    run: str = ""


def wrong_record(record: Any) -> str:
    """What is wrong with the content of run.json; nothing, if that is sound."""
    return _wrong(_Record, record)


def sound_beginning(said: Any) -> bool:
    """Whether this is what a run keeps of its beginning."""
    return not _wrong(_BegunRecord, said)


def _wrong(kind: type[_Entries], said: Any) -> str:
    try:
        # as JSON, where objects stand for models; what is no Unicode (half a pair) is no matter
        text = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
        kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(one)[:40] for one in first["loc"]) or "it"
        return f"{place} is {str(first['input'])[:40]!r}"
    return ""


# --- the ledger

NAME = "state/ledger.jsonl"
OFTEN = 10.0
"""Seconds after which stored files are made to outlive a power cut; a killed process loses nothing
in any case.
"""
SEEDS = -1
"""The line that speaks of ``seeds.parquet`` instead of a shard."""
PATHS = -2
"""The line that speaks of ``state/paths.parquet``."""


def files_of(number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the files of a shard (or of what else has a line): those it has, and those it
    may have.
    """
    if number < 0:
        return ({SEEDS: "seeds.parquet", PATHS: "state/paths.parquet"}.get(number, ""),), ()
    part = f"findings/part-{number:05d}.parquet"
    return (part, f"state/seeds-{number:05d}.parquet"), (f"state/deltas-{number:05d}.safetensors",)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of a shard.

    Args:
        files: Size and checksum of each of its files, by their names in the run folder.
        summary: Its counts.
    """

    files: Mapping[str, tuple[int, int]]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(files: Mapping[str, bytes], summary: Mapping[str, Any]) -> Entry:
        """The entry of files with these contents."""
        return Entry({name: (len(data), crc32(data)) for name, data in files.items()}, summary)


class Ledger:
    """The file ``state/ledger.jsonl`` of a run folder, which has one writer.

    A shard is stored when it has a line, and its files are believed as far as they agree with it.

    Args:
        folder: The run folder.
        run: Says whose shards these are: the identity of the campaign. Lines of another one mean
            nothing here.
    """

    def __init__(self, folder: Path, run: Callable[[], str] = str) -> None:
        self.folder = folder
        self.run = run
        self.path = folder / NAME
        self.pending: set[Path] = set()
        self.flushed = monotonic()
        self.known: dict[int, Entry] | None = None

    def read(self, *, anew: bool = False) -> dict[int, Entry]:
        """Every entry that is whole; the last one of a shard counts. The file is read once.

        Args:
            anew: Read it again: another process may have gone on with the run.
        """
        if self.known is None or anew:
            try:
                lines = read_plain(self.path, most=LARGE).split(b"\n")
            except OSError:
                lines = []
            run = self.run()
            self.known = {}
            for line in lines:
                body, _, check = line.rpartition(b"\t")
                if check == b"%08x" % crc32(body):
                    self.known.update(_entry(body, run))
        return self.known

    def add(self, number: int, entry: Entry) -> None:
        """Enter a stored shard."""
        said = {"shard": number, "files": entry.files, "summary": entry.summary, "run": self.run()}
        body = json.dumps(said, separators=(",", ":"))
        try:  # the line before may be half a line, of a process that was killed
            append_plain(self.path, f"\n{body}\t{crc32(body.encode()):08x}\n".encode())
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.read()[number] = entry
        self.pending |= {self.path, *(self.folder / name for name in entry.files)}
        if monotonic() - self.flushed >= OFTEN:
            self.flush()

    def flush(self) -> None:
        """Make everything that was entered outlive a power cut: files first, then the lines that
        speak of them.
        """
        flush_files(self.pending - {self.path})
        flush_files(self.pending & {self.path})
        self.pending.clear()
        self.flushed = monotonic()


def _entry(body: bytes, run: str) -> dict[int, Entry]:
    """What a line says, by the number of its shard; nothing, if it is of another run, or names
    other files than a shard has.
    """
    try:
        line = _Line.model_validate_json(body)
    except ValidationError:
        return {}
    needed, perhaps = files_of(line.shard)
    known = {*needed} <= line.files.keys() <= {*needed, *perhaps}
    if not known or (run and line.run not in ("", run)):
        return {}
    files = {name: (size, check) for name, (size, check) in line.files.items()}
    return {line.shard: Entry(files, line.summary.model_dump(exclude_unset=True))}
