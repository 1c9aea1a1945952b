"""What judging and reporting cost: one thread, digits, the judge of mnist5k (trained once if it is missing)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch

import hardcase as hc
from benchmarks.figures import Figure, seconds
from hardcase import data
from hardcase.context import Context
from hardcase.judges.grouping import groups
from hardcase.judges.held_out import default_judge
from hardcase.judges.judge import JudgeRequest
from hardcase.judges.verdicts import judge_run
from hardcase.models import zoo
from hardcase.randomness import stream
from hardcase.report import page

COMMAND = "python -m benchmarks judging"
SEEDS = 1000
GROUPED = 20_000
FEATURES, KINDS, LIMIT = 64, 3, 10
"""Features of a planted finding, clusters of a pair of classes, a limit in seconds."""


def figures(seeds: int = SEEDS) -> Iterator[Figure]:
    train, test = (data.load("mnist5k", split=split) for split in ("train", "test"))
    subject = hc.Subject(
        zoo.trained_classifier("lenet5", train, test)[0], classes=test.classes, name="zoo:lenet5"
    )
    yield _grouped(GROUPED * seeds // SEEDS)
    images, threads = test.sample(count=seeds, seed=0), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as home:
            method = Context.of(subject, images, "sinvad", train=train).method
            yield from _judged(subject, images, method, Path(home) / "sinvad")
            yield from _reported(
                subject, images.first(seeds * 7 // 10), method, Path(home) / "many"
            )
    finally:
        torch.set_num_threads(threads)


def _grouped(count: int) -> Figure:
    """Planted findings of all pairs of ten classes, a few clusters of each, in groups of likely faults."""
    rng = stream(0, "groups")
    pair = torch.randint(0, 90, (count,), generator=rng)
    kind = torch.randint(0, KINDS, (count,), generator=rng)
    centres = torch.randn(90, KINDS, FEATURES, generator=rng)
    x = centres[pair, kind] + 0.8 * torch.randn(count, FEATURES, generator=rng)
    distance = torch.rand(count, generator=rng)
    spent = seconds(lambda: groups(x, pair // 9, 10 + pair % 9, distance, rng))
    told = f"{count:,} planted findings of 90 pairs of classes, {FEATURES} features; a limit of {LIMIT} s"
    return Figure(name="group-20000", value=spent, unit="s", against=told, command=COMMAND)


def _judged(
    subject: hc.Subject, images: hc.Images, method: hc.Method, folder: Path
) -> Iterator[Figure]:
    """A default campaign, then what its judge needs from its findings to the verdicts on disk, groups included."""
    begun = perf_counter()
    run = hc.run(subject, images, out=folder, method=method)
    searched = perf_counter() - begun
    judge = default_judge(run, JudgeRequest())
    spent = min(seconds(lambda: judge_run(run, judge)) for _ in range(3))
    each = f"{len(run)} findings of 28 x 28 pixels, one thread, groups and files included; a limit of 1 ms"
    yield Figure(
        name="judge-per-finding",
        value=1000 * spent / len(run),
        unit="ms",
        against=each,
        command=COMMAND,
    )
    whole = f"a default SINVAD campaign of {len(images)} seeds, {searched:.1f} s, generator not counted; a limit of 0.1"
    yield Figure(
        name="judge-share-sinvad",
        value=spent / searched,
        unit="of the campaign's time",
        against=whole,
        command=COMMAND,
    )


def _reported(
    subject: hc.Subject, images: hc.Images, method: hc.Method, folder: Path
) -> Iterator[Figure]:
    """Every failing candidate kept, some tens of each seed."""
    run = hc.run(subject, images, out=folder, method=method, keep="all")
    spent = seconds(lambda: page.write([run], run.folder))
    told = f"a report of {len(run):,} findings; a limit of 20 s for 10,000"
    yield Figure(name="report-many", value=spent, unit="s", against=told, command=COMMAND)
