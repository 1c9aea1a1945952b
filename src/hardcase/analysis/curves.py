"""Share failing against severity, the severity at which each seed first fails, and mean corruption
error.

Everything here works on any `Change`: one declared condition, of which a corruption's severity is
one, or a function of one's own that turns images and a severity into images. A seed fails where the
subject leaves its label by the margin that counts everywhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import DECLARABLE, Conditions, DeclaredRange
from hardcase.conditions.worst import bisected
from hardcase.errors import Problem
from hardcase.oracles import MIN_MARGIN
from hardcase.statistics import interval
from hardcase.tensors import chunks, margin, to_grid
from hardcase.types import Seeds

GRID = 16
"""Severities on which it is checked whether failing is monotone."""
TOLERANCE = 0.01

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
    """The box of one declared condition as a `Change`, from the unchanged image to its farther end.

    Args:
        box: A box of one coordinate.
        keys: What the random numbers of each seed follow from, beside its pixels.

    Example:
        >>> fog = one_condition("corruption.fog", "0..5", (1, 8, 8), torch.tensor([7, 8]))
        >>> fog(torch.rand(2, 1, 8, 8), torch.tensor([0.0, 5.0]), torch.arange(2)).shape
        torch.Size([2, 1, 8, 8])
    """

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
    """Return what a curve of one condition asks about.

    Args:
        name: A coordinate, such as ``rotation`` or ``corruption.fog``.
        declared: Its range, such as ``"0..5"``.
        shape: Channels, height and width of the images.
        keys: What the random numbers of each seed follow from, beside its pixels.

    Raises:
        Problem: For a range that is not possible, or a condition of several coordinates.
    """
    box = condition_box(Conditions({name: declared}), shape)
    if box.size != 1:
        raise Problem(f"{name} has {box.size} coordinates; a curve of one condition has one.")
    return OneCondition(box, keys)


@dataclass(frozen=True, slots=True)
class Curve:
    """Which seeds fail at which severity. Axes: `g` severities, rising; `n` seeds.

    Args:
        severity: The severities asked.
        failing: Whether each seed fails at each of them.
    """

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
        """One row a severity: failing of total, share, and Wilson's 95 % interval."""
        rows = []
        total = self.failing.shape[1]
        for severity, hits in zip(self.severity.tolist(), self.failing.sum(1).tolist()):
            low, high = interval(hits, total)
            share = hits / total if total else math.nan
            rows.append(
                {
                    "severity": severity,
                    "failing": hits,
                    "total": total,
                    "share": share,
                    "low": low,
                    "high": high,
                }
            )
        return rows


def curve(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    severity: Float[Tensor, " g"],
    *,
    batch: int = 256,
    min_margin: float = MIN_MARGIN,
) -> Curve:
    """Ask the subject about every seed at every severity: `g` queries per seed.

    Args:
        change: What is done to the seeds.
        subject: Images in, logits out.
        x: Seeds in [0, 1].
        y: Their labels.
        severity: Severities, rising.
        batch: Rows in one question.
        min_margin: By how much in probability a wrong class must lead.

    Example:
        >>> x, y = torch.full((2, 1, 8, 8), 0.2), torch.zeros(2, dtype=torch.int64)
        >>> subject = lambda x: torch.stack([x.mean((1, 2, 3)) * 0 + 0.5, x.mean((1, 2, 3))], 1)
        >>> brighter = lambda x, severity, rows: x + severity[:, None, None, None]
        >>> curve(brighter, subject, x, y, torch.tensor([0.0, 0.2, 0.4])).share().tolist()
        [0.0, 0.0, 1.0]
    """
    _usable(x, y)
    if len(severity) > 1 and not bool((severity.diff() > 0).all()):
        raise Problem("severities of a curve must rise.", fix="severity.sort().values")
    rows = [
        _asked(change, subject, x, y, level.expand(len(x)), batch, min_margin) for level in severity
    ]
    return Curve(severity, torch.stack(rows) if rows else torch.zeros(0, len(x), dtype=torch.bool))


def grid(most: float = 5.0, count: int = GRID) -> Float[Tensor, " g"]:
    """`count` even severities above 0, up to `most`."""
    return torch.arange(1, count + 1) * (most / count)


@dataclass(frozen=True, slots=True)
class Crossings:
    """Where each seed first fails, as far as bisection can tell.

    Args:
        low: The highest severity at which a seed was seen to be right below its crossing.
        high: The lowest at which it was seen to fail; infinite where it never was.
        queries: How often the subject was asked about each seed.
    """

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
        crossed = int(middle.isfinite().sum())
        low, high = interval(crossed, len(middle))
        return {
            "seeds": len(middle),
            "crossed": crossed,
            "share": crossed / len(middle) if len(middle) else None,
            "low": low,
            "high": high,
            "queries": self.queries,
            "tolerance": float((self.high - self.low)[self.high.isfinite()].amax() / 2)
            if crossed
            else None,
            "quartiles": [_finite(middle, part) for part in (0.25, 0.5, 0.75)],
        }


def _finite(values: Float[Tensor, " n"], part: float) -> float | None:
    """A quantile by rank, None where it lies above the range."""
    if not len(values):
        return None
    value = float(values.sort().values[min(len(values) - 1, math.ceil(part * len(values)) - 1)])
    return value if math.isfinite(value) else None


