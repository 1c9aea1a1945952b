"""The measurement of a model: a row for every image, with a bit for every sample.

Images that are only measured are stored by the digest of their pixels, never as pictures. The
baselines of a run classify the same samples, so that every difference is paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hardcase.campaign.claims import image_of
from hardcase.campaign.record import computing
from hardcase.conditions.box import ConditionBox
from hardcase.conditions.effects import effects_of_shard
from hardcase.conditions.risk import RiskTable, measure_shard, rate_of
from hardcase.conditions.wider import wider_of_shard
from hardcase.errors import HardcaseError
from hardcase.randomness import reserved
from hardcase.runs.tables import read, table, to_parquet
from hardcase.runs.verify import Canaries
from hardcase.types import Guide, Images, Model

__all__ = ["MEASURED", "MeasureTask", "Measured", "MeasuredShard", "Measurement", "rows_of"]

MEASURED: dict[str, pa.DataType] = {
    "id": pa.string(),
    "label": pa.int32(),
    "digest": pa.string(),
    "reserved": pa.bool_(),
    "predicted": pa.int32(),
    "wrong": pa.bool_(),
    "wrong_tied": pa.bool_(),
    "failing": pa.uint64(),
    "tied": pa.uint64(),
    "baseline_wrong": pa.list_(pa.bool_()),
    "baseline_failing": pa.list_(pa.uint64()),
    "margins": pa.list_(pa.float32()),
    "effects": pa.list_(pa.float32()),
    "wider": pa.list_(pa.float32()),
}
"""The columns of a part of the measurement. The last three are lists over samples, declared
conditions and scales; empty where effects are not measured.
"""
Bits = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the measurement of a run needs; it can be sent to another process.

    Args:
        model: The model under test.
        box: The conditions in effect; None: only unmodified images are measured.
        baselines: Models that classify the same samples.
        samples: Samples of the conditions per image.
        seed: Everything random follows from it and from the names of the images.
        tile: Rows of every network call, see `hardcase.runs.tiles`; None: any number.
        reserve: Whether half of the images are reserved for proofs of repair.
    """

    model: Model
    box: ConditionBox | None
    baselines: tuple[Model, ...] = ()
    samples: int = 4
    seed: int = 0
    tile: int | None = None
    reserve: bool = True

    @property
    def queries(self) -> int:
        """Images that the model classifies for each measured image."""
        return 1 + (0 if self.box is None else self.samples)

    @property
    def networks(self) -> dict[str, Model]:
        """Every network of the measurement by its role."""
        baselines = {f"baseline {i}": baseline for i, baseline in enumerate(self.baselines, 1)}
        return {"model": self.model, **baselines}

    def effects(self, images: Images, table: RiskTable) -> EffectRows:
        """Return the net effect of every condition, and what happens under wider ranges."""
        assert self.box is not None
        margins = None if self.model.offers == "label" else table.margin
        with self.arithmetic():
            rows = effects_of_shard(
                self.model, images, self.box, seed=self.seed, failed=table.failed, margins=margins
            )
            beyond = wider_of_shard(self.model, images, self.box, seed=self.seed)
        queries = int(rows.queries.sum()) * max(len(rows.difference), 1)
        return EffectRows(
            [values.tolist() for values in rows.difference.values()],
            [values.tolist() for values in beyond.shares.values()],
            queries + len(images) * len(beyond.shares),
        )

    def arithmetic(self) -> AbstractContextManager[None]:
        """The tile and the arithmetic of the measurement, for whoever asks its networks."""
        return computing(self.model.device.type, self.tile, "strict")

    def tables(self, images: Images) -> list[RiskTable]:
        """Return the outcomes of images: of the model, then of every baseline."""
        with self.arithmetic():
            return [
                measure_shard(model, images, self.box, self.samples, self.seed)
                for model in (self.model, *self.baselines)
            ]


class EffectRows(NamedTuple):
    """Measurements besides the failure rate: by condition and by scale, a number per image, and how
    many images were classified for it.
    """

    conditions: list[list[float]]
    scales: list[list[float]]
    queries: int


