"""Slices: named conditions under which a model fails more often, found, tested and estimated on
three different thirds.

Third A proposes tags and pairs of tags, B tests each with a one-sided exact test stratified by
class and corrected by Holm, C only estimates what is printed. Groups of images that belong together
are never split, and in B and C one image drawn from each stands for it. Tags must not depend on the
outcome.

The test: given how many images of each class fail and how many have the tag, the number of failing
ones among the tagged is a sum of hypergeometric counts; p is the chance of as many or more (the
exact conditional form of W. G. Cochran, 1954, and N. Mantel, W. Haenszel, 1959). A pair of tags
must also hold against the rest of each of its parents, or it says no more than they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.analysis.semantics import Tags, images_together, measure_parts
from hardcase.errors import HardcaseError, choice
from hardcase.randomness import Rng, keys_of
from hardcase.runs.results import Run, seed_claims
from hardcase.statistics import accepted_by, binomial_interval, holm
from hardcase.tensors import chunks, digest
from hardcase.types import Images

Outcome = Literal["failing", "accepted"]
"""What counts of a seed: that it fails, or that the judge accepted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """When a condition is called a slice.

    Args:
        carried: How many conditions third A may propose.
        support: Images that a condition must hold for in A and in B.
        difference: By how much the share failing inside must be above that outside, in B.
        level: The family-wise error allowed.
        pairs: Whether two tags may be joined.
    """

    carried: int = 20
    support: int = 30
    difference: float = 0.10
    level: float = 0.05
    pairs: bool = True


@dataclass(frozen=True, slots=True)
class SliceRates:
    """Failing of all, inside a condition and outside it."""

    failing: int
    total: int
    failing_outside: int
    total_outside: int

    @property
    def inside(self) -> float:
        return self.failing / self.total if self.total else float("nan")

    @property
    def outside(self) -> float:
        return self.failing_outside / self.total_outside if self.total_outside else float("nan")

    @property
    def difference(self) -> float:
        return self.inside - self.outside

    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's 95 % interval of the share failing inside."""
        return binomial_interval(self.failing, self.total)


@dataclass(frozen=True, slots=True)
class Slice:
    """A condition that was proposed on A.

    Args:
        tags: Its one or two tags.
        proposed: Rates on A.
        tested: Rates on B.
        estimated: Rates on C; only these are printed.
        p: Of the test on B.
        p_holm: Corrected for all conditions that were carried.
        accepted: Whether it is called a slice.
    """

    tags: tuple[str, ...]
    proposed: SliceRates
    tested: SliceRates
    estimated: SliceRates
    p: float
    p_holm: float
    accepted: bool

    @property
    def name(self) -> str:
        return " and ".join(self.tags)

    @property
    def held(self) -> bool:
        """Whether C's interval lies above the share failing outside."""
        return self.estimated.total > 0 and self.estimated.interval()[0] > self.estimated.outside

    def __str__(self) -> str:
        estimated = self.estimated
        if not estimated.total:
            return f"{self.name}: no image on the third that estimates"
        low, high = estimated.interval()
        word = "held" if self.held else "did not hold"
        return (
            f"fails on {estimated.failing} of {estimated.total} "
            f"({estimated.inside:.0%}, 95 % interval {low:.0%} to {high:.0%}) {self.name}, "
            f"{estimated.outside:.0%} outside; {word} on the third not used to find it"
        )

    def record(self) -> dict[str, Any]:
        """Plain values for a report."""
        thirds = {"A": self.proposed, "B": self.tested, "C": self.estimated}
        return {
            "tags": list(self.tags),
            "name": self.name,
            "accepted": self.accepted,
            "held": self.held,
            "p": self.p,
            "p_holm": self.p_holm,
            **{third: asdict(rates) for third, rates in thirds.items()},
            "interval": list(self.estimated.interval()),
        }


