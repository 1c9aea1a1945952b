"""Mixing an image with others: with partners' codes, or with another class's conditioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches.boundary import Partners, code_distances
from hardcase.tensors import flat, per_row, total
from hardcase.types import Evaluator, Seeds, State


@search("interpolation", needs="label", paper="Duan, Dwyer and Yang, 2025 (ARGUS)")
@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolation:
    """Interpolate every image once with every partner of another class, at a fixed weight.

    The weight of the partner is `mix`; `width` partners are taken per step.

    Args:
        partners: Codes of training images, as `hc.spaces.partners` collects them.
        mix: Interpolation weight of the partner's code.
        width: Partners per step.
    """

    partners: Partners
    mix: float
    width: int = 64

    def init(self, seeds: Seeds, rng: Rng) -> State:
        return {
            "z": seeds.z.clone(),
            "y": seeds.y.clone(),
            "next": torch.zeros_like(seeds.y),
            "lists": _other_classes(self.partners, seeds.y.device),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        place = state["next"][rows][:, None] + torch.arange(self.width, device=rows.device)  # r w
        longest = state["lists"].shape[1]
        partner = state["lists"][state["y"][rows][:, None], place.clamp_max(longest - 1)]
        there = (partner >= 0) & (place < longest)
        ended = rows[~there.all(1)]
        line, column = there.nonzero(as_tuple=True)
        originals = rows[line]
        other = self.partners.take(partner[line, column])
        evaluate((1 - self.mix) * state["z"][originals] + self.mix * other, originals)
        evaluate.retire(ended)
        return {
            **state,
            "next": state["next"].index_add(0, rows, torch.full_like(rows, self.width)),
        }


@search("bisection", needs="label")
@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Smallest interpolation weight of near partners that reaches each other class.

    For each other class the nearest partners in turn: the interval of shares is halved toward the
    smallest that makes the model say that class. Then, for the nearest code that did, places of
    the grid return to the original's code wherever the model still predicts that class, the most
    changed places first. A class that was never reached costs nothing more, and so does a place at
    rest.

    Args:
        partners: Codes of training images, as `hc.spaces.partners` collects them.
        rounds: Nearest partners that are tried per class.
        halvings: Bisection steps per partner.
        blocks: How many code positions return at once, a pass for each number.
    """

    partners: Partners
    rounds: int = 3
    halvings: int = 7
    blocks: tuple[int, ...] = (8, 1)

    def questions(self, shape: Sequence[int]) -> int:
        """The largest cost of a class of a seed, for codes of this shape."""
        return self._sharing + len(self._plan(_places(shape)))

    def init(self, seeds: Seeds, rng: Rng) -> State:
        near = nearest(self.partners, seeds, self.rounds)  # n k rounds
        n, k = near.shape[:2]
        blank = torch.zeros(n, k, device=seeds.z.device)
        return {
            "z": seeds.z.clone(),
            "near": near,
            "low": blank,
            "high": blank + 1,
            "best": flat(seeds.z)[:, None].repeat(1, k, 1),
            "far": blank + torch.inf,
            "rank": torch.zeros(
                n, k, _places(seeds.z.shape[1:]), dtype=torch.int64, device=seeds.z.device
            ),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        turn = int(state["turn"])
        plan = self._plan(state["rank"].shape[2])
        if turn < self._sharing:
            state = self._share(state, evaluate, rows)
        else:
            state = self._return(state, evaluate, rows, *plan[turn - self._sharing])
        if turn + 1 >= self._sharing + len(plan):
            evaluate.retire(rows)
        return {**state, "turn": state["turn"] + 1}

    @property
    def _sharing(self) -> int:
        return self.rounds * (self.halvings + 1)

    def _plan(self, places: int) -> list[tuple[int, int]]:
        """Size and start of every block of places to try, in order."""
        return [(size, size * i) for size in self.blocks for i in range(ceil(places / size))]

    def _share(self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"]) -> State:
        number, half = divmod(int(state["turn"]), self.halvings + 1)
        partner = state["near"][rows, :, number]
        row, goal = (partner >= 0).nonzero(as_tuple=True)
        originals = rows[row]
        low, high = (state[name][originals, goal] for name in ("low", "high"))
        share = (low + high) / 2
        if half == 0:
            low = torch.zeros_like(low)
            high = share = torch.ones_like(low)
        base = state["z"][originals]
        code = base + per_row(share, base) * (self.partners.take(partner[row, goal]) - base)
        state, hit = _evaluate_codes(state, evaluate, originals, goal, code)
        return {
            **state,
            "low": state["low"].index_put((originals, goal), torch.where(hit, low, share)),
            "high": state["high"].index_put((originals, goal), torch.where(hit, share, high)),
        }

    def _return(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], size: int, start: int
    ) -> State:
        n, k, places = state["rank"].shape
        base = state["z"].reshape(n, 1, -1, places)
        best = state["best"].reshape(n, k, -1, places)
        if start == 0:
            rank = total((best - base).square(), 2).argsort(dim=2, descending=True, stable=True)
            state = {**state, "rank": rank}
        block = torch.zeros(len(rows), k, places, dtype=torch.bool, device=rows.device)
        block.scatter_(2, state["rank"][rows][..., start : start + size], True)
        trial = torch.where(block[:, :, None], base[rows], best[rows])  # r k c places
        moved = (trial != best[rows]).flatten(2).any(2) & state["far"][rows].isfinite()
        row, goal = moved.nonzero(as_tuple=True)
        if not len(row):
            return state
        originals = rows[row]
        code = trial[row, goal].reshape(-1, *state["z"].shape[1:])
        return _evaluate_codes(state, evaluate, originals, goal, code)[0]


def _evaluate_codes(
    state: State, evaluate: Evaluator, originals: Tensor, goal: Tensor, code: Tensor
) -> tuple[State, Tensor]:
    """Evaluate codes, and keep those that reach their class from nearer than any before."""
    feedback = evaluate(code, originals)
    hit = feedback.failed & (feedback.predicted == goal)
    distance = total(flat(code - state["z"][originals]).square()).sqrt()
    nearer = hit & (distance < state["far"][originals, goal])
    at = (originals[nearer], goal[nearer])
    best = state["best"].index_put(at, flat(code)[nearer])
    far = state["far"].index_put(at, distance[nearer])
    return {**state, "best": best, "far": far}, hit


def _places(shape: Sequence[int]) -> int:
    """Places of a grid of codes (channels first), or the numbers of a flat code."""
    return prod(shape[1:] or shape)


def nearest(partners: Partners, seeds: Seeds, count: int) -> Int[Tensor, "n k c"]:
    """For each image and class, the `count` nearest partners (-1: none, or the original's
    class).
    """
    label = partners.label.to(seeds.y.device)
    near = torch.full((len(seeds), int(label.max()) + 1, count), -1, device=seeds.y.device)
    for c in range(near.shape[1]):
        rows = (label == c).nonzero().squeeze(1)
        codes = flat(partners.take(rows))
        if not len(rows):
            continue
        ranked = code_distances(flat(seeds.z), codes)
        best = rows[ranked.argsort(dim=1, stable=True)[:, :count]]
        near[:, c, : best.shape[1]] = torch.where((seeds.y == c)[:, None], -1, best)
    return near


@search("anchored-steps", needs="label", paper="ours, after Duan, Dwyer and Yang, 2026 (Latte)")
@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredSteps:
    """Single steps from every original's code toward randomly drawn codes of other classes.

    A candidate is z + t (anchor - z); none starts from another, so all stay around the seed.

    Args:
        partners: Codes of training images, as `hc.spaces.partners` collects them.
        anchors: Anchors drawn for each original, with replacement.
        step_sizes: The values of t, tried for each anchor.
    """

    partners: Partners
    anchors: int = 100
    step_sizes: tuple[float, ...] = (0.2, 0.4, 0.6)

    def init(self, seeds: Seeds, rng: Rng) -> State:
        lists = _other_classes(self.partners, seeds.y.device)[seeds.y]
        rows = torch.arange(len(seeds), device=seeds.y.device)
        drawn = rng.integers(rows, (lists >= 0).count_nonzero(1)[:, None], (self.anchors,))
        return {
            "z": seeds.z.clone(),
            "anchor": lists.gather(1, drawn),  # n anchors
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        turn = int(state["turn"])
        rows = evaluate.live.nonzero().squeeze(1)
        z = state["z"][rows]
        direction = self.partners.take(state["anchor"][rows, turn]) - z
        candidates = torch.cat([z + t * direction for t in self.step_sizes])
        evaluate(candidates, rows.repeat(len(self.step_sizes)))
        if turn + 1 >= self.anchors:
            evaluate.retire(rows)
        return {**state, "turn": state["turn"] + 1}


@search("growing-mix", needs="label", paper="ours, after Weißl et al., 2024 (Mimicry)")
@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingMix:
    """The smallest mix of each other class that fails: grown from the last stage on, then bisected.

    Codes are those of `hc.spaces.Styles`. A mix of 1.5 means: the last stage is conditioned
    entirely on the other class, the stage before it by half, all earlier stages not at all.

    Args:
        steps: Mixes that are tried per stage.
        halvings: Bisection steps between the last mix that passed and the first that failed.
    """

    steps: int = 4
    halvings: int = 3

    def init(self, seeds: Seeds, rng: Rng) -> State:
        n, classes, stages = seeds.z.shape
        label = torch.arange(classes, device=seeds.y.device)
        return {
            "other": label != seeds.y[:, None],  # n classes
            "low": seeds.z.new_zeros(n, classes),
            "high": seeds.z.new_full((n, classes), torch.inf),
            "from_last": torch.arange(stages, device=seeds.y.device).flip(0),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        turn = int(state["turn"])
        from_last, low, high = (state[name] for name in ("from_last", "low", "high"))
        growing = self.steps * len(from_last)
        failed_before = high.isfinite()
        if turn < growing:
            # The mix enters at the last stage first and moves toward the first: fine stages change
            # looks, early ones change what is shown. So the first failing mix is the most
            # superficial one.
            mix = torch.full_like(low, (turn + 1) / self.steps)
            tracks = state["other"] & ~failed_before
        else:
            mix = (low + high) / 2
            tracks = failed_before
        track = (tracks & evaluate.live[:, None]).nonzero(as_tuple=True)
        row, other = track
        z = low.new_zeros(len(row), low.shape[1], len(from_last))
        z[torch.arange(len(row)), other] = (mix[track][:, None] - from_last).clamp(0, 1)
        failed = evaluate(z, row).failed
        if turn + 1 >= growing + self.halvings:
            evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return {
            **state,
            "low": low.index_put(track, torch.where(failed, low[track], mix[track])),
            "high": high.index_put(track, torch.where(failed, mix[track], high[track])),
            "turn": state["turn"] + 1,
        }


def _other_classes(partners: Partners, device: torch.device) -> Int[Tensor, "k p"]:
    """For each class the rows of all others, padded with -1."""
    return torch.nn.utils.rnn.pad_sequence(
        list(partners.by_class), batch_first=True, padding_value=-1
    ).to(device)
