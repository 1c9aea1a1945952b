"""What MaXplore's report only proposes (its Section 7): retraining with its images, and KMNC with a generator or nearest neighbours.

Te Wei Lee, "MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore", report, 2020.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from hardcase.campaign.in_memory import SearchResult, search
from hardcase.methods.sinvad import sinvad
from hardcase.models.health import usable
from hardcase.registry import resolve
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, flat, from_bytes
from hardcase.types import Images, Method
from hardcase_studies.bench import Bench, mean
from hardcase_studies.inference import cluster_means
from hardcase_studies.lab import Lab
from hardcase_studies.maxplore import NETWORKS, K
from hardcase_studies.retraining import (
    GENTLE,
    Retraining,
    against_controls,
    as_images,
    compare,
    helped,
    tabulated,
)

CRITERION = "kmnc:k=100"
NEIGHBOURS = 5


def run(bench: Bench) -> Outcome:
    """``--set seeds=100 taught=300 added=500 retrain_epochs=5``, ``--repeats N`` change what is run."""
    here = Lab(bench, bench.names("models", NETWORKS))
    return Outcome("maxplore-uses", [*_retrained(bench, here), _sections(bench, here)])


def _multi(here: Lab) -> Method:
    """Multi-Topk per filter, as the report's code has it."""
    method: Method = resolve("method", "maxplore@code")(
        subject=here.subject, peers=here.peers, profile=here.profile, k=K
    )
    return method


def _retrained(bench: Bench, here: Lab) -> list[Table]:
    """Accuracy after training on with failing images that Multi-Topk made of training images, beside controls of the same size."""
    drawn = here.train.sample(count=bench.size("taught", 300, 1000), seed=bench.seed)
    seeds = usable(here.subject, drawn)
    bench.say(f"Multi-Topk-MaXplore on {len(seeds)} training images")
    done = search(here.subject, _multi(here), seeds, peers=here.peers, seed=bench.seed)
    found = as_images(done.findings, here.train)
    if len(found) < 10:
        title = "retraining with MaXplore's images"
        return [Table(title, ["failing images"], [[len(found)]], ["nothing to train with"])]
    recipe = replace(GENTLE, epochs=bench.size("retrain_epochs", 5, 10))
    how = Retraining(repeats=bench.repeats or 5, seed=bench.seed, recipe=recipe)
    arms = against_controls(here.train, found, bench.size("added", 500, 1000))
    bench.say("retraining")
    results = compare(here.subject, here.train, arms, {"test set": here.test}, how)
    size = min(bench.size("added", 500, 1000), len(found))
    notes = [*here.notes, f"{size} of {len(found)} failing images of Multi-Topk, per filter"]
    return [tabulated("retraining with MaXplore's images", results, notes), helped(results)]


def _sections(bench: Bench, here: Lab) -> Table:
    """KMNC that images add to their seeds': all of them, and those whose nearest training images are of the seed's class."""
    seeds = here.seeds(bench.size("seeds", 100, 500), bench.seed)
    profile = here.fit_profile([CRITERION])
    before = here.covered(seeds, [CRITERION], profile)[CRITERION]
    methods = {
        "Multi-Topk-MaXplore, pixels": _multi(here),
        "sinvad, a VAE's codes": sinvad(space=here.space, partners=here.codes),
    }
    rows: list[list[Cell]] = []
    for name, method in methods.items():
        bench.say(f"KMNC: {name}")
        done = search(here.subject, method, seeds, peers=here.peers, seed=bench.seed)
        near = alike(here.train, done, seeds)
        gains = [
            100
            * (here.covered(_beside(seeds, done, kept), [CRITERION], profile)[CRITERION] - before)
            for kept in (torch.ones_like(near), near)
        ]
        legible = cluster_means(near.double(), done.findings.seed)
        rows.append([name, len(near), mean(legible, scale=100), *(f"{gain:.2f}" for gain in gains)])
    columns = [
        "made by", "images", f"label kept by {NEIGHBOURS} neighbours, %", "KMNC gained, points", "by these",
    ]  # fmt: skip
    notes = [
        f"label kept by neighbours: most of the {NEIGHBOURS} nearest training images (L2 of pixels) have the seed's label; mean over seeds",
        f"KMNC (100 sections) of the {len(seeds)} seeds alone: {100 * before:.2f} %; one draw of seeds, no interval",
    ]
    return Table("KMNC with a generator, and with nearest neighbours", columns, rows, notes)


def alike(train: Images, done: SearchResult, seeds: Images) -> Bool[Tensor, " t"]:
    """Whether most of the nearest training images of each finding have its seed's label."""
    known = flat(from_bytes(train.x))
    found = flat(from_bytes(done.findings.x))
    parts = []
    for rows in chunks(len(found), 256):
        near = torch.cdist(found[rows], known).topk(NEIGHBOURS, largest=False).indices
        own = seeds.y[done.findings.seed[rows]][:, None]
        parts.append((train.y[near] == own).sum(1) > NEIGHBOURS // 2)
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


def _beside(seeds: Images, done: SearchResult, kept: Bool[Tensor, " t"]) -> Images:
    """The seeds with the findings that are kept."""
    rows = kept.nonzero().squeeze(1)
    names = (*seeds.id, *(f"made/{row}" for row in rows.tolist()))
    x = torch.cat([seeds.x, done.findings.x[rows]])
    y = torch.cat([seeds.y, done.findings.expected[rows]])
    return replace(seeds, x=x, y=y, id=names, context={})
