"""The measures of ARGUS (MSE, SSIM, LD, ER, SR): what a method made of each original, how like it that is, how often it fails, and
what a judge accepts.

Axes: `n` seeds, `k` classes, `t` images that fail. Distances compare an image with its seed, in [0, 1] units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.campaign.in_memory import on_cpu
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, overlay, parse_keep
from hardcase.errors import HardcaseError
from hardcase.judges import panel
from hardcase.judges.held_out import KNOWN
from hardcase.judges.judge import TrainedJudge
from hardcase.methods.generative import argus
from hardcase.models.subject import Subject
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import Rng, stream
from hardcase.tensors import (
    chunks,
    fingerprints,
    flat,
    from_bytes,
    margin,
    ordinal,
    to_bytes,
    to_grid,
)
from hardcase.types import (
    KINDS,
    Budget,
    Findings,
    ImagePairs,
    Images,
    Kind,
    Method,
    Model,
    Oracle,
    Probe,
    Seeds,
    Space,
)
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab, LatentModel, Uncoded


def mse(x: Float[Tensor, "t c h w"], seed: Float[Tensor, "t c h w"]) -> Float[Tensor, " t"]:
    """Mean squared difference of the pixels of each image and its seed."""
    return flat(x - seed).square().mean(1)


def ssim(x: Float[Tensor, "t c h w"], seed: Float[Tensor, "t c h w"]) -> Float[Tensor, " t"]:
    """Structural similarity of each image and its seed (Wang et al., 2004): 1 for equal images."""
    from torchmetrics.functional.image import structural_similarity_index_measure as index

    parts = [
        index(x[rows], seed[rows], data_range=1.0, reduction="none")
        for rows in chunks(len(x), 1024)
    ]
    return torch.cat([part.reshape(-1) for part in parts]) if parts else x.new_empty(0)


def label_diversity(
    owner: Int[Tensor, " t"], label: Int[Tensor, " t"], seeds: int
) -> Float[Tensor, " n"]:
    """LD: how many different wrong labels the failing images of each seed are given."""
    given = torch.zeros(seeds, int(label.max()) + 1 if len(label) else 1, device=label.device)
    given[owner, label] = 1
    return given.sum(1)


@dataclass(frozen=True, slots=True)
class PerSeed:
    """The measures of each seed. `mse` and `ssim` are means over its kept failing images,
    NaN where there is none.
    """

    mse: Float[Tensor, " n"]
    ssim: Float[Tensor, " n"]
    ld: Float[Tensor, " n"]
    er: Float[Tensor, " n"]
    sr: Float[Tensor, " n"]

    def take(self, rows: Bool[Tensor, " n"]) -> PerSeed:
        return PerSeed(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def join(parts: Sequence[PerSeed]) -> PerSeed:
        return PerSeed(
            *(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(PerSeed))
        )


def per_seed(
    findings: Findings,
    seeds: UInt8[Tensor, "n c h w"],
    *,
    failing: Int[Tensor, " n"],
    looked: Int[Tensor, " n"],
) -> PerSeed:
    """The measures of label failures.

    `failing` and `looked` count the candidates of each seed, whether kept or not.
    """
    found = findings.take((findings.kind == KINDS.index("label")).nonzero().squeeze(1))
    x = from_bytes(found.x)
    origin = from_bytes(seeds[found.seed])
    return PerSeed(
        _means(mse(x, origin), found.seed, len(seeds)),
        _means(ssim(x, origin), found.seed, len(seeds)),
        label_diversity(found.seed, found.predicted, len(seeds)),
        failing / looked.clamp_min(1),
        (failing > 0).float(),
    )


def _means(
    values: Float[Tensor, " t"], owner: Int[Tensor, " t"], seeds: int
) -> Float[Tensor, " n"]:
    total = values.new_zeros(seeds).index_add_(0, owner, values)
    return total / owner.bincount(minlength=seeds)


SAMPLE = 90
"""Images of each original that a judge is asked about, drawn from all that were made of it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A judge that took no part in what it judges (None: there is none), and what a table must say of it."""

    judge: TrainedJudge | None
    note: str


def bar(here: Lab) -> Bar:
    """The data's judge, if it is in the cache or ``--set judge=true`` has it trained; ``judge=false`` does without."""
    bench = here.bench
    asked = bench.options.get("judge")
    if asked is False or (asked is None and not panel.folder(here.train, here.test).is_dir()):
        how = f"hardcase train judge --data {bench.data}, or --set judge=true"
        return Bar(None, f"no judge, so no judged ER: {how}")
    bench.say("judge")
    judge = panel.trained(here.train, here.test, device=bench.device)
    counted = f"ER judged: failing and label kept ÷ all, over up to {SAMPLE} images of each original drawn from all that were made"
    return Bar(judge, f"{counted}; unsure counts as no; judge {judge.standing}")


