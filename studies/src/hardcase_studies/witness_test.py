"""A test set of digits that is opened once: do searches with witnesses keep labels on images that no setting was chosen on?

Subject, witnesses, scorer and judge learn from ``mnist5k``; the digits are drawn from MNIST's own 10,000 test images, which no
study on ``mnist5k`` has seen. Before anything is searched, the hash of the set, the settings and the judge are written to a ledger.
A set that was opened before is refused; ``--set again=true`` opens it all the same, and the result says so. What each search found
is kept beside the tables.

Without ``--open`` only what would be opened is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from hardcase.cache import cache_folder, write_atomically
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.methods.appearance_search import natural
from hardcase.methods.pgd import pgd
from hardcase.methods.sinvad import sinvad_gradient
from hardcase.models.witnesses import default_witnesses
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import digest, fingerprints
from hardcase.types import Images, Method
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab
from hardcase_studies.parts import Parts
from hardcase_studies.stored import commit
from hardcase_studies.witness_controls import MATCHED, filtered
from hardcase_studies.witness_world import (
    SeedOutcomes,
    WitnessWorld,
    gain,
    median,
    percent,
    points,
    rate,
    searched,
    shape_of,
    share_of,
    together,
)

NAME = "witness-test"
UNSEEN = "mnist"
"""Whose test images are drawn from."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is fixed before a set is opened; `number` counts the openings of this set on this machine."""

    images: str
    count: int
    judge: str
    settings: Mapping[str, Any]
    commit: str | None
    number: int

    @property
    def words(self) -> str:
        times = (
            "opened once" if self.number == 1 else f"OPENED {self.number} TIMES, this is no test"
        )
        return (
            f"set {self.images}, {self.count} digits, {times}; judge {self.judge}; commit {self.commit or 'unknown'}; "
            f"settings {json.dumps(dict(self.settings), sort_keys=True)}; all written down before the first search"
        )


def run(bench: Bench) -> Outcome:
    """``--open`` searches, once. ``--set seeds=N fresh=mnist again=true`` change what is drawn and allow a second opening."""
    seeds = fresh(bench)
    if not bench.options.get("open"):
        what: list[list[Cell]] = [
            ["digits", len(seeds)],
            ["hash", seeds.hash],
            ["opened before", len(_before(seeds))],
        ]
        note = "nothing was searched: --open opens the set, once"
        return Outcome(NAME, [Table("What would be opened", ["what", "value"], what, [note])])
    if _before(seeds) and not bench.options.get("again"):
        raise HardcaseError(
            f"this test set was opened before: {len(_before(seeds))} time(s), see {_ledger()}.",
            "Settings that were changed by what it showed would be tested on it again.",
            fix="--set seeds=N for another set; --set again=true opens it, and the result says so",
        )
    here = _networks(bench)
    opening = _opened(bench, seeds, here)
    parts = Parts(bench.out / "runs", inf, bench.say)
    found = {
        name: parts.outcomes(here, f"{name}, opening {opening.number}", seeds, make)
        for name, make in _searches(here, seeds).items()
    }
    return Outcome(NAME, [_rates(found, opening), _sizes(found)])


def fresh(bench: Bench) -> Images:
    """Digits that are none of the training or test images of the study's own data."""
    pool = load(str(bench.options.get("fresh", UNSEEN)), split="test")
    known = torch.cat([fingerprints(load(bench.data, split=s).x) for s in ("train", "test")])
    unseen = (~torch.isin(fingerprints(pool.x), known)).nonzero().squeeze(1)
    drawn = pool.take(unseen)
    if not len(drawn):
        raise HardcaseError(f"{bench.data} has every image of {pool.name}: none of them is unseen.")
    return drawn.sample(count=min(len(drawn), bench.size("seeds", 150, 1000)), seed=bench.seed)


def _networks(bench: Bench) -> WitnessWorld:
    """Nobody learns from what is drawn: all networks are those of the study's own data."""
    lab = Lab(bench)
    bench.say("subject, witnesses, scorer and judge")
    subject, _ = lab.network("lenet5", seed=0)
    witnesses = default_witnesses(
        lab.train, lab.test, epochs=bench.options.get("epochs"), device=bench.device
    )
    scorer, _ = lab.network("lenet4", seed=1)
    codes = Lab(bench, splits=(lab.train, lab.test), subject=subject).space
    config = bench.options.get("judge_training")
    judge = panel.trained(lab.train, lab.test, config=config, device=bench.device)
    return WitnessWorld(subject, witnesses, (scorer,), {"accepted": judge}, codes)


