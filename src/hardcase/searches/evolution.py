"""A search by queries alone: an antithetic evolution strategy whose spread grows until it fails."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches.gradient import halve
from hardcase.tensors import flat, length, per_row, total
from hardcase.types import Evaluator, Feedback, Seeds, State

__all__ = ["Evolution"]


@search(
    "evolution",
    needs="label",
    paper="Salimans et al., 2017, arXiv 1703.03864; antithetic pairs, ranked scores",
)
@dataclass(frozen=True, slots=True)
class Evolution:
    """Candidates on both sides of a centre, ranked by score, lead the centre uphill.

    Each step asks about `pairs` antithetic pairs per seed. While nothing fails the spread grows, so
    that a subject that tells only its label is found out as well; from the first failure on, the
    way between the seed and the nearest failing candidate is halved, keeping to the failing side.

    Args:
        pairs: Antithetic pairs of candidates per step and seed.
        spread: First standard deviation of candidates, in units of the code.
        growth: Factor of the spread after a step without progress.
        most: Greatest spread.
        step_size: Step of the centre, in units of the spread.
        bisections: Halvings of the way back toward the seed.
    """

    pairs: int = 10
    spread: float = 0.2
    growth: float = 1.25
    most: float = 0.8
    step_size: float = 1.0
    bisections: int = 8

    def init(self, seeds: Seeds, rng: Rng) -> State:
        none = torch.zeros(len(seeds), device=seeds.z.device)
        return {
            "centre": seeds.z.clone(),
            "start": seeds.z.clone(),
            "found": seeds.z.clone(),
            "spread": none + self.spread,
            "best": none - torch.inf,
            "low": none.clone(),
            "high": none + torch.inf,  # a share of the way to `found`, once something fails
            "halved": torch.zeros_like(seeds.y),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        back = state["high"].isfinite()
        spreading, halving = ((evaluate.live & mask).nonzero().squeeze(1) for mask in (~back, back))
        if len(spreading):
            state = self._spread_out(state, evaluate, rng, spreading)
        if len(halving):
            state = halve(state, evaluate, halving, state["found"], halvings=self.bisections)
        return state

    def _spread_out(
        self, state: State, evaluate: Evaluator, rng: Rng, rows: Int[Tensor, " r"]
    ) -> State:
        centre = state["centre"][rows]
        spread = per_row(state["spread"][rows], centre)
        noise = rng.normal(rows, (self.pairs, *centre.shape[1:]))  # r p *code
        both = torch.cat([noise, -noise], 1)  # r 2p *code
        asked = (centre[:, None] + spread[:, None] * both).flatten(0, 1)
        feedback = evaluate(asked, rows.repeat_interleave(2 * self.pairs))
        score = feedback.score.reshape(len(rows), -1)
        uphill = (per_row(_ranked(score).flatten(), asked) * both.flatten(0, 1)).reshape_as(both)
        direction = total(uphill)
        direction = direction / per_row(length(flat(direction)).clamp_min(1e-12), direction)
        size = float(centre[0].numel()) ** 0.5
        progress = score.amax(1) > state["best"][rows] + 1e-4
        wider = (state["spread"][rows] * self.growth).clamp_max(self.most)
        found, fails = _nearest(feedback, state["start"][rows], len(rows))
        new = {
            "centre": centre + self.step_size * spread * size**0.5 * direction,
            "spread": torch.where(progress, state["spread"][rows], wider),
            "best": torch.maximum(state["best"][rows], score.amax(1)),
            "found": found,
            "high": torch.where(fails, 1.0, torch.inf),
        }
        return {**state, **{k: state[k].index_copy(0, rows, value) for k, value in new.items()}}


def _ranked(score: Float[Tensor, "r c"]) -> Float[Tensor, "r c"]:
    """Centred ranks in place of scores, from -0.5 to 0.5; equal scores have equal ranks."""
    order = score.argsort(dim=1, stable=True)
    number = torch.arange(score.shape[1], device=score.device, dtype=score.dtype)
    rank = torch.empty_like(score).scatter_(1, order, number.expand_as(score))
    flat_scores = score.amax(1, keepdim=True) == score.amin(1, keepdim=True)
    centred = rank / max(score.shape[1] - 1, 1) - 0.5
    return torch.where(flat_scores, torch.zeros_like(centred), centred)


def _nearest(
    feedback: Feedback, start: Float[Tensor, "r *code"], count: int
) -> tuple[Tensor, Tensor]:
    """The failing candidate of each seed that is nearest to its code, and whether there is one."""
    z = feedback.z.reshape(count, -1, *feedback.z.shape[1:])  # r c *code
    away = length((z - start[:, None]).flatten(2), 2)
    failed = feedback.failed.reshape(count, -1)
    away = torch.where(failed, away, torch.inf)
    pick = away.argmin(1)
    return z[torch.arange(count, device=z.device), pick], failed.any(1)