def admit(judge: TrainedJudge, subjects: Sequence[Subject], seeds: Sequence[Images]) -> None:
    """Refuse a judge of whose networks one is under test, or that has learned from the originals."""
    own = {Subject(net).hash for net in judge.panel.networks} | set(judge.card["members"].values())
    for subject in subjects:
        if subject.hash in own:
            raise HardcaseError(
                f"{subject.name} is one of the judge's own networks.", "It would accept its own mistakes.",
                fix="another network, or --set judge=false",
            )  # fmt: skip
    x = torch.cat([images.x for images in seeds])
    known = int(torch.isin(fingerprints(x), judge.panel.learned.cpu()).sum())
    if known > KNOWN * len(x):
        raise HardcaseError(
            f"the judge has learned from {known} of the {len(x)} originals.",
            fix="--set judge=false",
        )


def judged(judge: TrainedJudge, witness: Witness, label: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """For each original the share of its sampled images that fail and keep its label; NaN where nothing was made."""
    label = label.to(witness.left.device)
    seed, place = (witness.left & witness.there).nonzero(as_tuple=True)
    good = torch.zeros_like(witness.left)
    good[seed, place] = accepted(judge, witness.x[seed, place], label[seed])
    return (good.sum(1) / witness.there.sum(1)).double().cpu()


def accepted(
    judge: TrainedJudge, x: UInt8[Tensor, "m c h w"], label: Int[Tensor, " m"]
) -> Bool[Tensor, " m"]:
    """Which images keep their label, says the judge; unsure is no."""
    words = judge(ImagePairs(x, x, label)).verdict  # it looks at the changed images alone
    return torch.tensor([word == "kept" for word in words], dtype=torch.bool, device=x.device)


class Witness:
    """A method's oracle that also remembers: `made` counts each seed's images, and up to `count` of them are kept, all with the
    same chance. Images that a search looks at again are not made again."""

    made: Int[Tensor, " n"]
    x: UInt8[Tensor, "n s c h w"]
    left: Bool[Tensor, "n s"]
    lot: Float[Tensor, "n s"]

    def __init__(self, oracle: Oracle, seeds: Images, *, count: int, rng: torch.Generator) -> None:
        n = len(seeds)
        device = rng.device
        self.oracle = oracle
        self.rng = rng
        self.made = torch.zeros(n, dtype=torch.int64, device=device)
        self.x = torch.zeros(n, count, *seeds.x.shape[1:], dtype=torch.uint8, device=device)
        self.left = torch.zeros(n, count, dtype=torch.bool, device=device)
        self.lot = torch.full((n, count), -1.0, device=device)

    @property
    def kind(self) -> Kind:
        return self.oracle.kind

    @property
    def there(self) -> Bool[Tensor, "n s"]:
        """Which places of the sample are filled."""
        return self.lot >= 0

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        fresh = (~probe.targets["seen"]).nonzero().squeeze(1) if "seen" in probe.targets else None
        rows = probe.origin.id if fresh is None else probe.origin.id[fresh]
        self.made.add_(rows.bincount(minlength=len(self.made)))
        if self.lot.shape[1] and len(rows):
            left = (
                margin(probe.logits.softmax(1), probe.origin.y) >= MIN_MARGIN
            ) & probe.logits.isfinite().all(1)
            self._draw(rows, *((probe.x, left) if fresh is None else (probe.x[fresh], left[fresh])))
        return self.oracle(probe)

    def likeness(self, seeds: Images) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Mean MSE and SSIM of each seed's sampled images; NaN where nothing was made."""
        seed, place = self.there.nonzero(as_tuple=True)
        x = from_bytes(self.x[seed, place])
        origin = from_bytes(seeds.x.to(seed.device)[seed])
        count = self.there.sum(1)

        def means(values: Float[Tensor, " t"]) -> Float[Tensor, " n"]:
            total = torch.zeros(len(count), device=values.device).index_add_(0, seed, values)
            return (total / count).double().cpu()

        return means(mse(x, origin)), means(ssim(x, origin))

    def _draw(
        self, rows: Int[Tensor, " m"], x: Float[Tensor, "m c h w"], left: Bool[Tensor, " m"]
    ) -> None:
        """Every image gets a lot; each seed keeps the highest."""
        n, count = self.lot.shape
        place = ordinal(rows)
        width = int(place.max()) + 1
        lot = torch.full((n, width), -1.0, device=rows.device)
        lot[rows, place] = torch.rand(len(rows), generator=self.rng, device=rows.device)
        number = torch.zeros(n, width, dtype=torch.int64, device=rows.device)
        number[rows, place] = torch.arange(len(rows), device=rows.device)
        self.lot, best = torch.cat([self.lot, lot], 1).topk(count, dim=1)
        seed, slot = ((best >= count) & (self.lot >= 0)).nonzero(as_tuple=True)
        old = best.clamp_max(count - 1)
        pick = torch.arange(n, device=rows.device)[:, None]
        self.x, self.left = self.x[pick, old], self.left[pick, old]
        new = number[seed, best[seed, slot] - count]
        self.x[seed, slot] = to_bytes(x[new])
        self.left[seed, slot] = left[new]


AT_ONCE = 64
"""Originals that are searched at the same time: each has many codes in memory."""
LIKE = 0.877
"""The SSIM that ARGUS reports together with an LD of 8.6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A method on all originals of all repeats. `lost` counts originals whose reconstruction already fails, which have no other
    place here; `alike` is the LD of each original when only images of an SSIM of `LIKE` or more count, `made` how many images
    were made of it, `mse` and `ssim` are means over a sample of those, failing or not, and `judged` the share of it that fails
    and that a judge accepts (None without a judge). `kept` says which originals the network classifies correctly, as they are and
    once they are encoded and decoded. `sample` holds up to `SAMPLE` images of every original, lost ones included; `there` says
    which places are filled."""

    seeds: PerSeed
    kept: Bool[Tensor, " n"]
    alike: Float[Tensor, " n"]
    made: Float[Tensor, " n"]
    mse: Float[Tensor, " n"]
    ssim: Float[Tensor, " n"]
    judged: Float[Tensor, " n"] | None
    findings: Findings
    sample: UInt8[Tensor, "o s c h w"]
    there: Bool[Tensor, "o s"]
    lost: int
    originals: int


def measured(
    subject: Subject,
    method: Method,
    groups: Sequence[Images],
    *,
    peers: tuple[Model, ...] = (),
    count: int | None = None,
    bar: Bar | None = None,
) -> Measured:
    """`method` on every group. `count` replaces the method's own budget: so many images are made of each original, or a few
    more, as a search takes whole steps."""
    parts = list[Measured]()
    total = 0
    pieces = [
        images.take(torch.arange(len(images))[rows])
        for images in groups
        for rows in chunks(len(images), AT_ONCE)
    ]
    for number, images in enumerate(pieces):
        part = _measured(subject, method, images, number, peers, count, bar)
        parts.append(
            replace(part, findings=replace(part.findings, seed=part.findings.seed + total))
        )
        total += len(images)
    each = [part.judged for part in parts if part.judged is not None]
    plain = ("kept", "alike", "made", "mse", "ssim", "sample", "there")
    return Measured(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in plain},
        seeds=PerSeed.join([part.seeds for part in parts]),
        judged=torch.cat(each) if each else None,
        findings=Findings.join([part.findings for part in parts]),
        lost=sum(part.lost for part in parts),
        originals=total,
    )


