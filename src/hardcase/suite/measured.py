"""What a gate and a comparison read of measured runs: shares per image, alone or in pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardcase.errors import HardcaseError
from hardcase.runs import phases
from hardcase.runs.measured import Measured
from hardcase.runs.results import Run
from hardcase.statistics import Bounds, bounded_mean_interval

__all__ = ["PairedRates", "bounds_by_ties", "measured_beside", "measured_rows", "paired_rates"]

Vector = NDArray[np.float64]


def measured_rows(run: Run) -> Measured:
    """Return what was measured of the model of a run, image by image."""
    return phases.measured_rows(run.store)


def bounds_by_ties(rows: Measured, *, unmodified: bool = False) -> tuple[Vector, Vector, Vector]:
    """Return the failing share of every image: as counted, if no tie fails, if all of them do.

    Args:
        rows: What was measured.
        unmodified: Of the unmodified images instead of the samples of the conditions.
    """
    failed, tied = rows.failed, rows.tied
    if unmodified or not rows.samples:
        failed, tied = rows.wrong[:, None], rows.wrong_tied[:, None]
    counted, least, most = (flags.mean(1) for flags in (failed, failed & ~tied, failed | tied))
    return counted, least, most


@dataclass(frozen=True, slots=True)
class PairedRates:
    """By how much a model fails more often than another, image by image, on the same samples.

    Args:
        name: The name of the other model.
        values: The differences; above 0 the model fails more often than the other.
        least: The same if every tie, and every image that is missing, speaks for the model.
        most: The same if they speak against it.
        value: The failure rate of the model on these images.
        other: That of the other model.
        clusters: The image of every row, where rows are claims.
        missing: Images that the other model was measured on and this model left out.
    """

    name: str
    values: Vector
    least: Vector
    most: Vector
    value: float
    other: float
    clusters: tuple[str, ...] = ()
    missing: int = 0

    @property
    def bounds(self) -> Bounds:
        """The 95 % interval of the mean difference, whatever is unknown."""
        ends = [
            bounded_mean_interval(bound, -1.0, 1.0, clusters=self.clusters)
            for bound in (self.least, self.most)
        ]
        return Bounds(ends[0].low, ends[1].high)

    @property
    def images(self) -> int:
        """Images that both were measured on."""
        return len(self.values) - self.missing


def paired_rates(
    run: Run, baseline: Run, *, reserved: bool = False, unmodified: bool = False
) -> PairedRates:
    """Return the failure rate of a run against that of a baseline, image by image.

    Images are measured in an order that only their names and the original decide. So a run that
    measured fewer of them has the beginning of another run's images, and an image that is missing
    before the end of that beginning was left out: it counts as one that may fail.

    Args:
        run: A measured run.
        baseline: Another, of the same data under the same conditions.
        reserved: Only of images that are reserved for proofs of repair, where there are any.
        unmodified: Of the unmodified images instead of the samples of the conditions.

    Raises:
        HardcaseError: If the two did not draw the same samples of the same images.
    """
    _require_same_samples(run, baseline)
    rows, theirs = measured_rows(run), measured_rows(baseline)
    if reserved and theirs.reserved.any():
        rows, theirs = rows.take(rows.reserved), theirs.take(theirs.reserved)
    mine, other = rows.same_samples(theirs)
    _require_same_labels(mine, other)
    left_out = theirs.take(_left_out(mine, theirs))
    counted, least, most = bounds_by_ties(mine, unmodified=unmodified)
    counted_there, least_there, most_there = bounds_by_ties(other, unmodified=unmodified)
    unseen = bounds_by_ties(left_out, unmodified=unmodified)[0]
    return PairedRates(
        name="the baseline",
        values=np.concatenate([counted - counted_there, np.zeros(len(unseen))]),
        least=np.concatenate([least - most_there, -unseen]),
        most=np.concatenate([most - least_there, 1 - unseen]),
        value=float(counted.mean()),
        other=float(counted_there.mean()),
        clusters=(*mine.clusters, *left_out.clusters),
        missing=len(left_out),
    )


def measured_beside(run: Run) -> list[PairedRates]:
    """Return the failure rate of a run against that of every model that classified the same samples
    in its measurement.
    """
    rows = measured_rows(run)
    counted, least, most = bounds_by_ties(rows)
    named = (run.record.get("risk") or {}).get("baselines") or []
    paired = []
    for place, entry in enumerate(named[: rows.baseline_wrong.shape[1]]):
        other = rows.baseline_wrong[:, place].astype(float)
        if rows.samples:
            other = rows.baseline_failed[place].mean(1)
        paired.append(
            PairedRates(
                name=str(entry["name"]),
                values=counted - other,
                least=least - other,
                most=most - other,
                value=float(counted.mean()),
                other=float(other.mean()),
                clusters=rows.clusters,
            )
        )
    return paired


def _left_out(mine: Measured, theirs: Measured) -> NDArray[np.int64]:
    """The rows of the other run that are missing here although later ones are there."""
    names = {*mine.id}
    common = np.array([name in names for name in theirs.id])
    last = int(np.flatnonzero(common)[-1])
    missing: NDArray[np.int64] = np.flatnonzero(~common[:last])
    return missing


def _require_same_samples(run: Run, baseline: Run) -> None:
    """Refuse two runs whose failure rates are about different things."""
    for each in (run, baseline):
        if not each.record.get("risk"):
            raise HardcaseError(
                f"{each.folder} was not measured, so failure rates cannot be compared.",
                fix=f"hardcase resume {each.folder}",
            )
    record, there = run.record, baseline.record
    names = {
        "seed": "seed of the samples",
        "classes": "classes",
        "shape": "size of the images",
        "hardcase": "version of hardcase",
    }
    lines = [
        f"{text}: {_short(record.get(name))}, there {_short(there.get(name))}"
        for name, text in names.items()
        if record.get(name) != there.get(name)
    ]
    if bool(record.get("claims")) != bool(there.get("claims")):
        lines.append("one of them is about claims, the other is not")
    if record.get("conditions_digest") != there.get("conditions_digest"):
        lines.append(_other_conditions(record.get("conditions"), there.get("conditions")))
    if lines:
        raise HardcaseError(
            f"{baseline.folder} was measured otherwise, so failure rates cannot be compared.",
            *lines,
            fix="a run of that model with the same data, --conditions and --seed",
        )


def _other_conditions(own: Any, there: Any) -> str:
    """In what the conditions of two runs differ."""
    first, second = dict(own or {}), dict(there or {})
    keys = [
        key for key in {**first, **second} if key != "name" and first.get(key) != second.get(key)
    ]
    if not keys:
        return "conditions: a table or a sampler draws other values there"
    words = [f"{key} {first.get(key, 'none')}, there {second.get(key, 'none')}" for key in keys]
    return f"conditions: {'; '.join(words)}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _require_same_labels(mine: Measured, theirs: Measured) -> None:
    """Refuse two runs that say something else of the same image."""
    other = np.flatnonzero(mine.label != theirs.label)
    if len(other):
        raise HardcaseError(
            "the two runs have other labels, so failure rates cannot be compared.",
            f"{mine.id[int(other[0])]} is of class {mine.label[other[0]]}, there of class"
            f" {theirs.label[other[0]]}",
            f"{len(other):,} labels differ",
        )
