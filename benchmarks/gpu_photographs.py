"""The failure rate of photographs on a GPU; figures of ``python -m benchmarks gpu``.

The network alone is asked at its best batch, in the same arithmetic. Beside the rate of what changes
the images stands the least time that their bytes take through memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.figures import Figure
from benchmarks.gpu import (
    DEVICE,
    SMALL,
    Measure,
    best,
    figure as gpu_figure,
    hardware as gpu_hardware,
    sized,
    synchronise,
)
from benchmarks.gpu_whole import PHOTOGRAPHS
from benchmarks.start_up import measured
from hardcase.cache import cache_folder
from hardcase.campaign.record import computing
from hardcase.conditions.box import condition_box
from hardcase.conditions.declared import PROFILES, Conditions
from hardcase.conditions.risk import measure_risk
from hardcase.data.sources import load
from hardcase.imaging import fused
from hardcase.models.load import Loading, load_model
from hardcase.randomness import Rng, keys_of
from hardcase.runs.tiles import campaign_tile
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images, Model, Seeds

__all__ = ["figures", "hardware"]

NOTES = (
    "Photographs: 1,000 of ImageNet's validation set, EfficientNet-Lite0, handheld conditions.",
    "The network alone is asked in NCHW through the same wrapper (its normalisation is part of it).",
)
RESULT = None if SMALL else "bench-gpu-photographs"
COMMAND = "python -m benchmarks gpu_photographs"
NETWORK = "zoo:efficientnet-lite0"
SAMPLES = 16
"""Samples of each image: enough that a sitting's noise is small."""
ROWS = (64, 256, 1024)


def hardware() -> dict[str, Any]:
    """What these figures were measured on, and of what."""
    return {**gpu_hardware(), "data": "photographs of the cache", "notes": list(NOTES)}


def figure(name: str, value: float, unit: str, goal: float, sign: str = "at least") -> Figure:
    return replace(gpu_figure(name, value, unit, goal, sign), command=COMMAND)


def photographs(count: int) -> Images:
    """Photographs of the cache (`benchmarks.pack` puts them there)."""
    folder = cache_folder() / PHOTOGRAPHS
    if not folder.is_dir():
        raise SystemExit("no photographs: python -m benchmarks.pack write --photographs FOLDER")
    images = load(f"folder:{folder}?labels=prefix&split=all", split="test")
    return images.sample(count=min(count, len(images)), seed=0)


def rendering(profile: str, images: Images, rows: int) -> tuple[torch.Tensor, Seeds]:
    """Codes of random conditions, and the seeds that they are of."""
    box = condition_box(Conditions.load(profile), images.shape)
    row = torch.arange(rows) % len(images)
    x = from_bytes(images.x[row]).to(DEVICE)
    place = torch.arange(rows, device=DEVICE)
    keys = keys_of([f"{number}" for number in range(rows)]).to(DEVICE)
    drawn = box.draw(Rng(0, "conditions", keys), place, 1)
    return drawn.z[:, 0], Seeds(drawn.z[:, 0], x, place, place, {"pattern": drawn.pattern[:, 0]})


def _same() -> Iterator[Figure]:
    """How many images of every profile are the same, bit by bit, by kernels and plainly."""
    images = photographs(sized(256, 4))
    equal = []
    for profile in PROFILES:
        box = condition_box(Conditions.load(profile), images.shape)
        z, seeds = rendering(profile, images, sized(256, 4))
        with torch.no_grad():
            fast = box.decode(z, seeds)
            with fused.plainly():
                plain = box.decode(z, seeds)
        equal.append((to_bytes(fast) == to_bytes(plain)).flatten(1).all(1))
        print(f"  {profile}: {int(equal[-1].sum())} of {len(z)} the same", flush=True)
    share = float(torch.cat(equal).float().mean())
    yield figure("gpu-conditions-same", share, "of rendered images are the same bit by bit", 1.0)


