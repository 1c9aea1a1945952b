"""Small guides: one that draws the deviating model, and one that lets another learn from failing candidates only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.types import Aim, Guide, Oracle, Probe, State, Tap


def take(probe: Probe, rows: Int[Tensor, " r"]) -> Probe:
    """Some rows of a probe."""
    seen = {name: value[rows] for name, value in probe.activations.items()}
    peers = tuple(peer[rows] for peer in probe.peers)
    aim = {name: value[rows] for name, value in probe.aim.items()}
    return Probe(probe.z[rows], probe.x[rows], probe.logits[rows], probe.origin.take(rows), peers, seen, aim)


class Deviating:
    """Draws, for each walk, which of `models` is to leave the others: 0 the subject, then the peers. It remembers nothing."""

    name = "deviating"

    def __init__(self, models: int) -> None:
        self.models = models

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {}

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        return {"deviating": torch.randint(self.models, (len(rows),), generator=rng, device=rng.device).to(rows.device)}

    def follow(self, rows: Int[Tensor, " m"], aim: Aim, rng: torch.Generator) -> Aim:
        """A walk keeps its model to its end."""
        return {"deviating": aim["deviating"]}

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.zeros(len(probe.logits), device=probe.logits.device)

    def update(self, probe: Probe) -> None:
        """Nothing is learnt."""

    def fork(self) -> Deviating:
        return self

    def delta(self) -> State:
        return {}

    def merge(self, deltas: Sequence[State]) -> None:
        """Nothing was learnt."""


class FailingOnly:
    """`guide`, learning from candidates that fail by `oracle` and from nothing else, as DeepXplore counts coverage."""

    def __init__(self, guide: Guide, oracle: Oracle) -> None:
        self.guide, self.oracle = guide, oracle

    @property
    def name(self) -> str:
        return self.guide.name

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.guide.taps

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        return self.guide.choose(rows, rng)

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return self.guide.gain(probe)

    def update(self, probe: Probe) -> None:
        failing = self.oracle(probe).nonzero().squeeze(1)
        if len(failing):
            self.guide.update(take(probe, failing))

    def fork(self) -> FailingOnly:
        return FailingOnly(self.guide.fork(), self.oracle)

    def delta(self) -> State:
        return self.guide.delta()

    def merge(self, deltas: Sequence[State]) -> None:
        self.guide.merge(deltas)