def _measured(
    subject: Subject,
    method: Method,
    images: Images,
    number: int,
    peers: tuple[Model, ...],
    count: int | None,
    bar: Bar | None,
) -> Measured:
    rng = stream(number, "witness", device=subject.device)
    witness = Witness(method.oracle, images, count=SAMPLE, rng=rng)
    campaign = Campaign(
        subject=subject, method=replace(method, oracle=witness), peers=peers,
        keep=parse_keep("best-per-label"), batch=2048, seed=number,
    )  # fmt: skip
    enough = (
        None if count is None else 4 * count + 4
    )  # some looks are at images that were seen before
    bounds = limits(overlay(Budget(queries=enough, gradients=enough), method.budget), len(images))
    shard = run_shard(
        campaign, images, bounds, guides=method.guides,
        stop=lambda counts: count is not None and int(witness.made.max()) >= count,
    )  # fmt: skip
    alive = ~shard.counts.lost.cpu()
    findings = on_cpu(shard.findings)
    made = witness.made.cpu()
    each = per_seed(findings, images.x, failing=shard.counts.failing.cpu(), looked=made)
    keeping = judged(bar.judge, witness, images.y)[alive] if bar and bar.judge else None
    far, like = witness.likeness(images)
    return Measured(
        seeds=each.take(alive), kept=_kept(subject, method.space, images)[alive], alike=_alike(findings, images)[alive], made=made[alive].double(), judged=keeping,
        mse=far[alive], ssim=like[alive], sample=witness.x.cpu(), there=witness.there.cpu(),
        findings=findings, lost=int((~alive).sum()), originals=len(images),
    )  # fmt: skip


