"""Training a panel: density, members, what it remembers, and the rules that an exam gives it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import turn
from hardcase.judges.judge import split_rows
from hardcase.judges.networks import PANEL, PHOTO_PANEL, Density, MemberConfig, Panel
from hardcase.judges.rules import DecisionRule, rules_from_exam
from hardcase.judges.training_data import Shares, exam_of_digits, training_batch
from hardcase.randomness import balanced_order, stream
from hardcase.tensors import chunks, fingerprints, from_bytes, per_row, steady, to_bytes
from hardcase.training.augmentation import GENTLE, bend
from hardcase.training.loop import (
    AHEAD,
    UNSTATED,
    Goal,
    History,
    TrainingProgress,
    TrainingRecipe,
    fit,
)
from hardcase.types import Images

__all__ = [
    "THOROUGH",
    "USUAL",
    "Tell",
    "TrainConfig",
    "attacked",
    "exam_rules",
    "learner",
    "split",
    "train_panel",
]

VOTES = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "valid": {"something": 1.0, "nearness": 1.0, "likeness": 0.25, "contrast": 0.25},
}
"""How much each signal counts, in units of its spread over made images."""
Tell = Callable[[TrainingProgress], None] | None
Batches = tuple[Images, Float[Tensor, "n k1"]]
"""Made images, each labelled with its row, and their soft targets."""
_MEMBERS = TrainingRecipe(epochs=8, steps=660, batch=128, lr=3e-3, schedule="warm", decay=1e-2)
_DENSITY = TrainingRecipe(epochs=3, steps=800, batch=128, lr=2.5e-3)
MADE = 2**28
"""Bytes of the images that are made before the members are trained, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a panel is trained.

    Args:
        ensemble: The members.
        members: The recipe of each.
        density: The recipe of the density.
        shares: What training batches are made of.
        held_out: Share of the training images that only the rules are made from.
        seen: Share of the others that each member is trained on, another one each.
        passes: How often members see each made image, which are then made once for all of them;
            0: each is made anew.
        held_out_families: Families of change (`training_data.FAMILIES`) of which it is told neither
            that they keep a label nor that they lose it.
    """

    ensemble: tuple[MemberConfig, ...] = PANEL
    members: TrainingRecipe = _MEMBERS
    density: TrainingRecipe = _DENSITY
    shares: Shares = field(default_factory=Shares)
    held_out: float = 0.1
    seen: float = field(default=1.0, metadata=UNSTATED)
    passes: int = field(default=0, metadata=UNSTATED)
    held_out_families: tuple[str, ...] = field(default=(), metadata=UNSTATED)


USUAL = TrainConfig(passes=3)
THOROUGH = TrainConfig(
    ensemble=PHOTO_PANEL,
    members=TrainingRecipe(
        epochs=48,
        steps=760,
        batch=512,
        lr=0.3,
        optimiser="sgd",
        schedule="warm",
        decay=5e-4,
        half=True,
    ),
    density=TrainingRecipe(epochs=3, steps=1200, batch=512, lr=2e-3),
    shares=Shares(interpolated=0.06, corrupted=0.1, easy=0.9),
    held_out=0.04,
    seen=0.95,
)
"""For colour on a GPU."""


def split(train: Images, share: float) -> tuple[Images, Images]:
    """Return images to train on and images held out, in which the classes are balanced."""
    fitted, held_out = split_rows(train.y, train.id, share)
    return train.take(fitted), train.take(held_out)


def train_panel(
    panel: Panel,
    fitted: Images,
    held_out: Images,
    config: TrainConfig,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Train density and members, remember real images, make the rules.

    Returns:
        Entries of the card.
    """
    learn = learner(panel, fitted, config, seed=seed, device=device, progress=progress, kept=kept)
    histories = [learn(number) for number in range(len(panel.members) + 1)]
    panel.eval()
    _remember(panel, fitted, held_out, device)
    families = config.held_out_families
    rules = exam_rules(panel, held_out, seed=seed, device=device, held_out_families=families)
    return {
        "seed": seed,
        "seconds": sum(history.seconds for history in histories),
        "steps": sum(history.steps for history in histories),
        "warnings": [warning for history in histories for warning in history.warnings],
        "members": panel.hashes(),
        "rules": {name: rule.to_card() for name, rule in rules.items()},
    }


def exam_rules(
    panel: Panel,
    held_out: Images,
    *,
    seed: int,
    device: torch.device | str,
    held_out_families: Collection[str] = (),
) -> dict[str, DecisionRule]:
    """Return the rules that an exam on images that no member has seen gives."""
    rng = stream(seed, "judge", "examination", device=device)
    exam = exam_of_digits(held_out, panel.density, rng, device, held_out_families)
    return rules_from_exam(panel.ask(exam.x, exam.expected), exam, VOTES, thresholds=False)