class MeasuredShard(NamedTuple):
    """A measured shard on its way to the store: its number, its part, its counts."""

    number: int
    part: bytes
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """A shard of the measurement: its number and its images."""

    number: int
    images: Images
    deadline: float | None = None
    canaries: Canaries | None = None
    effects: bool = False

    def work(
        self,
        measurement: Measurement,
        guides: Sequence[Guide] = (),
        on_step: Callable[[Any], None] = lambda counts: None,
    ) -> MeasuredShard:
        """Ask the model, and the baselines, about this shard."""
        return self.packed(measurement, measurement.tables(self.images))

    def packed(self, measurement: Measurement, tables: Sequence[RiskTable]) -> MeasuredShard:
        """Return the shard as it is stored, from the models' answers."""
        table, *others = tables
        more = measurement.effects(self.images, table) if self.effects else None
        rows = rows_of(self.images, table, others, reserve=measurement.reserve, effects=more)
        summary = {
            "images": len(table),
            "failing": int(table.failed.sum() if measurement.box else table.clean.sum()),
            "queries": len(table) * measurement.queries,
            "effect_queries": 0 if more is None else more.queries,
        }
        if self.canaries is not None:
            with measurement.arithmetic():
                queries = self.canaries.check(measurement.networks, self.images, self.number)
            summary["canaries"] = queries
        return MeasuredShard(self.number, to_parquet(rows), summary)


def rows_of(
    images: Images,
    own: RiskTable,
    baselines: Sequence[RiskTable],
    *,
    reserve: bool,
    effects: EffectRows | None = None,
) -> pa.Table:
    """Return the rows of images as they are stored."""
    held = reserved([image_of(name) for name in own.id]) if own.image else reserved(own.id)
    columns = {
        "id": list(own.id),
        "label": own.y,
        "digest": [sha256(x.numpy().tobytes()).hexdigest()[:16] for x in images.x.contiguous()],
        "reserved": held & reserve,
        "predicted": own.predicted.int(),
        "wrong": own.clean,
        "wrong_tied": own.clean_tied,
        "failing": packed_bits(own.failed.numpy()),
        "tied": packed_bits(own.tied.numpy()),
        "baseline_wrong": _lists([other.clean.tolist() for other in baselines], len(own)),
        "baseline_failing": _lists(
            [packed_bits(other.failed.numpy()).tolist() for other in baselines], len(own)
        ),
        "margins": [[]] * len(own) if effects is None else own.margin.tolist(),
        "effects": _lists([] if effects is None else effects.conditions, len(own)),
        "wider": _lists([] if effects is None else effects.scales, len(own)),
    }
    return table(columns, MEASURED)


def _lists(columns: Sequence[list[Any]], count: int) -> list[list[Any]]:
    """Combine columns into a list per row."""
    return [[column[row] for column in columns] for row in range(count)]