@torch.no_grad()
def _kept(subject: Subject, space: Space, images: Images) -> Bool[Tensor, " n"]:
    x = from_bytes(images.x.to(subject.device))
    y = images.y.to(subject.device)
    z, context = space.encode(x, y, Rng.numbered(0, "kept", len(x), device=x.device))
    seeds = Seeds(z, x, y, torch.arange(len(y), device=y.device), context)
    again = to_grid(space.decode(z, seeds).clamp(0, 1))
    right = [subject(shown).logits.argmax(1) == y for shown in (x, again)]
    return torch.stack(right).all(0).cpu()


def _alike(findings: Findings, images: Images) -> Float[Tensor, " n"]:
    label = findings.take((findings.kind == KINDS.index("label")).nonzero().squeeze(1))
    near = label.take(
        (ssim(from_bytes(label.x), from_bytes(images.x[label.seed])) >= LIKE).nonzero().squeeze(1)
    )
    return label_diversity(near.seed, near.predicted, len(images))


RIVALS = ("diffchaser", "adapt@paper", "dlfuzz@adapt", "deepxplore@adapt")
"""The paper's rivals as it ran them, from ADAPT's repository."""
EXTRA = ("adapt",)
"""Our form of ADAPT, a row of its own: the paper has no number for it."""
POPULATION = 50


def most(bench: Bench) -> int:
    """Partners of each original: the paper's 30,000 or, where minutes count, 100 of each other class of ten."""
    return int(bench.options.get("partners", 30_000 if bench.full else 900))