def split(
    group: Sequence[str] | Int[Tensor, " n"], strata: Int[Tensor, " n"], *, seed: int = 0
) -> Int[Tensor, " n"]:
    """The third (0, 1 or 2) of every image: whole groups, the classes spread evenly, drawn by
    `seed`."""
    number, keys = _groups(group)
    count = len(keys)
    first = torch.full((count,), len(number)).scatter_reduce(
        0, number, torch.arange(len(number)), "amin"
    )
    drawn = Rng(seed, "thirds", keys).uniform(torch.arange(count)).argsort(stable=True)
    order = drawn[strata[first[drawn]].argsort(stable=True)]
    third = torch.empty(count, dtype=torch.int64)
    third[order] = torch.arange(count) % 3
    return third[number]


def _groups(group: Sequence[str] | Tensor) -> tuple[Int[Tensor, " n"], Int[Tensor, " g"]]:
    """Groups counted from 0, and what the random numbers of each follow from."""
    if isinstance(group, Tensor):
        keys, number = torch.unique(group.cpu(), return_inverse=True)
        return number, keys.long()
    place = {name: i for i, name in enumerate(dict.fromkeys(group))}
    return torch.tensor([place[name] for name in group], dtype=torch.int64), keys_of(list(place))


def _one_each(number: Int[Tensor, " n"], rows: Int[Tensor, " r"], rng: Rng) -> Int[Tensor, " g"]:
    """One row of every group among `rows`, drawn at random."""
    drawn = rows[rng.uniform(rows).argsort(stable=True)]
    order = drawn[number[drawn].argsort(stable=True)]
    fresh = torch.ones(len(order), dtype=torch.bool)
    fresh[1:] = number[order][1:] != number[order][:-1]
    return order[fresh]


def find_slices(
    tags: Tags,
    failing: Bool[Tensor, " n"],
    strata: Int[Tensor, " n"],
    *,
    group: Sequence[str] | Int[Tensor, " n"] | None = None,
    rules: Rules | None = None,
    seed: int = 0,
) -> list[Slice]:
    """Conditions proposed on A, tested on B and estimated on C: slices first, then by p.

    Args:
        tags: What was measured of the images before any outcome was known.
        failing: Whether each image (attempted seed) fails.
        strata: The class of each image, or coarser strata where classes have few images: strata of
            one image say nothing.
        group: Which images belong together; None: each stands alone.
        rules: When a condition is called a slice.
        seed: Of the division into thirds.

    Returns:
        Every condition that was carried, also those that were not accepted.
    """
    rules = rules or Rules()
    count = len(failing)
    if not count or len(tags.has) != count:
        raise HardcaseError(f"tags of {len(tags.has)} images do not fit {count} outcomes.")
    groups = torch.arange(count) if group is None else group
    number, _ = _groups(groups)
    if len(number) != count:
        raise HardcaseError(f"{len(number)} groups are named for {count} images.")
    third = split(groups, strata, seed=seed)
    parts = [(third == i).nonzero().squeeze(1) for i in range(3)]
    rng = Rng.numbered(seed, "representatives", count)
    thirds = [parts[0], *(_one_each(number, rows, rng) for rows in parts[1:])]
    a, b, c = (
        _Third(tags.has[rows].cpu(), failing[rows].cpu(), strata[rows].cpu()) for rows in thirds
    )
    carried = propose(a, tags.family, rules)
    p = [b.p(condition) for condition in carried]
    corrected = holm(p)
    slices = []
    for condition, p_value, many in zip(carried, p, corrected):
        tested = b.rates(condition)
        accepted = (
            many <= rules.level
            and tested.total >= rules.support
            and tested.difference >= rules.difference
        )
        names = tuple(tags.names[i] for i in condition)
        slices.append(
            Slice(names, a.rates(condition), tested, c.rates(condition), p_value, many, accepted)
        )
    return sorted(slices, key=lambda s: (not s.accepted, s.p, s.name))


Condition = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Third:
    """Tags, outcomes and strata of one third."""

    has: Bool[Tensor, "n t"]
    failing: Bool[Tensor, " n"]
    strata: Int[Tensor, " n"]

    def inside(self, condition: Condition) -> Bool[Tensor, " n"]:
        return self.has[:, list(condition)].all(1)

    def rates(self, condition: Condition) -> SliceRates:
        inside = self.inside(condition)
        hits = int((inside & self.failing).sum())
        total = int(inside.sum())
        return SliceRates(hits, total, int(self.failing.sum()) - hits, len(inside) - total)

    def p(self, condition: Condition) -> float:
        """Against all outside and, for a pair, the rest of each parent: the largest counts."""
        inside = self.inside(condition)
        group_of = torch.ones_like(inside)
        parents = [self.has[:, tag] for tag in condition if len(condition) > 1]
        return max(
            stratified_p(inside[among], self.failing[among], self.strata[among])
            for among in [group_of, *parents]
        )


