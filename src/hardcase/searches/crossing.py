"""The shortest way into another class that few questions can find: race, shorten, close in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.searches.neighbours import Codes, Directions, directions, largest, scaled, span
from hardcase.tensors import flat
from hardcase.types import Look, Seeds, State

WIDE = 4.0
"""How far a coordinate may go where no codes say how far they go: standard deviations of the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Walks from every seed toward near other classes along few coordinates; asks only whether a candidate fails.

    *Race*: the steps to the `classes` nearest classes, each cut to its largest coordinates, are tried in turn, `reach`
    times as long at first, then just inside the shortest failing length; one that fails there is halved `halvings` times.
    The first of `cuts` is the share of coordinates that is kept; where all goals are missed the next one is tried, and in
    the end the nearest codes themselves. *Shorten*: `shorten` times a tenth of the coordinates goes back to the seed's
    and the rest grows to a slightly shorter length, which is kept if it fails. *Close in*: `closing` halvings along the
    ray from the seed, so that the last failing candidate lies on the boundary. Lengths are L1. No coordinate leaves the
    range of `codes`; without `codes`, steps are drawn from the prior.

    With `apart` every class is a race of its own, won by reaching that class; with `toward` there is only that class.
    A race is a track in the state, which names its seed by `row`.
    """

    codes: Codes | None = None
    classes: int = 4
    neighbours: int = 50
    cuts: tuple[float, ...] = (0.05, 0.25)
    reach: float = 1.5
    halvings: int = 5
    shorten: int = 40
    closing: int = 10
    apart: bool = False
    toward: int | None = None

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        z = flat(seeds.z)
        ways, (low, high) = self._ways(seeds, rng)
        n, c = ways.goal.shape
        tracks, lanes = (n * c, 1) if self.apart else (n, c)
        blank, codes = z.new_zeros(tracks), z.new_zeros(tracks, z.shape[1])
        row = torch.arange(n, device=z.device).repeat_interleave(tracks // max(n, 1))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64), "row": row,
            "seed": z[row].clone(), "low": low[row].clone(), "high": high[row].clone(),
            "goal": ways.goal.reshape(tracks, lanes).clone(), "step": ways.step.reshape(tracks, lanes, -1).clone(),
            "nearest": ways.nearest.reshape(tracks, lanes, -1).clone(),
            "far": codes, "near": blank, "end": blank + 1, "open": blank > 0,
            "best": codes.clone(), "length": blank + torch.inf, "stride": blank + 0.1,
            "turn": torch.zeros(1, dtype=torch.int64),
        }  # fmt: skip

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        turn, lanes = int(state["turn"]), state["goal"].shape[1]
        race = (len(self.cuts) + 1) * lanes * (1 + self.halvings)
        if turn < race:
            lane, halving = divmod(turn, 1 + self.halvings)
            state = self._halve(state, look) if halving else self._probe(state, look, lane)
        elif turn < race + self.shorten:
            state = self._shorten(state, look, rng)
        elif turn == race + self.shorten:
            state = self._close(state, look)
        else:
            state = self._halve(state, look)
        if turn + 1 >= race + self.shorten + self.closing:
            look.retire(look.live.nonzero().squeeze(1))
        return {**state, "turn": state["turn"] + 1}

    def _ways(self, seeds: Seeds, rng: torch.Generator) -> tuple[Directions, tuple[Tensor, Tensor]]:
        """Directions to walk in, and the least and greatest value of each coordinate."""
        if self.codes is not None:
            ways = directions(self.codes, seeds, classes=self.classes, neighbours=self.neighbours, toward=self.toward)
            return ways, span(self.codes, seeds)
        z = flat(seeds.z)
        drawn = torch.randn(len(z), self.classes, z.shape[1], generator=rng, device=z.device) - z[:, None]
        goal = torch.zeros(drawn.shape[:2], dtype=torch.int64, device=z.device)
        return Directions(goal, drawn, drawn), (z.clamp_max(-WIDE), z.clamp_min(WIDE))

    def _probe(self, state: State, look: Look, lane: int) -> State:
        """Try one direction; where it fails, its interval of shares is open for halving."""
        cut, place = divmod(lane, state["goal"].shape[1])
        there = (state["goal"][:, place] >= 0) & (state["length"].isinf() if cut else True)
        tracks = there.nonzero().squeeze(1)
        if cut == len(self.cuts):
            offset = state["nearest"][tracks, place]
        else:
            step, shortest = state["step"][tracks, place], state["length"][tracks]
            longest = self.reach * step.abs().sum(1)
            offset = scaled(largest(step, self.cuts[cut]), torch.minimum(0.95 * shortest, longest))
        state, hit = self._try(state, look, tracks, offset)
        return self._opened(state, hit)

    def _opened(self, state: State, hit: Bool[Tensor, " t"]) -> State:
        """Where a candidate failed, halve between it and the seed."""
        fresh = torch.zeros_like(state["near"])
        return {**state, "open": hit, "far": state["best"].clone(), "near": fresh, "end": fresh + 1}

    def _halve(self, state: State, look: Look) -> State:
        return self._ask_share(state, look, (state["near"] + state["end"]) / 2)

    def _close(self, state: State, look: Look) -> State:
        """The boundary lies just inside the best candidate: ask there first, then halve."""
        return self._ask_share(self._opened(state, state["length"].isfinite()), look, 0.95 + 0 * state["end"])

    def _ask_share(self, state: State, look: Look, share: Float[Tensor, " t"]) -> State:
        tracks = state["open"].nonzero().squeeze(1)
        state, hit = self._try(state, look, tracks, share[tracks, None] * state["far"][tracks])
        near = torch.where(state["open"] & ~hit, share, state["near"])
        return {**state, "near": near, "end": torch.where(hit, share, state["end"])}

    def _shorten(self, state: State, look: Look, rng: torch.Generator) -> State:
        """Leave some coordinates out, let the others grow to a little less than the length so far."""
        kept = torch.rand(state["best"].shape, generator=rng, device=rng.device) > 0.1
        offset = scaled(state["best"] * kept, (1 - state["stride"]) * state["length"])
        tracks = state["length"].isfinite().nonzero().squeeze(1)
        state, hit = self._try(state, look, tracks, offset[tracks])
        return {**state, "stride": (state["stride"] * torch.where(hit, 1.3, 0.85)).clamp(0.005, 0.2)}

    def _try(
        self, state: State, look: Look, tracks: Int[Tensor, " a"], offset: Float[Tensor, "a d"]
    ) -> tuple[State, Bool[Tensor, " t"]]:
        """Look at one candidate of each of these tracks; those that fail and are shorter become the best of theirs."""
        alive = look.live[state["row"][tracks]]
        if not bool(alive.all()):
            tracks, offset = tracks[alive], offset[alive]
        seed, low, high, row = (state[name].index_select(0, tracks) for name in ("seed", "low", "high", "row"))
        z = torch.minimum(torch.maximum(seed + offset, low), high)
        feedback = look(z.reshape(-1, *state["shape"].tolist()), row)
        moved = flat(feedback.z) - seed
        failed = feedback.failed & (feedback.predicted == state["goal"][tracks, 0]) if self.apart else feedback.failed
        shorter = failed & (moved.abs().sum(1) < state["length"][tracks])
        won = tracks[shorter]
        best = state["best"].index_copy(0, won, moved[shorter])
        length = state["length"].index_copy(0, won, moved[shorter].abs().sum(1))
        hit = torch.zeros_like(state["open"]).index_fill(0, won, True)
        return {**state, "best": best, "length": length}, hit
