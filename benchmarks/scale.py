"""What the engine costs beside the search: workers, a cluster, going on, storing. The inputs of docs/research/scale.md."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats

from benchmarks.figures import Figure, seconds
from hardcase import data, generators
from hardcase.campaign.record import Campaign
from hardcase.methods import fgsm, pgd, sinvad
from hardcase.methods.sinvad import sinvad_code
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.runs import start, workers
from hardcase.runs.folder import Packed, Store
from hardcase.runs.tables import SPENDING, SPENT, findings_table, summarise, table, to_parquet
from hardcase.spaces.latent import Latent, partners
from hardcase.types import Findings

COMMAND = "python -m benchmarks scale"
DESIGN = ((256, 10, 32), (256, 80, 32), (800, 10, 8), (800, 10, 256), (800, 80, 32), (800, 80, 256))
"""Seeds, gradients of each and seeds of a shard of the runs that the model is fitted to."""
TERMS = (
    ("start-alone", "s", 1.0),
    ("start-workers-2", "s", 1.0),
    ("start-ray-2", "s", 1.0),
    ("pass", "µs per network pass of LeNet-5", 1e6),
    ("shard", "ms per shard", 1e3),
)
LEVEL = 0.975
"""Of Student's t: intervals of 95 %."""
NODE = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
"""One node of a local Ray cluster."""
PHOTOGRAPHS, GPUS, SHARD = 1_000_000, 32, 1024
PASSES = 80
"""Forward and backward passes of 40 gradients."""
GPU_RATE = 2_000
"""Passes a second of one GPU on photographs: assumed, since the rate of a network is its own."""
MODEL = """
from hardcase.models.zoo import build_classifier
def make():
    return build_classifier("lenet5", channels=1, size=28, classes=10)
"""
GOES_ON = """
import torch
from time import perf_counter, sleep
start = perf_counter()
import os, sys
from hardcase.cli.main import main
from hardcase.runs import progress
opened = progress.ProgressLog.__enter__
def told(book):
    opened(book)
    print(perf_counter() - start, flush=True)
    os._exit(0)
progress.ProgressLog.__enter__ = told
main(["resume", sys.argv[1], "--quiet"])
"""


def figures(size: float = 1.0) -> Iterator[Figure]:
    """`size` below 1 only shows that everything runs."""
    torch.set_num_threads(1)
    with nodes() as (address, cluster):
        yield from _speed_up(max(32, int(512 * size)), max(2, int(120 * size)), address)
        yield from _model(size, address)
        if cluster is not None:
            yield _lost_node(max(64, int(800 * size)), address, cluster)
    yield from _going_on(max(64, int(10_000 * size)))
    for name in ("sinvad", "pgd", "fgsm"):
        yield from _storing(name, max(32, int(1000 * size)))


def campaign(name: str, generations: int = 60, gradients: int = 40) -> Campaign:
    """A campaign on digits, built here or in a worker."""
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    subject = Subject(zoo.trained_classifier("lenet5", train, test)[0], name="lenet5")
    if name in ("pgd", "fgsm"):
        return Campaign(
            subject=subject,
            method=pgd(epsilon=0.1, gradients=gradients) if name == "pgd" else fgsm(epsilon=0.2),
        )
    space = Latent(generators.trained_generator("vae", train, test)[0])
    if name == "sinvad":
        return Campaign(
            subject=subject,
            method=sinvad(space=space, partners=partners(space, train, device="cpu", limit=10_000)),
        )
    return Campaign(subject=subject, method=sinvad_code(space=space, generations=generations))


def plan_of(name: str, seeds: int, **how: Any) -> start.Plan:
    """A run of that method on digits."""
    images = data.load("mnist5k", split="test").sample(count=seeds, seed=0)
    sizes = {key: how.pop(key) for key in ("generations", "gradients") if key in how}
    return start.Plan(source=partial(campaign, name, **sizes), images=images, **how)


