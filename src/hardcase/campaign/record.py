"""What a campaign is made of, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.campaign.keeping import Keep
from hardcase.errors import Problem
from hardcase.tensors import margin
from hardcase.types import OFFERS, Findings, Guide, Method, Model, Probe, State, Tap

LEAD = 1e-4
"""A subject has left a label when a wrong class leads by this much in probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A method applied to a subject. `batch` is the number of rows a network is given in one call; it changes no result."""

    subject: Model
    method: Method
    peers: tuple[Model, ...] = ()
    criteria: tuple[Guide, ...] = ()
    keep: Keep = field(default_factory=Keep)
    batch: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        needed, offered = self.method.needs, self.subject.offers
        if OFFERS.index(offered) < OFFERS.index(needed):
            raise Problem(
                f'method "{self.method.name}" needs {needed}; subject "{self.subject.name}" offers {offered} only.'
            )

    def taps(self) -> list[Mapping[str, Tap]]:
        """What to keep of the layers of the subject and of each peer."""
        readers = (self.method.taps, *(guide.taps for guide in (*self.method.guides, *self.criteria)))
        wanted = dict[str, Tap]()
        for name, tap in (pair for taps in readers for pair in taps.items()):
            wanted[name] = tap if wanted.get(name, tap) == tap else torch.clone  # readers that differ get it whole
        own = {name: tap for name, tap in wanted.items() if not name.startswith("peer")}
        peers = [
            {name.removeprefix(f"peer{i}/"): tap for name, tap in wanted.items() if name.startswith(f"peer{i}/")}
            for i in range(len(self.peers))
        ]
        return [own, *peers]

    def leaves(self, probe: Probe) -> Bool[Tensor, " m"]:
        """Whether the subject has left the seed's label: what the funnel calls failing, whatever the oracle."""
        return margin(probe.logits.softmax(1), probe.origin.y) >= LEAD


@dataclass(frozen=True, slots=True)
class Counts:
    """What was spent on each seed and what became of it."""

    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]
    peer_queries: Int[Tensor, " n"]
    failing: Int[Tensor, " n"]
    lost: Bool[Tensor, " n"]

    @staticmethod
    def zeros(count: int, device: torch.device) -> Counts:
        a, b, c, d = (torch.zeros(count, dtype=torch.int64, device=device) for _ in range(4))
        return Counts(a, b, c, d, torch.zeros(count, dtype=torch.bool, device=device))


@dataclass(frozen=True, slots=True)
class Shard:
    """What one shard brings home. `unfinished`: seeds that a time limit stopped."""

    findings: Findings
    counts: Counts
    unfinished: Bool[Tensor, " n"]
    deltas: Mapping[str, State] = field(default_factory=dict)
