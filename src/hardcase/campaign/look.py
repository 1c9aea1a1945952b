"""`look`: the only door between a search and the networks, for every method alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.record import Campaign, Counts, Limits, within
from hardcase.oracles import witness_margin
from hardcase.randomness import Rng
from hardcase.tensors import chunks, flat, ordinal, tile_rows, to_bytes, to_grid
from hardcase.types import KINDS, Aim, Answer, Feedback, Findings, Following, Guide, Probe, Seeds

# From codes to probes: decode, round to 8 bits, ask the networks, in calls of bounded size.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """A probe, its scores, and the gradient of each row's score by its code (zero where none was
    asked for).
    """

    probe: Probe
    score: Float[Tensor, " m"]
    slope: Float[Tensor, "m *code"]


class Asking:
    """Asks about the seeds of one shard.

    The result never depends on how the rows were cut into calls.
    """

    def __init__(self, campaign: Campaign, seeds: Seeds, guides: Sequence[Guide] = ()) -> None:
        self.campaign = campaign
        self.seeds = seeds
        self.models = (campaign.subject, *campaign.peers)
        self.taps = campaign.taps()
        self.guides = {guide.name: guide for guide in guides}
        self.tile = tile_rows(campaign.subject.device)
        self.batch = max(self.tile, campaign.batch // self.tile * self.tile)
        self.objective = campaign.objective

    def __call__(
        self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim, *, graded: bool = False
    ) -> Sight:
        """Ask in calls of `batch` rows; memory that runs out halves the calls, down to one tile,
        and changes no answer.
        """
        space = self.campaign.method.space
        while True:
            try:
                parts = list[Sight]()
                for part in chunks(len(rows), self.batch):
                    origin = self.seeds.take(rows[part])
                    with torch.no_grad():
                        code = space.project(z[part].detach(), origin)
                    with torch.set_grad_enabled(graded):
                        code = code.detach().requires_grad_() if graded else code
                        x = to_grid(space.decode(code, origin))
                        said = [model(x, taps) for model, taps in zip(self.models, self.taps)]
                        witnesses = [
                            one(x if one.offers == "gradients" else x.detach()).logits
                            for one in self.campaign.witnesses
                        ]
                        probe = Probe(
                            z=code,
                            x=x,
                            logits=said[0].logits,
                            origin=origin,
                            peers=tuple(peer.logits for peer in said[1:]),
                            witnesses=tuple(witnesses),
                            activations=_activations(said),
                            aim=rows_of(aim, part),
                            guides=self.guides,
                        )
                        score = self.objective(probe)
                    parts.append(_graded(probe, score) if graded else _plain(probe, score))
                return parts[0] if len(parts) == 1 else _join(parts)
            except (torch.OutOfMemoryError, MemoryError):
                if self.batch <= self.tile:
                    raise
                self.batch = max(self.tile, self.batch // 2 // self.tile * self.tile)
                log.warning("out of memory: going on with %d rows a call", self.batch)


def _activations(said: Sequence[Answer]) -> dict[str, Tensor]:
    """What was tapped in the subject, and in its peers under their numbers."""
    peers = {
        f"peer{i}/{name}": value
        for i, peer in enumerate(said[1:])
        for name, value in peer.activations.items()
    }
    return {**said[0].activations, **peers}


def _plain(probe: Probe, score: Float[Tensor, " m"]) -> Sight:
    return Sight(probe, score, torch.zeros_like(probe.z))


def _graded(probe: Probe, score: Float[Tensor, " m"]) -> Sight:
    (slope,) = torch.autograd.grad(score.sum(), probe.z)
    return Sight(_detached(probe), score.detach(), slope.nan_to_num(0, 0, 0))


def rows_of(aim: Aim, part: slice | Tensor) -> Aim:
    return {name: value[part] for name, value in aim.items()}


def _detached(probe: Probe) -> Probe:
    seen = {name: value.detach() for name, value in probe.activations.items()}
    return replace(
        probe,
        z=probe.z.detach(),
        x=probe.x.detach(),
        logits=probe.logits.detach(),
        peers=tuple(logits.detach() for logits in probe.peers),
        witnesses=tuple(logits.detach() for logits in probe.witnesses),
        activations=seen,
    )


def _join(parts: Sequence[Sight]) -> Sight:
    probes = [part.probe for part in parts]
    origins = [probe.origin for probe in probes]
    context = _cat_maps([o.context for o in origins])
    origin = Seeds(
        _cat(origins, "z"), _cat(origins, "x"), _cat(origins, "y"), _cat(origins, "id"), context
    )
    peers = tuple(torch.cat(logits) for logits in zip(*(probe.peers for probe in probes)))
    witnesses = tuple(torch.cat(logits) for logits in zip(*(probe.witnesses for probe in probes)))
    seen = _cat_maps([p.activations for p in probes])
    aim = _cat_maps([p.aim for p in probes])
    z, x, logits = (_cat(probes, name) for name in ("z", "x", "logits"))
    probe = replace(
        probes[0],
        z=z,
        x=x,
        logits=logits,
        origin=origin,
        peers=peers,
        witnesses=witnesses,
        activations=seen,
        aim=aim,
    )
    return Sight(probe, _cat(parts, "score"), _cat(parts, "slope"))


def _cat(parts: Sequence[object], name: str) -> Tensor:
    return torch.cat([getattr(part, name) for part in parts])


def _cat_maps(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# Which candidates become findings, and of what kind.

PENDING = 512
"""Findings that may wait before the rule of keeping is applied to them."""
LABEL = KINDS.index("label")
NON_FINITE = KINDS.index("non_finite")


class Recorder:
    """Keeps what fails by the method's own oracle, and every answer that is not a number,
    by the campaign's `keep` rule.
    """

    def __init__(self, campaign: Campaign, seeds: Seeds) -> None:
        self.campaign = campaign
        self.space = campaign.method.space
        self.keep = replace(campaign.keep, aim=campaign.aim)
        self.own = KINDS.index(campaign.method.oracle.kind)
        self.found = [
            _none(
                seeds,
                len(campaign.peers),
                flat(seeds.z[:1]).shape[1] if self.space.keeps_code else 0,
            )
        ]

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
        """`left`: the subject has left the seed's label; `new`: the candidate was not looked at
        before; `number`: the seed's queries when it was looked at.
        """
        finite = probe.logits.isfinite().all(1)
        fails = self.campaign.method.oracle(probe) if self.campaign.witnesses else failed
        kept = ((fails | ~finite) & new).nonzero().squeeze(1)
        if not len(kept):
            return
        kind = torch.where(left[kept], LABEL, torch.where(finite[kept], self.own, NON_FINITE))
        label = probe.logits[kept].argmax(1)
        distance = self.space.distance(probe.z[kept], probe.origin.take(kept))
        least = witness_margin(probe)[kept]
        witnessed = (least >= self.campaign.margin) & bool(self.campaign.witnesses)
        best = self.keep.rows(probe.origin.id[kept], kind, label, distance, least, probe.x[kept])
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
            code=flat(probe.z[rows])
            if self.space.keeps_code
            else probe.logits.new_empty(len(rows), 0),
            witnessed=witnessed[best],
            witness_margin=least[best],
        )
        self.found.append(found)
        if self.keep.bounded and sum(map(len, self.found)) > PENDING + len(self.found[0]):
            self.found = [self.findings()]


def _labels(probe: Probe, rows: Int[Tensor, " t"]) -> Int[Tensor, "t p"]:
    columns = [peer[rows].argmax(1) for peer in probe.peers]
    return torch.stack(columns, 1) if columns else rows.new_empty(len(rows), 0)


def _none(seeds: Seeds, peers: int, width: int) -> Findings:
    whole = seeds.id[:0]
    real = seeds.x.new_empty(0)
    images = to_bytes(seeds.x[:0])
    codes = seeds.x.new_empty(0, width)
    return Findings(
        whole,
        images,
        whole,
        whole,
        whole,
        whole.new_empty(0, peers),
        real,
        real,
        real,
        whole,
        codes,
        whole.bool(),
        real,
    )


# `look`: the one door between a search and the networks, for every method alike.


class Door:
    """Implements `types.Look` for the seeds of one shard: meters, stops finished seeds, keeps
    findings, feeds guides.

    Rows whose aim ``seen`` is true were looked at before: they cost again, but are not counted or
    kept a second time.
    """

    def __init__(
        self,
        campaign: Campaign,
        seeds: Seeds,
        limits: Limits,
        guides: Sequence[Guide],
        rng: Rng,
    ) -> None:
        self.campaign = campaign
        self.method = campaign.method
        self.oracle = campaign.oracle
        self.seeds = seeds
        self.limits = limits
        self.rng = rng
        self.guides = tuple(guides)
        self.steering = tuple(guides[: len(campaign.method.guides)])
        self.counts = Counts.zeros(len(seeds), seeds.y.device)
        self.finished = torch.zeros(len(seeds), dtype=torch.bool, device=seeds.y.device)
        self.ask = Asking(campaign, seeds, self.guides)
        self.recorder = Recorder(campaign, seeds)

    @property
    def live(self) -> Bool[Tensor, " n"]:
        return ~self.finished & (self.counts.queries < self.limits.queries)

    def retire(self, rows: Int[Tensor, " r"]) -> None:
        self.finished[rows] = True

    def choose(self, rows: Int[Tensor, " m"], following: Aim | None = None) -> Aim:
        asked = [
            guide.follow(rows, following, self.rng)
            if following is not None and isinstance(guide, Following)
            else guide.choose(rows, self.rng)
            for guide in self.steering
        ]
        return {name: value for aim in asked for name, value in aim.items()}

    def __call__(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim | None = None) -> Feedback:
        return self._look(z, rows, aim or {})[0]

    def gradient(
        self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim | None = None
    ) -> tuple[Feedback, Tensor]:
        """A look with the gradient of each row's score.

        A seed whose gradients are spent gets one plain look and ends.
        """
        aim = aim or {}
        paid = within(rows, self.limits.gradients - self.counts.gradients)
        if bool(paid.all()):
            return self._look(z, rows, aim, graded=True)
        graded = self._look(z[paid], rows[paid], rows_of(aim, paid), graded=True)
        plain = self._look(z[~paid], rows[~paid], rows_of(aim, ~paid))
        self.retire(rows[~paid])
        back = torch.cat([paid.nonzero(), (~paid).nonzero()]).squeeze(1).argsort()
        both = (
            torch.cat([getattr(graded[0], f.name), getattr(plain[0], f.name)])[back]
            for f in fields(Feedback)
        )
        return Feedback(*both), torch.cat([graded[1], plain[1]])[back]

    def reconstruct(self) -> None:
        """Spend a query on each seed to see whether its own code, decoded, keeps its label;
        retire those that do not.
        """
        rows = self.live.nonzero().squeeze(1)
        probe = self.ask(self.seeds.z[rows], rows, self.choose(rows)).probe
        self._meter(rows, graded=False)
        lost = rows[probe.logits.argmax(1) != probe.origin.y]
        self.counts.lost[lost] = True
        self.retire(lost)

    def _look(
        self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim, *, graded: bool = False
    ) -> tuple[Feedback, Tensor]:
        """Look at the rows that are live and paid for; the others score -inf and cost nothing."""
        looked = self.live[rows] & within(rows, self.limits.queries - self.counts.queries)
        if bool(looked.all()) and len(rows):
            sight = self.ask(z.detach(), rows, aim, graded=graded)
            return self._told(sight, rows, aim, graded=graded), sight.slope
        unseen = self._unseen(z, rows)
        slope = torch.zeros_like(z)
        if bool(looked.any()):
            some = rows[looked]
            aim = rows_of(aim, looked)
            sight = self.ask(z[looked].detach(), some, aim, graded=graded)
            slope[looked] = sight.slope
            seen = self._told(sight, some, aim, graded=graded)
            for f in fields(Feedback):
                getattr(unseen, f.name)[looked] = getattr(seen, f.name)
        return unseen, slope

    def _told(self, sight: Sight, rows: Int[Tensor, " m"], aim: Aim, *, graded: bool) -> Feedback:
        """What the search is told, after what was seen was metered, kept and shown to guides."""
        probe = sight.probe
        finite = probe.logits.isfinite().all(1)
        score = torch.where(finite, sight.score, -torch.inf)
        failed = self.oracle(probe)
        left = self.campaign.leaves(probe) & finite
        number = self.counts.queries[rows] + ordinal(rows) + 1
        gain = self._guide(probe)
        self._meter(rows, graded=graded)
        new = ~aim["seen"] if "seen" in aim else torch.ones_like(left)
        self.counts.failing.index_add_(0, rows, (left & new).long())
        self.recorder.add(probe, score=score, failed=failed, left=left, new=new, number=number)
        if self.method.until == "first":
            self.retire(rows[failed])
        label = probe.logits.argmax(1)
        return Feedback(probe.z, score, failed, label, gain, torch.ones_like(failed))

    def _guide(self, probe: Probe) -> Float[Tensor, " m"]:
        gain = torch.zeros(len(probe.logits), device=probe.logits.device)
        for guide in self.steering:
            gain = gain + guide.gain(probe)
        for guide in self.guides:
            guide.update(probe)
        return gain

    def _meter(self, rows: Int[Tensor, " m"], *, graded: bool) -> None:
        spent = rows.bincount(minlength=len(self.seeds))
        self.counts.queries.add_(spent)
        self.counts.peer_queries.add_(spent * len(self.campaign.peers))
        self.counts.witness_queries.add_(spent * len(self.campaign.witnesses))
        if graded:
            self.counts.gradients.add_(spent)
            open_boxes = sum(one.offers == "gradients" for one in self.campaign.witnesses)
            self.counts.witness_gradients.add_(spent * open_boxes)

    def _unseen(self, z: Tensor, rows: Int[Tensor, " m"]) -> Feedback:
        zero = torch.zeros(len(rows), device=z.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=z.device)
        return Feedback(
            z.detach().clone(), zero - torch.inf, no, self.seeds.y[rows], zero, no.clone()
        )