def crossings(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    *,
    most: float = 5.0,
    tolerance: float = TOLERANCE,
    batch: int = 256,
    min_margin: float = MIN_MARGIN,
) -> Crossings:
    """The smallest failing severity of each seed to ± `tolerance` by bisection: 8 queries for 0 to
    5 and .01.

    The seeds must be classified correctly at severity 0. Where failing is not monotone, this is *a*
    severity at which the seed goes from right to failing, not always the first;
    `Curve.non_monotone` says how many seeds that concerns. A seed that was right at every question
    is reported as never failing; the last question was within 2 × `tolerance` of `most`.

    Args:
        change: What is done to the seeds.
        subject: Images in, logits out.
        x: Seeds in [0, 1].
        y: Their labels.
        most: The highest severity.
        tolerance: Half of the severity that may be left open.
        batch: Rows in one question.
        min_margin: By how much in probability a wrong class must lead.
    """
    _usable(x, y)
    if not 0 < tolerance < most:
        raise Problem(
            f"a tolerance of {tolerance:g} does not suit severities from 0 to {most:g}.", fix="0.01"
        )
    questions = max(1, math.ceil(math.log2(most / (2 * tolerance))))

    def fails(severity: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
        return _asked(change, subject, x, y, severity, batch, min_margin)

    low, high, failed = bisected(fails, torch.full((len(x),), float(most)), questions)
    return Crossings(low, torch.where(failed, high, math.inf), questions)


def _asked(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    severity: Float[Tensor, " n"],
    batch: int,
    min_margin: float,
) -> Bool[Tensor, " n"]:
    """Whether each seed fails at its severity, as an 8-bit image."""
    said = []
    for part in chunks(len(x), batch):
        rows = torch.arange(part.start, part.stop, device=x.device)
        with torch.inference_mode():
            logits = subject(to_grid(change(x[part], severity[part].to(x.device), rows)))
        said.append((margin(logits.softmax(1), y[part].to(logits.device)) >= min_margin).cpu())
    return torch.cat(said).clone() if said else torch.zeros(0, dtype=torch.bool)


def _usable(x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"]) -> None:
    if not len(x) or len(x) != len(y):
        raise Problem(
            f"a curve needs seeds with labels; given are {len(x)} images and {len(y)} labels."
        )


ALEXNET: Mapping[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's mean error over the five severities of ImageNet-C, by which its authors divide (from
https://github.com/hendrycks/robustness; the same numbers stand in AugMix's and MMPretrain's
evaluations). They are of the authors' files, at 224 pixels, with their elastic transform; with them
our numbers are beside published ones, not among them."""


@dataclass(frozen=True, slots=True)
class CorruptionError:
    """Mean corruption error by three conventions.

    Args:
        plain: The mean error over corruptions and severities.
        relative_to: The mean over corruptions of error over reference error (mCE); None without a
            reference.
        above_clean: The mean over corruptions of error above the clean one, over that of the
            reference (relative mCE).
        corruptions: Which took part.
    """

    plain: float
    relative_to: float | None
    above_clean: float | None
    corruptions: tuple[str, ...]


def corruption_error(
    errors: Mapping[str, Sequence[float]],
    *,
    clean: float,
    reference: Mapping[str, float] | None = None,
    reference_clean: float | None = None,
) -> CorruptionError:
    """The conventions of D. Hendrycks, T. Dietterich, ICLR 2019, from errors at the severities 1 to
    5.

    Args:
        errors: For each corruption, the share misclassified at each severity, over *all* images
            (not only over those that are classified correctly when clean).
        clean: The share misclassified without corruption.
        reference: Mean error of a reference network, such as `ALEXNET`; corruptions that it lacks
            are left out.
        reference_clean: Its error without corruption, for the relative form (AlexNet on ImageNet:
            0.435).

    Example:
        >>> corruption_error({"fog": [0.25, 0.5]}, clean=0.1, reference={"fog": 0.75}).relative_to
        0.5
    """
    if not errors or any(not len(row) for row in errors.values()):
        raise Problem(
            "corruption error needs at least one corruption with errors at its severities."
        )
    mean = {name: math.fsum(row) / len(row) for name, row in errors.items()}
    known = {name: value for name, value in (reference or {}).items() if name in mean}
    relative = _mean([mean[name] / known[name] for name in known])
    above = None
    if reference_clean is not None:
        above = _mean([(mean[name] - clean) / (known[name] - reference_clean) for name in known])
    return CorruptionError(math.fsum(mean.values()) / len(mean), relative, above, tuple(mean))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def error_rates(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    severity: Sequence[float] = (1, 2, 3, 4, 5),
    *,
    batch: int = 256,
) -> list[float]:
    """The share misclassified at each severity, over all images given: what `corruption_error`
    takes."""
    _usable(x, y)
    levels = [torch.full((len(x),), float(level)) for level in severity]
    wrong = [_answered(change, subject, x, level, batch) != y.cpu() for level in levels]
    return [float(row.double().mean()) for row in wrong]


def _answered(
    change: Change,
    subject: Answers,
    x: Float[Tensor, "n c h w"],
    severity: Float[Tensor, " n"],
    batch: int,
) -> Int[Tensor, " n"]:
    said = []
    for part in chunks(len(x), batch):
        rows = torch.arange(part.start, part.stop, device=x.device)
        with torch.inference_mode():
            logits = subject(to_grid(change(x[part], severity[part].to(x.device), rows)))
        said.append(logits.argmax(1).cpu())
    return torch.cat(said).clone()
