"""NLC: how widely the outputs of each layer spread and vary together.

Y. Yuan, Q. Pang, S. Wang, "Revisiting neuron coverage for DNN testing: a layer-wise and distribution-aware criterion",
ICSE 2023. The sum over layers of the mean size of the entries of the covariance matrix.

What it is: not a ratio, not monotone (an ordinary input can lower it), and in the authors' code order dependent, since an
input is only let in if it raises the value. Differences: here every input counts, so the order matters to rounding only;
and samples are counted once, where the authors' code counts them once a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Folded
from hardcase.criteria.units import Selection
from hardcase.tensors import chunks
from hardcase.types import State


@dataclass(frozen=True)
class Spread:
    """The covariance of each layer's units over all inputs seen; rows with infinity or not-a-number are left out."""

    selection: Selection

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        state = dict[str, Tensor]()
        for i, width in enumerate(self.selection.widths):
            state |= {
                f"count{i}": torch.zeros(1, dtype=torch.float64),
                f"mean{i}": torch.zeros(width, dtype=torch.float64),
            }
            state[f"spread{i}"] = torch.zeros(width, width, dtype=torch.float64)
        return Folded(state, self._join)

    def observe(self, frame: Frame, memory: Folded) -> None:
        state = dict[str, Tensor]()
        for i, values in enumerate(frame.layers(self.selection)):
            known = values[values.isfinite().all(1)].double()
            mean = known.mean(0) if len(known) else known.new_zeros(values.shape[1])
            state |= {f"count{i}": torch.tensor([len(known)]).double(), f"mean{i}": mean}
            state[f"spread{i}"] = (known - mean).t() @ (known - mean)
        memory.add(state)

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """By how much the row alone would change the value."""
        seen, gain = memory.total(), torch.zeros(len(frame), dtype=torch.float64, device=frame.device)
        for i, values in enumerate(frame.layers(self.selection)):
            count, mean, spread = (seen[f"{name}{i}"].to(frame.device) for name in ("count", "mean", "spread"))
            step = values.double() - mean
            now = (spread / count.clamp_min(1)).abs().mean()
            parts = [_size_with(spread, count, step[p]) for p in chunks(len(step), max(1, 2**22 // spread.numel()))]
            gain += (torch.cat(parts) - now).where(values.isfinite().all(1), 0)
        return gain.float()

    def choose(self, count: int, rng: torch.Generator, memory: Folded) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        """To first order, what a row adds: its products of deviations, with the sign of the covariances they would raise."""
        seen, score = memory.total(), torch.zeros(len(frame), device=frame.device)
        for i, values in enumerate(frame.layers(self.selection)):
            mean, spread = (seen[f"{name}{i}"].to(frame.device) for name in ("mean", "spread"))
            signs = (spread.sign() + (spread == 0) * torch.eye(len(spread), device=frame.device)).float()
            step = values - mean.float()
            score = score + ((step @ signs) * step).sum(1) / values.shape[1] ** 2
        return score.where(score.isfinite(), 0)

    def tally(self, memory: Folded) -> Tally:
        seen = memory.total()
        sizes = [
            (seen[f"spread{i}"] / seen[f"count{i}"].clamp_min(1)).abs().mean().item()
            for i in range(len(self.selection.widths))
        ]
        return Tally(sum(sizes), detail={"layers": dict(zip(self.selection.names, sizes, strict=True))})

    def _join(self, a: State, b: State) -> State:
        """Moments of two sets of rows as those of their union (Chan, Golub, LeVeque, 1979)."""
        joined = dict[str, Tensor]()
        for i in range(len(self.selection.widths)):
            shift, total = b[f"mean{i}"] - a[f"mean{i}"], a[f"count{i}"] + b[f"count{i}"]
            share = b[f"count{i}"] / total.clamp_min(1)
            joined |= {f"count{i}": total, f"mean{i}": a[f"mean{i}"] + shift * share}
            joined[f"spread{i}"] = (
                a[f"spread{i}"] + b[f"spread{i}"] + torch.outer(shift, shift) * a[f"count{i}"] * share
            )
        return joined


def _size_with(
    spread: Float[Tensor, "u u"], count: Float[Tensor, " 1"], step: Float[Tensor, "m u"]
) -> Float[Tensor, " m"]:
    """The mean size of the covariances once a row, `step` from the mean, has joined."""
    raised = spread + step[:, :, None] * step[:, None, :] * (count / (count + 1))
    return raised.abs().mean((1, 2)) / (count + 1)