@contextmanager
def nodes() -> Iterator[tuple[str, Any]]:
    """A Ray cluster of two nodes of this machine with a core each, by its address; none without Ray."""
    if not importlib.util.find_spec("ray"):
        print("no figures of Ray: it is not installed (pip install 'hardcase[ray]')")
        yield "", None
        return
    from hardcase_teams.ray import QUIET

    os.environ.update(QUIET, OMP_NUM_THREADS="1")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        yield cluster.address, cluster
    finally:
        cluster.shutdown()


def _speed_up(seeds: int, generations: int, address: str) -> Iterator[Figure]:
    """The whole run, from an empty folder to the last file, on one core and on two."""
    ways: dict[str, dict[str, Any]] = {"workers-2-speedup": {"workers": 2}}
    if address:
        ways["ray-2-speedup"] = {"cluster": address}
    make = partial(plan_of, "sinvad@code", seeds, generations=generations)
    make()
    alone = min(_timed(make()) for _ in range(2))
    for name, how in ways.items():
        value = alone / min(_timed(make(**how)) for _ in range(2))
        against = f"one process of one thread, {alone:.0f} s of sinvad@code"
        yield Figure(name=name, value=value, unit="times as fast", against=against, command=COMMAND)


def _timed(plan: start.Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds(lambda: start.start(plan, Path(folder) / "run"))


def _model(size: float, address: str) -> Iterator[Figure]:
    """Seconds = start + passes / (workers x rate) + shards x overhead, fitted to runs of different
    sizes in one process, two and on two nodes of Ray, and what it says of a million photographs on
    32 GPUs.
    """
    places: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {"workers": 2})]
    names = [name for name, *_ in TERMS if address or "ray" not in name]
    if address:
        places.append((2, {"cluster": address}))
    terms, spent = [], []
    for place, (processes, where) in enumerate(places):
        for seeds, gradients, shard in DESIGN:
            how = {**where, "shard": shard, "gradients": gradients}
            plan = plan_of("pgd", max(32, int(seeds * size)), **how)
            with tempfile.TemporaryDirectory() as folder:
                taken = seconds(lambda: start.start(plan, Path(folder) / "run"))  # noqa: B023
                record = Store(Path(folder) / "run").record()
            passes = record["totals"]["queries"] + record["totals"]["gradients"]
            starts = [float(place == other) for other in range(len(places))]
            terms.append([*starts, passes / processes, record["shards"]])
            spent.append(taken)
    fit, spread = fitted(np.array(terms, dtype=float), np.array(spent))
    quantile = float(stats.t.ppf(LEVEL, len(spent) - len(names)))
    half = quantile * np.sqrt(np.diag(spread))
    kinds = {name: (unit, scale) for name, unit, scale in TERMS}
    for at, name in enumerate(names):
        unit, scale = kinds[name]
        ends = sorted(scale * (fit[at] + sign * half[at]) for sign in (-1, 1))
        yield Figure(
            name=f"scale-{name}", value=scale * fit[at], unit=unit,
            against=f"95 % interval {ends[0]:.3g} to {ends[1]:.3g}, {len(spent)} runs of pgd on digits",
            command=COMMAND,
        )  # fmt: skip
    shards = PHOTOGRAPHS / SHARD
    known = np.zeros(len(names))
    known[[len(places) - 1, -1]] = 1.0, shards  # the start of the last place, and all shards
    search = PHOTOGRAPHS * PASSES / (GPUS * GPU_RATE)
    wide = quantile * float(np.sqrt(known @ spread @ known))
    value = search + float(known @ fit)
    yield Figure(
        name="scale-million-photographs", value=value / 3600, unit="hours on 32 GPUs, predicted",
        against=f"{PASSES} passes per seed at an assumed {GPU_RATE:,} a second and GPU ({search:.0f} s) "
        f"and {shards:,.0f} shards of {SHARD}; 95 % interval of start and overhead "
        f"{(value - wide) / 3600:.2f} to {(value + wide) / 3600:.2f}",
        command=COMMAND,
    )  # fmt: skip


