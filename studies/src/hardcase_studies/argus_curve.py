"""Whether ARGUS's published numbers on MNIST hold together: its five measures along our own curves, mix by mix.

Error rate, labels and success of the paper lie near our curve at a larger mix than it names, its likeness near the mix it names.
Here every mix from 0.30 to 0.50 is measured with as many partners as there, and likeness is counted in four ways: to the original
and to its reconstruction, of all images and of failing ones. Generators: our VQ-VAE; a coarse one, with few codes that are never
placed anew; and joint training by means, stopped after 1, 2, 4 and 8 epochs, before it ruins the pictures.

``--set originals=20 partners=30000 mixes=[0.3,0.4] stops=[1,8] models=["lenet5"] epochs=15 batch=256 model_epochs=1 augment=none``
change what is run. A study that is stopped goes on with what it lacks; ``fill=true generators=ours,coarse`` measures a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.generators.quality import measure
from hardcase.generators.vqvae import Codebook, VqVae, healthy, reconstruct
from hardcase.models.subject import Subject
from hardcase.randomness import named_randomness, stream
from hardcase.spaces.latent import Grid, Library
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import fit
from hardcase_studies.argus import quantised
from hardcase_studies.argus_measure import decode_mixture, mse, ssim
from hardcase_studies.argus_paper import PAPER, published_name
from hardcase_studies.bench import Bench, finite_mean
from hardcase_studies.lab import Lab, LatentModel, labs

MIXES = tuple(round(0.3 + 0.02 * i, 2) for i in range(11))
STOPS = (1, 2, 4, 8)
JOINT = 0.3
"""The mix that joint training is for; the paper's largest."""
FEW_CODES = 32
SHOWN = 500
"""Images of each original whose SSIM is measured, failing or not, and failing."""
PARTS = ("generators", "fill")
"""Options that only choose what a process measures."""
WAYS = ("all, original", "all, reconstruction", "failing, original", "failing, reconstruction")
NEAR = {"LD": 0.5, "SR": 5.0, "MSE": 0.25, "SSIM": 0.02}
"""What counts as the published number: labels, percentage points, a share of the published MSE, SSIM."""


@dataclass(frozen=True, slots=True)
class Point:
    """One generator at one mix, for one network. `er` in percent with its interval over originals; `mse` and `ssim` by `WAYS`."""

    er: float
    low: float
    high: float
    ld: float
    sr: float
    mse: tuple[float, ...]
    ssim: tuple[float, ...]

    @classmethod
    def read(cls, numbers: Sequence[float]) -> Point:
        """A point from the numbers of its cell."""
        er, low, high, ld, sr, *likeness = numbers
        ways = len(WAYS)
        return cls(er, low, high, ld, sr, tuple(likeness[:ways]), tuple(likeness[ways:]))

    def numbers(self) -> list[float]:
        return [self.er, self.low, self.high, self.ld, self.sr, *self.mse, *self.ssim]


Curve = Mapping[float, Point]


def run(bench: Bench) -> Outcome:
    """Every generator at every mix, then the published rows beside the mixes that have their error rate."""
    made = labs(bench, bench.names("models", ("lenet5", "lenet4")))
    here = next(iter(made.values()))
    networks = {name: lab.subject for name, lab in made.items()}
    notes = [note for lab in made.values() for note in lab.notes]
    mixes = [float(mix) for mix in bench.options.get("mixes", MIXES)]
    generators = _generators(here)
    wanted = bench.names("generators", tuple(generators))
    curves: dict[tuple[str, str], Curve] = {}
    for name, make in generators.items():
        if name not in wanted:
            continue
        try:
            cells = [_cell(bench, here, networks, name, mix, make) for mix in mixes]
        except HardcaseError as problem:
            notes.append(f"{name}: {problem.what}")
            continue
        for place, network in enumerate(networks):
            curves[name, network] = {m: c[place] for m, c in zip(mixes, cells, strict=True)}
    if bench.options.get("fill"):
        return Outcome("argus-curve", [])
    tables = [_measured(curves, [*dict.fromkeys(notes), *_notes(bench)]), _beside(curves)]
    return Outcome("argus-curve", tables)


class AllPartners(LatentModel):
    """A generator with the codes of as many training images as are asked for, however large these codes are."""

    @cached_property
    def codes(self) -> Library:
        images = self.train.sample(count=min(self.limit, len(self.train)), seed=0)
        with torch.no_grad():
            parts = [
                self.net.encode(from_bytes(images.x[rows].to(self.device)))  # type: ignore[operator]
                for rows in chunks(len(images), 1024)
            ]
        return Library(torch.cat(parts), images.y)


def _generators(here: Lab) -> dict[str, Callable[[], LatentModel]]:
    """Each is trained when it is first asked for, if it is."""
    joint = partial(
        quantised, here, kind="gradient", mix=JOINT, reduction="mean", latent_weight=1.0,
        image_weight=1.0,
    )  # fmt: skip
    made: dict[str, Callable[[], LatentModel]] = {
        "ours": partial(quantised, here),
        "coarse, no restarts": partial(coarse, here),
    }
    for stop in map(int, here.bench.options.get("stops", STOPS)):
        made[f"jointly by means, {stop} epochs"] = partial(joint, joint_epochs=stop)
    return {name: cache(partial(_whole, here, make)) for name, make in made.items()}


