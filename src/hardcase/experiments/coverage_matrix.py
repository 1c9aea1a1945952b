"""Which coverage works best for making adversarial inputs: DeepXplore and DLFuzz under every criterion, beside controls.

The question is that of the course project "Adversarial image generation based on various neuron coverage" (T. Kim, H. Cho,
S. Kwon), whose slides promise a gradient for each coverage and name three measures; no numbers of theirs are known. Here each
criterion has its own gradient, every run may spend the same gradients, and each guide is measured by every criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter, process_time

import torch

from hardcase.criteria.profile import Profile
from hardcase.experiments.bench import Bench, Outcome, Table
from hardcase.experiments.coverage_tables import Sizes, Trial, found, gained, named, pictures_of
from hardcase.experiments.searching import Searched, search
from hardcase.experiments.trio import Trio, coverage, measured_profile, trio
from hardcase.methods.deepxplore import deepxplore
from hardcase.methods.dlfuzz import dlfuzz
from hardcase.methods.pgd import pgd
from hardcase.tensors import from_bytes
from hardcase.types import Budget, Images, Method

GUIDES = (
    "nc", "kmnc:k=100", "nbc", "snac", "tknc", "tknp", "ssc:channels=true", "vsc:channels=true", "svc:channels=true",
    "vvc:channels=true", "lsa", "dsa", "mdsa", "lsc", "dsc", "mdsc", "neighbour", "nlc", "lscd",
)  # fmt: skip
"""Every criterion of the catalogue but `layer-snac`, whose units and gradient are those of `snac`."""
CONTROLS = ("random", "none", "pgd")
MEASURED = ("nc", "kmnc:k=100", "nbc", "snac", "tknc", "ssc:channels=true", "lsc", "dsc", "mdsc")
COUNTED = ("tknp", "neighbour", "lsa", "dsa", "mdsa", "nlc", "lscd")
"""Measures that are no shares of a whole: they grow in units of their own."""
NETWORKS = ("zoo:lenet5", "zoo:lenet1", "zoo:lenet4")


def run(bench: Bench) -> Outcome:
    """``--set models=… seeds=… gradients=… cover=… guides=nc,snac measured=nc`` choose other sizes and networks."""
    sizes, here = _sizes(bench), trio(bench, NETWORKS)
    profile = measured_profile(here, sizes.all_measured)
    about, tables, pictures = here.notes, list[Table](), list[str]()
    for generator in ("deepxplore", "dlfuzz"):
        trials = {
            guide: [
                _trial(bench, here, profile, sizes, generator, guide, repeat)
                for repeat in range(sizes.repeats)
            ]
            for guide in (*sizes.guides, *CONTROLS)
        }
        tables += [found(generator, trials, sizes, about), *gained(generator, trials, sizes)]
        pictures += pictures_of(bench, generator, trials, sizes)
    return Outcome("coverage-matrix", tables, pictures)


def _sizes(bench: Bench) -> Sizes:
    chosen = bench.options
    repeats = bench.repeats or int(chosen.get("repeats", 30 if bench.full else 10))
    return Sizes(
        seeds=int(chosen.get("seeds", 100 if bench.full else 30)),
        gradients=int(chosen.get("gradients", 50 if bench.full else 20)),
        repeats=max(2, repeats),
        cover=float(chosen.get("cover", 1.0)),
        guides=_list(chosen.get("guides", GUIDES)),
        measured=_list(chosen.get("measured", MEASURED)),
        counted=_list(chosen.get("counted", COUNTED)),
    )


def _list(value: str | Sequence[str]) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    return tuple(str(name) for name in names if name)


def _trial(
    bench: Bench,
    here: Trio,
    profile: Profile,
    sizes: Sizes,
    generator: str,
    guide: str,
    repeat: int,
) -> Trial:
    """A fresh method on this repeat's seeds; found images are measured together with the seeds they came from."""
    if repeat == 0:
        bench.say(f"{generator} under {named(guide)}")
    seeds = here.seeds(sizes.seeds, seed=bench.seed + repeat)
    method = _method(here, sizes, generator, guide)
    peers = here.peers if generator == "deepxplore" and guide != "pgd" else ()
    clock = process_time if bench.device == "cpu" else perf_counter
    begun = clock()
    done = search(
        here.subject, method, seeds, peers=peers, budget=Budget(gradients=sizes.gradients), keep="10",
        seed=bench.seed + repeat, shard=32,
    )  # fmt: skip
    return _measured(here, profile, sizes, done, clock() - begun)


def _method(here: Trio, sizes: Sizes, generator: str, guide: str) -> Method:
    if guide == "pgd":
        method = pgd(gradients=sizes.gradients)
        return method if generator == "deepxplore" else replace(method, until="budget")
    if generator == "deepxplore":
        return deepxplore(
            subject=here.subject,
            peers=here.peers,
            profile=here.profile,
            criterion=guide,
            cover=sizes.cover,
        )
    return dlfuzz(subject=here.subject, profile=here.profile, criterion=guide, cover=sizes.cover)


def _measured(here: Trio, profile: Profile, sizes: Sizes, done: Searched, spent: float) -> Trial:
    seeds, found, names = done.seeds, done.findings, sizes.all_measured
    before = coverage(here, seeds, names, profile)
    after = (
        coverage(here, _with(seeds, found.x, found.seed), names, profile) if len(found) else before
    )
    change = from_bytes(found.x) - from_bytes(seeds.x[found.seed])
    return Trial(
        seeds=len(seeds),
        failing=int((done.failing > 0).sum()),
        adversarial=int(done.failing.sum()),
        found=done.succeeded,
        seconds=spent,
        gradients=int(done.gradients.sum()),
        distance=float(change.flatten(1).norm(dim=1).median()) if len(found) else float("nan"),
        gained={name: after[name] - before[name] for name in names},
    )


def _with(seeds: Images, x: torch.Tensor, rows: torch.Tensor) -> Images:
    names = tuple(f"{seeds.id[row]}/{i}" for i, row in enumerate(rows.tolist()))
    return replace(
        seeds, x=torch.cat([seeds.x, x]), y=torch.cat([seeds.y, seeds.y[rows]]), id=seeds.id + names
    )
