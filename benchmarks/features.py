"""Feature perturbation: how much of a search's time its generator and its subject take, all seeds in one batch.

The generator is the small GAN of mnist5k; where it is not in the cache it is trained first, which takes minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from time import perf_counter

import torch

from benchmarks.figures import Figure, seconds
from benchmarks.whitebox import Counted
from hardcase import data, generators
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, overlay, parse_keep
from hardcase.generators.gan import Gan
from hardcase.generators.quality import fresh
from hardcase.methods.generative import feature_perturbation
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.spaces.activations import Activations, early_places
from hardcase.tensors import pad_rows, to_grid
from hardcase.types import Budget, Images, Method, Model

COMMAND = "python -m benchmarks features"
SEEDS = 256


def figures() -> Iterator[Figure]:
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    subject = Subject(zoo.trained_classifier("lenet5", train, test)[0], name="lenet5")
    net, _ = generators.trained_generator("gan", train, test, judge=lambda x: subject(x).logits)
    assert isinstance(net, Gan)
    net.requires_grad_(False)
    space = Activations(
        net, early_places(net, classes=len(test.classes)), classes=len(test.classes)
    )
    seeds = fresh(net, test.classes, SEEDS, accept=lambda x, y: subject(x).logits.argmax(1) == y)
    yield from share(subject, space, feature_perturbation(space=space), seeds)


def share(subject: Subject, space: Activations, method: Method, seeds: Images) -> Iterator[Figure]:
    """The time of the generator and the subject on the same batches, forward and backward, over that of the whole search."""
    shares, rates = [], []
    for _ in range(5):
        counted = Counted(subject)
        begun = perf_counter()
        failing = search(counted, method, seeds)
        whole = perf_counter() - begun
        shares.append(seconds(lambda c=counted: bare(c.calls, subject, space, seeds)) / whole)
        rates.append(failing / whole)
    against = f"generator and subject, bare, on the same batches of up to {SEEDS}"
    yield _figure(
        "feature-perturbation-model-share",
        statistics.median(shares),
        "of the search's time",
        against,
    )
    yield _figure(
        "feature-perturbation-seeds-per-second",
        statistics.median(rates),
        "failing seeds a second",
        "LeNet-5, mnist5k",
    )


def search(subject: Model, method: Method, seeds: Images) -> int:
    """How many seeds fail."""
    campaign = Campaign(subject=subject, method=method, keep=parse_keep(method.keep), batch=SEEDS)
    shard = run_shard(campaign, seeds, limits(overlay(Budget(), method.budget), len(seeds)))
    return int((shard.counts.failing > 0).sum())


def bare(
    calls: Sequence[tuple[int, bool]], subject: Subject, space: Activations, seeds: Images
) -> None:
    """What the networks alone take: the walk with something added at each place, the subject, and the gradient by it.

    On whole tiles of rows, as every call is made so that no answer depends on how rows were cut into calls.
    """
    for rows, graded in calls:
        latent, label = pad_rows(seeds.context["latent"][:rows]), pad_rows(seeds.y[:rows])
        moved = {
            place.number: torch.zeros(len(label), *place.shape, requires_grad=graded)
            for place in space.places
        }
        with torch.set_grad_enabled(graded):
            image = space.generator.walk(
                latent, label, lambda number, h, m=moved: h + m[number] if number in m else h
            )
            total = subject(to_grid(image)[:rows]).logits.sum()
            if graded:
                torch.autograd.grad(total, list(moved.values()))


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)