def _searches(here: WitnessWorld, seeds: Images) -> dict[str, Any]:
    shape = shape_of(seeds)
    steps = natural(shape).budget.gradients or 100

    def witnessed(method: Method) -> Any:
        return lambda: searched(here, method, seeds, witnesses=here.witnesses)

    return {
        "natural": witnessed(natural(shape)),
        "natural, filter": lambda: filtered(here, natural(shape), seeds),
        "sinvad-gradient": witnessed(sinvad_gradient(here.latent)),
        "pgd 0.2": lambda: searched(here, pgd(epsilon=0.2, gradients=steps), seeds),
    }


def _ledger() -> Path:
    return cache_folder() / "studies" / "openings.json"


def _before(seeds: Images) -> list[dict[str, Any]]:
    """Openings of a set that shares an image with this one."""
    if not _ledger().is_file():
        return []
    own = set(fingerprints(seeds.x).tolist())
    openings: list[dict[str, Any]] = json.loads(_ledger().read_text(encoding="utf-8"))
    return [one for one in openings if own & set(one["digits"])]


def _opened(bench: Bench, seeds: Images, here: WitnessWorld) -> Opening:
    """Write down what is fixed; only then may anything be searched."""
    before = _before(seeds)
    chosen = {key: value for key, value in bench.options.items() if key not in ("open", "again")}
    settings = {
        **chosen,
        "data": bench.data,
        "seed": bench.seed,
        "device": bench.device,
        "methods": digest([str(one) for one in _methods(here, seeds)]),
        "networks": here.hash,
    }
    judge = digest([str(judge.card["weights"]) for judge in here.judges.values()])
    opening = Opening(seeds.hash, len(seeds), judge, settings, commit(), 1 + len(before))
    known = json.loads(_ledger().read_text(encoding="utf-8")) if _ledger().is_file() else []
    told = {
        "study": NAME, "set": opening.images, "judge": judge, "settings": settings,
        "commit": opening.commit, "digits": fingerprints(seeds.x).tolist(),
    }  # fmt: skip
    write_atomically(_ledger(), (json.dumps([*known, told], indent=1) + "\n").encode())
    return opening


def _methods(here: WitnessWorld, seeds: Images) -> list[Method]:
    made = [natural(shape_of(seeds)), sinvad_gradient(here.latent), pgd(epsilon=0.2)]
    return [replace(one, space=None) for one in made]  # type: ignore[arg-type]


def _rates(found: Mapping[str, SeedOutcomes], opening: Opening) -> Table:
    offered = together([found["natural, filter"]], "accepted")
    rows: list[list[Cell]] = []
    for name, one in found.items():
        shares = [share_of([one], key) for key in ("failing", "witnessed", "accepted", "all")]
        more = points(gain(together([one], "accepted"), offered))
        attempted = int(one.columns["failing"].isfinite().sum())
        credit = more if name in ("natural", "sinvad-gradient") else ""
        rows.append([name, attempted, *shares, credit, f"{median(together([one], 'l2')):.2f}"])
    columns = [
        "search", "searched", "failing", "witnessed", "accepted", "label kept by a network that no search asks",
        "accepted: points more than the filter", "median L2",
    ]  # fmt: skip
    notes = [
        opening.words,
        "one outcome for each seed that the subject classifies correctly: the nearest witnessed finding, else the nearest; Wilson's "
        "95 % intervals, Newcombe's of differences; one training of every network",
        "filter: the same search without witnesses, restarted within the same budget; its candidates are offered to them afterwards",
    ]
    return Table("Searches with witnesses on unseen digits", columns, rows, notes)


def _sizes(found: Mapping[str, SeedOutcomes]) -> Table:
    """Accepted with an image L2 of at most so much: a larger change is no merit."""
    rows: list[list[Cell]] = []
    for name, one in found.items():
        own, near = (together([one], key) for key in ("accepted", "l2"))
        near = near.nan_to_num(inf)
        rows.append([name, *(percent(rate(torch.where(near <= m, own, 0 * own))) for m in MATCHED)])
    columns = ["search", *(f"accepted with L2 ≤ {most:g}" for most in MATCHED)]
    return Table("Accepted at matched size", columns, rows)
