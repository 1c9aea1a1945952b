"""Which candidates become findings, and of what kind."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.record import Campaign
from hardcase.tensors import flat, to_bytes
from hardcase.types import KINDS, Findings, Probe, Seeds

PENDING = 512
"""Findings that may wait before the rule of keeping is applied to them."""
LABEL, NON_FINITE = KINDS.index("label"), KINDS.index("non_finite")


class Recorder:
    """Keeps what fails by the method's own oracle, and every answer that is not a number, by the campaign's `keep` rule."""

    def __init__(self, campaign: Campaign, seeds: Seeds) -> None:
        self.campaign, self.space, self.keep = campaign, campaign.method.space, campaign.keep
        self.own = KINDS.index(campaign.method.oracle.kind)
        self.found = [_none(seeds, len(campaign.peers), flat(seeds.z[:1]).shape[1] if self.space.keeps_code else 0)]

    def findings(self) -> Findings:
        return self.keep.prune(Findings.join(self.found))

    def add(
        self,
        probe: Probe,
        *,
        score: Float[Tensor, " m"],
        failed: Bool[Tensor, " m"],
        left: Bool[Tensor, " m"],
        new: Bool[Tensor, " m"],
        number: Int[Tensor, " m"],
    ) -> None:
        """`left`: the subject has left the seed's label; `new`: the candidate was not looked at before; `number`: the seed's
        queries when it was looked at."""
        finite = probe.logits.isfinite().all(1)
        kept = ((failed | ~finite) & new).nonzero().squeeze(1)
        if not len(kept):
            return
        kind = torch.where(left[kept], LABEL, torch.where(finite[kept], self.own, NON_FINITE))
        label = probe.logits[kept].argmax(1)
        distance = self.space.distance(probe.z[kept], probe.origin.take(kept))
        best = self.keep.rows(probe.origin.id[kept], kind, label, distance)
        rows = kept[best]
        found = Findings(
            seed=probe.origin.id[rows],
            x=to_bytes(probe.x[rows]),
            kind=kind[best],
            expected=probe.origin.y[rows],
            predicted=label[best],
            peer_predicted=_labels(probe, rows),
            confidence=probe.logits[rows].softmax(1).amax(1),
            score=score[rows],
            distance=distance[best],
            queries=number[rows],
            code=flat(probe.z[rows]) if self.space.keeps_code else probe.logits.new_empty(len(rows), 0),
        )
        self.found.append(found)
        if self.keep.bounded and sum(map(len, self.found)) > PENDING + len(self.found[0]):
            self.found = [self.findings()]


def _labels(probe: Probe, rows: Int[Tensor, " t"]) -> Int[Tensor, "t p"]:
    columns = [peer[rows].argmax(1) for peer in probe.peers]
    return torch.stack(columns, 1) if columns else rows.new_empty(len(rows), 0)


def _none(seeds: Seeds, peers: int, width: int) -> Findings:
    whole, real = seeds.id[:0], seeds.x.new_empty(0)
    images, codes = to_bytes(seeds.x[:0]), seeds.x.new_empty(0, width)
    return Findings(whole, images, whole, whole, whole, whole.new_empty(0, peers), real, real, real, whole, codes)