def learner(
    panel: Panel,
    fitted: Images,
    config: TrainConfig,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell,
    kept: Path | None,
) -> Callable[[int], History]:
    """Return what trains the density (number 0) or a member; another process that does it is
    waited for.
    """
    given: dict[str, Any] = {"seed": seed, "device": device, "progress": progress}
    batches = cache(partial(_batches, panel, fitted, config, **given))

    def task(number: int) -> tuple[nn.Module, Images, Goal, TrainingRecipe]:
        if not number:
            goal = _likelihood(config.held_out_families)
            return panel.density, fitted, goal, config.density
        member = panel.networks[number - 1]
        images = fitted
        recipe = config.members
        targets: Tensor | None = None
        if config.passes:
            images, targets = batches()
            epochs, inside = recipe.rounds(len(fitted))
            rounds = -(-epochs * inside * recipe.batch // len(images))
            recipe = replace(recipe, epochs=rounds, steps=0)
        goal = _classification(panel, member.config, config, targets)
        if config.seen < 1:
            rng = stream(seed, "judge", "images", number)
            count = max(1, round(config.seen * len(images)))
            images = images.take(torch.randperm(len(images), generator=rng)[:count].sort().values)
        return member, images, goal, recipe

    def learn(number: int) -> History:
        name = "density"
        if number:
            name = f"member {number} of {len(panel.members)}"
        place: Path | None = None
        lock: AbstractContextManager[Any] = nullcontext()
        if kept is not None:
            place = kept / str(number)
            lock = turn(kept / f"{number}.lock")
        with lock:
            how = {**given, "seed": seed + number, "name": f"judge, {name}", "kept": place}
            return fit(*task(number), **how)

    return learn


def _likelihood(held_out_families: Collection[str]) -> Goal:
    """The negative evidence lower bound of images that are bent a little."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Density)
        return net.bound(x, noise)

    def prepare(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        if "bending" in held_out_families:
            return x, y
        return bend(x, noise, GENTLE), y

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(net, Density)
        return net.encode(x)

    return Goal(loss, answer, math.inf, prepare, plain=True)


def _batches(
    panel: Panel,
    fitted: Images,
    config: TrainConfig,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell,
) -> Batches:
    """Make the images that all members are trained on, each in an order of its own."""
    size = config.members.batch
    epochs, inside = config.members.rounds(len(fitted))
    most = MADE // (size * fitted.x[0].numel())
    count = max(1, min(-(-epochs * inside // config.passes), most))
    order = stream(seed, "judge", "order")
    turns = -(-count * size // len(fitted))
    rows = torch.cat([torch.randperm(len(fitted), generator=order) for _ in range(turns)])
    rows = rows[: count * size]
    rng = stream(seed, "judge", "lessons", device=device)
    images = list[Tensor]()
    targets = list[Tensor]()
    together = size
    if not steady(torch.device(device)):
        together = AHEAD * size
    for part in chunks(len(rows), together):
        x = from_bytes(fitted.x[rows[part]].to(device))
        y = fitted.y[rows[part]].to(device)
        made, target = _fresh_batch(panel, config, x, y, rng)
        images.append(to_bytes(made).cpu())
        targets.append(target)
        if progress is not None:
            what = f"training data of the judge on {fitted.name}"
            progress(TrainingProgress(0, 0, part.stop, len(rows), 0.0, "", what))
    source = fitted.take(rows)
    return replace(source, x=torch.cat(images), y=torch.arange(len(rows))), torch.cat(targets)


def _fresh_batch(
    panel: Panel, config: TrainConfig, x: Tensor, y: Tensor, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    families = config.held_out_families
    return training_batch(x, y, panel.classes, panel.density, rng, config.shares, families)


def _classification(
    panel: Panel,
    member: MemberConfig,
    config: TrainConfig,
    targets: Float[Tensor, "n k1"] | None,
) -> Goal:
    """Cross-entropy against soft targets: of images made before, each known by its row, or of
    images made for each step.
    """

    def fresh(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        return _fresh_batch(panel, config, x, y, noise)

    def loss(net: nn.Module, x: Tensor, target: Tensor, noise: torch.Generator) -> Tensor:
        if targets is not None:
            target = targets[target]
        if member.attack:
            x = attacked(net, x, target, member.attack, noise)
        return functional.cross_entropy(net(x), target)

    blind = math.log(panel.classes + 1)
    if targets is not None:
        return Goal(loss, _logits, blind, plain=True)
    return Goal(loss, _logits, blind, fresh, plain=True)


def _logits(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits: Tensor = net(x)
    return logits


def attacked(
    net: nn.Module,
    x: Float[Tensor, "m c h w"],
    target: Float[Tensor, "m k1"],
    radius: float,
    rng: torch.Generator,
) -> Float[Tensor, "m c h w"]:
    """`x` one step uphill in the loss, from a random start, within an L2 ball of `radius`.

    E. Wong, L. Rice, J. Kolter, "Fast is better than free: revisiting adversarial training", ICLR
    2020, in L2 instead of L∞.
    """
    start = torch.randn(x.shape, generator=rng, device=x.device)
    shift = start * per_row(
        radius * torch.rand(len(x), generator=rng, device=x.device) / _length(start), x
    )
    here = (x + shift).clamp(0, 1).requires_grad_()
    (slope,) = torch.autograd.grad(functional.cross_entropy(net(here), target), here)
    shift = here.detach() - x + slope * per_row(1.25 * radius / _length(slope), x)
    return (x + shift * per_row((radius / _length(shift)).clamp_max(1), x)).clamp(0, 1)


def _length(x: Tensor) -> Float[Tensor, " m"]:
    return x.flatten(1).square().sum(1).sqrt().clamp_min(1e-12)


@torch.no_grad()
def _remember(panel: Panel, fitted: Images, held_out: Images, device: torch.device | str) -> None:
    """Keep features of real images of every class in turn, their usual nearness and cost,
    and the fingerprints of all that it was trained on.
    """
    order, _ = balanced_order(fitted.y, fitted.id, seed=0)
    sample = fitted.take(order[: len(panel.references)])
    features, held_out_features = (
        torch.cat(
            [
                panel.answers(from_bytes(part.x[rows].to(device)))[1]
                for rows in chunks(len(part), 256)
            ]
        )
        for part in (sample, held_out)
    )
    panel.remember(features, sample.y.to(device), held_out_features)
    panel.density.fit_to(from_bytes(held_out.x.to(device)))
    panel.learned.copy_(fingerprints(torch.cat([fitted.x, held_out.x])).sort().values)
