"""`look`: the one door between a search and the networks, for every method alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.asking import Asking, Sight, rows_of
from hardcase.campaign.budgets import Limits, within
from hardcase.campaign.keeping import ordinal
from hardcase.campaign.record import Campaign, Counts
from hardcase.campaign.recording import Recorder
from hardcase.types import Aim, Feedback, Following, Guide, Probe, Seeds

Ask = Callable[[Tensor, Tensor, Aim], Sight]


class Door:
    """Implements `types.Look` for the seeds of one shard: meters, stops finished seeds, keeps findings, feeds guides.

    Rows whose aim ``seen`` is true were looked at before: they cost again, but are not counted or kept a second time.
    """

    def __init__(
        self, campaign: Campaign, seeds: Seeds, limits: Limits, guides: Sequence[Guide], rng: torch.Generator
    ) -> None:
        self.campaign, self.method, self.seeds, self.limits, self.rng = campaign, campaign.method, seeds, limits, rng
        self.guides, self.steering = tuple(guides), tuple(guides[: len(campaign.method.guides)])
        self.counts = Counts.zeros(len(seeds), seeds.y.device)
        self.finished = torch.zeros(len(seeds), dtype=torch.bool, device=seeds.y.device)
        self.ask, self.recorder = Asking(campaign, seeds, self.guides), Recorder(campaign, seeds)

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
        return self._look(self.ask.plain, z, rows, aim or {})[0]

    def gradient(self, z: Tensor, rows: Int[Tensor, " m"], aim: Aim | None = None) -> tuple[Feedback, Tensor]:
        """A look with the gradient of each row's score. A seed whose gradients are spent gets one plain look and ends."""
        aim = aim or {}
        paid = within(rows, self.limits.gradients - self.counts.gradients)
        if bool(paid.all()):
            return self._look(self.ask.graded, z, rows, aim)
        graded = self._look(self.ask.graded, z[paid], rows[paid], rows_of(aim, paid))
        plain = self._look(self.ask.plain, z[~paid], rows[~paid], rows_of(aim, ~paid))
        self.retire(rows[~paid])
        back = torch.cat([paid.nonzero(), (~paid).nonzero()]).squeeze(1).argsort()
        both = (torch.cat([getattr(graded[0], f.name), getattr(plain[0], f.name)])[back] for f in fields(Feedback))
        return Feedback(*both), torch.cat([graded[1], plain[1]])[back]

    def reconstruct(self) -> None:
        """Spend a query on each seed to see whether its own code, decoded, keeps its label; retire those that do not."""
        rows = self.live.nonzero().squeeze(1)
        probe = self.ask.plain(self.seeds.z[rows], rows, self.choose(rows)).probe
        self._meter(rows, graded=False)
        lost = rows[probe.logits.argmax(1) != probe.origin.y]
        self.counts.lost[lost] = True
        self.retire(lost)

    def _look(self, ask: Ask, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> tuple[Feedback, Tensor]:
        """Look at the rows that are live and paid for; the others score -inf and cost nothing."""
        looked = self.live[rows] & within(rows, self.limits.queries - self.counts.queries)
        if bool(looked.all()) and len(rows):
            return self._seen(ask, z, rows, aim)
        unseen, slope = self._unseen(z, rows), torch.zeros_like(z)
        if bool(looked.any()):
            seen, slope[looked] = self._seen(ask, z[looked], rows[looked], rows_of(aim, looked))
            for f in fields(Feedback):
                getattr(unseen, f.name)[looked] = getattr(seen, f.name)
        return unseen, slope

    def _seen(self, ask: Ask, z: Tensor, rows: Int[Tensor, " m"], aim: Aim) -> tuple[Feedback, Tensor]:
        sight = ask(z.detach(), rows, aim)
        probe = sight.probe
        finite = probe.logits.isfinite().all(1)
        score, failed = torch.where(finite, sight.score, -torch.inf), self.method.oracle(probe)
        left = self.campaign.leaves(probe) & finite
        number = self.counts.queries[rows] + ordinal(rows) + 1
        gain = self._guide(probe)
        self._meter(rows, graded=ask == self.ask.graded)
        new = ~aim["seen"] if "seen" in aim else torch.ones_like(left)
        self.counts.failing.index_add_(0, rows, (left & new).long())
        self.recorder.add(probe, score=score, failed=failed, left=left, new=new, number=number)
        if self.method.until == "first":
            self.retire(rows[failed])
        return Feedback(probe.z, score, failed, probe.logits.argmax(1), gain, torch.ones_like(failed)), sight.slope

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
        if graded:
            self.counts.gradients.add_(spent)

    def _unseen(self, z: Tensor, rows: Int[Tensor, " m"]) -> Feedback:
        zero = torch.zeros(len(rows), device=z.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=z.device)
        return Feedback(z.detach().clone(), zero - torch.inf, no, self.seeds.y[rows], zero, no.clone())
