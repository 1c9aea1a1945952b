"""Verification of a run: its files by their checksums and its beginning, its networks by their
answers on sample seeds. Files are put right before a search goes on: only `resume`
repairs, and what is damaged is set aside, never deleted.
"""

from __future__ import annotations

import logging
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from hardcase.cache import free, sweep
from hardcase.campaign.claims import CLAIMED, Claims, asking
from hardcase.campaign.loop import encode_images
from hardcase.campaign.record import Campaign
from hardcase.config import loads
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError, Refused
from hardcase.models.adapters import Cached, LabelOnly
from hardcase.models.health import answers
from hardcase.models.subject import Subject
from hardcase.plain import read_plain
from hardcase.runs.files import (
    FOLDERS,
    Ledger,
    checked_json,
    file_size_and_crc,
    files_of,
    read_checked_json,
)
from hardcase.runs.folder import BEGUN, Store
from hardcase.runs.identity import ANOTHER, FREE, run_digest
from hardcase.runs.tables import VERDICTS, read
from hardcase.tensors import TILE, from_bytes, steady
from hardcase.types import Images, Model, Seeds

_log = logging.getLogger(__name__)

CURVES = "curves.json"
"""What ``hardcase curve`` leaves in a run folder."""
REGRESSION = "regression.json"
"""What a search for regressions shows beyond its nulls."""
CONDITIONS = "conditions.json"
"""What happened to every seed under the declared conditions."""
CLAIMS = "claims.json"
"""What is claimed of every seed of a tagger, detector or segmenter."""
SIDE_FILES = (CURVES, REGRESSION, CONDITIONS, CLAIMS)
"""Files that verbs add to a run later, each with its checksum and the name of its run."""


def write_side_file(store: Store, name: str, content: Mapping[str, Any]) -> None:
    """Add a file of `SIDE_FILES` to a run folder."""
    store.write(name, checked_json({**content, "run": store.run}))


def read_side_file(store: Store, name: str) -> dict[str, Any] | None:
    """The content of a file of `SIDE_FILES`; None if it is missing, damaged, or about another
    run."""
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
    """The state of a run's verification; a run without stored checksums is unverified."""

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


def require_intact(run: Path, verification: Verification, *, allow_damaged: bool) -> None:
    """Refuse a damaged run to whoever would take what is left of it for all of it."""
    if verification.state == "damaged" and not allow_damaged:
        raise HardcaseError(
            f"{run} is damaged: {verification.notes[0]}.",
            "The remaining failures would be read as all of them.",
            fix=f"hardcase resume {run}, which searches lost shards again, or --allow-damaged",
        )


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
    for name in SIDE_FILES:
        if (store.folder / name).exists() and read_side_file(store, name) is None:
            yield f"{name} is damaged, or of another run"
    # a complete run does not change these any more; one that was made from another has none
    if record.get("complete") and (store.folder / "status.json").exists():
        status = _checked(store.folder / "status.json")
        if not status:
            yield "status.json is damaged"
        elif status.get("history") != file_size_and_crc(store.folder / "history.csv"):
            yield "history.csv is not what was stored"


def _shards(store: Store, record: Mapping[str, Any]) -> Iterator[str]:
    """Files against the ledgers, their number against the record."""
    for ledger in (store.measured, store.ledger):
        for number in sorted(ledger.read()):
            for name in _changed_files(store, number, ledger):
                yield f"{name} is missing or not what was stored"
    measured = sum(int(entry.summary.get("images", 0)) for entry in store.measured.read().values())
    if (record.get("risk") or {}).get("images", measured) != measured:
        yield f"{store.measured.path.name} is damaged: it lacks some of its lines"
    if not store.searching:
        return
    shards = record.get("shards")
    if not isinstance(shards, int):
        yield "run.json does not say how many shards the run has"
        return
    for number in sorted(store.parts()):
        if number >= shards:
            yield f"findings/part-{number:05d}.parquet is not of this run"
    if record.get("complete"):
        lacking = {*range(-1, shards)} - store.ledger.read().keys()
        if lacking:
            yield f"state/ledger.jsonl is damaged: it lacks {len(lacking)} of its lines"


