"""For black boxes: an evolution strategy, and gradients of networks that stand in for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches.gradient import halve
from hardcase.tensors import flat, length, per_row, total
from hardcase.types import Evaluator, Feedback, Seeds, State


@search(
    "evolution",
    needs="label",
    paper="Salimans et al., 2017, arXiv 1703.03864; antithetic pairs, ranked scores",
)
@dataclass(frozen=True, slots=True)
class Evolution:
    """Candidates on both sides of a centre, ranked by score, lead the centre uphill.

    While nothing fails the spread grows, so that the search also works with labels alone;
    from the first failure on, the way between the seed and the nearest failing candidate
    is halved, staying on the failing side.

    Args:
        pairs: Antithetic pairs of candidates per step and seed.
        spread: First standard deviation of candidates, in units of the code.
        growth: Factor of the spread after a step without progress.
        most: Greatest spread.
        step_size: Step of the centre, in units of the spread.
        bisections: Halvings of the way back toward the original.
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
        # Mirrored pairs: whatever is even in the noise cancels in the direction, which halves its
        # variance.
        both = torch.cat([noise, -noise], 1)  # r 2p *code
        samples = (centre[:, None] + spread[:, None] * both).flatten(0, 1)
        feedback = evaluate(samples, rows.repeat_interleave(2 * self.pairs))
        score = feedback.score.reshape(len(rows), -1)
        uphill = (per_row(_ranked(score).flatten(), samples) * both.flatten(0, 1)).reshape_as(both)
        direction = total(uphill)
        direction = direction / per_row(length(flat(direction)).clamp_min(1e-12), direction)
        # A normal vector of d numbers has a length of about sqrt(d): a step of that length is as
        # far as the samples were.
        size = float(centre[0].numel()) ** 0.5
        # No progress means a plateau (labels alone, or a saturated margin): look farther away.
        # Progress keeps the radius, since the slope was told by points at this distance.
        progress = score.amax(1) > state["best"][rows] + 1e-4
        wider = (state["spread"][rows] * self.growth).clamp_max(self.most)
        nearest, fails = _nearest(feedback, state["start"][rows], len(rows))
        new = {
            "centre": centre + self.step_size * spread * size**0.5 * direction,
            "spread": torch.where(progress, state["spread"][rows], wider),
            "best": torch.maximum(state["best"][rows], score.amax(1)),
            "found": nearest,
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
    """The failing candidate of each image that is nearest to its code, and whether the image has
    any."""
    z = feedback.z.reshape(count, -1, *feedback.z.shape[1:])  # r c *code
    away = length((z - start[:, None]).flatten(2), 2)
    failed = feedback.failed.reshape(count, -1)
    away = torch.where(failed, away, torch.inf)
    pick = away.argmin(1)
    return z[torch.arange(count, device=z.device), pick], failed.any(1)


# Gradients of networks that stand in for a black box, corrected by its answers.

WEIGHTS = 0.25
SLOPES = 0.5
"""Prior variances of a surrogate's weight and of a slope that no surrogate has."""
ROUGH = 0.1
"""Variance of a change of the model's margin that no slope explains, for a step of length 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateGradients:
    """Where a search along gradients gets them if the model gives none.

    Networks trained on the same data as a model would be (substitutes: Papernot et al., 2017,
    arXiv 1602.02697) have similar gradients. How well each of them predicts the model is learned on
    the way: the model is evaluated at a point near the current point, and the change of its margin
    is tracked as a weighted sum of theirs plus a slope that no surrogate has. A Kalman filter
    (Kalman, 1960) estimates weights and slope from all answers so far. Where the model fails
    already, only the witnesses' gradient is left.

    Args:
        count: How many networks the method has as surrogates.
        noise: Distance of the extra query from the current point, per coordinate.
        learns: Whether answers are learned from; not where the model tells only its label.
        scale: Times a surrogate's margin that the model's is expected to change by, at first.
        push: Share of the model's slope that is followed in addition to the witnesses'.
        forget: Share of the estimate's precision that each query discards.
        enough: Logits by which the model must leave the label before its part ends.
    """

    count: int
    noise: float = 0.03
    learns: bool = True
    scale: float = 1.5
    push: float = 0.5
    forget: float = 0.02
    enough: float = 0.5

    def start(self, seeds: Seeds) -> State:
        """What is remembered of each seed."""
        blank = torch.zeros_like(seeds.z)
        weights = torch.full((self.count,), self.scale / self.count, device=blank.device)
        first = torch.cat([weights.expand(len(seeds), -1), flat(blank)], 1)
        return {
            "asked": blank + seeds.z,
            "margin": torch.full((len(seeds),), torch.nan, device=blank.device),
            "margins": torch.zeros(len(seeds), self.count, device=blank.device),
            "estimate": first,
            "covariance": torch.diag(self._prior(first)).expand(len(seeds), -1, -1).clone(),
        }

    def __call__(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], rng: Rng
    ) -> tuple[Feedback, Tensor, State]:
        """A query of each row, and the direction to go from there."""
        z = state["z"][rows]
        probe = z + self.noise * rng.normal(rows, tuple(z.shape[1:]))
        feedback, gradient = evaluate.gradient(probe, rows)
        margins, slopes = evaluate.surrogates(feedback.z, rows)
        new = {"asked": feedback.z, "margin": feedback.margin, "margins": margins}
        estimate = state["estimate"][rows]
        if self.learns:
            new |= self._filtered(new, state, rows)
            estimate = new["estimate"]
        weighed = total(estimate[:, : margins.shape[1], None] * slopes)
        direction = self.push * (weighed + estimate[:, margins.shape[1] :]).reshape_as(z)
        done = per_row(feedback.margin >= self.enough, direction)
        table = {name: state[name].index_copy(0, rows, value) for name, value in new.items()}
        return feedback, gradient + torch.where(done, 0.0, direction), {**state, **table}

    def _filtered(
        self, new: Mapping[str, Tensor], state: State, rows: Int[Tensor, " r"]
    ) -> dict[str, Tensor]:
        """Kalman's update: weights and slope after another answer, and their covariance."""
        estimate = state["estimate"][rows]
        covariance = state["covariance"][rows]
        moved = [flat(new[name] - state[name][rows]) for name in ("margins", "asked")]
        # The observation: the model's change of margin, as a sum over each surrogate's change
        # and over the coordinates of the step itself.
        observed = torch.cat(moved, 1)
        # Kalman (1960) with a state that stands still: innovation, gain and covariance in turn. The
        # first query has no predecessor: its innovation is not-a-number and gains nothing.
        innovation = new["margin"] - state["margin"][rows] - total(estimate * observed)
        cross = total(covariance * observed[:, None], 2)
        # Noise grows with the step: a long one tells less of the slope where it began.
        variance = total(cross * observed) + ROUGH * total(moved[1].square())
        gain = cross / per_row(variance.clamp_min(1e-9), cross)
        gain = torch.where(per_row(innovation.isfinite(), gain), gain, 0.0)
        covariance = covariance - gain[:, :, None] * cross[:, None]
        prior = torch.diag(self._prior(estimate))
        return {
            "estimate": estimate + per_row(innovation.nan_to_num(0, 0, 0), gain) * gain,
            # The model is not linear, so old answers lose weight: the covariance relaxes toward the
            # prior by `forget` per query.
            "covariance": covariance + self.forget * (prior - covariance),
        }

    def _prior(self, estimate: Float[Tensor, "r k"]) -> Float[Tensor, " k"]:
        """The prior variance: of weights, then of slopes."""
        place = torch.arange(estimate.shape[1], device=estimate.device)
        return torch.where(place < self.count, WEIGHTS, SLOPES)
