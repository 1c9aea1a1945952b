"""Searches along the gradient of the score: ascent, Adam, multi-start ascent, and C&W's attack."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.tensors import flat, length, per_row, total
from hardcase.types import Evaluator, Feedback, Seeds, State, Targets


@runtime_checkable
class GradientSource(Protocol):
    """Where a climb gets its gradients from, and what it remembers of each seed."""

    def start(self, seeds: Seeds) -> State: ...

    def __call__(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], rng: Rng
    ) -> tuple[Feedback, Tensor, State]: ...


@dataclass(frozen=True, slots=True)
class OwnGradients:
    """The gradient of the score at the current point."""

    def start(self, seeds: Seeds) -> State:
        return {}

    def __call__(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], rng: Rng
    ) -> tuple[Feedback, Tensor, State]:
        return *evaluate.gradient(state["z"][rows], rows), state


@search(
    "adam-ascent",
    needs="gradients",
    paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamAscent:
    """Adam on the code, then a bisection from the first failure back to the original.

    Each seed climbs with separate moments until it fails. When no seed climbs any more, the way
    between the seed and the failure is halved, keeping to the failing side. Without bisections the
    run must stop images at their first failure.

    Args:
        step_size: Size of a step.
        first: Decay of the first moment.
        second: Decay of the second moment.
        bisections: Bisection steps back to the original after the first failure.
        source: Where gradients come from; by default from the score.
    """

    step_size: float = 0.01
    first: float = 0.9
    second: float = 0.999
    bisections: int = 0
    source: GradientSource = field(default_factory=OwnGradients, repr=False)

    def init(self, seeds: Seeds, rng: Rng) -> State:
        blank = torch.zeros_like(seeds.z)
        none = torch.zeros(len(seeds), device=seeds.z.device)
        return {
            **self.source.start(seeds),
            "z": seeds.z.clone(),
            "mean": blank,
            "square": blank.clone(),
            "start": seeds.z.clone(),
            "low": none,
            "high": none + torch.inf,
            "halved": torch.zeros_like(seeds.y),
            "step": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = (evaluate.live & state["high"].isinf()).nonzero().squeeze(1)
        if not len(rows):  # no seed climbs any more
            rows = evaluate.live.nonzero().squeeze(1)
            return halve(state, evaluate, rows, state["z"], halvings=self.bisections)
        t = int(state["step"]) + 1
        feedback, gradient, state = self.source(state, evaluate, rows, rng)
        move, moments = adam(state, rows, gradient, t, first=self.first, second=self.second)
        stays = per_row(feedback.failed, move)
        z = torch.where(stays, feedback.z, feedback.z + self.step_size * move)
        return {
            **state,
            **moments,
            "z": state["z"].index_copy(0, rows, z),
            "high": state["high"].index_copy(0, rows, torch.where(feedback.failed, 1.0, torch.inf)),
            "step": state["step"] + 1,
        }


def adam(
    state: State,
    rows: Int[Tensor, " r"],
    gradient: Tensor,
    t: int,
    *,
    first: float = 0.9,
    second: float = 0.999,
) -> tuple[Tensor, State]:
    """Adam's move of these rows at their step `t` (from 1), and the moments of all.

    D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """
    mean = first * state["mean"][rows] + (1 - first) * gradient
    square = second * state["square"][rows] + (1 - second) * gradient.square()
    move = (mean / (1 - first**t)) / ((square / (1 - second**t)).sqrt() + 1e-8)
    return move, {
        "mean": state["mean"].index_copy(0, rows, mean),
        "square": state["square"].index_copy(0, rows, square),
    }


def halve(
    state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], found: Tensor, *, halvings: int
) -> State:
    """Bisect between the images and their failures in `found`, and retire images after `halvings`.

    `low` and `high` are shares of the way from an original's `start`; it fails at `high`.
    """
    low = state["low"][rows]
    high = state["high"][rows]
    start = state["start"][rows]
    share = (low + high) / 2
    fails = evaluate(start + per_row(share, start) * (found[rows] - start), rows).failed
    halved = state["halved"].index_add(0, rows, torch.ones_like(rows))
    evaluate.retire(rows[halved[rows] >= halvings])
    return {
        **state,
        "low": state["low"].index_copy(0, rows, torch.where(fails, low, share)),
        "high": state["high"].index_copy(0, rows, torch.where(fails, share, high)),
        "halved": halved,
    }


# What guides asked for, kept in a search's state: which walk follows which targets.

PREFIX = "targets/"


def held(state: State, rows: Int[Tensor, " m"]) -> Targets:
    """The targets that these rows follow."""
    names = [name for name in state if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX): state[name][rows] for name in names}


def keep(state: State, rows: Int[Tensor, " m"], targets: Targets, count: int) -> State:
    """`state` with the targets of these rows, out of `count`, replaced."""
    merged = dict(state)
    for name, value in targets.items():
        table = state.get(PREFIX + name)
        if table is None or table.shape[1:] != value.shape[1:]:
            table = torch.zeros(count, *value.shape[1:], dtype=value.dtype, device=value.device)
        merged[PREFIX + name] = table.index_copy(0, rows, value)
    return merged


# Walks along the gradient of the score.

Direction = Callable[[Tensor], Tensor]
Shape = Callable[[Tensor, Tensor, Rng], Tensor]
"""From the moves, the images they belong to and random numbers: what is left of each move."""


def sign(gradient: Tensor) -> Tensor:
    """Every coordinate moves by a step: the steepest direction in L∞.

    Args:
        gradient: Gradients of the score, a row per candidate.
    """
    return gradient.sign()


def unit(gradient: Tensor) -> Tensor:
    """A step of length 1: the steepest direction in L2.

    Args:
        gradient: Gradients of the score, a row per candidate.
    """
    return gradient / per_row(length(flat(gradient)).clamp_min(1e-12), gradient)


def rms(gradient: Tensor) -> Tensor:
    """Scale by the root mean square of the row, as DeepXplore: a typical coordinate moves by 1.

    Args:
        gradient: Gradients of the score, a row per candidate.
    """
    mean = total(flat(gradient).square()) / flat(gradient).shape[1]
    return gradient / (per_row(mean.sqrt(), gradient) + 1e-5)


def raw(gradient: Tensor) -> Tensor:
    """The gradient itself.

    Args:
        gradient: Gradients of the score, a row per candidate.
    """
    return gradient


@dataclass(frozen=True, slots=True)
class Square:
    """A random square per step: black if the move inside is darker, else nothing moves."""

    size: int

    def __call__(self, move: Tensor, rows: Int[Tensor, " m"], rng: Rng) -> Tensor:
        inside = torch.ones(1, dtype=torch.bool, device=move.device)
        for axis in (2, 3):
            room = max(1, move.shape[axis] - self.size + 1)
            first = per_row(rng.integers(rows, room), move)
            place = torch.arange(move.shape[axis], device=move.device)
            place = place.reshape(-1, *[1] * (3 - axis))
            inside = inside & (place >= first) & (place < first + self.size)
        darker = per_row(total(flat(move * inside)) < 0, move)
        return -(inside & darker).to(move.dtype).expand_as(move)


def free(move: Tensor, rows: Int[Tensor, " m"], rng: Rng) -> Tensor:
    """Any move."""
    return move


@search(
    "gradient-ascent",
    needs="gradients",
    paper="Madry et al., ICLR 2018; Pei et al., SOSP 2017",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAscent:
    """Steps along the sign, the unit vector or the scaled gradient of the score.

    Each walk follows the targets that guides choose for it when it starts, and new ones every
    `renew` steps.

    Args:
        step_size: Size of a step.
        direction: How a gradient becomes a step: `sign`, `unit`, `rms` or `raw`.
        jitter: Size of the uniform noise at the start.
        renew: Steps after which guides choose anew what to push; 0: never.
        shape: The constraint on a step, e.g. the same change for all pixels.
        unchanged: An image that fails as it is, is a failure; otherwise it only teaches guides, and
            its search ends.
    """

    step_size: float
    direction: Direction = sign
    jitter: float = 0.0
    renew: int = 0
    shape: Shape = free
    unchanged: bool = True

    def init(self, seeds: Seeds, rng: Rng) -> State:
        rows = torch.arange(len(seeds), device=seeds.z.device)
        z = seeds.z
        if self.jitter:
            z = z + self.jitter * (rng.uniform(rows, z.shape[1:]) * 2 - 1)
        else:  # a sample all the same: later ones do not depend on the jitter
            rng.uniform(rows)
        return {"z": z, "step": torch.zeros(1, dtype=torch.int64)}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        count = int(state["step"])
        if count == 0 or (self.renew and count % self.renew == 0):
            before: Targets | None = None
            if count:
                before = held(state, rows)
            state = keep(state, rows, evaluate.choose(rows, before), len(state["z"]))
        every = len(rows) == len(state["z"])  # and in order: nothing is copied
        z = state["z"] if every else state["z"][rows]
        targets = held(state, rows)
        if count == 0 and not self.unchanged:
            targets = {**targets, "seen": torch.ones_like(rows, dtype=torch.bool)}
        feedback, gradient = evaluate.gradient(z, rows, targets)
        move = self.shape(self.direction(gradient), rows, rng)
        moved = (self.step_size * move).add_(feedback.z)  # in place: as large as all images
        z = moved if every else state["z"].index_copy(0, rows, moved)
        return {**state, "z": z, "step": state["step"] + 1}


@search("fan", needs="gradients", paper="Te Wei Lee, report, 2020")
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiStartAscent:
    """Run a number of gradient walks per image, each with separate targets.

    For MaXplore, a walk for every unit, filter or layer. The seed is evaluated first, so that
    guides know it. A walk's targets are chosen by its number: guides that `follow` receive ``walk``
    and ``row``, and so does every evaluation.

    Args:
        walks: Walks from every seed.
        step_size: Size of a step.
        steps: Gradient steps of a walk.
        direction: How a gradient becomes a step: `sign`, `unit`, `rms` or `raw`.
        width: Walks at a time.
        stop: A walk ends when it fails.
    """

    walks: int
    step_size: float
    steps: int
    direction: Direction = raw
    width: int = 16
    stop: bool = True

    def init(self, seeds: Seeds, rng: Rng) -> State:
        width = min(self.width, self.walks)
        count = torch.zeros(1, dtype=torch.int64)
        return {
            "seed": seeds.z.clone(),
            "z": seeds.z.repeat_interleave(width, 0),
            "stopped": torch.zeros(len(seeds) * width, dtype=torch.bool, device=seeds.z.device),
            "wave": count - 1,
            "step": count,
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        if int(state["wave"]) < 0:
            rows = evaluate.live.nonzero().squeeze(1)
            evaluate(state["seed"][rows], rows, {"row": rows})
            return self._next_wave(state, evaluate)
        places, rows = self._walking(state, evaluate)
        z = state["z"][places]
        targets = {**held(state, places), "row": rows, "walk": self._number(state, places)}
        if int(state["step"]) == self.steps:
            evaluate(z, rows, targets)
            return self._next_wave(state, evaluate)
        feedback, gradient = evaluate.gradient(z, rows, targets)
        moved = state["z"].index_copy(
            0, places, feedback.z + self.step_size * self.direction(gradient)
        )
        stopped = state["stopped"].index_copy(0, places, feedback.failed & self.stop)
        return {**state, "z": moved, "stopped": stopped, "step": state["step"] + 1}

    def _walking(
        self, state: State, evaluate: Evaluator
    ) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        """The places in the table of walks that still go on, and the images they belong to."""
        width = len(state["z"]) // len(state["seed"])
        place = torch.arange(len(state["z"]), device=state["z"].device)
        exists = place % width + int(state["wave"]) * width < self.walks
        going = evaluate.live[place // width] & ~state["stopped"] & exists
        return place[going], (place // width)[going]

    def _next_wave(self, state: State, evaluate: Evaluator) -> State:
        width = len(state["z"]) // len(state["seed"])
        state = {
            **state,
            "z": state["seed"].repeat_interleave(width, 0),
            "stopped": torch.zeros_like(state["stopped"]),
            "wave": state["wave"] + 1,
            "step": torch.zeros_like(state["step"]),
        }
        if int(state["wave"]) * width >= self.walks:
            evaluate.retire(evaluate.live.nonzero().squeeze(1))
            return state
        places, rows = self._walking(state, evaluate)
        targets = evaluate.choose(rows, {"walk": self._number(state, places), "row": rows})
        return keep(state, places, targets, len(state["z"]))

    def _number(self, state: State, places: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        width = len(state["z"]) // len(state["seed"])
        return places % width + int(state["wave"]) * width


@search("carlini-wagner", needs="gradients", paper="Carlini and Wagner, IEEE S&P 2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class CarliniWagner:
    """Adam on distance plus weighted logit margin, the weight by bisection.

    Adam on ``‖z - seed‖² + weight · max(0, confidence - score)``; after every `steps` steps each
    seed's weight is halved toward the largest that failed or multiplied by ten, and the walk starts
    again from the original. The score is a logit margin, positive where the model fails.

    Adam moves every pixel by about its step, so a walk cannot come nearer to an original than steps
    of all pixels lead away from it. Once an image has failed, its steps are therefore at most
    `shrinking` times what a pixel of its nearest failure was changed by (root mean square).

    Args:
        step_size: Adam's step size, until an image has failed.
        shrinking: The largest later step, in such changes of a pixel.
        steps: Adam steps per trade-off weight.
        rounds: Trade-off weights that are tried.
        weight: First trade-off weight.
        confidence: Logit margin by which the wrong class must lead.
    """

    step_size: float = 0.02
    shrinking: float = 0.5
    steps: int = 60
    rounds: int = 6
    weight: float = 1.0
    confidence: float = 0.0

    def init(self, seeds: Seeds, rng: Rng) -> State:
        blank = torch.zeros_like(seeds.z)
        ones = torch.ones(len(seeds), device=seeds.z.device)
        return {
            "seed": seeds.z.clone(),
            "z": seeds.z.clone(),
            "mean": blank,
            "square": blank.clone(),
            "weight": ones * self.weight,
            "low": ones * 0,
            "high": ones * torch.inf,
            "nearest": ones * torch.inf,
            "hit": torch.zeros_like(seeds.y, dtype=torch.bool),
            "step": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        count = int(state["step"])
        feedback, gradient = evaluate.gradient(state["z"][rows], rows)
        short = (feedback.score < self.confidence) & feedback.evaluated
        away = feedback.z - state["seed"][rows]
        change = 2 * away - per_row(state["weight"][rows] * short, gradient) * gradient
        move, moments = adam(state, rows, change, count % self.steps + 1)
        distance = torch.where(feedback.failed, length(flat(away)), torch.inf)
        nearest = state["nearest"][rows].minimum(distance)
        largest = self.shrinking * nearest / math.sqrt(away[0].numel())
        move = per_row(largest.clamp(max=self.step_size), move) * move
        state = {
            **state,
            **moments,
            "z": state["z"].index_copy(0, rows, feedback.z - move),
            "nearest": state["nearest"].index_copy(0, rows, nearest),
            "hit": state["hit"].index_copy(0, rows, state["hit"][rows] | feedback.failed),
            "step": state["step"] + 1,
        }
        if (count + 1) % self.steps:
            return state
        if (count + 1) // self.steps >= self.rounds:
            evaluate.retire(rows)
        return self._restart(state)

    def _restart(self, state: State) -> State:
        """Bisect each original's weight by whether its walk hit, and restart from the original."""
        hit = state["hit"]
        weight = state["weight"]
        high = torch.where(hit, weight.minimum(state["high"]), state["high"])
        low = torch.where(hit, state["low"], weight)
        next_weight = torch.where(high.isfinite(), (low + high) / 2, weight * 10)
        blank = torch.zeros_like(state["mean"])
        return {
            **state,
            "z": state["seed"].clone(),
            "mean": blank,
            "square": blank.clone(),
            "weight": next_weight,
            "low": low,
            "high": high,
            "hit": torch.zeros_like(hit),
        }
