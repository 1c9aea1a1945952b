"""Gradients for a black box: those of networks that stand in for it, corrected by its answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.tensors import flat, margin, per_row, to_grid, total
from hardcase.types import Feedback, Look, Model, Seeds, Space, State


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Where a search along gradients gets them if the subject gives none.

    Networks trained on the same data as a subject would be (substitutes: Papernot et al., 2017,
    arXiv 1602.02697) have similar gradients. What they get wrong is learned on the way: the subject
    is asked at a point beside the current one, and the difference between the change of its margin
    and the change that was expected is added along that step (a secant correction: Broyden, 1965).
    Where the subject fails already, only the witnesses' gradient is left.

    Args:
        networks: The networks that stand in.
        space: The space that is searched.
        noise: How far beside the current point the subject is asked, per coordinate.
        correct: Share of a difference that is corrected; 0 where the subject tells only its label.
        enough: Logits by which the subject must leave the label before its part ends.
    """

    networks: tuple[Model, ...]
    space: Space
    noise: float = 0.05
    correct: float = 0.5
    enough: float = 0.5

    def start(self, seeds: Seeds) -> State:
        """What is remembered of each seed."""
        blank = torch.zeros_like(seeds.z)
        return {
            "x": seeds.x,
            "y": seeds.y,
            "asked": seeds.z.clone(),
            "leaned": blank,
            "correction": blank.clone(),
            "lead": torch.full((len(seeds),), torch.nan, device=seeds.z.device),
        }

    def __call__(
        self, state: State, look: Look, rows: Int[Tensor, " r"], rng: Rng
    ) -> tuple[Feedback, Tensor, State]:
        """One query of each row, and the direction to go from there."""
        z = state["z"][rows]
        asked = z + self.noise * rng.normal(rows, tuple(z.shape[1:]))
        feedback, kept = look.gradient(asked, rows)
        lean = self._slope(feedback.z, state, rows)
        correction = state["correction"][rows]
        if self.correct:
            step = feedback.z - state["asked"][rows]
            expected = total(flat(((lean + state["leaned"][rows]) / 2 + correction) * step))
            missed = feedback.lead - state["lead"][rows] - expected
            length = total(flat(step).square()).clamp_min(1e-9)
            share = torch.where(missed.isfinite(), self.correct * missed / length, 0.0)
            correction = correction + per_row(share, step) * step
        done = per_row(feedback.lead >= self.enough, lean)
        slope = kept + torch.where(done, 0.0, lean + correction)
        new = {
            "asked": feedback.z,
            "leaned": lean,
            "correction": correction,
            "lead": feedback.lead,
        }
        table = {name: state[name].index_copy(0, rows, value) for name, value in new.items()}
        return feedback, slope, {**state, **table}

    def _slope(
        self, z: Float[Tensor, "r *code"], state: State, rows: Int[Tensor, " r"]
    ) -> Float[Tensor, "r *code"]:
        """The gradient of the stand-ins' mean margin by the code."""
        origin = Seeds(state["start"][rows], state["x"][rows], state["y"][rows], rows)
        with torch.enable_grad():
            code = z.detach().requires_grad_()
            x = to_grid(self.space.decode(code, origin))
            leads = [margin(one(x).logits, origin.y) for one in self.networks]
            (slope,) = torch.autograd.grad(torch.stack(leads).mean(0).sum(), code)
        return slope.nan_to_num(0, 0, 0)