def _lost_node(seeds: int, address: str, cluster: Any) -> Figure:
    """One of two nodes is taken away when the first shard is stored; every shard is still done once."""
    plan = partial(plan_of, "pgd", seeds, gradients=80, shard=32, cluster=address)
    whole = _timed(plan())
    (other,) = cluster.worker_nodes
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"

        def take_away() -> None:
            while not (run / "findings/part-00000.parquet").exists():
                sleep(0.02)
            cluster.remove_node(other, allow_graceful=False)

        threading.Thread(target=take_away, daemon=True).start()
        lost = seconds(lambda: start.start(plan(), run))
        done = Store(run).record()
    if not done["complete"]:
        raise RuntimeError("the run with a lost node is not complete")
    return Figure(
        name="ray-lost-node", value=lost - whole, unit="s more",
        against=f"one of two nodes of Ray taken away at the first of {done['shards']} shards "
        f"({whole:.0f} s undisturbed; one node alone does the rest)",
        command=COMMAND,
    )  # fmt: skip


def fitted(terms: Any, spent: Any) -> tuple[Any, Any]:
    """Least squares with errors in proportion to the time, and the covariance of its terms."""
    weighted = terms / spent[:, None]
    fit, *_ = np.linalg.lstsq(weighted, np.ones(len(spent)), rcond=None)
    left = 1 - weighted @ fit
    noise = left @ left / (len(spent) - terms.shape[1])
    return fit, noise * np.linalg.pinv(weighted.T @ weighted)


def _going_on(seeds: int, each: int = 100) -> Iterator[Figure]:
    """From an imported torch to the first shard of a resumed run that holds a million findings."""
    with tempfile.TemporaryDirectory() as home:
        folder = _large_run(Path(home), seeds, each)
        command = [sys.executable, "-c", GOES_ON, str(folder)]
        times = [
            float(subprocess.run(command, check=True, capture_output=True, cwd=home).stdout)
            for _ in range(5)
        ]
        size = sum(path.stat().st_size for path in (folder / "findings").iterdir())
    stored = (seeds - 32) * each
    yield Figure(
        name="resume-start-million",
        value=statistics.median(times),
        unit="s",
        against=f"{stored:,} stored findings of {seeds:,} seeds, beyond importing torch; a limit of 1.5 s",
        command=COMMAND,
    )
    yield Figure(
        name="store-bytes-noise",
        value=size / stored,
        unit="bytes a finding",
        against="28 x 28 images of pure noise, which nothing compresses",
        command=COMMAND,
    )


