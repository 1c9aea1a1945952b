"""White-box methods: adversarial inputs a minute, what a campaign adds to its networks, and attacks against other libraries.

ADAPT's own code, one seed at a time on two cores with LeNet-5, made 490 adversarial inputs a minute with its strategy, 290 with its
DeepXplore and 210 with its DLFuzz, and covered 0.71 of the neurons (NC, 0.5) with ten seeds together. torchattacks and foolbox are
compared where they can be imported: ``pip install --no-deps --target PEERS torchattacks foolbox adv-lib eagerpy gitpython gitdb
smmap requests urllib3`` and ``HARDCASE_PEERS=PEERS``.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter, process_time
from unittest import mock

import torch
from torch import Tensor

from benchmarks.figures import Figure, seconds
from hardcase import data
from hardcase.campaign import evaluator
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, overlay, parse_keep
from hardcase.errors import HardcaseError
from hardcase.methods.deepxplore import deepxplore
from hardcase.methods.dlfuzz import adapt, dlfuzz
from hardcase.methods.neurons import Profiles, adapt_neurons
from hardcase.methods.pgd import cw, fgsm, pgd
from hardcase.models import zoo
from hardcase.models.health import usable
from hardcase.models.subject import Subject
from hardcase.registry import resolve
from hardcase.spaces.pixel import Unclipped
from hardcase.tensors import from_bytes
from hardcase.types import Answer, Budget, Images, Method, Probe
from hardcase_studies.peers import library

COMMAND = "python -m benchmarks whitebox"
THEIRS = {"adapt": 490, "deepxplore": 290, "dlfuzz": 210}


PARTS = ("per-minute", "shares", "attacks")
"""What can be measured by itself: ``--only shares,attacks``."""


def figures(only: Sequence[str] = PARTS) -> Iterator[Figure]:
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    nets = [
        Subject(zoo.trained_classifier(f"lenet{i}", train, test)[0], name=f"lenet{i}")
        for i in (5, 1, 4)
    ]
    subject, peers = nets[0], tuple(nets[1:])
    profile = Profiles(from_bytes(test.x[:1]), lambda: train)
    seeds = usable(subject, test)
    if "per-minute" in only:
        yield from per_minute(subject, profile, seeds)
        units = adapt_neurons(profile, subject)
        yield from union_at_equal_tests(subject, profile, seeds.first(10), units)
    shares = (
        ("deepxplore", deepxplore(subject=subject, peers=peers, profile=profile), peers),
        ("dlfuzz", dlfuzz(subject=subject, profile=profile), ()),
        ("adapt", adapt(subject=subject, profile=profile, gradients=60), ()),
    )
    for name, method, others in shares if "shares" in only else ():
        yield from share(name, subject, others, method, seeds.first(256))
    if "attacks" in only and (theirs := other_libraries()) is not None:
        yield from attacks(subject, seeds.first(512), theirs)


def per_minute(subject: Subject, profile: Profiles, seeds: Images) -> Iterator[Figure]:
    """Ten seeds for a minute as ADAPT's tutorial has it, and 200 at once as a campaign would."""
    units = adapt_neurons(profile, subject)
    recipes: dict[str, Callable[..., Method]] = {
        "adapt": adapt,
        "deepxplore": resolve("method", "deepxplore@adapt"),
        "dlfuzz": resolve("method", "dlfuzz@adapt"),
    }
    for name, recipe in recipes.items():
        method = replace(recipe(subject=subject, profile=profile, gradients=10**6), keep="1")
        against = f"{THEIRS[name]} of ADAPT's own code"
        rate, _ = _minute(subject, method, seeds.sample(count=200, seed=0), units, limit=20.0)
        yield _figure(f"{name}-adversarial-per-minute", rate, "a minute, 200 seeds", against)
        rate, covered = _minute(subject, method, seeds.first(10), units)
        yield _figure(
            f"{name}-adversarial-per-minute-ten-seeds", rate, "a minute, ten seeds", against
        )
        if name == "adapt":
            yield _figure(
                "adapt-union-coverage", covered, "NC(0.5) of ten seeds", "0.71 of ADAPT's own code"
            )


def union_at_equal_tests(
    subject: Subject, profile: Profiles, seeds: Images, units: object
) -> Iterator[Figure]:
    """What ten seeds cover together with the same number of queries: ours, and ADAPT's own loop on the same network with images
    that may leave [0, 1] and are not rounded, as its code has them.
    """
    for name, recipe, whole in (
        ("adapt", adapt, True),
        ("adapt-paper", resolve("method", "adapt@paper"), False),
    ):
        method = replace(recipe(subject=subject, profile=profile, gradients=300), keep="1")
        if not whole:
            method = replace(method, space=Unclipped())
        watched = _Union(units)
        campaign = Campaign(
            subject=subject, method=method, keep=parse_keep("1"), criteria=(watched,)
        )
        grid = evaluator.to_grid if whole else lambda x: x
        with mock.patch.object(evaluator, "to_grid", grid):
            run_shard(
                campaign,
                seeds,
                limits(method.budget, len(seeds)),
                guides=(*method.guides, watched),
            )
        yield _figure(
            f"{name}-union-coverage-equal-tests",
            float(watched.shared[0].float().mean()),
            "NC(0.5) of ten seeds, 300 gradients each",
            "8-bit images" if whole else "neither clipped nor rounded, as ADAPT's own code",
        )