def _whole(here: Lab, make: Callable[[], LatentModel]) -> LatentModel:
    own = make()
    count = round(here.bench.size("partners", 150, 30_000) / 0.88)  # some are of the own class
    return AllPartners(own.net, own.space, own.card, own.train, own.device, count)


class PlacedOnce(Codebook):
    """Codes that start from the encoder's outputs and are never placed anew, whoever uses them."""

    def _place(self, which: Tensor, flat: Tensor, rng: torch.Generator) -> None:
        if not bool(self.started):
            super()._place(which, flat, rng)


def coarse(here: Lab) -> LatentModel:
    """A VQ-VAE with few codes and without restarts, as van den Oord et al. describe theirs."""
    bench = here.bench
    shape = here.train.x.shape
    with named_randomness(bench.seed, "coarse"):
        net = VqVae(shape[1], shape[-1], code=64, book=FEW_CODES)
        net.book = PlacedOnce(FEW_CODES, 64)
    net.to(bench.device)
    batch = bench.options.get("batch") or 64
    recipe = TrainingRecipe(epochs=bench.size("epochs", 3, 15), batch=int(batch), lr=1e-3)
    fit(
        net, here.train, reconstruct(here.train), recipe, seed=bench.seed, name="coarse vqvae",
        device=bench.device,
    )  # fmt: skip
    net.eval()
    healthy(net, here.train)
    card: dict[str, Any] = dict(
        measure(net, here.test, lambda x: here.subject(x).logits, device=bench.device)
    )
    card["configuration"] = {"family": "vqvae", "kind": "coarse"}
    return LatentModel(net, Grid(net), card, here.train, bench.device)


def _cell(
    bench: Bench,
    here: Lab,
    networks: Mapping[str, Subject],
    name: str,
    mix: float,
    make: Callable[[], LatentModel],
) -> list[Point]:
    """A point for each network, measured now unless it is kept."""

    def numbers() -> list[float]:
        own = make()
        bench.say(f"{name}, mix {mix:g}")
        return [n for point in _points(bench, here, networks, own, mix) for n in point.numbers()]

    flat = bench.cell(f"{name} {mix:g} {list(networks)}", numbers, but=PARTS)
    each = len(flat) // len(networks)
    return [Point.read(flat[rows]) for rows in chunks(len(flat), each)]


@torch.no_grad()
def _points(
    bench: Bench, here: Lab, networks: Mapping[str, Subject], own: LatentModel, mix: float
) -> list[Point]:
    """Original by original, with the same partners for every mix."""
    images = here.test.sample(count=bench.size("originals", 10, 20), seed=bench.seed)
    device = torch.device(bench.device)
    alone = {network: _Tally() for network in networks}
    for i, label in enumerate(images.y.tolist()):
        x = from_bytes(images.x[i : i + 1].to(device))
        y = images.y[i : i + 1].to(device)
        count = bench.size("partners", 150, 30_000)
        partner = _partners(own, label, count, bench.seed + i).to(device)
        again = to_grid(decode_mixture(own, x, y, partner[None, :1], 0.0))
        made = torch.cat(
            [
                to_grid(decode_mixture(own, x, y, partner[None, rows], mix))
                for rows in chunks(len(partner), 4096)
            ]
        )
        every = _likeness(made[:SHOWN], x, again)
        for network, subject in networks.items():
            parts = [subject(made[rows]).logits.argmax(1) for rows in chunks(len(made), 8192)]
            wrong = torch.cat(parts) != y
            alone[network].add(
                wrong, torch.cat(parts), every, _likeness(made[wrong][:SHOWN], x, again)
            )
    return [tally.point() for tally in alone.values()]


def _partners(own: LatentModel, label: int, count: int, seed: int) -> Int[Tensor, " p"]:
    """Codes of other classes, none twice; all of them where there are no more than asked for."""
    rows = own.codes.by_class[label]
    order = torch.randperm(len(rows), generator=stream(seed, "partners"))[:count]
    return rows[order]


Pairs = tuple[tuple[float, float], tuple[float, float]]
"""MSE to the original and to the reconstruction; SSIM to both."""


def _likeness(made: Tensor, x: Tensor, again: Tensor) -> Pairs:
    to = [one.expand_as(made) for one in (x, again)]
    first, second = (
        (float(how(made, to[0]).mean()), float(how(made, to[1]).mean())) for how in (mse, ssim)
    )
    return first, second