def _large_run(home: Path, seeds: int, each: int) -> Path:
    """A run of which all shards but the last are stored, made of one real shard and copies of a drawn one."""
    (home / "model.py").write_text(MODEL)
    from hardcase.models.load import from_file

    x = torch.randint(0, 256, (seeds, 1, 28, 28), generator=stream(0, "images"), dtype=torch.uint8)
    y = Subject(from_file(home / "model.py", "make"), name="net")(x.float() / 255).logits.argmax(1)
    np.savez(
        home / "set.npz", images=x.numpy(), labels=y.numpy(), classes=np.array(list("0123456789"))
    )
    words = [
        "--model",
        "model.py:make",
        "--data",
        "npz:set.npz?split=all",
        "--method",
        "pgd",
        "--images",
        str(seeds),
        "--findings",
        "1",
    ]
    run = [sys.executable, "-m", "hardcase", "run", *words, "--out", "run", "--quiet"]
    subprocess.run(run, cwd=home, capture_output=True, check=True)
    store = Store(home / "run")
    found, spent = drawn_shard(32, each)
    packed, summary = Packed(to_parquet(found), to_parquet(spent), b""), summarise(found, spent)
    for number in range(-(-seeds // 32) - 1):
        store.put(number, packed, summary)
    return home / "run"


def drawn_shard(seeds: int, each: int) -> tuple[Any, Any]:
    """A shard of noise: its findings and what became of its seeds."""
    rng, count = stream(0, "findings"), seeds * each
    whole, real = torch.arange(count), torch.rand(count, generator=rng)
    x = torch.randint(0, 256, (count, 1, 28, 28), generator=rng, dtype=torch.uint8)
    none = whole.new_zeros(count, 0)
    found = Findings(
        seed=whole // each,
        x=x,
        kind=whole * 0,
        expected=whole % 10,
        predicted=(whole + 1) % 10,
        peer_predicted=none,
        confidence=real,
        score=real,
        distance=real,
        queries=whole,
        code=real.new_zeros(count, 0),
        witnessed=torch.zeros(count, dtype=torch.bool),
        witness_margin=torch.zeros(count),
    )
    names = [f"seed/{i:05d}" for i in range(seeds)]
    zeros = [each] * seeds
    columns = {
        "id": names,
        "status": ["done"] * seeds,
        **dict.fromkeys(("evaluated", "failing", "queries"), zeros),
    }
    others = dict.fromkeys(SPENDING[2:], [0] * seeds)
    spent = table({**columns, "gradients": zeros, **others}, SPENT)
    ids = [names[i] for i in (whole // each).tolist()]
    return findings_table(found, x, ids, method="pgd", oracle="label"), spent


def _storing(name: str, seeds: int) -> Iterator[Figure]:
    """The share of packing and writing in a campaign, and what a finding costs; the middle one of five runs."""
    # as a campaign of that method chooses by itself
    plan = plan_of(name, seeds, shard=256 if name == "fgsm" else 32)
    plan.source()
    results = sorted(
        (_stored(plan) for _ in range(5)), key=lambda result: sum(result[0].values()) / result[1]
    )
    spent, whole, findings, size = results[2]
    if name == "fgsm":
        against = (
            f"packing and writing {findings} 28 x 28 findings of a one-shot method; a limit of 50"
        )
        yield Figure(
            name="store-per-finding",
            value=1e6 * (spent["_packed"] + spent["put"]) / max(findings, 1),
            unit="µs",
            against=against,
            command=COMMAND,
        )
        yield Figure(
            name="store-bytes-per-finding", value=size / max(findings, 1), unit="bytes",
            against="28 x 28 digits, with everything that is known of them", command=COMMAND,
        )  # fmt: skip
        return
    yield Figure(
        name=f"store-share-{name}", value=sum(spent.values()) / whole, unit="of the campaign's time",
        against="a limit of 0.05", command=COMMAND,
    )  # fmt: skip
    yield Figure(
        name=f"seconds-per-seed-{name}", value=whole / seeds, unit="s",
        against="one thread, LeNet-5, digits, all included", command=COMMAND,
    )  # fmt: skip


def _stored(plan: start.Plan) -> tuple[dict[str, float], float, int, int]:
    """Seconds of storing (once a run: settling), seconds in all, findings, bytes of their files."""
    with tempfile.TemporaryDirectory() as folder, _clock() as clock:
        whole = seconds(lambda: start.start(plan, Path(folder) / "run"))
        store = Store(Path(folder) / "run")
        size = sum(path.stat().st_size for path in (store.folder / "findings").iterdir())
        return clock, whole, len(store.findings()), size


@contextmanager
def _clock() -> Iterator[dict[str, float]]:
    """Counts the seconds of packing shards, putting them into the folder, and settling it."""
    spent = {"_packed": 0.0, "put": 0.0, "settle": 0.0}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*values: Any, **named: Any) -> Any:
            start = perf_counter()
            try:
                return work(*values, **named)
            finally:
                spent[name] += perf_counter() - start

        return timing

    with ExitStack() as stack:
        for place, name in ((workers, "_packed"), (Store, "put"), (Store, "settle")):
            stack.enter_context(patch.object(place, name, timed(name, getattr(place, name))))
        yield spent