def _changed_files(store: Store, number: int, ledger: Ledger) -> list[str]:
    """The files of an entry of a ledger that are not what was stored."""
    files = ledger.read()[number].files
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
        with suppress(HardcaseError):  # findings that cannot be read are told of elsewhere
            ids = [read(folder / name, VERDICTS, ["id"])["id"].to_pylist() for name in there]
            if not {*chain(*ids)} <= {*store.findings()["id"].to_pylist()}:
                yield "the verdicts are of another run"


def _other_settings(store: Store, begun: str) -> list[str]:
    """The settings of config.toml that findings depend on, and are not those of the beginning."""
    try:
        then, now = loads(begun), store.settings()
    except (HardcaseError, ValueError):
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
    with suppress(HardcaseError):
        now = store.record()
    if store.intact is not True:
        now = {}
    if begun is None:
        if not now:
            raise HardcaseError(
                f"run.json and {BEGUN} of {folder} are both damaged: nothing says what the run is.",
                "The failures next to them are still readable as Parquet.",
                fix="a new --out",
            )
        set_aside(folder / BEGUN)
        store.write(BEGUN, checked_json({"record": now, "config": store.config()}))
        return Repaired(now, [f"{BEGUN} was damaged or missing; it is written anew"])
    first = begun["first_config"]
    if begun["config"] != first and not _other_settings(store, first):
        # killed while the search began
        store.write("config.toml", begun["config"].encode())
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
    changed = partial(_changed_files, store, ledger=store.ledger)
    damaged = {number for number in entries if number >= 0 and changed(number)}
    for number in strangers | damaged:
        entries.pop(number, None)
        for name in sum(files_of(number), ()):
            set_aside(store.folder / name)
    return sorted(damaged - strangers)