def stratified_p(
    inside: Bool[Tensor, " n"], failing: Bool[Tensor, " n"], strata: Int[Tensor, " n"]
) -> float:
    """The chance of as many failing images inside or more, if within each stratum failing does not
    depend on being inside."""
    if not len(inside):
        return 1.0
    number, _ = _groups(strata)
    size = int(number.max()) + 1
    counts = [
        torch.bincount(number[rows], minlength=size).numpy()
        for rows in (torch.ones_like(inside), failing, inside)
    ]
    chance = np.ones(1)
    least = 0
    log = np.concatenate([np.zeros(1), np.log(np.arange(1, len(inside) + 1)).cumsum()])
    for total, bad, drawn in zip(*(column.tolist() for column in counts)):
        lowest = max(0, drawn + bad - total)
        least += lowest
        k = np.arange(lowest, min(bad, drawn) + 1)  # how many of those drawn may be bad
        if len(k) > 1:
            # Within a stratum the count inside is hypergeometric; log factorials keep it finite.
            # The sum over strata is a convolution of these laws: exact, no normal approximation for
            # small classes.
            ways = -log[k] - log[bad - k] - log[drawn - k] - log[total - bad - drawn + k]
            share = np.exp(ways - ways.max())
            chance = np.convolve(chance, share / share.sum())
    interval_of = int((inside & failing).sum())
    return float(min(1.0, chance[max(0, interval_of - least) :].sum()))


def propose(third: _Third, family: Sequence[str], rules: Rules) -> list[Condition]:
    """The conditions with the strongest stratified excess of failing images on this third."""
    conditions: list[Condition] = [(i,) for i in range(len(family))]
    if rules.pairs:
        pairs = combinations(range(len(family)), 2)
        conditions += [(i, j) for i, j in pairs if family[i] != family[j]]
    if not conditions:
        return []
    first, last = (torch.tensor([condition[end] for condition in conditions]) for end in (0, -1))
    total, hits, excess = _pairs(third)
    inside = total[first, last]
    bad = hits[first, last]
    share = bad / inside.clamp_min(1)
    outside = (third.failing.sum() - bad) / (len(third.failing) - inside).clamp_min(1)
    supported = (inside >= rules.support) & (share - outside >= rules.difference)
    for parent in (first, last):
        rest = total[parent, parent] - inside
        # A pair must be worse than the rest of each parent, or it would only repeat what its parent
        # says.
        supported &= (rest == 0) | (share * rest > hits[parent, parent] - bad)
    supported &= excess[first, last] > 0
    order = torch.where(supported, excess[first, last], -torch.inf).argsort(
        descending=True, stable=True
    )
    return [conditions[i] for i in order[: min(rules.carried, int(supported.sum()))].tolist()]


def _pairs(
    third: _Third,
) -> tuple[Float[Tensor, "t t"], Float[Tensor, "t t"], Float[Tensor, "t t"]]:
    """Images and failing images that have two tags (a tag with itself on the diagonal), and the
    failing ones less those expected by stratum, in standard deviations."""
    number, _ = _groups(third.strata)
    tags = third.has.shape[1]
    total, hits, gap, spread = torch.zeros(4, tags, tags, dtype=torch.float64).unbind()
    for stratum in range(int(number.max()) + 1):
        rows = number == stratum
        has = third.has[rows].double()
        bad = third.failing[rows].double()
        both = has.T @ has
        failing = has.T @ (has * bad[:, None])
        size = len(bad)
        share = bad.mean()
        total += both
        hits += failing
        gap += failing - both * share
        spread += both * share * (1 - share) * (size - both) / max(size - 1, 1)
    return total, hits, gap / spread.clamp_min(1e-12).sqrt()


