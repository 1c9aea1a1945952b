"""The Python front door: `hc.run` takes live objects where the command line takes names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hardcase import context
from hardcase.campaign.record import Campaign, parse_keep
from hardcase.config import parse, read
from hardcase.errors import Problem
from hardcase.models.health import Health
from hardcase.models.health import check as _check
from hardcase.runs import start
from hardcase.runs.results import Run
from hardcase.runs.start import Plan, Watcher
from hardcase.types import Budget, Images, Method, Model


def run(
    subject: Model,
    seeds: Images,
    *,
    out: str | Path,
    method: str | Method = "sinvad",
    budget: Budget | None = None,
    seed: int = 0,
    peers: Sequence[Model] = (),
    target: int | None = None,
    generator: str | None = None,
    options: Mapping[str, Any] | None = None,
    keep: str | None = None,
    batch: int = 256,
    workers: int = 1,
    cluster: str | None = None,
    shard: int = 32,
    rounds: int = 8,
    allow_low_accuracy: bool = False,
    watcher: Watcher | None = None,
) -> Run:
    """Search `seeds` for inputs on which `subject` fails, store everything in the new folder `out`, return the run.

    `method` is a name (with `options` and, for latent methods, a `generator` trained on the seeds' data if missing)
    or a recipe such as ``hc.methods.sinvad(space=...)``.
    """
    if isinstance(method, str):
        bench = context.Bench(
            subject=subject, images=seeds, peers=tuple(peers), target=target, generator=generator
        )
        bench = context.equipped(method, bench, options)
        peers, method = bench.peers, context.build_method(method, options or {}, bench)
    elif options or generator or target is not None:
        raise Problem(
            "options, generator and target belong to a method given by name; this one is already built."
        )
    campaign = Campaign(
        subject=subject,
        method=method,
        peers=tuple(peers),
        keep=parse_keep(keep or method.keep),
        batch=batch,
        seed=seed,
    )
    plan = Plan(
        source=partial(_same, campaign),
        images=seeds,
        budget=budget or Budget(),
        shard=shard,
        rounds=rounds,
        workers=workers,
        cluster=cluster,
        allow_low_accuracy=allow_low_accuracy,
        config="# This run was started from Python with live objects; resume it with hardcase.runs.start.resume(plan, folder).\n",
        about={"keep": keep or method.keep},
    )
    return start.start(plan, Path(out), watcher)


def resume(folder: str | Path, watcher: Watcher | None = None) -> Run:
    """Go on with a run that was started from a configuration (the command line does the same)."""
    start.reopen(Path(folder))
    values = read(Path(folder) / "config.toml")
    if not values:
        raise Problem(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.run with a new out=",
        )
    return start.resume(context.plan(parse(values)), Path(folder), watcher)


def check(subject: Model, seeds: Images, *, allow_low_accuracy: bool = False) -> Health:
    """Does this subject answer sensibly on these images?"""
    return _check(subject, seeds, allow_low_accuracy=allow_low_accuracy)


def _same(campaign: Campaign) -> Campaign:
    return campaign