def repair_measured(store: Store) -> list[int]:
    """Set aside parts of the measurement that are not what was stored, so that they are measured
    again; returns their numbers.
    """
    entries = store.measured.read()
    damaged = [number for number in entries if _changed_files(store, number, store.measured)]
    for number in damaged:
        entries.pop(number)
        for name in files_of(number, "measure")[0]:
            set_aside(store.folder / name)
    return sorted(damaged)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file so that no reader takes it for a valid file; returns its new place."""
    if not path.exists():
        return None
    return path.rename(free(path.with_name(f"{path.name}.damaged")))


# --- networks
# The same weights may stand in other code, or behind an address where the model was exchanged; a
# local one may count its calls. So answers are stored when a run begins and compared when it goes
# on, and every network is asked again after every shard.

ASKED = 512
"""Seeds, at most, that a network must classify again, and ..."""
NUMBERS = 2**23
"""... numbers that these images may have together."""
SERVED = 64
"""Approximate number of them for a server, where answers may cost money."""
DECODED = 4
"""Images that a generator decodes."""
POOL = 32
"""Images, at most, from which the canaries of a shard are drawn."""
NOISE = 6
"""Levels of 255 by which a canary differs from a seed: no server has stored answers for it."""
LATER, MORE = 86_400.0 + 3_601.0, 61.0
"""Seconds by which the clock is wrong where a local network is asked about canaries: a day and an
hour, so that date and hour differ, and a part of a minute."""
LAST_BITS = 1e-6
"""Fraction by which answers of a server may differ after they were equal at the first
comparison."""
ROUGH = 0.02
"""Share of the spread of its answers by which two answers of a local network may differ at all."""
REPEATS = 8.0
"""Times the difference of two answers by which a third may differ, where they are not the same."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A fixed weighted sum of each row of outputs, so that none can change alone, and how far two
    may lie apart: 0 where the same bits are promised.
    """

    values: Float[Tensor, " n"]
    within: float = 0.0

    @staticmethod
    def of(outputs: Float[Tensor, "n k"], within: float = 0.0) -> Fingerprint:
        weights = torch.arange(1, outputs.shape[1] + 1, dtype=torch.float64).cos()
        return Fingerprint((outputs.double() * weights).sum(1), within)

    def changed(self, now: Fingerprint) -> int:
        """On how many images another network seems to have answered."""
        near = (self.values - now.values).abs() <= self.within
        return int((~near & ~(self.values.isnan() & now.values.isnan())).sum())

    def take(self, rows: list[int]) -> Fingerprint:
        return Fingerprint(self.values[rows], self.within)

    def to_json(self) -> dict[str, Any]:
        return {"values": b64encode(self.values.numpy().tobytes()).decode(), "within": self.within}

    @staticmethod
    def from_json(stored: Any) -> Fingerprint | None:
        """What was stored; None for anything else."""
        try:
            values = np.frombuffer(b64decode(stored["values"]), np.float64)
            return Fingerprint(torch.from_numpy(values.copy()), float(stored["within"]))
        except (TypeError, ValueError, KeyError):
            return None


def networks_of(campaign: Campaign) -> dict[str, Model]:
    """Every network of a search by its role."""
    roles: dict[str, Model] = {"model": campaign.subject}
    roles |= {f"peer {i}": peer for i, peer in enumerate(campaign.peers, 1)}
    return roles | {f"witness {i}": witness for i, witness in enumerate(campaign.witnesses, 1)}


def behaviour_of(
    networks: Mapping[str, Model], images: ImageSet, campaign: Campaign | None = None
) -> dict[str, Fingerprint]:
    """Answers of the networks on sample seeds of a run, by their role; with `campaign`, also images
    of its generator.
    """
    rows = torch.linspace(0, len(images) - 1, _count(images, ASKED, NUMBERS)).round().long()
    sampled = images.take(rows).images()
    fewer = sampled.take(torch.arange(0, len(sampled), max(1, len(sampled) // SERVED)))
    fingerprints = {
        role: _fingerprint(model, fewer if is_server(model) else sampled)
        for role, model in networks.items()
    }
    if campaign is not None and campaign.method.details.get("generator"):
        with torch.no_grad():
            origin = encode_images(campaign, sampled.first(DECODED))
            decoded = campaign.method.space.decode(origin.z, origin)
        fingerprints["generator"] = Fingerprint.of(decoded.flatten(1).cpu())
    return fingerprints


def require_behaviour(
    record: Mapping[str, Any],
    networks: Mapping[str, Model],
    images: ImageSet,
    campaign: Campaign | None = None,
    *,
    known: bool = False,
) -> None:
    """Refuse networks whose answers differ from those at the beginning of the run; with `known`, on
    the images that its search began with.
    """
    stored = record.get("behaviour") or {}
    for role, now in behaviour_of(networks, images, campaign).items():
        then = Fingerprint.from_json(stored.get(f"searched {role}" if known else role))
        if then is not None and (len(then.values) != len(now.values) or then.changed(now)):
            raise Refused(*_other(role, then, now), fix=ANOTHER)


@dataclass(frozen=True, slots=True)
class Canaries:
    """Images with noise of this run, which every network classifies after every shard, in separate
    calls: a network whose answer depends on anything but the image ends the run.

    They come among other images than at first, with wrong labels and a shifted clock, so that a
    network that depends on its batch, its caller or the time answers otherwise. They count in no
    budget.

    Args:
        images: The canaries.
        known: The answers of each network on them, by its role.
        seed: What the choice for a local network follows from; servers cannot foresee theirs.
    """

    images: Images
    known: Mapping[str, Fingerprint]
    seed: int = 0

    @staticmethod
    def drawn(
        networks: Mapping[str, Model], images: ImageSet, *, seed: int = 0, shards: int = 0
    ) -> Canaries:
        """Return canaries and what each network says of them.

        Args:
            networks: The networks of a phase by their roles; see `networks_of`.
            images: The images to which noise is added.
            seed: Everything about them follows from it, unless any network is a server.
            shards: How many shards there will be, to report the extra queries of servers.
        """
        served = [role for role, network in networks.items() if is_server(network)]
        luck = SystemRandom() if served else Random(f"canaries of {seed}")
        chosen = luck.sample(range(len(images)), _count(images, POOL, NUMBERS // 8))
        sampled = images.take(torch.tensor(chosen)).images()
        numbers = torch.Generator().manual_seed(luck.getrandbits(63))
        noise = torch.randint(-NOISE, NOISE + 1, sampled.x.shape, generator=numbers)
        x = (sampled.x + noise).clamp(0, 255).byte()
        noisy = replace(sampled, x=x)
        for role in served:
            _log.warning(
                "the %s is asked about %d images beside the budget, %d of them now and %d after"
                " each of %d shards: answers that change end the run",
                *(role, 2 * len(x) + TILE * shards, 2 * len(x), TILE, shards),
            )
        fingerprints = {
            role: _fingerprint(network, noisy, twice=True) for role, network in networks.items()
        }
        for role, network in networks.items():
            _require_function(role, network, fingerprints[role])
        return Canaries(noisy, fingerprints, seed)

    @staticmethod
    def of_campaign(campaign: Campaign, images: ImageSet, shards: int) -> Canaries:
        """Return canaries for every network of a search."""
        return Canaries.drawn(networks_of(campaign), images, seed=campaign.seed, shards=shards)

    def check(self, networks: Mapping[str, Model], images: Images, shard: int) -> int:
        """Let every network classify canaries among images of a shard.

        Returns:
            How many images were classified, by all networks together.

        Raises:
            HardcaseError: If a network does not answer as at first; the message names what its
                answer depends on.
        """
        queries = 0
        for role, then in self.known.items():
            model = _without_memory(networks[role])
            served = is_server(model)
            luck = SystemRandom() if served else Random(f"canaries of {self.seed}, shard {shard}")
            others = images.x[: TILE // 2]
            # together a whole tile: nothing is added that would tell these rows from others
            rows = luck.choices(range(len(self.images)), k=TILE - len(others))
            mixed = torch.cat([self.images.take(torch.tensor(rows)).x, others])
            order = torch.tensor(luck.sample(range(len(mixed)), len(mixed)))
            call = _Call(model, self.images, rows, shard)
            expected = then.take(rows)
            # a clock may have gone on by as much as it is wrong: both times are tried
            for odd in (False,) if served else (True, False):
                now = call.answered(mixed, order, clock=odd, labels=odd)
                queries += len(mixed)
                if expected.changed(now):
                    break
            else:
                continue
            # Only a network that has failed is called in further ways: a cause is worth its queries
            # then.
            cause = "" if served else call.cause(expected, mixed, order)
            why = [cause] if cause else []
            why.append(f"Shard {shard} is not stored; those that were finished before are.")
            fix = "see to the server, then go on" if served else "a model that is a function"
            raise HardcaseError(*_other(role, expected, now, *why), fix=fix)
        return queries


def _require_function(role: str, model: Model, known: Fingerprint) -> None:
    """Refuse a local network whose answers on its first images have changed, or whose answers
    on canaries change from call to call: later answers could not be compared with them.
    """
    # Wrappers that preprocess or count hold the network as `model`; drift is measured on the
    # network itself.
    inner: Any = model
    while hasattr(inner, "model"):
        inner = inner.model
    drift = inner.drift() if isinstance(inner, Subject) else 0.0
    spread = known.values[known.values.isfinite()].std().nan_to_num(0.0).item()
    size = known.values.abs().nan_to_num(0.0, 0.0, 0.0).amax().item()
    unsteady = known.within > REPEATS * max(ROUGH * spread, LAST_BITS * size)
    if drift > ROUGH or (unsteady and not is_server(model)):
        raise HardcaseError(
            f"the {role} answers the same images differently from call to call.",
            "Its answers change with time, or with how often it was asked.",
            fix="a model that is a function of its image",
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A network and its canaries, with the ways of calling it."""

    model: Model
    images: Images
    rows: list[int]
    shard: int

    def answered(
        self,
        x: UInt8[Tensor, "m c h w"],
        order: Int[Tensor, " m"],
        *,
        clock: bool = False,
        labels: bool = False,
    ) -> Fingerprint:
        """The answers to the canaries, which are the first rows of `x`, classified in a permuted
        order.

        Args:
            x: Canaries, and perhaps others after them.
            order: The order in which they are shown.
            clock: Under another time.
            labels: Under wrong labels.
        """
        shown = from_bytes(x[order].to(self.model.device))
        with torch.inference_mode(), _another_time(self.shard) if clock else nullcontext():
            if CLAIMED in self.images.context:
                first = self.images.take(torch.tensor(self.rows))
                logits = asking(self.model, Claims.of(first, self.model.device))(
                    from_bytes(first.x.to(self.model.device))
                ).logits
                return Fingerprint.of(logits.cpu())
            if labels:
                logits = _asked_with_labels(self.model, shown, len(self.images.classes))
            else:
                logits = self.model(shown).logits
        return Fingerprint.of(logits.cpu()[order.argsort()[: len(self.rows)]])

    def cause(
        self, expected: Fingerprint, x: UInt8[Tensor, "m c h w"], order: Int[Tensor, " m"]
    ) -> str:
        """What the answers of a local network depend on besides the image."""
        # Each call changes a single thing. A plain repetition comes first, as a difference there
        # rules out all other causes.
        alone = x[: len(self.rows)]
        if expected.changed(self.answered(alone, torch.arange(len(alone)))):
            return "Its answers change with time, or with how often it was asked."
        if expected.changed(self.answered(x, order)):
            return "Its answers depend on the other images of a call."
        if expected.changed(self.answered(x, order, clock=True)):
            return "Its answers depend on the clock."
        if expected.changed(self.answered(x, order, labels=True)):
            return "Its answers depend on who asks: it read the labels of its caller."
        return "Its answers change with time, or with how often it was asked."


