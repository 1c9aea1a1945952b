"""Searches for the decision boundary: from near classes, by random walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.tensors import chunks, flat, tiled, total
from hardcase.types import Evaluator, Feedback, Seeds, State


@runtime_checkable
class Partners(Protocol):
    """Codes of labelled images by row: `by_class` has for each class the rows of all others, `take`
    copies rows, `mean` averages each line of rows.
    """

    @property
    def label(self) -> Tensor: ...

    @property
    def by_class(self) -> tuple[Tensor, ...]: ...

    def take(self, rows: Tensor) -> Tensor: ...

    def mean(self, rows: Tensor) -> Tensor: ...


# Which way other classes lie: directions taken from codes of known label near a seed.


LIMIT = 10_000
"""How many codes are compared: the first, so a library should begin with every class."""


class Directions(NamedTuple):
    """For each image and goal: its class (-1: none), the step to it, and to its nearest code."""

    goal: Int[Tensor, "n c"]
    step: Float[Tensor, "n c d"]
    nearest: Float[Tensor, "n c d"]


def directions(
    codes: Partners, seeds: Seeds, *, classes: int, neighbours: int, toward: int | None = None
) -> Directions:
    """The `classes` nearest other classes of each image (or `toward` alone), nearest first.

    A step between classes is the mean of the `neighbours` nearest codes of the goal's class minus
    that of the seed's class: the local difference between the classes, without peculiarities of the
    original or of a single partner.
    """
    z = flat(seeds.z)
    y = seeds.y
    label = codes.label[:LIMIT].to(y.device)
    kinds = int(torch.cat([label, y]).max()) + 1
    rows, distance = _ranked(codes, label, z, neighbours, kinds)
    # Its own class is infinitely far: it must never be a goal.
    others = distance.scatter(1, y[:, None], torch.inf)
    if toward is not None:
        others = torch.where(torch.arange(kinds, device=y.device) == toward, others, torch.inf)
    goal = others.argsort(dim=1, stable=True)[:, :classes]  # n c
    there = others.gather(1, goal).isfinite()[..., None]
    class_mean = torch.where(
        _at(distance, y[:, None]).isfinite(), codes.mean(_at(rows, y[:, None]).squeeze(1)), z
    )
    step = torch.stack(
        [
            codes.mean(_at(rows, column[:, None]).squeeze(1)) - class_mean
            for column in goal.unbind(1)
        ],
        1,
    )
    # Two ways toward a class: the difference of means, which carries what the classes differ in,
    # and the nearest code itself, which surely is of that class.
    first = codes.take(_at(rows, goal)[..., 0]).flatten(2) - z[:, None]
    return Directions(torch.where(there.squeeze(2), goal, -1), step * there, first * there)


def span(codes: Partners, seeds: Seeds) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """The least and greatest value of every coordinate over the codes and the original's code."""
    z = flat(seeds.z)
    label = codes.label[:LIMIT]
    low = z.clone()
    high = z.clone()
    rows = torch.arange(len(label), device=z.device)
    for part in chunks(len(label), 4096):
        part_codes = flat(codes.take(rows[part]))
        low = torch.minimum(low, part_codes.amin(0))
        high = torch.maximum(high, part_codes.amax(0))
    return low, high


def largest(step: Float[Tensor, "t d"], share: float) -> Float[Tensor, "t d"]:
    """Only the largest coordinates: `share` of all, at least 1."""
    count = max(1, round(share * step.shape[1]))
    least = step.abs().topk(count, dim=1).values[:, -1:]
    return torch.where(step.abs() >= least, step, torch.zeros_like(step))


def scaled(offset: Float[Tensor, "t d"], length: Float[Tensor, " t"]) -> Float[Tensor, "t d"]:
    """`offset` with this L1 length (0 where it has none)."""
    return offset * (length / total(offset.abs()).clamp_min(1e-12))[:, None].nan_to_num(0, 0, 0)


def _ranked(
    codes: Partners, label: Int[Tensor, " l"], z: Float[Tensor, "n d"], count: int, kinds: int
) -> tuple[Int[Tensor, "n k c"], Float[Tensor, "n k"]]:
    """The rows of the nearest `count` codes of each class, and how near."""
    rows = torch.zeros(len(z), kinds, count, dtype=torch.int64, device=z.device)
    distance = torch.full((len(z), kinds), torch.inf, device=z.device)
    for c in sorted(set(label.tolist())):
        members = (label == c).nonzero().squeeze(1)
        distances = code_distances(z, flat(codes.take(members)))
        near, order = distances.topk(min(count, len(members)), dim=1, largest=False)
        distance[:, c] = near[:, 0]
        rows[:, c] = members[
            order[:, torch.arange(count, device=z.device).clamp_max(order.shape[1] - 1)]
        ]
    return rows, distance


