"""From codes to probes: decode, round to 8 bits, ask the networks, in calls of bounded size."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign.record import Campaign
from hardcase.tensors import TILE, chunks, to_grid
from hardcase.types import Aim, Guide, Probe, Seeds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """A probe, its scores, and the gradient of each row's score by its code (zero where none was asked for)."""

    probe: Probe
    score: Float[Tensor, " m"]
    slope: Float[Tensor, "m *code"]


class Asking:
    """Asks about the seeds of one shard. The result never depends on how the rows were cut into calls."""

    def __init__(self, campaign: Campaign, seeds: Seeds, guides: Sequence[Guide] = ()) -> None:
        self.campaign, self.seeds, self.taps = campaign, seeds, campaign.taps()
        self.guides = {guide.name: guide for guide in guides}
        self.batch = max(TILE, campaign.batch // TILE * TILE)

    def plain(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> Sight:
        return self._in_parts(self._plain, z, rows, aim)

    def graded(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> Sight:
        return self._in_parts(self._graded, z, rows, aim)

    def _plain(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> Sight:
        origin = self.seeds.take(rows)
        with torch.no_grad():
            z = self.campaign.method.space.project(z, origin)
            probe = self._probe(z, origin, aim)
            return Sight(probe, self.campaign.method.objective(probe), torch.zeros_like(z))

    def _graded(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> Sight:
        origin = self.seeds.take(rows)
        z = self.campaign.method.space.project(z.detach(), origin)
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            probe = self._probe(z, origin, aim)
            score = self.campaign.method.objective(probe)
            (slope,) = torch.autograd.grad(score.sum(), z)
        return Sight(_detached(probe), score.detach(), slope.nan_to_num(0, 0, 0))

    def _probe(self, z: Tensor, origin: Seeds, aim: Aim) -> Probe:
        x = to_grid(self.campaign.method.space.decode(z, origin))
        own, *others = [model(x, taps) for model, taps in zip((self.campaign.subject, *self.campaign.peers), self.taps)]
        seen = {f"peer{i}/{name}": value for i, peer in enumerate(others) for name, value in peer.activations.items()}
        peers = tuple(peer.logits for peer in others)
        return Probe(z, x, own.logits, origin, peers, {**own.activations, **seen}, aim, self.guides)

    def _in_parts(
        self, ask: Callable[[Tensor, Tensor, Aim], Sight], z: Tensor, rows: Int[Tensor, " m"], aim: Aim
    ) -> Sight:
        """Ask in calls of `batch` rows; memory that runs out halves the calls, down to one tile, and changes no answer."""
        while True:
            try:
                parts = [ask(z[part], rows[part], rows_of(aim, part)) for part in chunks(len(rows), self.batch)]
                return parts[0] if len(parts) == 1 else _join(parts)
            except (torch.OutOfMemoryError, MemoryError):
                if self.batch <= TILE:
                    raise
                self.batch = max(TILE, self.batch // 2 // TILE * TILE)
                log.warning("out of memory: going on with %d rows a call", self.batch)


def rows_of(aim: Aim, part: slice | Tensor) -> Aim:
    return {name: value[part] for name, value in aim.items()}


def _detached(probe: Probe) -> Probe:
    seen = {name: value.detach() for name, value in probe.activations.items()}
    peers = tuple(peer.detach() for peer in probe.peers)
    z, x, logits = probe.z.detach(), probe.x.detach(), probe.logits.detach()
    return replace(probe, z=z, x=x, logits=logits, peers=peers, activations=seen)


def _join(parts: Sequence[Sight]) -> Sight:
    probes = [part.probe for part in parts]
    origins = [probe.origin for probe in probes]
    context = _cat_maps([o.context for o in origins])
    origin = Seeds(_cat(origins, "z"), _cat(origins, "x"), _cat(origins, "y"), _cat(origins, "id"), context)
    peers = tuple(torch.cat(peers) for peers in zip(*(probe.peers for probe in probes)))
    seen, aim = _cat_maps([p.activations for p in probes]), _cat_maps([p.aim for p in probes])
    z, x, logits = (_cat(probes, name) for name in ("z", "x", "logits"))
    probe = replace(probes[0], z=z, x=x, logits=logits, origin=origin, peers=peers, activations=seen, aim=aim)
    return Sight(probe, _cat(parts, "score"), _cat(parts, "slope"))


def _cat(parts: Sequence[object], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in parts])


def _cat_maps(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