def _asked_with_labels(model: Model, x: Float[Tensor, "m c h w"], classes: int) -> Tensor:
    """Call the network from a frame whose variables look like those of a search, with meaningless
    labels: this exposes a network that reads its answer from its caller.
    """
    place = torch.arange(len(x), device=x.device)
    seeds = Seeds(x, x, place % max(classes, 1), place, {})
    origin = images = shard = probe = seeds  # noqa: F841 - read by such a network alone
    return model(x).logits


@contextmanager
def _another_time(shard: int) -> Iterator[None]:
    """Let `time.time` go wrong, for whoever asks it in here: after each shard by another time."""
    # and by a half of `MORE`, a quarter, three quarters …: no model's period divides each of them
    later = LATER + MORE * int(f"{shard + 1:032b}"[::-1], 2) / 2**32
    real = time.time
    time.time = lambda: real() + later
    try:
        yield
    finally:
        time.time = real


def _fingerprint(model: Model, images: Images, *, twice: bool = False) -> Fingerprint:
    """The answers of a network; without a promise of equal bits it is called twice."""
    plain = _without_memory(model)
    first = Fingerprint.of(answers(plain, images, TILE))
    exact = steady(model.device) and strict_arithmetic() and not is_server(model)
    if exact and not twice:
        return first
    again = Fingerprint.of(answers(plain, images, TILE - 3))
    difference = (first.values - again.values).abs().nan_to_num(0.0).amax().item()
    size = first.values.abs().nan_to_num(0.0, 0.0, 0.0).amax().item()
    return Fingerprint(first.values, max(REPEATS * difference, LAST_BITS * size))


def strict_arithmetic() -> bool:
    """Whether the CPU library is set to give the same bits in every batch."""
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


def _count(images: ImageSet, most: int, numbers: int) -> int:
    """How many images are classified, so that the check is short even for large images."""
    channels, height, width = images.shape
    return min(len(images), most, max(TILE, numbers // max(channels * height * width, 1)))


def is_server(model: Any) -> bool:
    """Return whether a model answers over a network."""
    while hasattr(model, "model"):
        model = model.model
    return hasattr(model, "url")


def _other(role: str, then: Fingerprint, now: Fingerprint, *why: str) -> tuple[str, ...]:
    """The message on a network that answers otherwise than before, and why it matters."""
    count = len(then.values)
    changed = count
    if len(now.values) == count:
        changed = then.changed(now)
    return (
        f"the {role} answers {changed} of {count} images differently from when this run began.",
        *(why or ["Failures of two different runs would be mixed."]),
    )


def _without_memory(model: Model) -> Model:
    """`model` without its cache of answers."""
    if isinstance(model, Cached):
        return model.model
    return LabelOnly(_without_memory(model.model)) if isinstance(model, LabelOnly) else model