def _decode() -> Iterator[Figure]:
    images = photographs(sized(1024, 8))
    box = condition_box(Conditions.load("handheld"), images.shape)
    z, seeds = rendering("handheld", images, max(sized(1024, 8), 8))

    def work(rows: int) -> int:
        part = slice(0, rows)
        context = {name: value[part] for name, value in seeds.context.items()}
        some = Seeds(seeds.z[part], seeds.x[part], seeds.y[part], seeds.id[part], context)
        with torch.no_grad():
            box.decode(z[part], some)
        return len(z[part])

    batches = (8,) if SMALL else ROWS
    fast = best(work, batches, repeats=10)
    with fused.plainly():
        plain = best(work, batches, repeats=3)
    unit = f"images/s of 224 px under handheld conditions ({plain:,.0f} by the plain functions)"
    yield figure("gpu-conditions-decode", fast, unit, 50_000)
    yield figure("gpu-conditions-decode-speedup", fast / plain, "times the plain functions", 4)


def _alone(model: Model, images: Images, precision: str) -> float:
    x = from_bytes(images.x[: max(ROWS)]).to(DEVICE)
    x = x.repeat(-(-max(ROWS) // len(x)), 1, 1, 1)[: max(ROWS)]

    def bare(batch: int) -> int:
        with torch.no_grad():
            model(x[:batch])
        return batch

    with computing(torch.device(DEVICE).type, None, precision):
        return best(bare, (8,) if SMALL else ROWS, repeats=5)


def _rate(precision: str, goal: float) -> Iterator[Figure]:
    images = photographs(sized(1000, 8))
    model = load_model(NETWORK, Loading(device=DEVICE))
    box = condition_box(Conditions.load("handheld"), images.shape)
    some = from_bytes(images.x[:64]).to(DEVICE)
    tile = campaign_tile([model], lambda images: None, some, precision=precision)
    alone = _alone(model, images, precision)
    with computing(torch.device(DEVICE).type, tile, precision):
        measure_risk(model, images.first(64), box, samples=SAMPLES)
        synchronise()
        begun = perf_counter()
        table = measure_risk(model, images, box, samples=SAMPLES)
        synchronise()
        rate = len(images) * (SAMPLES + 1) / (perf_counter() - begun)
    what = f"of the network alone ({rate:,.0f} of {alone:,.0f} images/s, tile {tile})"
    what += f", failure rate {table.value:.4f}"
    suffix = "" if precision == "strict" else f"-{precision}"
    yield figure(f"gpu-photographs{suffix}", rate / alone, what, goal)


def _whole() -> Iterator[Figure]:
    """The whole command that measures the photographs and searches none, and its stages."""
    folder = cache_folder() / PHOTOGRAPHS
    words = ["run", "--model", NETWORK, "--data", f"folder:{folder}?labels=prefix&split=all"]
    command = [*words, "--method", "none", "--device", DEVICE, "--offline", "-q", "--out"]
    with tempfile.TemporaryDirectory() as home:
        times = [
            measured(Path(home) / str(number), words=command, clock="perf_counter")
            for number in range(2)  # the first tries tiles and compiles kernels, and keeps both
        ]
    spent = times[-1]
    whole = spent.pop("whole command")
    yield figure(
        "gpu-whole-measure",
        whole,
        f"s, {spent['import torch']:.1f} of it import torch",
        4,
        "at most",
    )
    for stage, seconds in sorted(spent.items(), key=lambda entry: -entry[1]):
        yield figure(
            f"gpu-whole-measure: {stage}", seconds, "s on the clock", 4, "together at most"
        )


RATES: dict[str, Measure] = {
    "gpu-conditions-same": _same,
    "gpu-conditions-decode": _decode,
    "gpu-photographs": partial(_rate, "strict", 0.85),
    "gpu-photographs-bf16": partial(_rate, "bf16", 0.85),
    "gpu-whole-measure": _whole,
}


def figures(only: Sequence[str] = ()) -> Iterator[Figure]:
    """The figures called `only`, or all."""
    for name in only or RATES:
        yield from RATES[name]()