def slices_of_run(
    run: Run, *, outcome: Outcome = "failing", rules: Rules | None = None, seed: int = 0
) -> list[Slice]:
    """The slices of the attempted originals of a run. Tags are of the originals; equal images are
    one group.

    Args:
        run: A stored run.
        outcome: What counts: a failure on which the label is left, or one that the judge accepted.
        rules: When a condition is called a slice.
        seed: Of the division into thirds.
    """
    names, rows_of_seeds = _attempted(run)
    findings = run.findings.select(["id", "original", "kind"]).to_pylist()
    rows = [row for row in findings if row["kind"] == "label"]
    if outcome == "accepted":
        if run.verdicts is None:
            raise HardcaseError(
                f"no judge has seen the failures of {run.folder}.",
                fix=f"hardcase judge {run.folder}",
            )
        rows = [row for row in rows if accepted_by(run.verdicts, row["id"])]
    bad = {row["original"] for row in rows}
    tags, contents = _tags_of(run, rows_of_seeds)
    return find_slices(
        tags,
        torch.tensor([name in bad for name in names]),
        torch.tensor(run.seeds["label"].take(rows_of_seeds).to_pylist(), dtype=torch.int64),
        group=contents,
        rules=rules,
        seed=seed,
    )


def tagged_seeds(run: Run) -> tuple[Tags, tuple[str, ...]]:
    """The tags of the searched images of a run, and the images' ids."""
    names, rows = _attempted(run)
    return _tags_of(run, rows)[0], tuple(names)


def having(tags: Tags, seeds: Sequence[str], names: str) -> set[str]:
    """The images that have all tags of a condition such as ``dark and thin strokes``."""
    wanted = names.split(" and ")
    for name in wanted:
        if name not in tags.names:
            raise choice("tag of these images", name, list(tags.names))
    inside = tags.has[:, [tags.names.index(name) for name in wanted]].all(1)
    return {seed for seed, has in zip(seeds, inside.tolist()) if has}


def attempted_labels(run: Run) -> dict[str, int]:
    """The class of each attempted seed, from which a candidate was tried, by its id."""
    rows = run.seeds.select(["id", "label", "status", "evaluated"]).to_pylist()
    tried = [row for row in rows if row["status"] in ("done", "out of time") and row["evaluated"]]
    return {row["id"]: row["label"] for row in tried}


def _attempted(run: Run) -> tuple[list[str], list[int]]:
    """The searched images of a run: their ids, and their rows among its images."""
    names = list(attempted_labels(run))
    if not names:
        raise HardcaseError(f"{run.folder} has no searched images to look for slices among.")
    return names, [run.seed_rows[name] for name in names]


def seeds_of(run: Run, rows: Sequence[int] | None = None) -> Images:
    """The originals of a run, or some of its rows, as an image set with what is claimed of them."""
    table = run.seeds if rows is None else run.seeds.take(rows)
    y = torch.tensor(table["label"].to_pylist(), dtype=torch.int64)
    names = tuple(table["id"].to_pylist())
    claims = seed_claims(run)
    if claims is not None and rows is not None:
        claims = claims.take(torch.tensor(rows, dtype=torch.int64))
    context = {} if claims is None else claims.context()
    images = run.seed_images(rows)
    return Images(images, y, names, run.classes, name=str(run.folder), context=context)


def _tags_of(run: Run, rows: Sequence[int]) -> tuple[Tags, list[str]]:
    """Return the tags of these images of a run, read in parts, and digests of their pixels."""
    contents = list[str]()

    def images() -> Iterator[UInt8[Tensor, "m c h w"]]:
        contents.clear()
        size = images_together(run.seed_images(rows[:1]).shape)
        for part in chunks(len(rows), size):
            x = run.seed_images(rows[part])
            contents.extend(digest([image.numpy().tobytes()]) for image in x)
            yield x

    claims = seed_claims(run)
    places = {}
    if claims is not None:
        places = claims.take(torch.tensor(rows, dtype=torch.int64)).places()
    table = {name: one.tolist() for name, one in places.items()}
    return measure_parts(images, table=table), contents
