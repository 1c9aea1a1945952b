"""The weights of ARGUS's two adversarial losses, which the paper leaves unsaid: every pair on a grid, against its numbers.

``--set mixes=[0.1,0.2,0.3] latent_weights=[0.1,1] image_weights=[0.1,1] reductions=["sum","mean"] kind=gradient model=lenet5
originals=10 partners=900 epochs=50 joint_epochs=10 batch=64`` change what is run. The generator before joint training is trained once. What
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
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import Images
from hardcase_studies.argus import quantised
from hardcase_studies.argus_measure import interpolated, reconstruction_errors
from hardcase_studies.argus_paper import PAPER, Published, published_name
from hardcase_studies.bench import Bench, finite_mean
from hardcase_studies.lab import Lab, LatentModel, labs

NAME = "argus-sweep"
FULL = (0.001, 0.01, 0.1, 1.0)
SMALL = (0.1, 1.0)
REDUCTIONS = ("sum", "mean")
NOTES = (
    "losses: Equations 5 to 7 as sums over an image (squared norms) or as means; a weight of 1 beside sums is the text's own, unweighted",
    "latent and image weight: of the generator's loss against the latent and the image discriminator; none: pre-trained only",
    "SSIM of all: over generated images, failing or not, up to 90 of each original, which the distance uses; SSIM of failing: over the nearest image of each wrong label",
    "distance: root mean square of the differences from the paper's ER and SR (as shares), LD (as a share of the wrong labels) "
    "and SSIM, with nothing set aside, as there; 0 is the paper's four numbers, * the nearest at its mix",
    "ER at mix 0: share of correctly classified test images that reconstruction alone gets wrong; an ER near it is not the mixture's",
    "ER: 95 % intervals over originals; one training of each generator",
    "ER, kept: of originals that the network classifies correctly, as they are and reconstructed; means over originals",
    "last step of the loss: its change in the last epoch of joint training, in percent of itself",
)
COLUMNS = ("mix", "losses", "latent weight", "image weight", "reconstruction SSIM", "right on reconstructions", "ER at mix 0", "ER",
           "ER, kept", "LD", "SR", "SSIM of all", "SSIM of failing", "last step of the loss", "distance", "")  # fmt: skip

Losses = tuple[str, float, float]
"""A reduction, and the weights of the latent and of the image discriminator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One trained generator and what it does. `er`, `kept`, `sr` and `at_zero` are shares; `problem` says why there is no result;
    without `losses` there was no joint training; `between` is the 95 % interval of `er`."""

    mix: float
    losses: Losses | None
    reconstruction: float = float("nan")
    right: float = float("nan")
    at_zero: float = float("nan")
    er: float = float("nan")
    between: tuple[float, float] = (float("nan"), float("nan"))
    kept: float = float("nan")
    settled: float = float("nan")
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
    ((name, here),) = labs(bench, named, most=1).items()
    groups = here.originals()
    notes = [*here.notes, *_how(bench, groups)]
    mixes = [float(mix) for mix in bench.options.get("mixes", [0.1, 0.2, 0.3])]
    done: list[Setting] = []
    outcome = Outcome(NAME, [])
    for losses, mix in product(grid(bench), mixes):
        bench.say(f"{name}: mix {mix}, losses {losses or 'none'}")
        setting = Setting(mix=mix, losses=losses)
        try:
            own = quantised(here, **_options(bench, mix, losses))
            done.append(_measured(here, own, groups, setting))
        except Problem as problem:
            if losses is None:  # without a start there is nothing to go on from
                raise
            done.append(replace(setting, problem=problem.what))
        outcome = Outcome(NAME, tables(name, done, len(here.test.classes) - 1, notes))
        outcome.write(bench.out, bench.command(NAME))
    return outcome


def grid(bench: Bench) -> list[Losses | None]:
    """No joint training, then every reduction with every pair of weights."""
    usual = FULL if bench.full else SMALL
    latent, image = (
        map(float, bench.options.get(f"{part}_weights", usual)) for part in ("latent", "image")
    )
    return [None, *product(bench.names("reductions", REDUCTIONS), latent, image)]


def _options(bench: Bench, mix: float, losses: Losses | None) -> dict[str, Any]:
    kind = {"kind": str(bench.options.get("kind", "gradient"))}
    if losses is None:
        return kind
    return {
        **kind,
        "joint_epochs": _rounds(bench),
        "mix": mix,
        "reduction": losses[0],
        "latent_weight": losses[1],
        "image_weight": losses[2],
    }


def _rounds(bench: Bench) -> int:
    return int(bench.options.get("joint_epochs", 50 if bench.full else 5))


def _measured(here: Lab, own: LatentModel, groups: Sequence[Images], setting: Setting) -> Setting:
    partners = here.bench.size("partners", 900, 3000)
    done = interpolated(here, own, setting.mix, groups, count=partners)
    wrong = reconstruction_errors(own, here.subject, here.right.first(1000))
    erring = finite_mean(done.seeds.er)
    return replace(
        setting,
        reconstruction=own.card["ssim"],
        right=own.card["reconstruction_accuracy"],
        at_zero=_mean(wrong.double()),
        er=erring.value,
        between=(erring.low, erring.high),
        kept=_mean(done.seeds.er[done.kept]),
        settled=_last_step(own.card.get("loss", ())) if setting.losses else float("nan"),
        ld=_mean(done.seeds.ld),
        sr=_mean(done.seeds.sr),
        failing=_mean(done.seeds.ssim),
        ssim=_mean(done.ssim),
    )


def _last_step(loss: Sequence[float]) -> float:
    return 100 * (loss[-1] - loss[-2]) / abs(loss[-2]) if len(loss) > 1 else float("nan")


def tables(name: str, done: Sequence[Setting], wrong: int, notes: Sequence[str]) -> list[Table]:
    """Every setting; then every pair of weights by its mean distance; then the paper's numbers."""
    papers = {s.mix: PAPER.get((published_name(name), f"ARGUS {s.mix}")) for s in done}
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
    """Losses that were measured at every share, nearest first."""
    mixes = {s.mix for s in done}
    found = {w: [d for s, d in zip(done, far) if s.losses == w and isfinite(d)] for w in dict.fromkeys(s.losses for s in done)}  # fmt: skip
    means = {
        w: sum(values) / len(values) for w, values in found.items() if len(values) == len(mixes)
    }
    rows = [
        [*_told(w), means[w], "*" if i == 0 else ""]
        for i, w in enumerate(sorted(means, key=means.__getitem__))
    ]
    columns = ["losses", "latent weight", "image weight", "mean distance", ""]
    return Table("mean distance over the mixes", columns, rows)