def _minute(
    subject: Subject, method: Method, seeds: Images, units: object, limit: float = 60.0
) -> tuple[float, float]:
    watched = _Union(units)
    campaign = Campaign(subject=subject, method=method, keep=parse_keep("1"), criteria=(watched,))
    begun = perf_counter()
    shard = run_shard(
        campaign, seeds, limits(method.budget, len(seeds)), guides=(*method.guides, watched),
        stop=lambda counts: perf_counter() - begun > limit,
    )  # fmt: skip
    return int(shard.counts.failing.sum()) / (perf_counter() - begun) * 60, float(
        watched.shared[0].float().mean()
    )


class _Union:
    """Notes which units any look covered; forks share the note."""

    name = "union"

    def __init__(self, units: object, shared: list[Tensor] | None = None) -> None:
        self.units, self.shared = (
            units,
            shared if shared is not None else [torch.zeros(units.count, dtype=torch.bool)],
        )  # type: ignore[attr-defined]

    taps = property(lambda self: self.units.taps)

    def choose(self, rows: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        return {}

    def gain(self, probe: Probe) -> Tensor:
        return torch.zeros(len(probe.logits))

    def update(self, probe: Probe) -> None:
        self.shared[0] |= self.units.active(probe).any(0)  # type: ignore[attr-defined]

    def fork(self) -> _Union:
        return _Union(self.units, self.shared)

    def delta(self) -> dict[str, Tensor]:
        return {}

    def merge(self, deltas: object) -> None:
        pass


class Counted:
    """A model that notes how many rows it was asked, and whether gradients were wanted."""

    def __init__(self, model: Subject) -> None:
        self.model, self.calls = model, list[tuple[int, bool]]()
        self.name, self.hash, self.offers, self.device = (
            model.name,
            model.hash,
            model.offers,
            model.device,
        )

    def __call__(self, x: Tensor, taps: object = None) -> Answer:
        self.calls.append((len(x), x.requires_grad))
        return self.model(x, taps)  # type: ignore[arg-type]


def share(
    name: str, subject: Subject, peers: tuple[Subject, ...], method: Method, seeds: Images
) -> Iterator[Figure]:
    """How much of a campaign's processor time its networks take, forward and backward, with one thread, and tests found a
    second of it: what else runs on the machine does not count.
    """
    shares, rates = [], []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(3):
        counted = Counted(subject)
        campaign = Campaign(
            subject=counted, method=method, peers=peers, keep=parse_keep(method.keep), batch=512
        )
        begun = process_time()
        shard = run_shard(
            campaign,
            seeds,
            limits(overlay(Budget(), method.budget), len(seeds)),
            guides=method.guides,
        )
        whole = process_time() - begun
        begun = process_time()
        _bare(counted.calls, (subject, *peers), seeds)
        shares.append((process_time() - begun) / whole)
        rates.append(int(shard.counts.failing.sum()) / whole)
    torch.set_num_threads(threads)
    yield _figure(
        f"{name}-model-share",
        statistics.median(shares),
        "of the campaign's processor time, one thread",
        "forward and backward, bare",
    )
    yield _figure(
        f"{name}-tests-per-second",
        statistics.median(rates),
        "failing candidates a second, one thread",
        "equal settings",
    )


def _bare(calls: list[tuple[int, bool]], models: tuple[Subject, ...], seeds: Images) -> None:
    x = from_bytes(seeds.x).repeat(4, 1, 1, 1)
    for rows, graded in calls:
        with torch.set_grad_enabled(graded):
            images = x[:rows].clone().requires_grad_(graded)
            total = torch.stack([model(images).logits.sum() for model in models]).sum()
            if graded:
                torch.autograd.grad(total, images)


def other_libraries() -> tuple[object, object] | None:
    sys.path.append(os.environ.get("HARDCASE_PEERS", ""))
    try:
        return library("torchattacks"), library("foolbox")
    except HardcaseError as error:
        print(f"not compared with other libraries: {error}", file=sys.stderr)
        return None


def attacks(subject: Subject, seeds: Images, theirs: tuple[object, object]) -> Iterator[Figure]:
    x, y = from_bytes(seeds.x), seeds.y
    yield from _steps(subject, seeds, x, y, theirs)
    yield from _smallest(subject, seeds, x, y, theirs)


def _steps(
    subject: Subject, seeds: Images, x: Tensor, y: Tensor, theirs: tuple[object, object]
) -> Iterator[Figure]:
    """PGD and FGSM: the same steps, and the time to the same success.

    Ours and foolbox's say which images fail, for which the network is asked once more after the last
    step; torchattacks' does not: it is compared as it is, and with that pass added to its time.
    """
    torchattacks, foolbox = theirs
    model = foolbox.PyTorchModel(subject.net, bounds=(0, 1))  # type: ignore[attr-defined]
    adv_lib: Callable[..., Tensor] = library("adv_lib.attacks").pgd_linf
    rivals: dict[str, dict[str, Callable[[], Tensor]]] = {
        "pgd": {
            "torchattacks": lambda: torchattacks.PGD(subject.net, eps=0.3, alpha=0.01875, steps=40)(
                x, y
            ),  # type: ignore[attr-defined]
            "foolbox": lambda: foolbox.attacks.LinfPGD(abs_stepsize=0.01875, steps=40)(
                model, x, y, epsilons=0.3
            )[1],  # type: ignore[attr-defined]
            "adv-lib": lambda: adv_lib(
                subject.net, x, y, ε=0.3, steps=40, absolute_step_size=0.01875
            ),
        },
        "fgsm": {
            "torchattacks": lambda: torchattacks.FGSM(subject.net, eps=0.3)(x, y),  # type: ignore[attr-defined]
            "foolbox": lambda: foolbox.attacks.FGSM()(model, x, y, epsilons=0.3)[1],  # type: ignore[attr-defined]
        },
    }
    for name, method in (("pgd", pgd()), ("fgsm", fgsm())):
        for rival, attack in rivals[name].items():
            every, first, other, told, hits = [], [], [], [], 0.0
            for _ in range(5):
                begun = perf_counter()
                found = attack()
                other.append(perf_counter() - begun)
                hits = float((subject(found.clamp(0, 1)).logits.argmax(1) != y).float().mean())
                told.append(perf_counter() - begun)
                every.append(
                    seconds(lambda m=method: _attack(subject, replace(m, until="budget"), seeds))
                )
                first.append(seconds(lambda m=method: _attack(subject, m, seeds)))
            pace = statistics.median(other) / statistics.median(every)
            yield _figure(
                f"{name}-step-rate-{rival}",
                pace,
                "of theirs",
                f"{rival}, every seed to the last step",
            )
            if rival == "torchattacks":
                yield _figure(
                    f"{name}-step-rate-{rival}-told",
                    statistics.median(told) / statistics.median(every),
                    "of theirs",
                    f"{rival}, every seed to the last step and a pass that says which fail",
                )
            if name == "pgd":
                ours = _attack(subject, method, seeds)[0]
                text = f"{rival}: success {hits:.1%}, ours {ours:.1%}"
                yield _figure(
                    f"{name}-speedup-{rival}",
                    statistics.median(other) / statistics.median(first),
                    "x",
                    text,
                )


def _smallest(
    subject: Subject, seeds: Images, x: Tensor, y: Tensor, theirs: tuple[object, object]
) -> Iterator[Figure]:
    """C&W: success, and the change where both succeed."""
    torchattacks, foolbox = theirs
    success, ours = _attack(subject, cw(), seeds)
    yield _figure("cw-success", success, "of seeds", "ours")
    model = foolbox.PyTorchModel(subject.net, bounds=(0, 1))  # type: ignore[attr-defined]
    found = {
        "torchattacks": torchattacks.CW(subject.net)(x, y),  # type: ignore[attr-defined]
        "foolbox": foolbox.attacks.L2CarliniWagnerAttack(binary_search_steps=6, steps=60)(
            model, x, y, epsilons=None
        )[1],  # type: ignore[attr-defined]
    }
    for rival, images in found.items():
        failing = (subject(images).logits.argmax(1) != y) & (images.flatten(1).amax(1) > 0)
        both = failing & ours.isfinite()
        length = (images - x).flatten(1).norm(dim=1)
        text = f"{rival}: success {float(failing.float().mean()):.1%}"
        yield _figure(
            f"cw-length-{rival}", float((ours[both] / length[both]).median()), "of theirs", text
        )


def _attack(subject: Subject, method: Method, seeds: Images) -> tuple[float, Tensor]:
    """The share of seeds that fail, and the L2 change of each (infinite where none was found)."""
    campaign = Campaign(subject=subject, method=method, keep=parse_keep("best"), batch=512)
    found = run_shard(campaign, seeds, limits(method.budget, len(seeds))).findings
    change = (from_bytes(found.x) - from_bytes(seeds.x[found.seed])).flatten(1).norm(dim=1)
    length = torch.full((len(seeds),), torch.inf)
    length[found.seed] = change
    return len(found) / len(seeds), length


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)
