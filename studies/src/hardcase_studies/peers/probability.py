"""PRBench's estimator of probabilistic robustness beside our interval: noise drawn evenly from a box, image by image.

PRBench (KDD 2026) asks, for every image and a radius, which share of the box of that radius around it keeps its class:
uniform samples of one image at a time, all of the same number. Our failure rate asks for one figure over all images, with an
interval whose units are images, and four samples of each. Both are run here on the same network and the same box, so that
the two rates can be compared, and the samples that each needs for an interval of the same width.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from hardcase.errors import HardcaseError
from hardcase.statistics import bounded_mean_interval
from hardcase.suite.tables import Outcome
from hardcase.tensors import to_grid
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.peers import machine
from hardcase_studies.peers.networks import attacked

ROWS = 1024
"""Samples that the network is given at once."""
SAMPLES = 4
"""Ours of each image; more tell little."""


def run(bench: Bench) -> Outcome:
    """``--set images=256``, ``samples=100`` (PRBench's, of each image), ``radius=0.2`` and ``model=FILE`` are the sizes."""
    net, x, y, about = attacked(bench, bench.size("images", 256, 1000))
    radius = float(bench.options.get("radius", 0.3 if x.shape[1] == 1 else 8 / 255))
    theirs = bench.size("samples", 100, 1000)
    rng = torch.Generator().manual_seed(bench.seed)
    bench.say(f"PRBench: {theirs} samples of each of {len(x)} images")
    begun = perf_counter()
    each = _failing(net, x, y, radius, theirs, rng)
    seconds = perf_counter() - begun
    begun = perf_counter()
    few = _failing(net, x, y, radius, SAMPLES, rng)
    ours_seconds = perf_counter() - begun
    shares = few.double().mean(1).numpy()
    interval = bounded_mean_interval(shares)
    rate = float(each.double().mean())
    inside = interval.low <= rate <= interval.high
    needed = _needed(each, interval.high - interval.low)
    rows: list[dict[str, str | int | float | None]] = [
        {
            "estimator": "PRBench: uniform in a box, image by image",
            "failure rate": f"{rate:.4f}",
            "interval": "none over images",
            "queries": len(x) * theirs,
            "seconds": f"{seconds:.2f}",
            "queries for the width of ours": needed,
        },
        {
            "estimator": f"ours: {SAMPLES} samples of each image",
            "failure rate": f"{float(shares.mean()):.4f}",
            "interval": f"{interval.low:.4f} to {interval.high:.4f}",
            "queries": len(x) * SAMPLES,
            "seconds": f"{ours_seconds:.2f}",
            "queries for the width of ours": len(x) * SAMPLES,
        },
    ]
    notes = [
        about,
        machine(),
        f"box of ±{radius:.4g} around each image, clipped to [0, 1], rounded to 8 bits in both; same network, other random numbers",
        f"PRBench's rate lies {'inside' if inside else 'OUTSIDE'} our interval; the share of their queries that ours takes is"
        f" {len(x) * SAMPLES / (len(x) * theirs):.3f}",
        "queries for the width of ours: samples of each image until the mean half-width of its own exact interval (Clopper and"
        " Pearson), which is what PRBench tells of an image, is that of ours over all images",
        "no package called prbench can be installed; its estimator is written out here from its paper",
    ]
    return Outcome(
        "failure rate in a box: PRBench's estimator beside ours",
        [table_of("probability", rows, notes)],
    )


def _failing(
    net: nn.Module, x: Tensor, y: Tensor, radius: float, samples: int, rng: torch.Generator
) -> Tensor:
    """Which samples of each image fail."""
    if samples < 1 or not radius > 0:
        raise HardcaseError(
            f"{samples} samples in a box of ±{radius:g}.", fix="--set samples=100 --set radius=0.1"
        )
    found = []
    rows = torch.arange(len(x)).repeat_interleave(samples)
    for part in torch.split(rows, ROWS):
        noise = torch.rand(len(part), *x.shape[1:], generator=rng).to(x) * 2 - 1
        with torch.no_grad():
            logits = net(to_grid((x[part] + radius * noise).clamp(0, 1)))
        found.append(logits.argmax(1) != y[part])
    return torch.cat(found).cpu().reshape(len(x), samples)


def _needed(each: Tensor, width: float) -> str:
    """Queries until the mean width of an image's own exact interval is `width`."""
    from scipy.stats import beta

    rate = each.double().mean(1).numpy()
    for samples in np.unique(np.geomspace(4, 1e7, 60).astype(int)):
        hits = np.round(rate * samples)
        low = np.nan_to_num(beta.ppf(0.025, hits, samples - hits + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(0.975, hits + 1, samples - hits), nan=1.0)
        if float((high - low).mean()) <= width:
            return f"{int(samples) * len(each):,}"
    return "more than 10,000,000 of each image"