def _columns(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """Lists of equal length as columns; those of no rows have none."""
    values = lists.to_pylist()
    width = len(values[0]) if values else 0
    return np.array(values, dtype=np.float64).reshape(len(values), width)


def packed_bits(samples: NDArray[np.bool_]) -> Bits:
    """Return a number per row: bit k says whether sample k is true.

    Example:
        >>> packed_bits(np.array([[True, False, True], [False, False, False]])).tolist()
        [5, 0]
    """
    weights = np.left_shift(np.uint64(1), np.arange(samples.shape[1], dtype=np.uint64))
    bits: Bits = (samples * weights).sum(1, dtype=np.uint64)
    return bits


def unpacked_bits(numbers: Bits, samples: int) -> NDArray[np.bool_]:
    """Return which of the first samples of each row are true."""
    places = np.arange(samples, dtype=np.uint64)
    return (numbers[:, None] >> places & np.uint64(1)).astype(bool)


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a run as arrays, a row for every image.

    Args:
        id: Names of the images, in the order in which they were measured.
        label: Their labels.
        digest: Digests of their pixels.
        reserved: Whether each is reserved for proofs of repair.
        predicted: What the model answers about the unmodified image.
        wrong: Whether that is another class than the label.
        wrong_tied: Whether the label shares the largest output with another class.
        failed: Which samples fail.
        tied: Which samples are ties.
        baseline_wrong: The same of every baseline, in columns.
        baseline_failed: Which samples fail for every baseline.
        margins: The lead of another class over the label in each sample; no columns where
            effects are not measured, as of the following.
        effects: The net effect of every declared condition.
        wider: The share of samples that fail under each wider scale.
        claims: Whether rows are claims; an image may have more than a single claim.
    """

    id: tuple[str, ...]
    label: NDArray[np.int64]
    digest: tuple[str, ...]
    reserved: NDArray[np.bool_]
    predicted: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    wrong_tied: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    tied: NDArray[np.bool_]
    baseline_wrong: NDArray[np.bool_]
    baseline_failed: NDArray[np.bool_]
    margins: NDArray[np.float64]
    effects: NDArray[np.float64]
    wider: NDArray[np.float64]
    claims: bool = False

    @staticmethod
    def of(rows: pa.Table, samples: int, *, claims: bool = False) -> Measured:
        """Return stored rows as arrays."""

        def column(name: str) -> NDArray[Any]:
            return np.asarray(rows[name].to_numpy())

        others = len(rows["baseline_wrong"][0].as_py()) if len(rows) else 0
        flat = {
            name: np.array(rows[name].to_pylist(), dtype=kind).reshape(len(rows), others)
            for name, kind in (("baseline_wrong", bool), ("baseline_failing", np.uint64))
        }
        each = [unpacked_bits(flat["baseline_failing"][:, i], samples) for i in range(others)]
        none = np.zeros((0, len(rows), samples), dtype=bool)
        return Measured(
            id=tuple(rows["id"].to_pylist()),
            label=column("label").astype(np.int64),
            digest=tuple(rows["digest"].to_pylist()),
            reserved=column("reserved").astype(bool),
            predicted=column("predicted").astype(np.int64),
            wrong=column("wrong").astype(bool),
            wrong_tied=column("wrong_tied").astype(bool),
            failed=unpacked_bits(column("failing"), samples),
            tied=unpacked_bits(column("tied"), samples),
            baseline_wrong=flat["baseline_wrong"],
            baseline_failed=np.stack(each) if each else none,
            **{name: _columns(rows[name]) for name in ("margins", "effects", "wider")},
            claims=claims,
        )

    @staticmethod
    def read(parts: Iterable[Path], samples: int, *, claims: bool = False) -> Measured:
        """Return the stored parts of a measurement, in their order."""
        rows = [read(part, MEASURED) for part in parts]
        if not rows:
            rows = [table(dict.fromkeys(MEASURED, ()), MEASURED)]
        return Measured.of(pa.concat_tables(rows), samples, claims=claims)

    def __len__(self) -> int:
        return len(self.id)

    @property
    def samples(self) -> int:
        """Samples per image; 0 where only unmodified images were measured."""
        return int(self.failed.shape[1])

    @property
    def clusters(self) -> tuple[str, ...]:
        """The image of every row, where rows are claims; else nothing."""
        return tuple(map(image_of, self.id)) if self.claims else ()

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of samples that fail, per image; of unmodified images where there are none."""
        if not self.samples:
            return self.wrong.astype(float)
        shares: NDArray[np.float64] = self.failed.mean(1)
        return shares

    def take(self, rows: NDArray[Any]) -> Measured:
        """Return these rows."""
        chosen = np.arange(len(self))[rows]
        names = [field.name for field in fields(self)]
        names = [name for name in names if isinstance(getattr(self, name), np.ndarray)]
        names = [name for name in names if not name.startswith("baseline")]
        arrays: Mapping[str, Any] = {name: getattr(self, name)[chosen] for name in names}
        return replace(
            self,
            id=tuple(self.id[row] for row in chosen),
            digest=tuple(self.digest[row] for row in chosen),
            baseline_wrong=self.baseline_wrong[chosen],
            baseline_failed=self.baseline_failed[:, chosen],
            **arrays,
        )

    def figures(self) -> dict[str, Any]:
        """Return the failure rate with its interval, as run.json keeps it under ``risk``."""
        wrong = self.wrong.astype(float)
        ties = self.wrong_tied | self.tied.any(1)
        unmodified = self._rate(wrong, self.wrong & ~self.wrong_tied, self.wrong | self.wrong_tied)
        return {
            **self._under_conditions(np.zeros(len(self)), low=0.0),
            "failing": int(self.failed.sum() if self.samples else self.wrong.sum()),
            "samples": self.samples,
            "images": len(self),
            "ties": int(ties.sum()),
            "unmodified": {**unmodified, "failing": int(self.wrong.sum())},
            "gap": rate_of(self.shares - wrong, self.clusters, low=-1.0),
        }

    def beside(self, baseline: int) -> dict[str, Any]:
        """Return the figures of a baseline and the model's differences from them, image by
        image."""
        wrong = self.baseline_wrong[:, baseline].astype(float)
        shares = self.baseline_failed[baseline].mean(1) if self.samples else wrong
        return {
            **rate_of(shares, self.clusters),
            "unmodified": rate_of(wrong, self.clusters),
            "difference": self.difference(shares),
            "unmodified_difference": rate_of(self.wrong - wrong, self.clusters, low=-1.0),
            "images": len(self),
        }

    def difference(self, shares: NDArray[np.float64]) -> dict[str, float]:
        """Return the failure rate less that of another model, from its shares of the same samples,
        image by image; the interval holds whether ties fail or not.
        """
        return self._under_conditions(shares, low=-1.0)

    def _under_conditions(self, less: NDArray[np.float64], *, low: float) -> dict[str, float]:
        """The failure rate less that of something else, image by image."""
        if not self.samples:
            least, most = self.wrong & ~self.wrong_tied, self.wrong | self.wrong_tied
            return self._rate(self.wrong - less, least - less, most - less, low)
        least, most = (self.failed & ~self.tied).mean(1), (self.failed | self.tied).mean(1)
        return self._rate(self.shares - less, least - less, most - less, low)

    def _rate(
        self, values: NDArray[Any], least: NDArray[Any], most: NDArray[Any], low: float = 0.0
    ) -> dict[str, float]:
        """A mean whose interval holds whether all ties fail or none does."""
        rate = rate_of(values, self.clusters, low=low)
        if np.array_equal(least, most):
            return rate
        start = rate_of(least.astype(float), self.clusters, low=low)["low"]
        end = rate_of(most.astype(float), self.clusters, low=low)["high"]
        return {**rate, "low": min(start, rate["low"]), "high": max(end, rate["high"])}

    def same_samples(self, other: Measured) -> tuple[Measured, Measured]:
        """Return the rows of both that are of the same images, with the samples that both have.

        Raises:
            HardcaseError: If there are none, or an image of the same name has other pixels.
        """
        place = {name: row for row, name in enumerate(other.id)}
        common = [row for row, name in enumerate(self.id) if name in place]
        if not common:
            raise HardcaseError(
                "the two runs have no image in common: failure rates cannot be compared."
            )
        mine = self.take(np.array(common))
        theirs = other.take(np.array([place[name] for name in mine.id]))
        for name, first, second in zip(mine.id, mine.digest, theirs.digest):
            if first != second:
                raise HardcaseError(
                    "the two runs have other images, so failure rates cannot be compared.",
                    f"{name} is another image there",
                )
        samples = min(mine.samples, theirs.samples)
        return mine.first_samples(samples), theirs.first_samples(samples)

    def first_samples(self, count: int) -> Measured:
        """Return the measurement with the first `count` samples of every image."""
        failed = self.baseline_failed[:, :, :count]
        return replace(
            self,
            failed=self.failed[:, :count],
            tied=self.tied[:, :count],
            baseline_failed=failed,
        )
