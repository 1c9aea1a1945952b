"""The smallest share of near partners that reaches each other class, then what of the change can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.searches.interpolation import Partners
from hardcase.tensors import flat, per_row
from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """First, for each other class, the `rounds` nearest partners in turn: for each the interval of shares is halved
    `halvings` times toward the smallest that makes the subject say that class. Then, for the nearest code that did, places of
    the grid return to the seed's own code wherever the subject still says that class: the most changed places first, in
    blocks of each of the sizes `blocks`. A class that was never reached costs nothing more, and so does a place at rest.
    """

    partners: Partners
    rounds: int = 3
    halvings: int = 7
    blocks: tuple[int, ...] = (8, 1)

    def questions(self, shape: Sequence[int]) -> int:
        """The most that one class of one seed can cost, for codes of this shape."""
        return self._sharing + len(self._plan(_places(shape)))

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        near = nearest(self.partners, seeds, self.rounds)  # n k rounds
        n, k = near.shape[:2]
        blank = torch.zeros(n, k, device=seeds.z.device)
        return {
            "z": seeds.z.clone(), "near": near, "low": blank, "high": blank + 1,
            "best": flat(seeds.z)[:, None].repeat(1, k, 1), "far": blank + torch.inf,
            "rank": torch.zeros(n, k, _places(seeds.z.shape[1:]), dtype=torch.int64, device=seeds.z.device),
            "turn": torch.zeros(1, dtype=torch.int64),
        }  # fmt: skip

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows, turn = look.live.nonzero().squeeze(1), int(state["turn"])
        plan = self._plan(state["rank"].shape[2])
        sharing = turn < self._sharing
        state = (
            self._share(state, look, rows) if sharing else self._return(state, look, rows, *plan[turn - self._sharing])
        )
        if turn + 1 >= self._sharing + len(plan):
            look.retire(rows)
        return {**state, "turn": state["turn"] + 1}

    @property
    def _sharing(self) -> int:
        return self.rounds * (self.halvings + 1)

    def _plan(self, places: int) -> list[tuple[int, int]]:
        """Size and start of every block of places to try, in order."""
        return [(size, size * i) for size in self.blocks for i in range(ceil(places / size))]

    def _share(self, state: State, look: Look, rows: Int[Tensor, " r"]) -> State:
        number, half = divmod(int(state["turn"]), self.halvings + 1)
        partner = state["near"][rows, :, number]
        row, goal = (partner >= 0).nonzero(as_tuple=True)
        own = rows[row]
        fresh = half == 0
        low = torch.zeros_like(own, dtype=state["low"].dtype) if fresh else state["low"][own, goal]
        high = torch.ones_like(low) if fresh else state["high"][own, goal]
        share = high if fresh else (low + high) / 2
        base = state["z"][own]
        code = base + per_row(share, base) * (self.partners.take(partner[row, goal]) - base)
        feedback = look(code, own)
        hit = feedback.failed & (feedback.predicted == goal)
        state = _remember(state, own, goal, code, hit)
        return {
            **state,
            "low": state["low"].index_put((own, goal), torch.where(hit, low, share)),
            "high": state["high"].index_put((own, goal), torch.where(hit, share, high)),
        }

    def _return(self, state: State, look: Look, rows: Int[Tensor, " r"], size: int, start: int) -> State:
        n, k, places = state["rank"].shape
        base, best = state["z"].reshape(n, 1, -1, places), state["best"].reshape(n, k, -1, places)
        if start == 0:
            rank = (best - base).square().sum(2).argsort(dim=2, descending=True, stable=True)
            state = {**state, "rank": rank}
        block = torch.zeros(len(rows), k, places, dtype=torch.bool, device=rows.device)
        block.scatter_(2, state["rank"][rows][..., start : start + size], True)
        trial = torch.where(block[:, :, None], base[rows], best[rows])  # r k c places
        moved = (trial != best[rows]).flatten(2).any(2) & state["far"][rows].isfinite()
        row, goal = moved.nonzero(as_tuple=True)
        if not len(row):
            return state
        own, code = rows[row], trial[row, goal].reshape(-1, *state["z"].shape[1:])
        feedback = look(code, own)
        return _remember(state, own, goal, code, feedback.failed & (feedback.predicted == goal))


def _remember(state: State, own: Tensor, goal: Tensor, code: Tensor, hit: Tensor) -> State:
    """Keep codes that reached their class from nearer than any before."""
    distance = flat(code - state["z"][own]).square().sum(1).sqrt()
    nearer = hit & (distance < state["far"][own, goal])
    at = (own[nearer], goal[nearer])
    best, far = state["best"].index_put(at, flat(code)[nearer]), state["far"].index_put(at, distance[nearer])
    return {**state, "best": best, "far": far}


def _places(shape: Sequence[int]) -> int:
    """Places of a grid of codes (channels first), or the numbers of a flat code."""
    return prod(shape[1:]) if len(shape) > 1 else shape[0]


def nearest(partners: Partners, seeds: Seeds, count: int) -> Int[Tensor, "n k c"]:
    """For each seed and class, the `count` nearest partners of that class (-1: none, and for the seed's own class)."""
    label = partners.label.to(seeds.y.device)
    near = torch.full((len(seeds), int(label.max()) + 1, count), -1, device=seeds.y.device)
    for c in range(near.shape[1]):
        rows = (label == c).nonzero().squeeze(1)
        codes = flat(partners.take(rows))
        ranked: Float[Tensor, "n r"] = torch.cdist(flat(seeds.z), codes) if len(rows) else flat(seeds.z)[:, :0]
        best = rows[ranked.argsort(dim=1, stable=True)[:, :count]]
        near[:, c, : best.shape[1]] = torch.where((seeds.y == c)[:, None], -1, best)
    return near
