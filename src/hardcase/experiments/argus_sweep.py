"""The weights of ARGUS's two adversarial losses, which the paper leaves unsaid: every pair on a grid, against its numbers.

``--set mixes=[0.1,0.2,0.3] latent_weights=[0.01,0.1] image_weights=[0.01,0.1] kind=gradient model=lenet5 originals=10
partners=900 epochs=50 joint_epochs=3 batch=64`` change what is run. The generator before joint training is trained once. What
is known is written after every setting, so that a sweep that is stopped leaves its rows, and one that is started again goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite, sqrt
from typing import Any

from torch import Tensor

from hardcase.errors import Problem
from hardcase.experiments.argus_measured import measured
from hardcase.experiments.argus_paper import PAPER, Published
from hardcase.experiments.argus_world import (
    Painter,
    networks,
    originals,
    painter,
    reconstruction_errors,
)
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.searching import usable
from hardcase.methods.argus import argus
from hardcase.models.subject import Subject
from hardcase.types import Images

NAME = "argus-sweep"
FULL, SMALL = (0.001, 0.01, 0.1, 1.0), (0.01, 0.1)
NOTES = (
    "latent and image weight: of the generator's loss against the latent and the image discriminator; none: pre-trained only",
    "SSIM of all: over generated images, failing or not, up to 90 of each original, which the distance uses; SSIM of failing: over the nearest image of each wrong label",
    "distance: root mean square of the differences from the paper's ER and SR (as shares), LD (as a share of the wrong labels) "
    "and SSIM; 0 is the paper's four numbers, * the nearest at its mix",
    "ER at mix 0: share of rightly classified test images that reconstruction alone gets wrong; an ER near it is not the mixture's",
    "means over originals; those whose reconstruction fails are set aside, the paper keeps them",
)
COLUMNS = ("mix", "latent weight", "image weight", "reconstruction SSIM", "right on reconstructions", "ER at mix 0", "ER", "LD", "SR",
           "SSIM of all", "SSIM of failing", "distance", "")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One trained generator and what it does. `er`, `sr` and `at_zero` are shares; `problem` says why there is no result."""

    mix: float
    weights: tuple[float, float] | None
    reconstruction: float = float("nan")
    right: float = float("nan")
    at_zero: float = float("nan")
    er: float = float("nan")
    ld: float = float("nan")
    sr: float = float("nan")
    ssim: float = float("nan")
    failing: float = float("nan")
    problem: str = ""

    def distance(self, paper: Published | None, wrong: int) -> float:
        """How far from the paper's four numbers, 0 to about 1, where there are `wrong` wrong labels; NaN without a result."""
        if paper is None:
            return float("nan")
        gaps = (
            self.er - paper.er / 100,
            self.sr - paper.sr / 100,
            (self.ld - paper.ld) / wrong,
            self.ssim - paper.ssim,
        )
        return sqrt(sum(gap**2 for gap in gaps) / len(gaps))


def run(bench: Bench) -> Outcome:
    """Train and measure every setting, one share after the other for every pair of weights."""
    named = [str(bench.options["model"])] if "model" in bench.options else []
    train, test, subjects, notes = networks(bench, named, most=1)
    name, subject = next(iter(subjects.items()))
    groups, right = originals(bench, subject, test), usable(subject, test).first(1000)
    done: list[Setting] = []
    outcome = Outcome(NAME, [])
    for weights, mix in product(
        grid(bench), map(float, bench.options.get("mixes", [0.1, 0.2, 0.3]))
    ):
        bench.say(f"{name}: mix {mix}, weights {weights or 'none'}")
        try:
            own = painter(bench, train, test, subject, **_options(bench, mix, weights))
            done.append(
                _measured(
                    own, subject, groups, right, Setting(mix=mix, weights=weights), most(bench)
                )
            )
        except Problem as problem:
            if weights is None:  # without a start there is nothing to go on from
                raise
            done.append(Setting(mix=mix, weights=weights, problem=problem.what))
        outcome = Outcome(
            NAME, tables(name, done, len(test.classes) - 1, [*notes, *_how(bench, groups)])
        )
        outcome.write(bench.out, bench.command(NAME))
    return outcome


def grid(bench: Bench) -> list[tuple[float, float] | None]:
    """No joint training, then every pair of weights."""
    usual = FULL if bench.full else SMALL
    latent, image = (
        map(float, bench.options.get(f"{part}_weights", usual)) for part in ("latent", "image")
    )
    return [None, *product(latent, image)]


def most(bench: Bench) -> int:
    return int(bench.options.get("partners", 3000 if bench.full else 900))


