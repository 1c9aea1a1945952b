"""Methods that stand beside ours in the yardstick, each written as an outsider would: a file of its own, no change of the package.

``hardcase run --method rivals.py:square`` runs one alone, ``hardcase yardstick --add rivals.py:square`` puts it into the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import hardcase as hc
from hardcase.conditions import ConditionBox, condition_box
from hardcase.randomness import Rng
from hardcase.types import Evaluator, Seeds, State

PROFILES = {1: "scanner", 3: "handheld"}
"""The declared conditions of the null, by the number of channels."""
HALVED = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the budget at which the area of a square is halved: Square Attack's 10, 50, 200 ... of 10,000 queries."""


@dataclass(frozen=True, slots=True)
class RandomDraws:
    """One random condition per step and seed, by the declared distributions."""

    box: ConditionBox

    def init(self, seeds: Seeds, rng: Rng) -> State:
        return {"z": seeds.z.clone()}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        evaluate(self.box.from_normals(rng.normal(rows, (self.box.normals,))), rows)
        return state


def random_conditions(shape: tuple[int, int, int], *, queries: int = 100) -> hc.Method:
    """Random draws of declared conditions until one fails; nothing is searched.

    Args:
        shape: Channels, height and width of the images; a campaign fills it in.
        queries: Draws per seed.
    """
    box = condition_box(hc.Conditions.load(PROFILES[shape[0]]), shape)
    return hc.Method(
        space=box,
        search=RandomDraws(box),
        objective=hc.objectives.Margin(),
        oracle=hc.oracles.LeavesLabel(),
        needs="label",
        budget=hc.Budget(queries=1 + queries),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSquares:
    """Squares of one colour at random places, kept where the score rises.

    Args:
        epsilon: Radius of the L-infinity ball.
        share: Share of the pixels that the first squares cover.
        queries: Queries over which the squares shrink.
    """

    epsilon: float
    share: float
    queries: int

    def init(self, seeds: Seeds, rng: Rng) -> State:
        best = torch.full((len(seeds),), -torch.inf, device=seeds.z.device)
        return {
            "z": seeds.z.clone(),
            "start": seeds.z.clone(),
            "best": best,
            "step": torch.tensor(0),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        start = state["start"][rows]
        channels, height, width = start.shape[1:]
        if int(state["step"]) == 0:  # vertical stripes
            sign = 2 * rng.integers(rows, 2, (channels, 1, width)) - 1
            asked = start + self.epsilon * sign
        else:
            side = self._side(int(state["step"]), height, width)
            room = torch.tensor([height - side + 1, width - side + 1], device=rows.device)
            top, left = rng.integers(rows, room, (2,)).T[:, :, None]
            down, across = (torch.arange(n, device=rows.device) for n in (height, width))
            inside = ((down >= top) & (down < top + side))[:, None, :, None]
            inside = inside & ((across >= left) & (across < left + side))[:, None, None, :]
            sign = 2 * rng.integers(rows, 2, (channels, 1, 1)) - 1
            asked = torch.where(inside, start + self.epsilon * sign, state["z"][rows])
        feedback = evaluate(asked, rows)
        better = feedback.score > state["best"][rows]
        kept = rows[better]
        return {
            **state,
            "z": state["z"].index_copy(0, kept, feedback.z[better]),
            "best": state["best"].index_copy(0, kept, feedback.score[better]),
            "step": state["step"] + 1,
        }

    def _side(self, step: int, height: int, width: int) -> int:
        halvings = sum(step > share * self.queries for share in HALVED)
        area: float = self.share * 0.5**halvings * height * width
        return max(1, min(round(math.sqrt(area)), height - 1, width - 1))


def square(*, epsilon: float = 0.3, share: float = 0.8, queries: int = 1000) -> hc.Method:
    """Square Attack in an L-infinity ball: random squares that raise the margin are kept.

    M. Andriushchenko, F. Croce, N. Flammarion, M. Hein. Square Attack. ECCV 2020.

    Args:
        epsilon: Radius of the ball, in units of [0, 1].
        share: Share of the pixels that the first squares cover.
        queries: Query budget per seed, over which the squares shrink.
    """
    return hc.Method(
        space=hc.spaces.Pixels(hc.spaces.Linf(epsilon)),
        search=RandomSquares(epsilon=epsilon, share=share, queries=queries),
        objective=hc.objectives.Margin(),
        oracle=hc.oracles.LeavesLabel(),
        needs="scores",
        budget=hc.Budget(queries=1 + queries),
    )
