"""Worlds for studies of witnesses: in each, subject, witnesses, judges and scorers of one training.

Nobody scores what it searched: witnesses learn from the training images of even content hash, the three scorers from the
others, and the judges' networks are their own. One judge is the usual one, the other was never taught anything of bending.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from multiprocessing import get_context

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import interpolate

from hardcase.campaign.in_memory import on_cpu, search_campaign
from hardcase.campaign.record import Campaign
from hardcase.data.sources import load
from hardcase.judges import panel
from hardcase.judges.judge import TrainedJudge
from hardcase.models.fetching import is_fetched, load as load_fetched
from hardcase.models.subject import Subject
from hardcase.models.witnesses import (
    NETWORK,
    SEEDS,
    SURROGATES,
    augmentation_for,
    default_witnesses,
)
from hardcase.objectives import with_witnesses
from hardcase.oracles import MARGIN
from hardcase.spaces.latent import latent
from hardcase.statistics import Interval, newcombe_paired, wilson_interval
from hardcase.tensors import chunks, digest, fingerprints, from_bytes
from hardcase.types import KINDS, Budget, Findings, ImagePairs, Images, Judge, Method, Model, Space
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab, read_rightly
from hardcase_study.agreement import crossed_interval

JUDGES: Mapping[str, tuple[str, ...]] = {"accepted": (), "untaught": ("bending",)}
"""What each judge is not taught: the second was never told that bending keeps a label, nor that it loses one."""
ENLARGED = 64
"""Pixels of a side that the network of LPIPS has enough of."""
LPIPS = "lpips-alexnet"
SMALLEST = 32
"""The network that says how far apart two images look, and the least side it can see."""
AT_ONCE = 2**24
"""Numbers in one batch of images."""
APART = 100
"""Between the random seeds of two trainings."""
SCORERS = ("bent", "bent", "not bent")
"""How the three networks that only score were taught."""


@dataclass(frozen=True, eq=False)
class WitnessWorld:
    """The networks of one training.

    Args:
        subject: The network under test.
        witnesses: Take part in the search.
        scorers: Networks that no search asks, for digits from images that no witness learned from.
        judges: For digits the usual judge (``accepted``) and one whose training leaves bending out (``untaught``).
        codes: The codes of a VAE, where one is searched.
        surrogates: Networks whose gradients stand for those of a subject that gives none.
        precision: Arithmetic of searches on a GPU; findings count in the subject's own.
    """

    subject: Model
    witnesses: tuple[Model, ...]
    scorers: tuple[Model, ...]
    judges: Mapping[str, TrainedJudge] = field(default_factory=dict)
    codes: Space | None = None
    precision: str = "strict"
    surrogates: tuple[Model, ...] = ()

    @property
    def networks(self) -> tuple[Model, ...]:
        """Those that see images: subject, witnesses and scorers."""
        return (self.subject, *self.witnesses, *self.scorers)

    @property
    def hash(self) -> str:
        """Of all its networks."""
        judges = [str(judge.card["weights"]) for judge in self.judges.values()]
        networks = (*self.networks, *self.surrogates)
        return digest([*(one.hash for one in networks), *judges, self.precision])

    @property
    def latent(self) -> Space:
        """The codes of the VAE of this world, which must have one."""
        assert self.codes is not None
        return self.codes


def world(bench: Bench, number: int, *, codes: bool = True) -> WitnessWorld:
    """The networks of training `number`, trained if they are not in the cache; training 0 is what ``hardcase run`` uses."""
    lab = _lab(bench)
    train, test = lab.train, lab.test
    epochs = bench.options.get("epochs")
    subject = _subject(lab, number)
    odd = half(train, "test")
    first = APART * number + max(SEEDS) + 1
    bent = augmentation_for(train)
    scorers = tuple(
        lab.network(
            NETWORK,
            train=odd,
            seed=first + i,
            augment=bent if taught == "bent" else None,
            role=f"scorer {i + 1}, {taught}",
        )[0]
        for i, taught in enumerate(SCORERS)
    )
    seeds = tuple(APART * number + seed for seed in SEEDS)
    blind = any("blackbox" in name for name in bench.names("searches", ["natural-blackbox"]))
    config = bench.options.get("judge_training", panel.USUAL)
    return WitnessWorld(
        subject,
        default_witnesses(train, test, seeds=seeds, epochs=epochs, device=bench.device),
        scorers,
        {
            name: panel.trained(
                train,
                test,
                seed=number,
                config=replace(config, held_out_families=families),
                device=bench.device,
            )
            for name, families in JUDGES.items()
        },
        _codes(lab, subject) if codes else None,
        surrogates=tuple(
            lab.network(
                name, seed=APART * number + int(seed or 0), role=f"surrogate {name} {seed}"
            )[0]
            for name, _, seed in (one.partition("?seed=") for one in (SURROGATES if blind else ()))
        ),
    )


def _lab(bench: Bench) -> Lab:
    """All images of the data, however few the options of other studies ask for."""
    train, test = (load(bench.data, split=split) for split in ("train", "test"))
    return Lab(bench, splits=(train, test))


def _subject(lab: Lab, number: int) -> Subject:
    return lab.network(str(lab.bench.options.get("model", NETWORK)), seed=number)[0]


def _codes(lab: Lab, subject: Subject) -> Space:
    """The same VAE in all worlds, judged by the subject of the first."""
    here = Lab(lab.bench, splits=(lab.train, lab.test), subject=subject)
    return latent(here.trained("vae", epochs=lab.bench.options.get("vae_epochs"))[0])


def worlds(bench: Bench, each: str = "") -> list[WitnessWorld]:
    """``--set trainings=N`` worlds; on a GPU they are made at the same time, each in a process of its own."""
    count = bench.size("trainings", 1, 5)
    if bench.device != "cpu" and count > 1:
        bench.say(f"{count} worlds at the same time")
        lab = _lab(bench)
        _codes(lab, _subject(lab, 0))  # all worlds share one VAE
        most = max(1, min(count, (os.cpu_count() or 2) // 2))
        with ProcessPoolExecutor(most, mp_context=get_context("spawn")) as pool:
            alone = replace(bench, say=_told)
            for done in [pool.submit(_alone, alone, i, each) for i in range(count)]:
                done.result()
    made = []
    for number in range(count):
        bench.say(f"world {number + 1} of {count}")
        made.append(world(bench, number))
    return made


def _told(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _alone(bench: Bench, number: int, each: str) -> None:
    torch.set_num_threads(2)
    if not each:
        world(bench, number)
        return
    module, _, function = each.partition(":")  # a study that was loaded from a file has no name
    getattr(import_module(module), function)(bench, number)


def half(images: Images, which: str) -> Images:
    """The ``development`` half of images (even content hash), the ``test`` half, or ``all``."""
    if which == "all":
        return images
    rest = {"development": 0, "test": 1}[which]
    return images.take((fingerprints(images.x) % 2 == rest).nonzero().squeeze(1))


def shape_of(images: Images) -> tuple[int, int, int]:
    """Channels, height and width."""
    channels, height, width = images.x.shape[1:]
    return int(channels), int(height), int(width)


def rows_at_once(images: Images, model: Model) -> int:
    """Images that a network is given in one call."""
    most = 8192 if model.device.type == "cuda" else 256
    return max(16, min(most, AT_ONCE // images.x[0].numel()))


# One outcome per seed.


@dataclass(frozen=True, eq=False)
class SeedOutcomes:
    """What became of every seed of a search, one row each; NaN where a seed was not attempted.

    Args:
        columns: 0 or 1 for rates, numbers for sizes; see `scored`.
        found: The finding that is kept of each seed; `seed` is its row.
        seeds: The images it began with.
    """

    columns: Mapping[str, Float[Tensor, " n"]]
    found: Findings
    seeds: Images = field(repr=False)

    def share(self, hit: Bool[Tensor, " t"]) -> Float[Tensor, " n"]:
        """A column: 1 for attempted seeds whose finding is hit, 0 for the others."""
        column = torch.where(self.columns["failing"].isfinite(), 0.0, torch.nan).double()
        column[self.found.seed] = hit.double()
        return column


def searched(
    here: WitnessWorld,
    method: Method,
    seeds: Images,
    *,
    subject: Model | None = None,
    witnesses: Sequence[Model] = (),
    peers: Sequence[Model] = (),
    margin: float = MARGIN,
    budget: Budget | None = None,
) -> SeedOutcomes:
    """The best finding of each seed that the subject classifies correctly, scored by everybody who took no part."""
    one = subject or here.subject
    rows = read_rightly(one, seeds).nonzero().squeeze(1)
    campaign = Campaign(
        subject=one,
        method=with_witnesses(method, margin) if witnesses else method,
        witnesses=tuple(witnesses),
        peers=tuple(peers),
        batch=rows_at_once(seeds, one),
        margin=margin,
        precision=here.precision,
    )
    shard = 2048 if one.device.type == "cuda" else 64
    done = search_campaign(campaign, seeds.take(rows), budget, shard=shard)
    left = (done.findings.kind == KINDS.index("label")).nonzero().squeeze(1)
    found = done.findings.take(left)
    found = replace(found, seed=rows[found.seed])
    networks = 1 + len(witnesses) + len(peers)
    passes = networks * (done.queries + done.gradients).double()
    return scored(here, found, seeds, rows[done.attempted], passes[done.attempted])


def scored(
    here: WitnessWorld,
    found: Findings,
    seeds: Images,
    attempted: Int[Tensor, " a"],
    passes: Float[Tensor, " a"],
) -> SeedOutcomes:
    """One outcome per seed: the nearest witnessed finding, else the nearest, and what is said of it."""
    found = on_cpu(_one_each(found))
    columns = {"passes": _spread(attempted, passes, len(seeds))}
    kept = [~errs(one, found.x, found.expected) for one in here.scorers]
    keeps = torch.stack(kept) if kept else torch.zeros(0, len(found))
    right = keeps.sum(0) if kept else torch.full((len(found),), torch.nan)
    change = from_bytes(found.x) - from_bytes(seeds.x[found.seed])
    values: dict[str, Tensor] = {
        "failing": torch.ones(len(found)),
        "witnessed": found.witnessed,
        **{name: are_accepted(judge, found, seeds) for name, judge in here.judges.items()},
        "most": torch.where(right.isnan(), right, 2 * right > len(here.scorers)),
        "all": torch.where(right.isnan(), right, right == len(here.scorers)),
        **{f"scorer {i}": kept for i, kept in enumerate(keeps, 1)},
    }
    for name, value in values.items():
        columns[name] = _spread(attempted, torch.zeros(len(attempted)), len(seeds))
        columns[name][found.seed] = value.double()
    sizes = {
        "l2": change.flatten(1).norm(dim=1),
        "lpips": looks_apart(found.x, seeds.x[found.seed], here.subject.device),
        "size": found.distance,
    }
    for name, value in sizes.items():
        columns[name] = torch.full((len(seeds),), torch.nan, dtype=torch.float64)
        columns[name][found.seed] = value.double()
    return SeedOutcomes(columns, found, seeds)


@torch.no_grad()
def looks_apart(
    x: UInt8[Tensor, "t c h w"], seeds: UInt8[Tensor, "t c h w"], device: torch.device
) -> Float[Tensor, " t"]:
    """LPIPS of images to their seeds, small ones enlarged; NaN where its network was not fetched."""
    if not len(x) or not is_fetched(LPIPS):
        return torch.full((len(x),), torch.nan)
    net = load_fetched(LPIPS)[0].to(device)

    def shown(images: Tensor) -> Tensor:
        large = from_bytes(images.to(device))
        if min(large.shape[2:]) < SMALLEST:
            large = interpolate(large, size=(ENLARGED, ENLARGED), mode="bilinear")
        return large.expand(-1, 3, -1, -1)

    parts = [
        torch.as_tensor(net(shown(x[rows]), shown(seeds[rows]))).flatten().cpu()
        for rows in chunks(len(x), 64)
    ]
    return torch.cat(parts)


def are_accepted(judge: Judge, found: Findings, seeds: Images) -> Bool[Tensor, " t"]:
    """Which findings a judge accepts as keeping their label."""
    pairs = ImagePairs(found.x, seeds.x[found.seed], found.expected)
    return torch.tensor([word == "kept" for word in judge(pairs).verdict], dtype=torch.bool)


def accepted_unchanged(judge: Judge, seeds: Images) -> float:
    """The share of unmodified images that a judge accepts."""
    words = judge(ImagePairs(seeds.x, seeds.x, seeds.y.long())).verdict
    return sum(word == "kept" for word in words) / len(seeds)


def errs(model: Model, x: Tensor, expected: Int[Tensor, " t"]) -> Bool[Tensor, " t"]:
    """Which 8-bit images a network does not read as expected."""
    if not len(x):
        return torch.zeros(0, dtype=torch.bool)
    with torch.no_grad():
        said = [
            model(from_bytes(x[cut].to(model.device))).logits.argmax(1).cpu()
            for cut in chunks(len(x), AT_ONCE // max(x[0].numel(), 1) + 1)
        ]
    return torch.cat(said) != expected


def _one_each(found: Findings) -> Findings:
    order = found.distance.argsort(stable=True)
    order = order[(~found.witnessed[order]).long().argsort(stable=True)]
    first = dict[int, int]()
    for row in order.tolist():
        first.setdefault(int(found.seed[row]), row)
    return found.take(torch.tensor(sorted(first.values()), dtype=torch.int64))


def _spread(rows: Tensor, values: Tensor, count: int) -> Float[Tensor, " n"]:
    column = torch.full((count,), torch.nan, dtype=torch.float64)
    column[rows] = values.double()
    return column


# Over trainings: rates with intervals that resample seeds and trainings.


def together(parts: Sequence[SeedOutcomes], name: str) -> Float[Tensor, "n t"]:
    """One column of every training side by side; the seeds are the same."""
    return torch.stack([part.columns[name] for part in parts], 1)


def rate(table: Float[Tensor, "n t"]) -> Interval:
    """A share with its interval: crossed over seeds and trainings, Wilson's where there is one training."""
    if table.shape[1] > 1:
        return crossed_interval(table)
    known = table[table.isfinite()]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = wilson_interval(int(known.sum()), len(known))
    return Interval(float(known.mean()), low, high)


def gain(first: Float[Tensor, "n t"], second: Float[Tensor, "n t"]) -> Interval:
    """The difference of two rates, seed by seed: first minus second."""
    if first.shape[1] > 1:
        return crossed_interval(first - second)
    both = (first.isfinite() & second.isfinite()).squeeze(1)
    return newcombe_paired(first[both, 0] > 0, second[both, 0] > 0)


def median(table: Float[Tensor, "n t"]) -> float:
    known = table[table.isfinite()]
    return float(known.median()) if len(known) else float("nan")


def percent(found: Interval) -> str:
    """A share as a table prints it."""
    return found.text(".1%")


def share_of(parts: Sequence[SeedOutcomes], name: str) -> str:
    """The rate of one column over all trainings as a table prints it."""
    return percent(rate(together(parts, name)))


def points(found: Interval) -> str:
    """A difference of shares as a table prints it."""
    return found.scaled(100).text("+.1f")