def equal(bench: Bench) -> int:
    """Images that every method makes of each original for comparison: as many as ARGUS, but 3,000 at most unless
    ``--set rival_queries=N`` says so. Rivals take a step after the other; 30,000 of them are hours."""
    return int(bench.options.get("rival_queries", min(most(bench), 3000)))


LITERAL = {"latent_weight": 1.0, "image_weight": 1.0, "reduction": "sum"}
"""The losses as the text adds them up: no weights, and Equations 5 to 7 as squared norms."""


def weights(bench: Bench) -> dict[str, Any]:
    """The adversarial losses: the paper's unweighted sum, or what ``--set latent_weight=… image_weight=… reduction=…`` says."""
    return {key: bench.options.get(key, usual) for key, usual in LITERAL.items()}


def interpolated(
    here: Lab,
    own: LatentModel,
    mix: float,
    groups: Sequence[Images],
    *,
    count: int | None = None,
    bar: Bar | None = None,
) -> Measured:
    """ARGUS's Algorithm 1 with `count` partners of each original, of which none is set aside."""
    queries = (count or most(here.bench)) - 1  # the method adds one, for the original itself
    # a space that stores codes has every original tried first, and those that are lost set aside
    space = cast(Space, Uncoded(own.space))
    method = argus(space=space, partners=own.codes, mix=mix, queries=queries)
    return measured(here.subject, method, groups, bar=bar)


def rival(
    here: Lab, name: str, groups: Sequence[Images], count: int, *, bar: Bar | None = None
) -> Measured:
    """`count` images of each original by another method.

    DiffChaser goes on after a disagreement, as it did for the paper, and is scored on the network itself.
    """
    settings: dict[str, Any] = {}
    if name == "diffchaser":
        settings = {"population": POPULATION, "generations": 1 + ceil(count / (POPULATION - 1))}
    method, peers = here.method(name, settings)
    method = replace(method, until="budget")
    return measured(here.subject, method, groups, peers=peers, count=count, bar=bar)


@torch.no_grad()
def reconstruction_errors(own: LatentModel, subject: Subject, images: Images) -> Bool[Tensor, " n"]:
    """ER at mix 0: which of the correctly classified `images` are given another label once they are encoded and decoded."""
    if not len(images):
        return images.y.bool()
    return mixed(own, subject, images, images.x.new_zeros(len(images), 1).long(), 0.0)[2].squeeze(1)


@torch.no_grad()
def mixed(
    own: LatentModel, subject: Subject, images: Images, partner: Int[Tensor, "n p"], mix: float
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"], Bool[Tensor, "n p"]]:
    """MSE, SSIM and failure of every image mixed with each of its partners (rows of the codes)."""
    parts = []
    for rows in chunks(len(images), max(1024 // partner.shape[1], 1)):
        x = from_bytes(images.x[rows].to(subject.device))
        y = images.y[rows].to(subject.device)
        decoded = to_grid(decode_mixture(own, x, y, partner[rows].to(subject.device), mix))
        repeated = x.repeat_interleave(partner.shape[1], 0)
        wrong = subject(decoded).logits.argmax(1) != y.repeat_interleave(partner.shape[1])
        parts.append([mse(decoded, repeated).cpu(), ssim(decoded, repeated).cpu(), wrong.cpu()])
    error, likeness, failing = (
        torch.cat(column).reshape(len(images), -1) for column in zip(*parts, strict=True)
    )
    return error, likeness, failing


def decode_mixture(own: LatentModel, x: Tensor, y: Tensor, partner: Tensor, mix: float) -> Tensor:
    """Pictures of `x` mixed with partners, image by image."""
    z, context = own.space.encode(x, y, Rng.numbered(0, "mixed", len(x), device=x.device))
    each = torch.arange(len(x), device=x.device)
    seeds = Seeds(z, x, y, each, context).take(each.repeat_interleave(partner.shape[1]))
    code = (1 - mix) * seeds.z + mix * own.codes.take(partner.reshape(-1))
    return own.space.decode(code, seeds)
