"""A run from its first check to its last file: measure, search, check.

Each phase has separate ingredients, shards, table, counts and status. A phase begins when the phase
before it is done, and its parts are built then. A stop at any moment loses at most the shard that
was under way; `resume` goes on where the run stopped and gives the same bytes.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import torch

from hardcase.companions import teams_module
from hardcase.conditions.effects import EffectTable, effects
from hardcase.conditions.region import RegionTable, choose_region, region_of_shard, worst_region
from hardcase.conditions.wider import SCALES, WiderTable, wider
from hardcase.data.files import ImageSet
from hardcase.environment import VERSION
from hardcase.errors import HardcaseError, Refused
from hardcase.models.health import check
from hardcase.runs.files import locked
from hardcase.runs.folder import SCHEMA, Store, refuse_used
from hardcase.runs.identity import ANOTHER, Identity, require_same
from hardcase.runs.measured import Measured, MeasuredShard, Measurement, MeasureTask
from hardcase.runs.progress import Watcher, logged
from hardcase.runs.tables import SPENDING
from hardcase.runs.verify import (
    Canaries,
    Fingerprint,
    behaviour_of,
    is_server,
    repair_measured,
    repair_record,
    require_behaviour,
    strict_arithmetic,
)
from hardcase.runs.workers import Processes, run_shards
from hardcase.tensors import steady
from hardcase.wording.search import forecast_in_words

__all__ = [
    *("PHASES", "MeasurePlan", "begin", "complete", "failing_is_stored", "forecast", "measure"),
    *("inexact", "measured_rows", "phase", "reopen", "set_phase", "settled_queries", "status_of"),
]

PHASES = ("measure", "search", "check")
Status = Literal["not begun", "running", "done", "skipped", "failed"]
BUDGETED_SECONDS = {True: 60.0, False: 20.0}
"""Seconds that measuring may take on a CPU, and on another device, before a prefix is settled."""
SERVER_QUERIES = 2000
"""Images that a server classifies, at most: answers may cost money."""
FEWEST_IMAGES = 20
"""Images that are measured, at least, however long it takes."""
EFFECT_QUERIES = 1.3
"""Images that are classified again for every image and condition, approximately."""
CHECKED = 2**22
"""Numbers of the images, together, on which a model is checked before it is measured."""


def _no_search(seconds: float) -> tuple[float, float] | None:
    return (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """How many images are measured, what decides it, whether effects of conditions are measured
    too, and the seconds that all of it takes.
    """

    images: int
    settled: str
    effects: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """What the measurement of a run needs.

    Args:
        measurement: The model, its baselines and the conditions.
        images: The images in the order in which they are measured.
        source: Builds `measurement` in another process.
        most: How many images are measured; None: as many as the time is enough for.
        queries: Total queries of a server, if that is limited.
        shard: Images of a shard.
        config: The text of the settings that give this plan again.
        about: Entries of run.json that are fixed when the run begins.
        identity: What the measurement rests on.
        workers: Processes that measure side by side.
        cluster: A Ray cluster, as ``--cluster`` names it.
        allow_low_accuracy: Accept a model that is hardly better than chance.
        search_seconds: How long the search takes usually, and at most, where the model answers an
            image in so many seconds; None: networks are trained for it first.
    """

    measurement: Measurement
    images: ImageSet
    source: Callable[[], Measurement]
    most: int | None
    queries: int | None
    shard: int
    config: str
    about: Mapping[str, Any]
    identity: Identity
    workers: int = 1
    devices: tuple[str, ...] = ()
    cluster: str | None = None
    allow_low_accuracy: bool = False
    search_seconds: Callable[[float], tuple[float, float] | None] = _no_search


NOT_BEGUN = {"status": "not begun"}


def phase(status: Status, why: str = "", **facts: Any) -> dict[str, Any]:
    """Return what run.json says of a phase."""
    return {"status": status, **({"why": why} if why else {}), **facts}


def status_of(record: Mapping[str, Any], name: str) -> Status:
    """Return where a phase of a stored run stands."""
    phase = (record.get("phases") or {}).get(name) or {}
    status: Status = phase.get("status", "not begun")
    return status


def complete(record: Mapping[str, Any]) -> bool:
    """Whether every phase of a stored run has come to its end."""
    return all(status_of(record, name) in ("done", "skipped") for name in PHASES)


def set_phase(store: Store, name: str, said: Mapping[str, Any], **entries: Any) -> None:
    """Write the status of a phase, and what goes with it, into run.json."""
    record = store.record()
    phases = dict(record.get("phases") or {})
    before = phases.get(name) or {}
    # what a phase rests on stays known, however it ends
    rests_on = {key: before[key] for key in ("identity",) if key in before}
    phases[name] = {**rests_on, **said}
    record = {**record, **entries, "phases": phases}
    ended = complete(record)
    finished = record.get("finished")
    if ended and not finished:
        finished = datetime.now(UTC).isoformat(timespec="seconds")
    store.write_record({**record, "complete": ended, "finished": finished if ended else None})


@contextmanager
def failing_is_stored(store: Store, name: str) -> Iterator[None]:
    """Write into run.json that a phase has failed, and why, if it ends with an error."""
    try:
        yield
    except Refused:  # of what would go on with it; the phase is as it was
        raise
    except Exception as error:
        why = error.what if isinstance(error, HardcaseError) else f"{type(error).__name__}: {error}"
        with store.writing():
            set_phase(store, name, phase("failed", why))
        raise


# --- the beginning


def begin(plan: MeasurePlan, out: Path, watcher: Watcher) -> Store:
    """Check the model, and write the folder of a new run."""
    refuse_used(out)
    if plan.cluster is not None:
        teams_module("ray", "a cluster", "ray").check_place(plan.cluster)
    measurement = plan.measurement
    watcher.prepare("checking that the model answers sensibly and repeatably")
    with measurement.arithmetic():
        sampled = plan.images.first(max(FEWEST_IMAGES, CHECKED // _numbers(plan.images))).images()
        health = check(measurement.model, sampled, allow_low_accuracy=plan.allow_low_accuracy)
        behaviour = behaviour_of(measurement.networks, plan.images)
    notes = [*health.notes, *inexact(behaviour)]
    for note in notes:
        watcher.log(note)
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")}
    repeatable = measurement.tile is not None  # tested on a device, told to on a CPU
    if steady(measurement.model.device):
        repeatable = strict_arithmetic()
    record = {
        "schema": SCHEMA,
        "hardcase": VERSION,
        "versions": {"python": platform.python_version(), **versions},
        "argv": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "complete": False,
        "elapsed": 0.0,
        "device": str(measurement.model.device),
        "threads": torch.get_num_threads(),
        "bitwise": health.bitwise and repeatable,
        "deterministic": True,
        "notes": notes,
        "totals": dict.fromkeys(SPENDING, 0),
        "phases": {name: phase("not begun") for name in PHASES},
        "identity": plan.identity.to_json(),
        "behaviour": {
            role: behaviour_of_role.to_json() for role, behaviour_of_role in behaviour.items()
        },
        **plan.about,
    }
    with locked(out):
        return Store.create(out, record, plan.config)


def _numbers(images: ImageSet) -> int:
    channels, height, width = images.shape
    return channels * height * width


def inexact(behaviour: Mapping[str, Fingerprint]) -> list[str]:
    """Return the notes on networks without a promise of equal bits."""
    return [
        f"bits of the {role} are not promised: on resume its answers may differ by"
        f" {network.within:.1g}"
        for role, network in behaviour.items()
        if network.within
    ]


def reopen(plan: MeasurePlan, out: Path, watcher: Watcher) -> Store:
    """A run folder as it was left, put right where it is damaged, for the same model and data."""
    store = Store.open(out)
    with locked(out):
        record, notes = repair_record(out)
        then = Identity.from_json(record.get("identity"))
        if then is None:
            raise Refused(f"{out} does not say which ingredients it began with.", fix=ANOTHER)
        require_same(then, plan.identity, fix=ANOTHER)
    store.run = then.digest
    watcher.prepare("checking that the model answers as when the run began")
    with store.writing():
        with plan.measurement.arithmetic():
            require_behaviour(record, plan.measurement.networks, plan.images)
        damaged = repair_measured(store)
        again = [f"shard {n} of the measurement was damaged; it is set aside" for n in damaged]
        for note in (*notes, *again):
            watcher.log(note)
        if damaged:
            set_phase(store, "measure", phase("running"))
    return store


# --- measure


def settle(plan: MeasurePlan, seconds: float) -> tuple[int, str]:
    """Return how many images are measured, and the reason: all, the user's choice, the time of the
    first shard, or the query limit of a server.
    """
    total = len(plan.images)
    if plan.most is not None:
        return min(plan.most, total), "chosen"
    if plan.queries is not None:
        count = max(plan.queries // plan.measurement.queries, FEWEST_IMAGES)
        return min(count, total), "all" if count >= total else "queries"
    shard = min(plan.shard, total)
    limit = BUDGETED_SECONDS[steady(plan.measurement.model.device)]
    if seconds / shard * total <= limit:
        return total, "all"
    shards = max(int(limit / seconds), 1, -(-FEWEST_IMAGES // shard))
    return min(shards * plan.shard, total), "time"


def measure(plan: MeasurePlan, store: Store, watcher: Watcher) -> bool:
    """Ask the model about the images that `store` lacks; returns whether all of them are there.

    How many images are measured is settled once, when the first shard has been timed, and stored
    with it.
    """
    if status_of(store.record(), "measure") == "done":
        return True
    watcher.enter("measure", store.record())
    with store.writing(), logged(store.folder):
        began = monotonic()
        measurement = plan.measurement
        most = min(len(plan.images), plan.most or len(plan.images))
        with measurement.arithmetic():
            shards = -(-most // plan.shard)
            canaries = Canaries.drawn(
                measurement.networks, plan.images, seed=measurement.seed, shards=shards
            )
        _tell(store, watcher, most)
        count, settled, more = _first_shard(plan, store, watcher, canaries)
        stored = store.measured.read()
        numbers = [n for n in range(-(-count // plan.shard)) if n not in stored]
        todo = (
            MeasureTask(n, _shard(plan, n, count), canaries=canaries, effects=more) for n in numbers
        )
        with _measuring(plan, watcher) as measured:
            for number, part, summary in measured(todo):
                store.put_measured(number, part, summary)
                _tell(store, watcher, count)
        store.measured.flush()
        done = len(store.measured.read()) * plan.shard >= count
        elapsed = round(monotonic() - began, 3)
        if not done:
            set_phase(store, "measure", phase("running", elapsed=elapsed))
            return False
        # a later phase has canaries of its own: it must begin with what was measured
        with measurement.arithmetic():
            local = {
                role: network
                for role, network in measurement.networks.items()
                if not is_server(network)
            }
            require_behaviour(store.record(), local, plan.images)
        watcher.prepare("working out the failure rate, and where it is highest")
        keep_figures(plan, store, settled=settled, elapsed=elapsed)
    return True


def _first_shard(
    plan: MeasurePlan, store: Store, watcher: Watcher, canaries: Canaries
) -> tuple[int, str, bool]:
    """Measure the first shard here, if it is missing, and settle how many images are measured, and
    whether effects of conditions are.
    """
    stored = store.measured.read().get(0)
    if stored is not None:
        said = stored.summary
        return int(said["settled_images"]), str(said["settled"]), bool(said["effects"])
    total = min(len(plan.images), plan.most or len(plan.images))
    images = _shard(plan, 0, total)
    plan.measurement.tables(images.first(1))  # what is slow once is not counted
    began = monotonic()
    tables = plan.measurement.tables(images)
    each = (monotonic() - began) / len(images)
    ahead = forecast(plan, each)
    count, settled, more = ahead.images, ahead.settled, ahead.effects
    search_seconds = plan.search_seconds(each / plan.measurement.queries)
    if sentence := forecast_in_words(ahead.seconds, search_seconds):
        watcher.log(sentence)
    task = MeasureTask(0, images, canaries=canaries, effects=more)
    number, part, summary = task.packed(plan.measurement, tables)
    if settled in ("time", "queries"):
        what = {"time": "in the time that measuring may take", "queries": "by so many queries"}
        watcher.log(
            f"{count:,} of {len(plan.images):,} images are measured {what[settled]}; all of them:"
            " --measure all"
        )
    summary |= {"settled_images": count, "settled": settled, "effects": more}
    store.put_measured(number, part, summary)
    _tell(store, watcher, count)
    return count, settled, more


def forecast(plan: MeasurePlan, each: float) -> Forecast:
    """Return what is measured where an image takes `each` seconds. Effects of conditions are
    measured if the measurement stays within its time with them, and if queries are free.
    """
    measurement = plan.measurement
    count, settled = settle(plan, each * min(plan.shard, len(plan.images)))
    seconds = each * count
    if measurement.box is None or is_server(measurement.model):
        return Forecast(count, settled, False, seconds)
    again = 2 + EFFECT_QUERIES * len(measurement.box.conditions.ranges)
    seconds_with_effects = seconds * (1 + again / measurement.queries)
    more = seconds_with_effects <= BUDGETED_SECONDS[steady(measurement.model.device)]
    return Forecast(count, settled, more, seconds_with_effects if more else seconds)


def _shard(plan: MeasurePlan, number: int, count: int) -> Any:
    rows = torch.arange(number * plan.shard, min((number + 1) * plan.shard, count))
    return plan.images.take(rows).images()


def _tell(store: Store, watcher: Watcher, count: int) -> None:
    """Tell how many images are measured, and how many samples of them fail."""
    summaries = [summary.summary for summary in store.measured.read().values()]
    done, failing = (
        sum(int(summary[name]) for summary in summaries) for name in ("images", "failing")
    )
    watcher.advance(done, count, failing)


Shards = Callable[[Iterator[MeasureTask]], Iterator[MeasuredShard]]


@contextmanager
def _measuring(plan: MeasurePlan, watcher: Watcher) -> Iterator[Shards]:
    """The executor of measured shards: this process, worker processes of this machine, or a
    cluster."""
    if plan.cluster is not None:
        ray = teams_module("ray", "a cluster", "ray")
        device = plan.measurement.model.device.type
        with ray.Cluster(plan.cluster, plan.measurement, device) as cluster:
            yield lambda todo: run_shards(cluster, _nothing, watcher.stopped, todo, ())
        return
    if plan.workers > 1:
        with Processes(plan.source, plan.workers, plan.devices) as processes:
            yield lambda todo: run_shards(processes, _nothing, watcher.stopped, todo, ())
        return
    yield partial(_one_by_one, plan.measurement, watcher)


def _one_by_one(
    measurement: Measurement, watcher: Watcher, todo: Iterator[MeasureTask]
) -> Iterator[MeasuredShard]:
    while not watcher.stopped():
        task = next(todo, None)
        if task is None:
            return
        yield task.work(measurement)


def _nothing(counts: Any) -> None:
    """Shards of the measurement tell of themselves when they are done."""


def keep_figures(plan: MeasurePlan, store: Store, *, settled: str, elapsed: float) -> None:
    """Write the figures of a finished measurement into run.json."""
    measurement = plan.measurement
    rows = measured_rows(store)
    unmodified = 1 - float(rows.wrong.mean())
    queries = len(rows) * measurement.queries
    baselines = [
        {"name": baseline.name, **rows.beside(i)}
        for i, baseline in enumerate(measurement.baselines)
    ]
    figures = {
        **rows.figures(),
        **condition_figures(plan, rows),
        "of": len(plan.images),
        "reserved": int(rows.reserved.sum()),
        "settled": settled,
        "baselines": baselines,
    }
    totals = {
        "queries": queries,
        "baseline_queries": queries * len(measurement.baselines),
    }
    status = phase("done", elapsed=elapsed, tile=measurement.tile, totals=totals)
    accuracy = {"value": unmodified, "images": len(rows)}
    set_phase(store, "measure", status, risk=figures, accuracy=accuracy)


def condition_figures(plan: MeasurePlan, rows: Measured) -> dict[str, Any]:
    """Return the effects of conditions, where the model is worst, and what happens under wider
    ranges; None where they were not measured.

    The region is chosen on the open images and measured on the reserved ones.
    """
    measurement = plan.measurement
    if measurement.box is None or not rows.wider.shape[1]:
        return {"effects": None, "worst_region": None, "wider": None}
    claims = rows.clusters
    numbers = dict(zip(measurement.box.conditions.ranges, torch.from_numpy(rows.effects.T)))
    none = torch.zeros(len(rows), dtype=torch.int64)
    table = EffectTable(rows.id, claims, numbers, none)
    scales = dict(zip(SCALES, torch.from_numpy(rows.wider.T)))
    found = [figure.to_json() for figure in effects([table]) if figure.shown] if numbers else []
    region = _worst_region(plan, rows) if measurement.reserve else None
    return {
        "effects": found,
        "worst_region": region,
        "wider": [figure.to_json() for figure in wider([WiderTable(rows.id, claims, scales)])],
    }


def _worst_region(plan: MeasurePlan, rows: Measured) -> dict[str, Any] | None:
    measurement = plan.measurement
    assert measurement.box is not None
    failed = torch.from_numpy(rows.failed)
    region = choose_region(
        measurement.box,
        rows.id,
        failed,
        seed=measurement.seed,
        margins=torch.from_numpy(rows.margins).float(),
        unmodified=torch.from_numpy(rows.wrong),
        claims=rows.claims,
    )
    if region is None:
        return None
    tables = list[RegionTable]()
    with measurement.arithmetic():
        for start in range(0, len(rows), plan.shard):
            part = slice(start, min(start + plan.shard, len(rows)))
            shard = plan.images.take(torch.arange(part.start, part.stop)).images()
            tables.append(
                region_of_shard(
                    measurement.model,
                    shard,
                    measurement.box,
                    region,
                    seed=measurement.seed,
                    failed=failed[part],
                )
            )
    worst = worst_region(region, tables)
    return None if worst is None else worst.to_json()


def measured_rows(store: Store) -> Measured:
    """Return what was measured so far, in the order of the images."""
    record = store.record()
    samples = int(record.get("samples") or 0)
    return Measured.read(store.measured_parts(), samples, claims=bool(record.get("claims")))


def settled_queries(
    measurement: Measurement, total: int | None, *, chosen: int | None
) -> int | None:
    """How many images a server may classify while it is measured; None: no server, or the
    number of images was chosen.
    """
    if chosen is not None or not is_server(measurement.model):
        return None
    return SERVER_QUERIES if total is None else min(SERVER_QUERIES, max(total // 2, 1))
