"""ARGUS and its rivals as the paper ran them: one network, no peer but DiffChaser's 8-bit copy, equal numbers of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from hardcase import context
from hardcase.experiments.argus_judged import Bar
from hardcase.experiments.argus_measured import Measured, measured
from hardcase.experiments.argus_world import Painter
from hardcase.experiments.bench import Bench
from hardcase.methods.argus import argus
from hardcase.models.subject import Subject
from hardcase.types import Images

RIVALS = ("diffchaser", "adapt", "dlfuzz@adapt", "deepxplore@adapt")
POPULATION = 50


def most(bench: Bench) -> int:
    """Partners of each original: the paper's 30,000 or, where minutes count, 100 of each other class of ten."""
    return int(bench.options.get("partners", 30_000 if bench.full else 900))


def equal(bench: Bench) -> int:
    """Images that every method makes of each original for comparison: as many as ARGUS, but 3,000 at most unless
    ``--set rival_queries=N`` says so. Rivals take a step after the other; 30,000 of them are hours."""
    return int(bench.options.get("rival_queries", min(most(bench), 3000)))


def weights(bench: Bench) -> dict[str, Any]:
    """What is set of the adversarial losses."""
    return {
        key: float(bench.options[key])
        for key in ("latent_weight", "image_weight")
        if key in bench.options
    }


def interpolated(
    bench: Bench,
    subject: Subject,
    own: Painter,
    mix: float,
    groups: Sequence[Images],
    *,
    count: int | None = None,
    bar: Bar | None = None,
) -> Measured:
    """Algorithm 1 with `count` partners."""
    method = argus(space=own.space, partners=own.codes, mix=mix, queries=count or most(bench))
    return measured(subject, method, groups, bar=bar)


def rival(
    bench: Bench,
    name: str,
    subject: Subject,
    test: Images,
    groups: Sequence[Images],
    count: int,
    *,
    bar: Bar | None = None,
) -> Measured:
    """`count` images of each original by another method. DiffChaser goes on after a disagreement, as it did for the paper, and
    is scored on the network itself; ``--set int8=fx`` gives it torch's own int8 network as its peer."""
    settings: dict[str, Any] = {}
    if name == "diffchaser":
        settings = {"population": POPULATION, "generations": 1 + ceil(count / (POPULATION - 1))}
        settings |= {"int8": str(bench.options["int8"])} if "int8" in bench.options else {}
    lying = context.equipped(
        name, context.Bench(subject=subject, images=test, data=bench.data), settings
    )
    method = replace(context.build_method(name, settings, lying), until="budget")
    return measured(subject, method, groups, peers=lying.peers, count=count, bar=bar)
