"""How a panel is taught: density, members, what it remembers, and the rules it learns from made images."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.judges.changes import Bend, bend
from hardcase.judges.density import Density
from hardcase.judges.lessons import Shares, attacked, lesson
from hardcase.judges.made import examination
from hardcase.judges.members import PANEL, Member, Seat
from hardcase.judges.panel import Panel
from hardcase.judges.rules import Rule, learned
from hardcase.randomness import balanced_order, stream
from hardcase.tensors import from_bytes
from hardcase.training import Goal, History, Progress, Recipe, fit
from hardcase.types import Images

VOTES = {
    "label_kept": {"classifiers": 1.0, "neighbours": 0.5},
    "valid": {"something": 1.0, "nearness": 1.0, "likeness": 0.25, "contrast": 0.25},
}
"""How much each signal counts, in units of its spread over made images."""
GENTLE = Bend(turn=8, stretch=0.08, shear=0.1, move=0.04, wave=0.02)
Tell = Callable[[Progress], None] | None
_MEMBERS = Recipe(epochs=8, steps=760, batch=128, lr=3e-3, schedule="warm", decay=1e-2)
_DENSITY = Recipe(epochs=3, steps=1200, batch=128, lr=2e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schooling:
    """How a panel is trained. `held_out` is the share of the training images that only the rules learn from."""

    places: tuple[Seat, ...] = PANEL
    members: Recipe = _MEMBERS
    density: Recipe = _DENSITY
    shares: Shares = field(default_factory=Shares)
    held_out: float = 0.1


USUAL = Schooling()


def teach(
    panel: Panel,
    taught: Images,
    held_out: Images,
    schooling: Schooling,
    *,
    seed: int,
    device: torch.device | str,
    progress: Tell = None,
) -> dict[str, Any]:
    """Train density and members, remember real images, learn the rules; returns entries of the card."""

    def learn(net: nn.Module, goal: Goal, recipe: Recipe, number: int, name: str) -> History:
        return fit(
            net, taught, goal, recipe, seed=seed + number, name=f"judge, {name}", device=device, progress=progress
        )

    histories = [learn(panel.density, _likelihood(), schooling.density, 0, "density")]
    for number, member in enumerate(panel.members, 1):
        assert isinstance(member, Member)
        name = f"member {number} of {len(panel.members)}"
        histories.append(learn(member, _lessons(panel, member.seat, schooling.shares), schooling.members, number, name))
    panel.eval()
    _remember(panel, taught, held_out, device)
    return {
        "seed": seed,
        "seconds": sum(history.seconds for history in histories),
        "steps": sum(history.steps for history in histories),
        "warnings": [warning for history in histories for warning in history.warnings],
        "members": panel.hashes(),
        "rules": {name: rule.to_card() for name, rule in made_rules(panel, held_out, seed=seed, device=device).items()},
    }


def made_rules(panel: Panel, held_out: Images, *, seed: int, device: torch.device | str) -> dict[str, Rule]:
    """The rules that tell changed from blended and ruined images apart, on images that no member has seen."""
    exam = examination(held_out, panel.density, stream(seed, "judge", "examination", device=device), device)
    signals = panel.ask(exam.x, exam.expected)
    rules = {}
    for name, votes in VOTES.items():
        truth: Tensor = getattr(exam, name)
        known = truth >= 0
        rules[name] = learned(votes, signals[known], truth[known] > 0)
    return rules


def _likelihood() -> Goal:
    """The negative lower bound of images that are bent a little."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Density)
        return net.bound(bend(x, noise, GENTLE), noise)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(net, Density)
        return net.encode(x)

    return Goal(loss, answer, math.inf)


def _lessons(panel: Panel, seat: Seat, shares: Shares) -> Goal:
    """Cross-entropy of made images against what should be said of each."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        made, target = lesson(x, y, panel.classes, panel.density, noise, shares)
        made = attacked(net, made, target, seat.attack, noise) if seat.attack else made
        return functional.cross_entropy(net(made), target)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = net(x)
        return logits

    return Goal(loss, answer, math.log(panel.classes + 1))


@torch.no_grad()
def _remember(panel: Panel, taught: Images, held_out: Images, device: torch.device | str) -> None:
    """Features of real images of every class in turn, their usual nearness and cost, and what was learned from."""
    order, _ = balanced_order(taught.y, taught.id, seed=0)
    sample = taught.take(order[: len(panel.references)])
    features, held_out_features = (panel.features(from_bytes(part.x.to(device))) for part in (sample, held_out))
    panel.remember(features, sample.y.to(device), held_out_features)
    panel.density.settle(from_bytes(held_out.x.to(device)))
    panel.learned.copy_(fingerprints(torch.cat([taught.x, held_out.x])).sort().values)


def fingerprints(x: Tensor) -> Int[Tensor, " n"]:
    """A number for the content of every image, so that a judge can tell what it has learned from."""
    rows = x.flatten(1).cpu().contiguous().numpy()
    words = [int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "big", signed=True) for row in rows]
    return torch.tensor(words, dtype=torch.int64)


def parts(train: Images, share: float) -> tuple[Images, Images]:
    """What members learn from and what is held out, the classes balanced in the latter."""
    order, _ = balanced_order(train.y, train.id, seed=0)
    count = max(1, min(round(share * len(train)), 3000))
    return train.take(order[count:].sort().values), train.take(order[:count])