class _Tally:
    """The five measures of one network's originals so far."""

    def __init__(self) -> None:
        self.er: list[float] = []
        self.ld: list[float] = []
        self.likeness: list[list[float]] = []

    def add(self, wrong: Tensor, said: Tensor, every: Pairs, failing: Pairs) -> None:
        self.er.append(100 * float(wrong.double().mean()))
        self.ld.append(float(len(set(said[wrong].tolist()))))
        self.likeness.append(
            [value for both in zip(every, failing) for part in both for value in part]
        )

    def point(self) -> Point:
        rate = finite_mean(torch.tensor(self.er, dtype=torch.float64), unit="originals")
        table: Float[Tensor, "n w"] = torch.tensor(self.likeness, dtype=torch.float64)
        means = table.nanmean(0).tolist()
        ways = len(WAYS)
        success = 100 * sum(value > 0 for value in self.er) / len(self.er)
        diversity = sum(self.ld) / len(self.ld)
        return Point(
            rate.value, rate.low, rate.high, diversity, success, tuple(means[:ways]),
            tuple(means[ways:]),
        )  # fmt: skip


def _notes(bench: Bench) -> list[str]:
    return [
        f"{bench.size('originals', 10, 20)} originals, none set aside, each mixed with {bench.size('partners', 150, 30_000)} codes "
        "of other classes or as many as there are; ER with 95 % intervals over originals; one training of each generator",
        f"coarse: {FEW_CODES} codes, placed once; jointly: both adversarial losses and the others by means, weight 1, trained for "
        f"mix {JOINT:g} and stopped after so many epochs",
        f"MSE of the first {SHOWN} images of each original and of its first {SHOWN} failing ones, SSIM of the same; to the "
        "original, and to what the generator makes of it without a partner",
    ]


def _measured(curves: Mapping[tuple[str, str], Curve], notes: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for (generator, network), curve in curves.items():
        for mix, point in curve.items():
            error = f"{point.er:.2f} [{point.low:.2f}, {point.high:.2f}]"
            shown = [f"{m:.4f}, {s:.3f}" for m, s in zip(point.mse, point.ssim, strict=True)]
            head = f"{generator}; {network}; mix {mix:g}"
            rows.append([head, error, f"{point.ld:.2f}", f"{point.sr:.0f}", *shown])
    columns = ["setting", "ER, %", "LD", "SR, %", *(f"MSE, SSIM: {way}" for way in WAYS)]
    return Table("ARGUS along the mix", columns, rows, notes)


def at_rate(curve: Curve, rate: float) -> tuple[float, Point] | None:
    """The mix at which a curve first has this error rate, between two measured ones; None outside of them."""
    for (one, first), (two, second) in pairwise(sorted(curve.items())):
        if min(first.er, second.er) <= rate <= max(first.er, second.er) and first.er != second.er:
            share = (rate - first.er) / (second.er - first.er)
            ends = zip(first.numbers(), second.numbers(), strict=True)
            numbers = [(1 - share) * a + share * b for a, b in ends]
            return (1 - share) * one + share * two, Point.read(numbers)
    return None


def _beside(curves: Mapping[tuple[str, str], Curve]) -> Table:
    """Each published row beside the mix that has its error rate, and which of its other numbers are met there."""
    rows: list[list[Cell]] = []
    for (generator, network), curve in curves.items():
        for (name, method), paper in PAPER.items():
            if name != published_name(network) or not method.startswith("ARGUS"):
                continue
            head = f"{method}, {name}; {generator}"
            told = f"{paper.ld:.1f}, {paper.sr:.0f} %, {paper.mse:.4f}, {paper.ssim:.3f}"
            found = at_rate(curve, paper.er)
            if found is None:
                rows.append([head, f"{paper.er:.2f}", "outside the sweep", told, "", "", ""])
                continue
            mix, point = found
            near = [i for i in range(len(WAYS)) if abs(point.mse[i] / paper.mse - 1) <= NEAR["MSE"]]
            like = [i for i in range(len(WAYS)) if abs(point.ssim[i] - paper.ssim) <= NEAR["SSIM"]]
            met = ["LD"] * (abs(point.ld - paper.ld) <= NEAR["LD"])
            met += ["SR"] * (abs(point.sr - paper.sr) <= NEAR["SR"])
            met += [f"MSE ({WAYS[i]})" for i in near] + [f"SSIM ({WAYS[i]})" for i in like]
            whole = len(met) >= 4 and bool(near) and bool(like)
            ours = (
                f"{point.ld:.1f}, {point.sr:.0f} %, {_range(point.mse, 4)}, {_range(point.ssim, 3)}"
            )
            said = "all five" if whole else "ER, " + ", ".join(met) if met else "ER alone"
            rows.append([head, f"{paper.er:.2f}", f"{mix:.3f}", told, ours, said, "yes" if whole else "no"])  # fmt: skip
    columns = [
        "published row; generator", "ER, %", "mix with this ER", "published LD, SR, MSE, SSIM",
        "here LD, SR, MSE, SSIM (least to greatest of four ways)", "met", "whole row met",
    ]  # fmt: skip
    notes = [
        f"met: LD within {NEAR['LD']} labels, SR within {NEAR['SR']:g} points, MSE within {100 * NEAR['MSE']:.0f} %, SSIM within "
        f"{NEAR['SSIM']}, between the two measured mixes that enclose the published error rate"
    ]
    return Table("Published rows beside the mix that has their error rate", columns, rows, notes)


def _range(values: Sequence[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
