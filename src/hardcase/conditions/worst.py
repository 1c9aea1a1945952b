"""How little of the declared conditions makes a model fail, and how many images fail at worst.

A search in boxes whose scale is halved, then a bisection along the ray to the unchanged image.
The result is an upper bound of the least scale: a better search could lower it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.in_memory import SearchResult, search
from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import Conditions
from hardcase.conditions.risk import (
    OnProgress,
    RiskTable,
    answered,
    iter_shards,
    joined_tables,
    logits_under_conditions,
    seeds_of,
)
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.black_box import Evolution
from hardcase.searches.gradient import AdamAscent, GradientAscent
from hardcase.statistics import wilson_interval
from hardcase.tensors import per_row
from hardcase.types import Budget, Images, Method, Model, Seeds

__all__ = ["WorstCase", "bisected", "measure_worst", "most_questions"]

SCALES = (0.25, 0.5, 0.75, 1.0)
"""Scales of the curve."""
ROUNDS = 3
"""Halvings of the scale of the box that is searched: to an eighth of the range."""
GRADIENTS = 30
"""Gradients per image and box; a condition alone has a third."""
QUERIES = 40
"""Queries per image and box of the search without gradients."""
HALVINGS = 7
CLEAR = 0.1
"""By how much of the range another search must do better to count."""
BEATEN = 0.02
"""Share of images on which others may do better before gradients count as masked."""
SHARD = 512
"""Images that are searched at once."""
OTHERS = ("draws", "queries", "other models")
"""What is compared with the search by gradients."""

Failing = tuple[Float[Tensor, "n d"], Int[Tensor, " n"], Bool[Tensor, " n"]]
"""A code and a pattern per image, and whether they are any."""
Way = AdamAscent | GradientAscent | Evolution


def bisected(
    fails: Callable[[Float[Tensor, " n"]], Bool[Tensor, " n"]],
    high: Float[Tensor, " n"],
    halvings: int,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Halve the way from 0 to `high` in every row, keeping to the failing side."""
    low = torch.zeros_like(high)
    failed = torch.zeros(len(high), dtype=torch.bool, device=high.device)
    for _ in range(halvings):
        # Only the failing end is known to fail. Failing need not be monotone along the ray, so the
        # result is a failing scale with a passing one below it, not the smallest failing scale
        # there is.
        middle = (low + high) / 2
        now = fails(middle)
        high = torch.where(now, middle, high)
        low = torch.where(now, low, middle)
        failed |= now
    return low, high, failed


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The least scale of the declared conditions at which a search made each image fail.

    Args:
        id: Names of the images.
        least: By kind of search (``gradients``, ``queries``, ``draws``): the least scale of each
            image, infinite without a failure. 0 where the model misreads the unchanged image.
        alone: The same for each condition alone: in steps for a single coordinate, else by
            gradients.
        z: Codes of the least failing conditions.
        pattern: What their random patterns follow from.
        queries: Questions about each image until its first failure, or in all.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> from hardcase.conditions import condition_box, measure_worst
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> box = condition_box(hc.Conditions({"exposure": "±3 stops"}), toy_images(4).shape)
        >>> worst = measure_worst(toy_subject(), toy_images(4), box)
        >>> bool((worst.least_scale > 0).all())
        True
    """

    id: tuple[str, ...]
    least: Mapping[str, Float[Tensor, " n"]]
    alone: Mapping[str, Float[Tensor, " n"]]
    z: Float[Tensor, "n d"]
    pattern: Int[Tensor, " n"]
    queries: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.id)

    @property
    def least_scale(self) -> Float[Tensor, " n"]:
        """The least scale of all searches, per image; infinite without a failure.

        A failure by a single condition lies in the box of all, so it counts too.
        """
        return torch.stack([self.searched, *self.alone.values()]).amin(0)

    @property
    def searched(self) -> Float[Tensor, " n"]:
        """The least scale in the box of all conditions, at `z`."""
        return torch.stack(list(self.least.values())).amin(0)

    @property
    def beaten(self) -> float | None:
        """The share of images on which others did clearly better than gradients.

        None where the model has no gradients.
        """
        if "gradients" not in self.least:
            return None
        others = [self.least[name] for name in OTHERS if name in self.least]
        if not others:
            return 0.0
        better = torch.stack(others).amin(0) < self.least["gradients"] - CLEAR
        return float(better.double().mean())

    @property
    def comparable(self) -> bool:
        """Whether the search by gradients is good enough to compare models by it."""
        return self.beaten is None or self.beaten <= BEATEN

    def curve(self, scales: Sequence[float] = SCALES) -> list[dict[str, Any]]:
        """Return the share of images that fail at each scale, with an interval over images."""
        return _curve(self.least_scale, scales)

    def doubling(self) -> list[dict[str, Any]]:
        """Return the share of images that fail with an eighth, a quarter, half and all of the
        queries: where it still rises, a longer search would add failures.
        """
        most = int(self.queries.max())
        broken = self.searched <= 1
        budgets = [math.ceil(most / part) for part in (8, 4, 2, 1)]
        shares = [float((broken & (self.queries <= budget)).double().mean()) for budget in budgets]
        return [{"queries": budget, "share": share} for budget, share in zip(budgets, shares)]

    def to_json(self) -> dict[str, Any]:
        """Return what run.json and report.json keep under ``least_scale`` and ``worst_case``."""
        least = self.least_scale
        count = int((least <= 1).sum())
        return {
            "least_scale": {
                "quantiles": _quantiles(least),
                "alone": {name: _quantiles(values) for name, values in self.alone.items()},
                "seeds": len(self),
                "bound": "upper",
            },
            "worst_case": {
                "value": count / len(self),
                "images_like_these": list(wilson_interval(count, len(self))),
                "seeds": len(self),
                "bound": "lower",
                "curve": self.curve(),
                "alone": {name: _curve(values, SCALES) for name, values in self.alone.items()},
                "doubling": self.doubling(),
                "beaten": self.beaten,
                "comparable": self.comparable,
            },
        }


def _curve(least: Float[Tensor, " n"], scales: Sequence[float]) -> list[dict[str, Any]]:
    rows = list[dict[str, Any]]()
    for scale in scales:
        hits = int((least <= scale).sum())
        low, high = wilson_interval(hits, len(least))
        rows.append({"scale": scale, "share": hits / len(least), "low": low, "high": high})
    return rows


def _quantiles(least: Float[Tensor, " n"]) -> dict[str, float | None]:
    """The 10 % quantile and the median by rank; None where they lie above the range."""
    values = least.double().sort().values
    severities = dict[str, float | None]()
    for part in (0.1, 0.5):
        value = float(values[math.ceil(part * len(values)) - 1])
        severities[f"{part:g}"] = value if value <= 1 else None
    return severities


def measure_worst(
    subject: Model,
    images: ImageSet,
    box: ConditionBox,
    *,
    table: RiskTable | None = None,
    others: Sequence[WorstCase] = (),
    seed: int = 0,
    gradients: int = GRADIENTS,
    queries: int = QUERIES,
    alone: bool = True,
    on_progress: OnProgress | None = None,
) -> WorstCase:
    """Search the declared conditions for the least that makes a model fail, image by image.

    Adam on the logit margin in boxes of halved scales, from the unchanged image and, where the
    full box shows no failure, once from another start; an evolution strategy by queries alone; the
    failing draws of the risk and what made other models fail. Each failure is followed back toward
    the unchanged image.

    Args:
        subject: The model.
        images: All images; those that it misreads unchanged have the least scale 0.
        box: The declared conditions for images of this shape.
        table: The risk of the same model on the same images: its failing draws are tried too.
        others: Failures of other models on the same images: they are tried too. Compare models
            only by figures for which each tried the failures of the others.
        seed: Everything random follows from it and from the names of the images.
        gradients: Gradients per image and box.
        queries: Queries per image and box of the search without gradients; 0: none, unless the
            model has no gradients.
        alone: Search each condition alone, too.
        on_progress: Called with how many images are done.

    Raises:
        HardcaseError: If there are no images, or `table` or `others` are about others.
    """
    if len(images) == 0:
        raise HardcaseError("a worst case needs images.")
    sizes = [len(other) for other in others] + ([] if table is None else [len(table)])
    for size in sizes:
        if size != len(images):
            raise HardcaseError(f"failing conditions of {size} images are given for {len(images)}.")
    parts = list[WorstCase]()
    for before, shard in iter_shards(images, SHARD, on_progress):
        rows = slice(before, before + len(shard))
        tried = list[tuple[str, Failing]]()
        if table is not None:
            drawn = (table.least_z[rows], table.least_pattern[rows], (table.failing > 0)[rows])
            tried.append(("draws", drawn))
        for one in others:
            starting = (one.z[rows], one.pattern[rows], (one.searched <= 1)[rows])
            tried.append(("other models", starting))
        search = _ShardSearch(subject, shard, box, seed)
        parts.append(search.measured(tried, gradients, queries, alone=alone))
    return joined_tables(parts)


def most_questions(subject: Model, box: ConditionBox) -> tuple[int, int]:
    """Return how many questions and how many gradients the worst case asks of an image at most."""
    graded = subject.offers == "gradients"
    ways = 2 if graded else 1
    back = HALVINGS + 1
    questions = 1 + (ROUNDS + 1) * QUERIES + (ways + 1) * back
    gradients = graded * (ROUNDS + 2) * GRADIENTS
    ranges = box.conditions.ranges
    if graded and len(ranges) > 1:
        for name, declared in ranges.items():
            single = condition_box(Conditions({name: declared}), box.space.shape)
            questions += back + (2 * len(SCALES) if single.size == 1 else 0)
            gradients += 2 * (GRADIENTS // 3) if single.size > 1 else 0
    return questions, gradients


@dataclass(frozen=True, slots=True)
class _ShardSearch:
    """The search of a shard of images."""

    subject: Model
    images: Images
    box: ConditionBox
    seed: int

    def measured(
        self, tried: list[tuple[str, Failing]], gradients: int, queries: int, *, alone: bool
    ) -> WorstCase:
        origin = seeds_of(self.images, self.box, self.subject.device)
        wrong = self._failing(origin, origin.z, torch.zeros_like(origin.y))
        right = (~wrong).nonzero().squeeze(1).cpu()
        failing = dict[str, Failing]()
        graded = self.subject.offers == "gradients"
        if graded:
            failing["gradients"], queries_spent = self._climbed(self.box, right, gradients, ROUNDS)
        if queries or not graded:
            evolution = Evolution(pairs=5, spread=0.3, growth=1.5, most=1.0, bisections=0)
            budget = Budget(queries=queries or QUERIES)
            failing["queries"], more = self._narrowed(self.box, right, evolution, budget, ROUNDS)
            queries_spent = queries_spent if graded else more
        least = {name: self._least(origin, column, wrong) for name, column in failing.items()}
        codes = [(least[name], *column[:2]) for name, column in failing.items()]
        for name, column in tried:
            value = self._least(origin, column, wrong)
            codes.append((value, *column[:2]))
            least[name] = torch.minimum(least[name], value) if name in least else value
        best = torch.stack([value for value, _, _ in codes]).argmin(0)
        place = torch.arange(len(self.images))
        single = dict[str, Tensor]()
        if alone and graded and len(self.box.conditions.ranges) > 1:
            single = {
                name: self._alone(name, right, wrong, gradients // 3)
                for name in self.box.conditions.ranges
            }
        return WorstCase(
            id=self.images.id,
            least=least,
            alone=single,
            z=torch.stack([z for _, z, _ in codes])[best, place],
            pattern=torch.stack([pattern for _, _, pattern in codes])[best, place],
            queries=queries_spent,
        )

    def _alone(
        self, name: str, right: Int[Tensor, " r"], wrong: Bool[Tensor, " n"], gradients: int
    ) -> Float[Tensor, " n"]:
        declared = self.box.conditions
        single = Conditions({name: declared.ranges[name]}, name=declared.name)
        box = condition_box(single, self.box.space.shape)
        bounded = replace(self, box=box)
        origin = seeds_of(self.images, box, self.subject.device)
        if box.size == 1:
            failing = bounded._scanned(origin)
        else:
            failing, _ = bounded._climbed(box, right, max(gradients, 1), 0)
        return bounded._least(origin, failing, wrong)

    def _scanned(self, origin: Seeds) -> Failing:
        """The first failure on the way to either end of a single coordinate: a scan
        of `SCALES` is enough there, and not every coordinate has gradients.
        """
        z = torch.zeros_like(origin.z)
        none = torch.zeros_like(origin.y)
        fails = torch.zeros_like(none, dtype=torch.bool)
        for scale in SCALES:
            for end in {self.box.low[0], self.box.high[0]} - {0.0}:
                tried = torch.full_like(z, end * scale)
                new = self._failing(origin, tried, none, ~fails)
                z = torch.where(new[:, None], tried, z)
                fails = fails | new
        return z, none, fails

    def _climbed(
        self, box: ConditionBox, right: Int[Tensor, " r"], gradients: int, rounds: int
    ) -> tuple[Failing, Int[Tensor, " n"]]:
        """Failures by gradients: from the unchanged image, then from another start in the full
        box."""
        budget = Budget(gradients=gradients)
        adam = AdamAscent(step_size=3.0 / gradients)
        first, queries_spent = self._narrowed(box, right, adam, budget, rounds)
        # The second climb starts at random places: from the unmodified image alone, gradients that
        # are 0 there (saturated or masked) would find nothing and look like robustness.
        left = right[~first[2][right]]
        elsewhere = GradientAscent(step_size=3.0 / gradients, jitter=1.0)
        again, more = self._narrowed(box, left, elsewhere, budget, 0)
        new = again[2]
        z = torch.where(new[:, None], again[0], first[0])
        return (z, first[1], first[2] | new), queries_spent + more

    def _narrowed(
        self,
        box: ConditionBox,
        rows: Int[Tensor, " r"],
        way: Way,
        budget: Budget,
        rounds: int,
    ) -> tuple[Failing, Int[Tensor, " n"]]:
        """A failure of each image in the smallest box with a failure, and the queries until its
        first.

        Boxes are halved toward the scale at which searches begin to succeed; the full box is last.
        """
        count = len(self.images)
        z = torch.zeros(count, box.size)
        fails = torch.zeros(count, dtype=torch.bool)
        queries = torch.zeros(count, dtype=torch.int64)
        low, high = torch.zeros(count), torch.ones(count)
        for number in range(rounds + 1):
            last = number == rounds
            # The last round has the whole box and asks only for images without any failure: a
            # failure found in a smaller box is a failure of the whole one too.
            open_rows = rows[~fails[rows]] if last else rows
            middle = high if last else (low + high) / 2
            # Images whose boxes have the same scale are searched together. Halving means there are
            # at most 2^rounds scales, whatever the number of images.
            for scale in sorted(set(middle[open_rows].tolist())):
                bounded = open_rows[middle[open_rows] == scale]
                failing = self._search(box.scaled(scale), bounded, _scaled(way, scale), budget)
                queries[bounded] += torch.where(fails[bounded], 0, failing.queries.cpu())
                hit = bounded[failing.findings.seed]
                z[hit], fails[hit], high[hit] = failing.findings.code, True, scale
                low[bounded[~torch.isin(bounded, hit)]] = scale
        return (z, torch.zeros_like(queries), fails), queries

    def _search(
        self, box: ConditionBox, rows: Int[Tensor, " r"], way: Way, budget: Budget
    ) -> SearchResult:
        method = Method(
            space=box,
            search=way,
            objective=Margin(),
            oracle=LeavesLabel(),
            until="first",
            needs="gradients" if budget.gradients else "label",
            budget=budget,
        )
        return search(self.subject, method, self.images.take(rows), keep="first", seed=self.seed)

    def _least(
        self, origin: Seeds, failing: Failing, wrong: Bool[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """The least scale along the rays to failing codes; they need not fail for this model."""
        z, pattern, failed = (tensor.to(origin.z.device) for tensor in failing)
        gauge = self.box.gauge(z)
        still = failed & self._failing(origin, z, pattern)

        def fails(share: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
            return self._failing(origin, per_row(share, z) * z, pattern, still)

        _, high, _ = bisected(fails, torch.ones_like(gauge), HALVINGS)
        least = torch.where(still, high * gauge, torch.inf)
        return torch.where(wrong, 0.0, least).cpu()

    def _failing(
        self,
        origin: Seeds,
        z: Float[Tensor, "n d"],
        pattern: Int[Tensor, " n"],
        only: Bool[Tensor, " n"] | None = None,
    ) -> Bool[Tensor, " n"]:
        """Which images the model misreads under a condition each; `only` these are evaluated."""
        fails = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        rows = torch.arange(len(z), device=z.device)
        rows = rows if only is None else rows[only]
        if len(rows):
            logits = logits_under_conditions(
                self.subject, self.box, origin, rows, z[rows], pattern[rows]
            )
            fails[rows] = answered(logits, origin.y[rows]).failed
        return fails


def _scaled(way: Way, scale: float) -> Way:
    """The same search with steps for a smaller box."""
    if isinstance(way, Evolution):
        return replace(way, spread=way.spread * scale, most=way.most * scale)
    return replace(way, step_size=way.step_size * scale)
