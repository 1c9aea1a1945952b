"""`evaluate`: the only way from a search to the networks, for every method alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.claims import CLAIMED, asking, moved_claims, stored_label
from hardcase.campaign.record import Campaign, Counts, Limits, counted, within
from hardcase.errors import HardcaseError
from hardcase.oracles import MIN_MARGIN, LeavesLabel, witness_margin
from hardcase.randomness import Rng
from hardcase.tensors import (
    chunks,
    margin,
    ordinal,
    steady,
    tile_rows,
    to_bytes,
    to_grid,
)
from hardcase.types import (
    KINDS,
    Answer,
    Feedback,
    Findings,
    Following,
    Guide,
    Probe,
    Seeds,
    Targets,
)

# From codes to probes: decode, round to 8 bits, ask the networks, in calls of bounded size.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A probe, its scores, and the gradient of each row's score by its code (zero where no gradient
    was requested).
    """

    probe: Probe
    score: Float[Tensor, " m"]
    gradient: Float[Tensor, "m *code"]


class Query:
    """Queries the networks about the images of a shard.

    The result never depends on how the rows were cut into calls.
    """

    def __init__(self, campaign: Campaign, seeds: Seeds, guides: Sequence[Guide] = ()) -> None:
        self.campaign = campaign
        self.seeds = seeds
        self.models = (campaign.subject, *campaign.peers)
        self.networks = (*self.models, *campaign.witnesses)
        self.taps = campaign.taps()
        self.guides = {guide.name: guide for guide in guides}
        self.tile = tile_rows(campaign.subject.device)
        self.batch = max(self.tile, campaign.batch // self.tile * self.tile)
        self.objective = campaign.method.objective
        self.claimed = CLAIMED in seeds.context
        self.differentiates_model = not campaign.method.closed

    def __call__(
        self,
        z: Tensor,
        rows: Int[Tensor, " m"],
        targets: Targets,
        *,
        graded: bool = False,
        seeds: Seeds | None = None,
    ) -> Evaluation:
        """Query in calls of `batch` rows; lack of memory halves the calls, down to a tile, and
        changes no answer. `seeds`: whose rows they are, where it is not the shard's.
        """
        space = self.campaign.method.space
        while True:
            try:
                parts = list[Evaluation]()
                for part in chunks(len(rows), self.batch):
                    origin = _origin(rows[part], self.seeds if seeds is None else seeds)
                    with torch.no_grad():
                        code = space.project(z[part].detach(), origin)
                    with torch.set_grad_enabled(graded):
                        code = code.detach().requires_grad_() if graded else code
                        x = to_grid(space.decode(code, origin))
                        if graded and not x.requires_grad:
                            raise HardcaseError(
                                f"space {space.name} gives no gradient of its images by its codes,"
                                " which this method climbs.",
                                fix="--method natural-blackbox, or torch operations in decode",
                            )
                        # The evaluator alone decides what is differentiated: a method that declares
                        # a black box gets a detached image, so a gradient cannot leak into its
                        # search by accident.
                        image = x if self.differentiates_model else x.detach()
                        ask_each: tuple[Callable[..., Answer], ...] = self.networks
                        if self.claimed:
                            claims = moved_claims(space, code, origin)
                            ask_each = tuple(asking(network, claims) for network in self.networks)
                        answers = [ask(image, taps) for ask, taps in zip(ask_each, self.taps)]
                        activations = dict(answers[0].activations)
                        for i, peer in enumerate(answers[1:]):
                            activations |= {
                                f"peer{i}/{name}": value for name, value in peer.activations.items()
                            }
                        witnesses = [
                            ask(x if network.offers == "gradients" else x.detach()).logits
                            for ask, network in zip(
                                ask_each[len(answers) :], self.campaign.witnesses
                            )
                        ]
                        probe = Probe(
                            z=code,
                            x=x,
                            logits=answers[0].logits,
                            origin=origin,
                            peers=tuple(peer.logits for peer in answers[1:]),
                            witnesses=tuple(witnesses),
                            activations=activations,
                            targets=rows_of(targets, part),
                            guides=self.guides,
                        )
                        score = self.objective(probe)
                    if graded and score.requires_grad:
                        gradient = torch.autograd.grad(score.sum(), code)[0].nan_to_num(0, 0, 0)
                    else:  # none asked for, or of black boxes alone
                        gradient = torch.zeros_like(code)
                    if graded:
                        probe = _detached(probe)
                    parts.append(Evaluation(probe, score.detach(), gradient))
                return parts[0] if len(parts) == 1 else join_rows(parts)
            except (torch.OutOfMemoryError, MemoryError):
                if self.batch <= self.tile:
                    raise
                self.batch = max(self.tile, self.batch // 2 // self.tile * self.tile)
                log.warning("out of memory: going on with %d rows a call", self.batch)


def _origin(rows: Int[Tensor, " m"], seeds: Seeds) -> Seeds:
    """The images of these rows: themselves, no copies, where a CPU says that rows are all in order;
    another device would have to be waited for.
    """
    all_rows = len(rows) == len(seeds) and steady(rows.device)
    if all_rows and torch.equal(rows, torch.arange(len(rows))):
        return seeds
    return seeds.take(rows)


def rows_of(targets: Targets, part: slice | Tensor) -> Targets:
    return {name: value[part] for name, value in targets.items()}


def _detached(probe: Probe) -> Probe:
    activations = {name: value.detach() for name, value in probe.activations.items()}
    return replace(
        probe,
        z=probe.z.detach(),
        x=probe.x.detach(),
        logits=probe.logits.detach(),
        peers=tuple(logits.detach() for logits in probe.peers),
        witnesses=tuple(logits.detach() for logits in probe.witnesses),
        activations=activations,
    )


def join_rows(parts: Sequence[Any]) -> Any:
    """Concatenate tensors, and records of tensors field by field; of any other value return the
    first.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        return {name: join_rows([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(join_rows, zip(*parts)))
    if not isinstance(first, Evaluation | Probe | Seeds | _Candidates):
        return first
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(first)}
    return type(first)(**{name: join_rows(column) for name, column in columns.items()})


# Which candidates become failures, and of what kind.

PENDING = 512
"""Findings that may wait before the rule of keeping is applied to them."""
UNSORTED = 2**26
"""Numbers of codes and images that may wait on a device before somebody asks which of them fail."""
UNSORTED_HERE = 2**22
"""The same of what fails, on a CPU."""
LABEL = KINDS.index("label")
NON_FINITE = KINDS.index("non_finite")


class Recorder:
    """Keeps the failures by the method's oracle, and every answer that is not a number, by
    the run's `keep` rule.
    """

    def __init__(self, campaign: Campaign, seeds: Seeds) -> None:
        self.campaign = campaign
        self.seeds = seeds
        self.space = campaign.method.space
        self.keep = replace(
            campaign.keep, target_margin=max(campaign.margin, campaign.method.target_margin)
        )
        self.failing = campaign.failing
        self.own = KINDS.index(self.failing.kind)
        no_seeds = seeds.id[:0]
        real = seeds.x.new_empty(0)
        self.found = [  # none, of the right shapes
            Findings(
                seed=no_seeds,
                x=to_bytes(seeds.x[:0]),
                kind=no_seeds,
                expected=no_seeds,
                predicted=no_seeds,
                peer_predicted=no_seeds.new_empty(0, len(campaign.peers)),
                confidence=real,
                score=real,
                distance=real,
                queries=no_seeds,
                code=seeds.z.flatten(1)[:0] if self.space.keeps_code else real[:, None][:, :0],
                witnessed=no_seeds.bool(),
                witness_margin=real,
            )
        ]
        self.waiting = list[tuple[_Candidates, Tensor]]()
        """Candidates with their images, which are copied only if the rule wants them."""
        self.held = 0

    def findings(self) -> Findings:
        self.sort()
        if len(self.found) == 2 and not len(self.found[0]):
            return self.found[1]  # as one sorting has left them
        return self.keep.prune(Findings.join(self.found))

    def candidates(
        self,
        probe: Probe,
        rows: Int[Tensor, " m"],
        *,
        score: Float[Tensor, " m"],
        failed: Bool[Tensor, " m"],
        left: Bool[Tensor, " m"],
        finite: Bool[Tensor, " m"],
        new: Bool[Tensor, " m"],
        number: Int[Tensor, " m"],
    ) -> _Candidates:
        """What was evaluated, and which of it is wanted.

        `left`: the model has left the original's label; `finite`: its answer is of numbers; `new`:
        the candidate was not evaluated before; `number`: the seed's queries when it was evaluated.
        """
        peers = torch.empty(len(probe.x), 0, dtype=torch.int64, device=probe.x.device)
        if probe.peers:
            peers = torch.stack([self._label(peer) for peer in probe.peers], 1)
        fails = failed
        if self.failing is not self.campaign.method.oracle:
            fails = self.failing(probe)
        return _Candidates(
            probe.z,
            probe.logits,
            rows,
            score,
            (fails | ~finite) & new,
            torch.where(left, LABEL, torch.where(finite, self.own, NON_FINITE)),
            number,
            witness_margin(probe),
            peers,
            torch.zeros_like(score),
        )

    def hold(self, shown: _Candidates, x: Tensor) -> bool:
        """Let candidates with their images wait; returns whether it is time to `sort`.

        On a device candidates are collected first: reading which of them fail would wait for the
        whole queue of the device.
        """
        if len(x):
            self.waiting.append((shown, x))
        self.held += x.numel() + shown.z.numel()
        return self.held > (UNSORTED_HERE if steady(x.device) else UNSORTED)

    def measured(
        self, shown: _Candidates, x: Tensor, origin: Seeds | None = None
    ) -> tuple[_Candidates, Tensor]:
        """The wanted candidates, with their distances, and codes only where these are stored.

        `origin`: the seeds of all rows; where most are wanted their distances cost less than copies
        of the others' codes and seeds.
        """
        rows = shown.wanted.nonzero().squeeze(1)
        if origin is None or 2 * len(rows) < len(x):
            shown, x = shown.take(rows), x[rows]
            origin = self.seeds.take(shown.row)
            rows = torch.arange(len(x), device=x.device)
        code = shown.logits[:, :0]
        if not len(rows):
            return replace(shown, z=code), x
        with torch.no_grad():  # a space that re-encodes would drag its generator's graph along
            distance = self.space.distance(shown.z, origin)
        if self.space.keeps_code:
            code = shown.z.flatten(1)
        shown = replace(shown, z=code, distance=distance)
        return (shown, x) if len(rows) == len(x) else (shown.take(rows), x[rows])

    def sort(self) -> None:
        """Apply the rule to the collected candidates."""
        if not self.waiting:
            return
        shown = join_rows([batch for batch, _ in self.waiting])
        images = [x for _, x in self.waiting]
        self.waiting = []
        self.held = 0
        if not steady(shown.z.device):
            shown, x = self.measured(shown, torch.cat(images))
            images = [x]
        if not len(shown.row):
            return
        seed = self.seeds.id[shown.row]
        label = self._label(shown.logits)
        best = self._best(shown, seed, label, images)
        if not len(best):
            return
        shown = shown.take(best)
        findings = Findings(
            seed=seed[best],
            x=to_bytes(_picked(images, best)),
            kind=shown.kind,
            expected=self.seeds.y[shown.row],
            predicted=label[best],
            peer_predicted=shown.peers,
            confidence=shown.logits.softmax(1).amax(1),
            score=shown.score,
            distance=shown.distance,
            queries=shown.number,
            code=shown.z,
            witnessed=(shown.margin >= self.campaign.margin) & bool(self.campaign.witnesses),
            witness_margin=shown.margin,
        )
        self.found.append(findings)
        if self.keep.bounded and sum(map(len, self.found)) > PENDING + len(self.found[0]):
            self.found = [self.findings()]

    def _label(self, logits: Float[Tensor, "m k"]) -> Int[Tensor, " m"]:
        """Answers as they are stored."""
        label = logits.argmax(1)
        if CLAIMED in self.seeds.context:
            return stored_label(label, logits.shape[1], True)
        return label

    def _best(
        self,
        shown: _Candidates,
        seed: Int[Tensor, " w"],
        label: Int[Tensor, " w"],
        images: Sequence[Tensor],
    ) -> Int[Tensor, " r"]:
        """Which of the candidates the rule keeps: compared with the stored ones, so that no other
        images are copied; or compared with each other, where the rule needs the images.
        """
        columns = (seed, shown.kind, label, shown.distance, shown.margin)
        if self.keep.place is not None or not self.keep.bounded:
            return self.keep.rows(*columns, torch.cat(list(images)))
        names = ("seed", "kind", "predicted", "distance", "witness_margin")
        before = [torch.cat([getattr(stored, name) for stored in self.found]) for name in names]
        rows = self.keep.rows(*(torch.cat(pair) for pair in zip(before, columns)))
        new = rows[rows >= len(before[0])]
        return new - len(before[0])


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Candidates in the order of evaluation, and which of them are wanted."""

    z: Tensor
    logits: Float[Tensor, "m k"]
    row: Int[Tensor, " m"]
    score: Float[Tensor, " m"]
    wanted: Bool[Tensor, " m"]
    kind: Int[Tensor, " m"]
    number: Int[Tensor, " m"]
    margin: Float[Tensor, " m"]
    peers: Int[Tensor, "m p"]
    distance: Float[Tensor, " m"]

    def take(self, rows: Int[Tensor, " r"]) -> _Candidates:
        return _Candidates(**{f.name: getattr(self, f.name)[rows] for f in fields(_Candidates)})


def _picked(images: Sequence[Tensor], rows: Int[Tensor, " r"]) -> Tensor:
    """These rows, in ascending order, of the concatenated images."""
    if len(images) == 1:
        return images[0] if len(rows) == len(images[0]) else images[0][rows]
    parts = []
    for x in images:
        parts.append(x[rows[(rows >= 0) & (rows < len(x))]])
        rows = rows - len(x)
    return torch.cat(parts)


# What a search calls: it meters, records and feeds guides.

Ask = Callable[[Seeds, Sequence[Guide]], Callable[..., Evaluation]]
"""From the images of a shard and its guides: what asks the networks about them."""


class ShardEvaluator:
    """Implements `types.Evaluator` for the images of one shard: meters, stops finished images,
    keeps failures, feeds guides.

    Rows whose target ``seen`` is true were evaluated before: they cost again, but are not counted
    or stored twice.
    """

    def __init__(
        self,
        campaign: Campaign,
        seeds: Seeds,
        limits: Limits,
        guides: Sequence[Guide],
        rng: Rng,
        ask: Ask | None = None,
    ) -> None:
        self.campaign = campaign
        self.method = campaign.method
        self.oracle = campaign.method.oracle
        self.seeds = seeds
        self.limits = limits
        self.rng = rng
        self.guides = tuple(guides)
        self.steering = tuple(guides[: len(campaign.method.guides)])
        self.counts = Counts.zeros(len(seeds), seeds.y.device)
        self.finished = torch.zeros(len(seeds), dtype=torch.bool, device=seeds.y.device)
        self.query = (ask or partial(Query, campaign))(seeds, self.guides)
        self.recorder = Recorder(campaign, seeds)
        self.plain = campaign.method.oracle == LeavesLabel(MIN_MARGIN)

    @property
    def live(self) -> Bool[Tensor, " n"]:
        return ~self.finished & (self.counts.queries < self.limits.queries)

    def retire(self, rows: Int[Tensor, " r"]) -> None:
        self.finished[rows] = True

    def choose(self, rows: Int[Tensor, " m"], following: Targets | None = None) -> Targets:
        proposals = [
            guide.follow(rows, following, self.rng)
            if following is not None and isinstance(guide, Following)
            else guide.choose(rows, self.rng)
            for guide in self.steering
        ]
        return {name: value for targets in proposals for name, value in targets.items()}

    def __call__(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> Feedback:
        targets = targets or {}
        if self._affordable(rows):
            evaluation = self.query(z.detach(), rows, targets)
            return self._record(evaluation, rows, targets, graded=False)
        return self._partly(z, rows, targets, graded=False)[0]

    def gradient(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> tuple[Feedback, Tensor]:
        """An evaluation with the gradient of each row's score.

        A method to which the model is closed gets the gradients of witnesses alone, and pays for
        none. A seed whose gradients are spent gets a plain query and ends.
        """
        targets = targets or {}
        if self._affordable(rows, graded=True):
            evaluation = self.query(z.detach(), rows, targets, graded=True)
            return self._record(evaluation, rows, targets, graded=True), evaluation.gradient
        paid = within(rows, self.limits.gradients - self.counts.gradients)
        if not bool(paid.any()) and self._affordable(rows):
            evaluation = self.query(z.detach(), rows, targets)
            feedback = self._record(evaluation, rows, targets, graded=False)
            self.retire(rows)
            return feedback, evaluation.gradient
        if bool(paid.all()):
            return self._partly(z, rows, targets, graded=True)
        graded = self._partly(z[paid], rows[paid], rows_of(targets, paid), graded=True)
        plain = self._partly(z[~paid], rows[~paid], rows_of(targets, ~paid), graded=False)
        self.retire(rows[~paid])
        back = torch.cat([paid.nonzero(), (~paid).nonzero()]).squeeze(1).argsort()
        both = (
            torch.cat([getattr(graded[0], f.name), getattr(plain[0], f.name)])[back]
            for f in fields(Feedback)
        )
        return Feedback(*both), torch.cat([graded[1], plain[1]])[back]

    def surrogates(
        self, z: Float[Tensor, "r *code"], rows: Int[Tensor, " r"]
    ) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r s d"]]:
        """What the method's surrogates say in place of a model that gives no gradient.

        Returns:
            Each surrogate's logit margin, and its gradient by the (flattened) code.
        """
        networks = self.method.surrogates
        origin = self.seeds.take(rows.repeat(len(networks)))
        with torch.enable_grad():
            code = z.detach().repeat(len(networks), *[1] * (z.ndim - 1)).requires_grad_()
            images = to_grid(self.method.space.decode(code, origin)).chunk(len(networks))
            margins = [
                margin(network(x).logits, self.seeds.y[rows])
                for network, x in zip(networks, images)
            ]
            (gradient,) = torch.autograd.grad(torch.cat(margins).sum(), code)
        spent = counted(rows, len(self.seeds)) * len(networks)
        self.counts.surrogate_queries.add_(spent)
        self.counts.surrogate_gradients.add_(spent)
        slopes = gradient.nan_to_num(0, 0, 0).reshape(len(networks), len(rows), -1)
        return torch.stack([each.detach() for each in margins], 1), slopes.transpose(0, 1)

    def reconstruct(self) -> None:
        """Spend a query on each image to see whether its decoded code keeps its label; retire
        the others.
        """
        rows = self.live.nonzero().squeeze(1)
        probe = self.query(self.seeds.z[rows], rows, self.choose(rows)).probe
        self._meter(rows, graded=False)
        lost = rows[probe.logits.argmax(1) != probe.origin.y]
        self.counts.lost[lost] = True
        self.retire(lost)

    def _partly(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets, *, graded: bool
    ) -> tuple[Feedback, Tensor]:
        """Evaluate the rows that are live and paid for; the others score -inf and cost nothing."""
        open_rows = self.live[rows] & within(rows, self.limits.queries - self.counts.queries)
        zero = torch.zeros(len(rows), device=z.device)
        no = torch.zeros(len(rows), dtype=torch.bool, device=z.device)
        feedback = Feedback(
            z.detach().clone(),
            zero - torch.inf,
            no,
            self.seeds.y[rows],
            zero,
            no.clone(),
            zero - torch.inf,
        )
        gradient = torch.zeros_like(z)
        if bool(open_rows.any()):
            paid = rows[open_rows]
            targets = rows_of(targets, open_rows)
            evaluation = self.query(z[open_rows].detach(), paid, targets, graded=graded)
            gradient[open_rows] = evaluation.gradient
            evaluated = self._record(evaluation, paid, targets, graded=graded)
            for f in fields(Feedback):
                getattr(feedback, f.name)[open_rows] = getattr(evaluated, f.name)
        return feedback, gradient

    def _affordable(self, rows: Int[Tensor, " m"], *, graded: bool = False) -> bool:
        """Whether every row is of a live seed and within its budget: the only value that most steps
        must read before they continue.
        """
        if rows.dtype == torch.bool:
            raise HardcaseError(
                "a search asked with a mask; rows are positions of images.",
                fix="rows = evaluate.live.nonzero().squeeze(1)",
            )
        if not len(rows):
            return False
        spent = counted(rows, len(self.seeds))
        fits = (spent <= self.limits.queries - self.counts.queries) & ~(self.finished & (spent > 0))
        if graded:
            fits &= spent <= self.limits.gradients - self.counts.gradients
        return bool(fits.all())

    def _record(
        self, evaluation: Evaluation, rows: Int[Tensor, " m"], targets: Targets, *, graded: bool
    ) -> Feedback:
        """Meter, keep and show to guides what was evaluated; return what the search may know."""
        probe = evaluation.probe
        finite = probe.logits.isfinite().all(1)
        score = torch.where(finite, evaluation.score, -torch.inf)
        failed = self.oracle(probe)
        left = failed if self.plain else self.campaign.leaves(probe)
        left = left & finite
        number = self.counts.queries[rows] + ordinal(rows) + 1
        gain = torch.zeros(len(rows), device=score.device)
        for guide in self.steering:
            gain = gain + guide.gain(probe)
        for guide in self.guides:
            guide.update(probe)
        self._meter(rows, graded=graded)
        new = ~targets["seen"] if "seen" in targets else torch.ones_like(left)
        self.counts.failing.index_add_(0, rows, (left & new).long())
        shown = self.recorder.candidates(
            probe,
            rows,
            score=score,
            failed=failed,
            left=left,
            finite=finite,
            new=new,
            number=number,
        )
        x = probe.x
        if steady(x.device):
            shown, x = self.recorder.measured(shown, x, probe.origin)
        if self.recorder.hold(shown, x):
            self.recorder.sort()
        if self.method.until == "first":
            self.finished |= counted(rows, len(self.seeds), failed) > 0
        label = probe.logits.argmax(1)
        ahead = margin(probe.logits, probe.origin.y)
        return Feedback(probe.z, score, failed, label, gain, torch.ones_like(failed), ahead)

    def _meter(self, rows: Int[Tensor, " m"], *, graded: bool) -> None:
        spent = counted(rows, len(self.seeds))
        self.counts.queries.add_(spent)
        self.counts.peer_queries.add_(spent * len(self.campaign.peers))
        self.counts.witness_queries.add_(spent * len(self.campaign.witnesses))
        if graded:
            if not self.method.closed:
                self.counts.gradients.add_(spent)
            open_boxes = sum(witness.offers == "gradients" for witness in self.campaign.witnesses)
            self.counts.witness_gradients.add_(spent * open_boxes)