def code_distances(z: Float[Tensor, "n d"], codes: Float[Tensor, "c d"]) -> Float[Tensor, "n c"]:
    """Distances by a matrix product on complete tiles: a seed's do not depend on its neighbours."""
    return tiled(lambda rows: torch.cdist(rows, codes, compute_mode="use_mm_for_euclid_dist"), z)


def _at(values: Tensor, column: Int[Tensor, "n c"]) -> Tensor:
    """The entries of `values` (n, k, ...) at `columns` of each row."""
    return values[torch.arange(len(column), device=column.device)[:, None], column]


# The shortest way into another class that few questions can find: race, shorten, close in.

WIDE = 4.0
"""How far a coordinate may go where no codes say how far they go: standard deviations of the prior.
"""


@search("crossing", needs="label")
@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Shortest way into a near other class: few coordinates, shortened, bisected to the boundary.

    A query only asks whether a candidate fails.

    *Race*: the steps to the nearest classes, each cut to its largest coordinates, are tried in
    turn, `reach` times as long at first, then just inside the shortest failing length; a step
    that fails there is halved. Where all goals are missed the next of `cuts` is tried, and in the
    end the nearest codes themselves. *Shorten*: a tenth of the coordinates goes back to the seed's
    and the rest grows to a slightly shorter length, which stays if it fails. *Close in*: halvings
    along the ray from the seed, so that the last failing candidate lies on the boundary. Lengths
    are L1. No coordinate leaves the range of `codes`; without `codes`, steps are drawn from the
    prior.

    A race is a track in the state, which names its original by `row`.

    Args:
        codes: Codes of training images, to walk toward.
        classes: How many of the nearest other classes are tried.
        neighbours: Codes of each class whose mean is walked toward.
        cuts: Shares of coordinates that a shortened step keeps.
        reach: Length of the first attempt, in steps between the classes.
        halvings: Bisection steps of each walk toward the boundary.
        shorten: Attempts to leave coordinates out of the failing step.
        closing: Last bisection steps toward the original.
        apart: Every class is a separate race, won by reaching that class.
        toward: Walk to this class alone.
    """

    codes: Partners | None = None
    classes: int = 4
    neighbours: int = 50
    cuts: tuple[float, ...] = (0.05, 0.25)
    reach: float = 1.5
    halvings: int = 5
    shorten: int = 40
    closing: int = 10
    apart: bool = False
    toward: int | None = None

    def init(self, seeds: Seeds, rng: Rng) -> State:
        z = flat(seeds.z)
        ways, (low, high) = self._ways(seeds, rng)
        n, c = ways.goal.shape
        tracks, lanes = (n, c)
        if self.apart:
            tracks, lanes = (n * c, 1)
        blank = z.new_zeros(tracks)
        codes = z.new_zeros(tracks, z.shape[1])
        row = torch.arange(n, device=z.device).repeat_interleave(tracks // max(n, 1))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64),
            "row": row,
            "seed": z[row].clone(),
            "low": low[row].clone(),
            "high": high[row].clone(),
            "goal": ways.goal.reshape(tracks, lanes).clone(),
            "step": ways.step.reshape(tracks, lanes, -1).clone(),
            "nearest": ways.nearest.reshape(tracks, lanes, -1).clone(),
            "far": codes,
            "near": blank,
            "end": blank + 1,
            "open": blank > 0,
            "best": codes.clone(),
            "length": blank + torch.inf,
            "step_size": blank + 0.1,
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        """A candidate of every unfinished track; the use of its answer depends on the phase."""
        turn = int(state["turn"])
        race = (len(self.cuts) + 1) * state["goal"].shape[1] * (1 + self.halvings)
        # Turns are the only clock, alike for all images, so that every image asks the same question
        # in the same turn: one probe per lane, then its halvings, then shortening, then the closing
        # halvings.
        lane, halving = divmod(turn, 1 + self.halvings)
        probing = turn < race and halving == 0
        shortening = race <= turn < race + self.shorten
        share = (state["near"] + state["end"]) / 2
        if turn == race + self.shorten:  # the boundary lies just inside the best candidate
            state = self._opened(state, state["length"].isfinite())
            share = 0.95 + 0 * state["end"]
        if probing:
            tracks, offset = self._lane(state, lane)
        elif shortening:
            tracks, offset = self._shorter(state, rng)
        else:
            tracks = state["open"].nonzero().squeeze(1)
            offset = share[tracks, None] * state["far"][tracks]
        alive = evaluate.live[state["row"][tracks]]
        if not bool(alive.all()):
            tracks = tracks[alive]
            offset = offset[alive]
        seed, low, high, row = (
            state[name].index_select(0, tracks) for name in ("seed", "low", "high", "row")
        )
        z = torch.minimum(torch.maximum(seed + offset, low), high)
        feedback = evaluate(z.reshape(-1, *state["shape"].tolist()), row)
        state, hit = self._improved(state, tracks, seed, feedback)
        if probing:
            state = self._opened(state, hit)
        elif shortening:
            # As in a success rule of evolution strategies: growing by 1.3 and shrinking by 0.85
            # balance at about two hits in five, so the step settles where it still pays.
            step_size = (state["step_size"] * torch.where(hit, 1.3, 0.85)).clamp(0.005, 0.2)
            state = {**state, "step_size": step_size}
        else:
            near = torch.where(state["open"] & ~hit, share, state["near"])
            state = {**state, "near": near, "end": torch.where(hit, share, state["end"])}
        if turn + 1 >= race + self.shorten + self.closing:
            evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return {**state, "turn": state["turn"] + 1}

    def _ways(self, seeds: Seeds, rng: Rng) -> tuple[Directions, tuple[Tensor, Tensor]]:
        """Directions to walk in, and the least and greatest value of each coordinate."""
        if self.codes is not None:
            ways = directions(
                self.codes,
                seeds,
                classes=self.classes,
                neighbours=self.neighbours,
                toward=self.toward,
            )
            return ways, span(self.codes, seeds)
        z = flat(seeds.z)
        rows = torch.arange(len(z), device=z.device)
        drawn = rng.normal(rows, (self.classes, z.shape[1])) - z[:, None]
        goal = torch.zeros(drawn.shape[:2], dtype=torch.int64, device=z.device)
        return Directions(goal, drawn, drawn), (z.clamp_max(-WIDE), z.clamp_min(WIDE))

    def _lane(self, state: State, lane: int) -> tuple[Int[Tensor, " a"], Float[Tensor, "a d"]]:
        """A direction of the race: the tracks that take it, and how far."""
        cut, place = divmod(lane, state["goal"].shape[1])
        there = state["goal"][:, place] >= 0
        if cut:
            there = there & state["length"].isinf()
        tracks = there.nonzero().squeeze(1)
        if cut == len(self.cuts):
            return tracks, state["nearest"][tracks, place]
        step = state["step"][tracks, place]
        longest = self.reach * total(step.abs())
        length = torch.minimum(0.95 * state["length"][tracks], longest)
        return tracks, scaled(largest(step, self.cuts[cut]), length)

    def _shorter(self, state: State, rng: Rng) -> tuple[Int[Tensor, " a"], Float[Tensor, "a d"]]:
        """Leave coordinates out, let the others grow to slightly less than the best length."""
        stays = rng.uniform(state["row"], state["best"].shape[1:]) > 0.1
        offset = scaled(state["best"] * stays, (1 - state["step_size"]) * state["length"])
        tracks = state["length"].isfinite().nonzero().squeeze(1)
        return tracks, offset[tracks]

    def _opened(self, state: State, hit: Bool[Tensor, " t"]) -> State:
        """Where a candidate failed, halve between it and the seed."""
        fresh = torch.zeros_like(state["near"])
        return {**state, "open": hit, "far": state["best"].clone(), "near": fresh, "end": fresh + 1}

    def _improved(
        self,
        state: State,
        tracks: Int[Tensor, " a"],
        seed: Float[Tensor, "a d"],
        feedback: Feedback,
    ) -> tuple[State, Bool[Tensor, " t"]]:
        """Shorter failing candidates become the best of their tracks; also which tracks."""
        moved = flat(feedback.z) - seed
        failed = feedback.failed
        if self.apart:
            failed = failed & (feedback.predicted == state["goal"][tracks, 0])
        size = total(moved.abs())
        before = state["length"][tracks]
        shorter = failed & (size < before)
        best = torch.where(shorter[:, None], moved, state["best"][tracks])
        length = torch.where(shorter, size, before)
        hit = torch.zeros_like(state["open"]).index_copy(0, tracks, shorter)
        return {
            **state,
            "best": state["best"].index_copy(0, tracks, best),
            "length": state["length"].index_copy(0, tracks, length),
        }, hit


# Ways out of a class: random walks, halved to where they leave it.


@search("exits", needs="label")
@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryWalks:
    """Random walks out of a class, bisected to the boundary, and the class they enter there.

    Straight walks from every seed, all at once: a query at the far end, then halvings of those
    that fail there. A walk goes along the difference of two random codes (without `codes` along the
    prior), or toward near classes, along more or fewer of the step's largest coordinates, of which
    each walk leaves out others; every fourth goes anywhere.

    The state ends with the class that each walk enters where it leaves the original's (-1: it never
    left) and the share of the walk at which it does; `row` names the seed.

    Args:
        codes: Codes of training images, to walk toward.
        walks: Walks from every seed.
        halvings: Bisection steps of each walk toward the boundary.
        reach: Length of a walk, in spreads of the codes.
        classes: Walk toward so many nearest classes; 0: in random directions.
        cuts: Shares of coordinates that a walk toward a class keeps.
        answers: Bisect to where the answer changes, whatever the oracle says.
    """

    codes: Partners | None = None
    walks: int = 10
    halvings: int = 6
    reach: float = 4.0
    classes: int = 0
    cuts: tuple[float, ...] = (0.1, 0.3, 1.0)
    answers: bool = False

    def init(self, seeds: Seeds, rng: Rng) -> State:
        z = flat(seeds.z)
        row = torch.arange(len(z), device=z.device).repeat_interleave(self.walks)
        blank = z.new_zeros(len(row))
        if self.classes and self.codes is not None:
            far = self._toward(self.codes, seeds, rng)
        else:
            far = self._far(z, rng)
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64),
            "row": row,
            "seed": z.clone(),
            "label": seeds.y.clone(),
            "near": blank,
            "end": blank + 1,
            "far": far,
            "entered": torch.full_like(row, -1),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        turn = int(state["turn"])
        # `near` is the farthest share of the way that kept the class, `end` the nearest that left
        # it: each turn halves between them. Turn 0 asks for the far end itself.
        share = (state["near"] + state["end"]) / 2
        if turn == 0:
            share = state["end"]
        # A walk whose far end kept its class has nothing to bisect and costs no further query.
        open_ = evaluate.live[state["row"]] & ((state["entered"] >= 0) | (turn == 0))
        walks = open_.nonzero().squeeze(1)
        row = state["row"][walks]
        z = state["seed"][row] + share[walks, None] * state["far"][walks]
        feedback = evaluate(z.reshape(-1, *state["shape"].tolist()), row)
        out = feedback.failed
        if self.answers:
            out = feedback.predicted != state["label"][row]
        out = out & feedback.evaluated
        left = walks[out]
        stayed = walks[~out & feedback.evaluated]
        if turn >= self.halvings:
            evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return {
            **state,
            "entered": state["entered"].index_copy(0, left, feedback.predicted[out]),
            "end": state["end"].index_copy(0, left, share[left]),
            "near": state["near"].index_copy(0, stayed, share[stayed]),
            "turn": state["turn"] + 1,
        }

    def _far(self, z: Float[Tensor, "n d"], rng: Rng) -> Float[Tensor, "w d"]:
        """The far ends of all walks, seed after seed, relative to their seeds."""
        rows = torch.arange(len(z), device=z.device)
        if self.codes is None:
            return self.reach * rng.normal(rows, (self.walks, z.shape[1])).flatten(0, 1)
        count = min(LIMIT, len(self.codes.label))
        drawn = rng.integers(rows, count, (2, self.walks))
        first, second = (flat(self.codes.take(chosen.flatten())) for chosen in drawn.unbind(1))
        # The difference of two independent codes has twice the variance of one code: the factor
        # makes `reach` a multiple of the codes' spread.
        return self.reach / 2**0.5 * (first - second)

    def _toward(self, codes: Partners, seeds: Seeds, rng: Rng) -> Tensor:
        ways = directions(codes, seeds, classes=self.classes, neighbours=50)
        low, high = span(codes, seeds)
        lane = torch.arange(self.walks, device=seeds.y.device) % ways.step.shape[1]
        step = ways.step[:, lane].flatten(0, 1)
        walk = torch.arange(len(step), device=step.device)[:, None] % self.walks
        turn = walk // ways.step.shape[1] % len(self.cuts)
        cut = sum(largest(step, share) * (turn == i) for i, share in enumerate(self.cuts))
        rows = torch.arange(len(seeds), device=step.device)
        mask = rng.uniform(rows, (self.walks, step.shape[1])).flatten(0, 1) < 0.7
        seed, low, high = (
            value.repeat_interleave(self.walks, 0) for value in (flat(seeds.z), low, high)
        )
        far = seed + scaled(cut * mask, total(step.abs()) * self.reach)
        far = torch.minimum(torch.maximum(far, low), high) - seed
        # Every fourth walk goes in a random direction: where the classes of the partners are all on
        # one side, the boundary may still be near on the other.
        stray = torch.arange(len(far), device=far.device) % self.walks % 4 == 3
        return torch.where(stray[:, None], self._far(flat(seeds.z), rng), far)


def lengths(state: State) -> Tensor:
    """The L1 length at which each walk leaves; infinite where it never does."""
    far = total(state["far"].abs())
    return torch.where(state["entered"] >= 0, state["end"] * far, torch.inf)
