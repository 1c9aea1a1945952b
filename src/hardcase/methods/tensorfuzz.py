"""TensorFuzz: random noise guided by how new the outputs are; finds not-a-numbers, and disagreement with a coarser copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.criterion import Measure, Tally
from hardcase.criteria.frame import Frame
from hardcase.criteria.network import Selection
from hardcase.criteria.surprise import Corpus as Points
from hardcase.criteria.trace import Kept
from hardcase.guides.corpus import Corpus, Recent
from hardcase.methods.neurons import Profiles
from hardcase.objectives import Margin
from hardcase.oracles import Disagree, NonFinite
from hardcase.searches.fuzzing import Fuzzing, WhiteNoise
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.types import Budget, Method, Model

_NUMBERS = "tensorfuzz looks for answers that are not finite numbers, as there is no other model to disagree with."


def tensorfuzz(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    threshold: float = 1.0,
    radius: float = 0.2,
    sigma: float = 0.1,
    children: int = 20,
    capacity: int = 32,
    queries: int = 1001,
) -> Method:
    """Noise around each seed, from parents whose logits were far from all seen before, until a copy of the model disagrees.

    Augustus Odena, Catherine Olsson, David Andersen, Ian Goodfellow. TensorFuzz: Debugging Neural Networks with
    Coverage-Guided Fuzzing. ICML 2019. https://arxiv.org/abs/1807.10875

    The peer is, unless one is given, the subject's own 8-bit copy (the original: float16). ``--oracle non-finite`` looks for NaN
    and infinity instead. Differences from the reference: pictures in [0, 1], so `sigma` and `radius` are half of those on
    [-1, 1] (0.2 and the paper's 0.4; its README has 1.0); each seed has a corpus of its own, while novelty is shared; exact
    neighbours. `threshold` is compared with squared distances, as in the code (the paper says Euclidean).
    """
    classes = subject(profile.image.to(subject.device)).logits.shape[1]
    novelty = Measure("novelty", Outputs(classes, threshold))
    oracle = Disagree() if peers else NonFinite()
    return Method(
        name="tensorfuzz",
        space=Pixels(Linf(radius)),
        search=Fuzzing(mutator=WhiteNoise(sigma), children=children),
        objective=Margin(),
        oracle=oracle,
        guides=(Corpus(novelty, oracle, Recent(), capacity),),
        needs="scores",
        budget=Budget(queries=queries),
        details={} if peers else {"says": [_NUMBERS]},
    )


@dataclass(frozen=True)
class Outputs:
    """The rule of TensorFuzz's coverage on the logits themselves, so that it needs no layer."""

    classes: int
    threshold: float = 1.0

    @property
    def selections(self) -> tuple[Selection, ...]:
        return ()

    def memory(self) -> Kept:
        return Kept(self.classes, self.threshold)

    def observe(self, frame: Frame, memory: Kept) -> None:
        memory.add(frame.logits.cpu())

    def gain(self, frame: Frame, memory: Kept) -> Float[Tensor, " m"]:
        new = memory.distance(frame.logits.cpu()) > self.threshold
        return (new & frame.logits.cpu().isfinite().all(1)).to(frame.device).float()

    def choose(self, count: int, rng: torch.Generator, memory: Kept) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Kept) -> Float[Tensor, " m"]:
        """Away from the nearest outputs seen."""
        seen = memory.all().to(frame.device)
        if not len(seen):
            return frame.logits.sum(1) * 0
        _, place = Points.of(seen).nearest(frame.logits.detach())
        return (frame.logits - seen[place]).square().sum(1)

    def tally(self, memory: Kept) -> Tally:
        count = len(memory.base) + len(memory.own)
        return Tally(float(count), count)