def _row(setting: Setting, distance: float, *, nearest: bool) -> list[Cell]:
    head: list[Cell] = [setting.mix, *_told(setting.losses)]
    if setting.problem:
        return [*head, *[""] * (len(COLUMNS) - len(head) - 1), setting.problem]
    rates = (setting.right, setting.at_zero, setting.er, setting.kept)
    shares = [f"{100 * value:.2f} %" for value in rates]
    low, high = (100 * end for end in setting.between)
    shares[2] += f" [{low:.2f}, {high:.2f}]" if isfinite(low) else ""
    alike = [
        f"{value:.3f}" if isfinite(value) else ""
        for value in (setting.ssim, setting.failing, setting.settled, distance)
    ]
    return [
        *head, f"{setting.reconstruction:.4f}", *shares, f"{setting.ld:.2f}", f"{100 * setting.sr:.0f} %",
        *alike, "*" if nearest else "",
    ]  # fmt: skip


def _told(losses: Losses | None) -> list[Cell]:
    if losses is None:
        return ["none", "none", "none"]
    return [losses[0], *(f"{weight:g}" for weight in losses[1:])]


def _how(bench: Bench, groups: Sequence[Images]) -> list[str]:
    counts = f"{sum(map(len, groups))} originals with up to {bench.size('partners', 900, 3000)} partners each"
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
