"""Share failing against severity, and the severity at which each seed first fails.

Everything here works on any `Change`: one declared condition, of which a corruption's severity is
one, or a function of one's own. A seed fails where the subject leaves its label by the margin that
counts everywhere else. `severity_curves` draws what ``hardcase curve`` prints and the report shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.claims import claim_context
from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import DECLARABLE, Conditions, DeclaredRange
from hardcase.conditions.worst import WorstCase, bisected
from hardcase.corruptions import CORRUPTIONS, corruption
from hardcase.errors import NO_SEEDS, HardcaseError
from hardcase.models.health import answers as first_answers
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import keys_of
from hardcase.statistics import Rate, binomial_interval
from hardcase.tensors import chunks, from_bytes, margin, to_grid
from hardcase.types import Images, Model, Seeds

GRID = 16
"""Severities on which it is checked whether failing is monotone."""
TOLERANCE = 0.01
"""Half of the severity that bisection may leave open."""

Answers = Callable[[Float[Tensor, "m c h w"]], Float[Tensor, "m k"]]
"""Images in, logits out."""


@runtime_checkable
class Change(Protocol):
    """Images at a severity, one a row. `rows` are the positions of the images among all seeds, so
    that a change can keep what belongs to a seed (its key, its code)."""

    def __call__(
        self, x: Float[Tensor, "m c h w"], severity: Float[Tensor, " m"], rows: Int[Tensor, " m"]
    ) -> Float[Tensor, "m c h w"]: ...


@dataclass(frozen=True, slots=True)
class OneCondition:
    """The box of one declared condition as a `Change`, from neutral to its farther end."""

    box: ConditionBox
    keys: Int[Tensor, " n"]

    @property
    def most(self) -> float:
        """The farther end of the range, in its unit."""
        declared: DeclaredRange = next(iter(self.box.conditions.ranges.values()))
        neutral = DECLARABLE[declared.name].neutral
        return max(declared.high - neutral, neutral - declared.low)

    def __call__(
        self, x: Float[Tensor, "m c h w"], severity: Float[Tensor, " m"], rows: Int[Tensor, " m"]
    ) -> Float[Tensor, "m c h w"]:
        end = max(self.box.high[0], self.box.low[0], key=abs)
        z = (end * severity / self.most)[:, None]
        pattern = self.keys[rows.to(self.keys.device)].to(x.device)
        return self.box.decode(z, Seeds(z, x, torch.zeros_like(rows), rows, {"pattern": pattern}))


def one_condition(
    name: str, declared: str, shape: tuple[int, ...], keys: Int[Tensor, " n"]
) -> OneCondition:
    """Return what a curve of one condition asks about."""
    box = condition_box(Conditions({name: declared}), shape)
    if box.size != 1:
        raise HardcaseError(f"{name} has {box.size} coordinates; a curve of one condition has one.")
    return OneCondition(box, keys)


@dataclass(frozen=True, slots=True)
class Curve:
    """Which seeds fail at which severity. Axes: `g` severities, rising; `n` seeds."""

    severity: Float[Tensor, " g"]
    failing: Bool[Tensor, "g n"]

    def share(self) -> Float[Tensor, " g"]:
        """The share of seeds that fail at each severity."""
        return self.failing.double().mean(1)

    def non_monotone(self) -> Bool[Tensor, " n"]:
        """Seeds that fail at some severity and are right again at a higher one."""
        ever = self.failing.cummax(0).values
        return (ever & ~self.failing).any(0)

    def table(self) -> list[dict[str, float | int]]:
        """One row per severity: failing of total, share, and the 95 % interval."""
        rows = []
        total = self.failing.shape[1]
        for severity, hits in zip(self.severity.tolist(), self.failing.sum(1).tolist()):
            low, high = binomial_interval(hits, total)
            counts = {"severity": severity, "failing": hits, "total": total}
            rows.append({**counts, "share": hits / total, "low": low, "high": high})
        return rows


def curve(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    severity: Float[Tensor, " g"],
    *,
    batch: int = 256,
) -> Curve:
    """Ask the subject about every seed at every severity: `g` queries per seed.

    Args:
        change: What is done to the seeds.
        subject: Images in, logits out.
        x: Seeds in [0, 1].
        y: Their labels.
        severity: Severities, rising.
        batch: Rows in one question.

    Example:
        >>> x, y = torch.full((2, 1, 8, 8), 0.2), torch.zeros(2, dtype=torch.int64)
        >>> subject = lambda x: torch.stack([x.mean((1, 2, 3)) * 0 + 0.5, x.mean((1, 2, 3))], 1)
        >>> brighter = lambda x, severity, rows: x + severity[:, None, None, None]
        >>> curve(brighter, subject, x, y, torch.tensor([0.0, 0.2, 0.4])).share().tolist()
        [0.0, 0.0, 1.0]
    """
    _usable(x, y)
    if len(severity) > 1 and not bool((severity.diff() > 0).all()):
        raise HardcaseError("severities of a curve must rise.", fix="severity.sort().values")
    levels = [level.expand(len(x)) for level in severity]
    rows = [_failing(_logits(change, subject, x, level, batch), y) for level in levels]
    return Curve(severity, torch.stack(rows))


def grid(most: float = 5.0, count: int = GRID) -> Float[Tensor, " g"]:
    """`count` even severities above 0, up to `most`."""
    return torch.arange(1, count + 1) * (most / count)


@dataclass(frozen=True, slots=True)
class Crossings:
    """Where each seed first fails, as far as bisection can tell."""

    low: Float[Tensor, " n"]
    high: Float[Tensor, " n"]
    queries: int

    def severity(self) -> Float[Tensor, " n"]:
        """The middle of what is left open; infinite where a seed was never seen to fail."""
        return (self.low + self.high) / 2

    def summary(self) -> dict[str, Any]:
        """How many seeds cross, and quartiles of the crossing severity over all seeds (None: above
        the range)."""
        middle = self.severity().double()
        return {
            "seeds": len(middle),
            "crossed": int(middle.isfinite().sum()),
            "queries": self.queries,
            "quartiles": [_finite(middle, part) for part in (0.25, 0.5, 0.75)],
        }


def _finite(values: Float[Tensor, " n"], part: float) -> float | None:
    """A quantile by rank, None where it lies above the range."""
    value = float(values.sort().values[math.ceil(part * len(values)) - 1])
    return value if math.isfinite(value) else None


def crossings(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    *,
    most: float = 5.0,
    batch: int = 256,
) -> Crossings:
    """The smallest failing severity of each seed to ± .01 by bisection: 8 queries for 0 to 5.

    The seeds must be classified correctly at severity 0. Where failing is not monotone, this is *a*
    severity at which the seed goes from right to failing, not always the first;
    `Curve.non_monotone` says how many seeds that concerns.

    Args:
        change: What is done to the seeds.
        subject: Images in, logits out.
        x: Seeds in [0, 1].
        y: Their labels.
        most: The highest severity.
        batch: Rows in one question.
    """
    _usable(x, y)
    questions = max(1, math.ceil(math.log2(most / (2 * TOLERANCE))))

    def fails(severity: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        return _failing(_logits(change, subject, x, severity, batch), y)

    low, high, failed = bisected(fails, torch.full((len(x),), float(most)), questions)
    return Crossings(low, torch.where(failed, high, math.inf), questions)


def _failing(logits: Float[Tensor, "n k"], y: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    return margin(logits.softmax(1), y.cpu()) >= MIN_MARGIN


def _logits(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    severity: Float[Tensor, " n"],
    batch: int,
) -> Float[Tensor, "n k"]:
    """What the subject says of each seed at its severity, as an 8-bit image."""
    parts = []
    for part in chunks(len(x), batch):
        rows = torch.arange(part.start, part.stop, device=x.device)
        with torch.inference_mode():
            logits = subject(to_grid(change(x[part], severity[part].to(x.device), rows)))
        parts.append(logits.cpu())
    return torch.cat(parts).clone()


def _usable(x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"]) -> None:
    if not len(x) or len(x) != len(y):
        raise HardcaseError(
            f"a curve needs images with labels; given are {len(x)} images and {len(y)} labels."
        )


def error_rates(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    severity: Sequence[float] = (1, 2, 3, 4, 5),
    *,
    batch: int = 256,
) -> list[float]:
    """The share misclassified at each severity, over all images, as D. Hendrycks and T. Dietterich
    (ICLR 2019) count it."""
    levels = [torch.full((len(x),), float(level)) for level in severity]
    wrong = [_logits(change, subject, x, level, batch).argmax(1) != y.cpu() for level in levels]
    return [float(row.double().mean()) for row in wrong]


def severity_curves(
    subject: Model,
    images: Images,
    names: Sequence[str] = tuple(CORRUPTIONS),
    *,
    worst: WorstCase | None = None,
    batch: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """What corruptions, and declared conditions one by one, do to a model.

    Args:
        subject: The model.
        images: Labelled images; curves and crossings are of those it classifies correctly,
            corruption error is of all.
        names: Which corruptions.
        worst: The least scale of declared conditions at which each of the images fails; None: only
            corruptions are told of.
        batch: Rows in one question.
        progress: Told how many curves are done, and of how many.

    Returns:
        For each corruption (severity 0 to 5), and for all declared conditions together and each
        alone (scale 0 to 1), the share failing on a grid of 16 severities with intervals, where
        seeds cross, and the share whose failing is not monotone; and the mean corruption error.
    """
    chosen = [corruption(name).name for name in names]
    if claim_context(images.context):  # some corruptions move objects, and say not where to
        chosen = []
    x = from_bytes(images.x).to(subject.device)
    y = images.y.to(subject.device)
    right = (first_answers(subject, images, batch).argmax(1) == images.y).to(subject.device)
    usable = right.nonzero().squeeze(1)
    if not len(usable):
        raise HardcaseError(
            f"{subject.name} classifies none of the {len(images)} images correctly.", code=NO_SEEDS
        )
    keys = keys_of(images.id).to(subject.device)
    if not chosen and worst is None:
        raise HardcaseError("there is no corruption and no condition to draw a curve of.")

    def answers(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        return subject(x).logits.clone()

    def drawn(change: Change, most: float) -> dict[str, Any]:
        args = (change, answers, x[usable], y[usable])
        failing_curve = curve(*args, grid(most), batch=batch)
        return {
            "most": most,
            "curve": failing_curve.table(),
            "crossing": crossings(*args, most=most, batch=batch).summary(),
            "non_monotone": Rate(int(failing_curve.non_monotone().sum()), len(usable)).to_json(),
        }

    rows = []
    errors = {}
    for name in chosen:
        change = one_condition(f"corruption.{name}", "0..5", images.shape, keys)
        errors[name] = error_rates(change, answers, x, y, batch=batch)
        kind = CORRUPTIONS[name].kind
        shown = drawn(replace(change, keys=keys[usable]), change.most)
        rows.append({"corruption": name, "kind": kind, **shown, "error": errors[name]})
        if progress:
            progress(len(rows), len(chosen))
    scaled = []
    if worst is not None:
        together = {"all conditions together": worst.least_scale, **worst.alone}
        scaled = [_scaled(name, least[usable.cpu()]) for name, least in together.items()]
    counted = [name for name in errors if not CORRUPTIONS[name].extra] or list(errors)
    mean = None
    if counted:
        plain = fmean(fmean(errors[name]) for name in counted)
        mean = {"plain": plain, "corruptions": counted}
    return {
        "model": subject.name,
        "data": images.name,
        "images": len(images),
        "correctly_classified": len(usable),
        "clean_error": 1 - len(usable) / len(images),
        "corruptions": rows,
        "conditions": scaled,
        "corruption_error": mean,
    }


def _scaled(name: str, least: Float[Tensor, " n"]) -> dict[str, Any]:
    """The curve of a condition over the scale of its range, from where each image first fails."""
    at = grid(1.0)
    beyond = torch.where(least <= 1, least, torch.inf)
    return {
        "condition": name,
        "most": 1.0,
        "curve": Curve(at, beyond[None] <= at[:, None]).table(),
        "crossing": Crossings(beyond, beyond, 0).summary(),
        "non_monotone": Rate(0, len(least)).to_json(),
    }