def _options(bench: Bench, mix: float, weights: tuple[float, float] | None) -> dict[str, Any]:
    kind = {"kind": str(bench.options.get("kind", "gradient"))}
    if weights is None:
        return kind
    return {
        **kind,
        "joint_epochs": _rounds(bench),
        "mix": mix,
        "latent_weight": weights[0],
        "image_weight": weights[1],
    }


def _rounds(bench: Bench) -> int:
    return int(bench.options.get("joint_epochs", 10 if bench.full else 3))


def _measured(
    own: Painter,
    subject: Subject,
    groups: Sequence[Images],
    right: Images,
    setting: Setting,
    partners: int,
) -> Setting:
    method = argus(space=own.space, partners=own.codes, mix=setting.mix, queries=partners)
    done = measured(subject, method, groups)
    seeds = done.seeds
    return replace(
        setting,
        reconstruction=own.card["ssim"],
        right=own.card["reconstruction_accuracy"],
        at_zero=_mean(reconstruction_errors(own, subject, right).double()),
        er=_mean(seeds.er), ld=_mean(seeds.ld), sr=_mean(seeds.sr), failing=_mean(seeds.ssim),
        ssim=_mean(done.ssim),
    )  # fmt: skip


def tables(name: str, done: Sequence[Setting], wrong: int, notes: Sequence[str]) -> list[Table]:
    """Every setting; then every pair of weights by its mean distance; then the paper's numbers."""
    papers = {s.mix: PAPER.get((name, f"ARGUS {s.mix}")) for s in done}
    far = [s.distance(papers[s.mix], wrong) for s in done]
    best = {mix: _least([d for s, d in zip(done, far) if s.mix == mix]) for mix in papers}
    rows = [_row(s, d, nearest=d == best[s.mix]) for s, d in zip(done, far)]
    shown = [[f"ARGUS {mix}", *paper.cells()] for mix, paper in papers.items() if paper is not None]
    published = Table(
        f"the same, as published ({name})", ["method", "MSE", "SSIM", "LD", "ER", "SR"], shown
    )
    title = f"ARGUS: weights of the adversarial losses, {name}"
    return [Table(title, list(COLUMNS), rows, [*notes, *NOTES]), _pairs(done, far), published]


def _pairs(done: Sequence[Setting], far: Sequence[float]) -> Table:
    """Weights that were measured at every share, nearest first."""
    mixes = {s.mix for s in done}
    found = {w: [d for s, d in zip(done, far) if s.weights == w and isfinite(d)] for w in dict.fromkeys(s.weights for s in done)}  # fmt: skip
    means = {
        w: sum(values) / len(values) for w, values in found.items() if len(values) == len(mixes)
    }
    rows = [
        [*_weights(w), means[w], "*" if i == 0 else ""]
        for i, w in enumerate(sorted(means, key=means.__getitem__))
    ]
    return Table(
        "mean distance over the mixes", ["latent weight", "image weight", "mean distance", ""], rows
    )


def _row(setting: Setting, distance: float, *, nearest: bool) -> list[Cell]:
    head: list[Cell] = [setting.mix, *_weights(setting.weights)]
    if setting.problem:
        return [*head, *[""] * (len(COLUMNS) - len(head) - 1), setting.problem]
    shares = [f"{100 * value:.2f} %" for value in (setting.right, setting.at_zero, setting.er)]
    alike = [
        f"{value:.3f}" if isfinite(value) else ""
        for value in (setting.ssim, setting.failing, distance)
    ]
    return [
        *head, f"{setting.reconstruction:.4f}", *shares, f"{setting.ld:.2f}", f"{100 * setting.sr:.0f} %",
        *alike, "*" if nearest else "",
    ]  # fmt: skip


def _weights(weights: tuple[float, float] | None) -> list[Cell]:
    return ["none", "none"] if weights is None else [f"{weight:g}" for weight in weights]


def _how(bench: Bench, groups: Sequence[Images]) -> list[str]:
    counts = f"{sum(map(len, groups))} originals with up to {most(bench)} partners each"
    usual = {key: bench.options.get(key, "as the recipe says") for key in ("epochs", "batch")}
    return [
        f"{counts}; pre-training epochs {usual['epochs']}, joint epochs {_rounds(bench)}, batch {usual['batch']}"
    ]


def _least(values: Sequence[float]) -> float:
    """The least of what is a number; infinity, which no distance is, where nothing is."""
    return min((value for value in values if isfinite(value)), default=float("inf"))


def _mean(values: Tensor) -> float:
    """The mean of what is a number."""
    known = values[values.isfinite()]
    return float(known.double().mean()) if len(known) else float("nan")
