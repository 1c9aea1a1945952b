"""The box of declared conditions around an image: a space to search in and to draw from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from hardcase.conditions.declared import DECLARABLE, PROFILES, Conditions, DeclaredRange
from hardcase.corruptions import CorruptionPart
from hardcase.errors import HardcaseError, Unanswered, file_member, guarded, within
from hardcase.plain import read_plain, source_files
from hardcase.randomness import Rng, keys_of
from hardcase.spaces.appearance import PARTS, Appearance
from hardcase.spaces.coordinates import OF_THE_SIDE, ChangeFamily
from hardcase.tensors import constant, digest
from hardcase.types import Seeds

__all__ = ["ConditionBox", "ConditionDraws", "condition_box", "conditions_digest", "samples_of"]

Columns = Mapping[str, NDArray[np.float64]]
DIGESTED = 16
"""Fixed rows, and samples of each, that enter the digest of a declaration."""
SAME = 1e-6
"""Share of a declared range by which two values of a sampler may differ in their last bits."""
PATIENCE = 120.0
"""Time limit of a user's sampler, in seconds."""
BITS = 24
"""Binary places of a point of Sobol's sequence: what a float32 holds exactly."""


@dataclass(frozen=True, slots=True)
class _Field:
    """Control points of a smooth field among the columns of a box: `axes` numbers at each."""

    start: int
    stop: int
    axes: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def lengths(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m p"]:
        """The length of the field at every control point."""
        points = z[:, self.start : self.stop].reshape(len(z), self.axes, -1)
        return points.square().sum(1).sqrt()


@dataclass(frozen=True, slots=True)
class ConditionDraws:
    """Random conditions for each of a batch of seeds.

    Args:
        z: Codes, `count` per seed.
        pattern: What grain, drops and flakes of a draw follow from.
    """

    z: Float[Tensor, "n k d"]
    pattern: Int[Tensor, "n k"]


@dataclass(frozen=True, slots=True)
class ConditionBox:
    """Declared conditions for images of a fixed shape, as a space of appearance with bounds.

    A code has the columns of the declared coordinates alone; everything else stays as it is. The
    box of scale `s` is the hull of the unchanged image and `s` times each range, so boxes are
    nested. Columns that only say a direction (the angle of a motion) do not scale.

    Args:
        conditions: What was declared.
        space: The space that does it, whose ranges reach the declared ones.
        columns: Columns of the space's code that were declared.
        low: The least code of each column at scale 1.
        high: The greatest code of each column at scale 1.
        counts: Which columns scale.
        owner: Which declared coordinate each column belongs to.
        fields: Columns that are control points of fields.
        scale: Scale of the box to which `project` brings codes back.

    Example:
        >>> import hardcase as hc
        >>> box = condition_box(hc.Conditions({"rotation": "±8 deg"}), (1, 28, 28))
        >>> box.gauge(torch.tensor([[0.5]])).item()
        0.5
    """

    conditions: Conditions
    space: Appearance
    columns: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    counts: tuple[bool, ...]
    owner: tuple[str, ...]
    fields: tuple[_Field, ...] = ()
    scale: float = 1.0
    keeps_code: bool = True

    @property
    def name(self) -> str:
        return self.conditions.name

    @property
    def size(self) -> int:
        """The length of a code."""
        return len(self.columns)

    def scaled(self, scale: float) -> ConditionBox:
        """Return the same space with `project` bound to the box of another scale."""
        return replace(self, scale=scale)

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return torch.zeros(len(x), self.size, device=x.device, dtype=x.dtype), {}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.space.decode(self.whole(z), origin)

    def places(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m 2 h w"] | None:
        """Return where each pixel of a changed image is read; None where nothing moves."""
        return self.space.places(self.whole(z))

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        """Return the codes brought back into the box."""
        counts = constant(self.counts, torch.bool, z.device)
        factor = torch.where(counts, self.scale, 1.0).to(z.dtype)
        low = constant(self.low, z.dtype, z.device) * factor
        high = constant(self.high, z.dtype, z.device) * factor
        z = torch.minimum(torch.maximum(z, low), high)
        for block in self.fields:
            limit = self.high[block.start] * self.scale
            excess = (block.lengths(z) / limit).clamp_min(1).repeat(1, block.axes)
            inside = z[:, block.start : block.stop] / excess
            z = torch.cat([z[:, : block.start], inside, z[:, block.stop :]], 1)
        return z

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        """Return the distance of the space of appearance, in natural ranges."""
        return self.space.distance(self.whole(z), origin)

    def gauge(self, z: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Return the scale of the smallest box that contains each code (`least_scale`)."""
        low = constant(self.low, z.dtype, z.device)
        high = constant(self.high, z.dtype, z.device)
        shares = torch.where(z > 0, z / high, z / low.clamp_max(-0.0))
        shares = torch.where(z == 0, 0.0, shares).abs()
        free = ~constant(self.counts, torch.bool, z.device)
        for block in self.fields:
            free[block.start : block.stop] = True
        largest = shares.masked_fill(free, 0).amax(1)
        for block in self.fields:
            largest = torch.maximum(largest, block.lengths(z).amax(1) / self.high[block.start])
        return largest

    def whole(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m e"]:
        """Return codes of the space of appearance, undeclared columns at neutral."""
        empty = torch.zeros(len(z), self.space.size, device=z.device, dtype=z.dtype)
        return empty.index_copy(1, constant(self.columns, torch.int64, z.device), z)

    def words(self, z: Float[Tensor, "m d"]) -> list[str]:
        """Return what was done to each image, such as ``tilted 6° clockwise``."""
        return self.space.words(self.whole(z))

    def describe(self, z: Float[Tensor, "m d"]) -> list[dict[str, tuple[float, str]]]:
        """Return values with units by name, row by row."""
        return self.space.describe(self.whole(z))

    def held(self, z: Float[Tensor, "*m d"], name: str) -> Float[Tensor, "*m d"]:
        """Return the codes with a declared coordinate at neutral."""
        mask = constant(tuple(owner == name for owner in self.owner), torch.bool, z.device)
        return z.masked_fill(mask, 0)

    def draw(self, rng: Rng, rows: Int[Tensor, " n"], count: int) -> ConditionDraws:
        """Return `count` random conditions for each seed, by the declared distributions.

        The first of many draws are the draws of a smaller `count`.

        Args:
            rng: Named random numbers, a sequence per seed, from which nothing was drawn.
            rows: The seeds, as positions among the keys of `rng`.
            count: Draws per seed.
        """
        points = sobol(rng, rows, count, self._cube)
        # one call each for all draws of a seed: more draws begin with the same ones
        shape = (len(rows), count, -1)
        normals = [rng.normal(rows, (count * block.size,)).reshape(shape) for block in self.fields]
        z = self._codes(points, normals)
        return ConditionDraws(z, rng.integers(rows, 2**31 - 1, (count,)))

    @property
    def normals(self) -> int:
        """How many independent normal numbers determine a draw."""
        return self._cube + sum(block.size for block in self.fields)

    def from_normals(self, g: Float[Tensor, "m e"]) -> Float[Tensor, "m d"]:
        """Return codes that have the declared distribution where `g` are standard normal.

        Args:
            g: As many numbers per row as `normals` says.
        """
        sizes = [self._cube, *(block.size for block in self.fields)]
        cube, *fields = (part[:, None] for part in torch.split(g, sizes, dim=1))
        return self._codes(torch.special.ndtr(cube), fields)[:, 0]

    @property
    def _cube(self) -> int:
        """Uniform numbers of a draw: one per plain column, field and direction, a single number for
        a table."""
        inside = sum(1 - block.size for block in self.fields)
        return self.size + inside + bool(self.conditions.rows)

    def _codes(
        self, points: Float[Tensor, "n k p"], normals: Sequence[Float[Tensor, "n k c"]]
    ) -> Float[Tensor, "n k d"]:
        """The codes of uniform numbers, and of normal numbers for the fields."""
        free = [i for i, scales in enumerate(self.counts) if not scales]
        inside = {i for block in self.fields for i in range(block.start, block.stop)}
        plain = [i for i in range(self.size) if i not in inside and i not in free]
        z = points.new_zeros(*points.shape[:2], self.size)
        columns = iter(points.unbind(2))
        values = dict[str, Tensor]()
        if self.conditions.rows:
            rows = self.conditions.rows
            chosen = (next(columns).double() * len(rows)).long().clamp_max(len(rows) - 1)
            logged = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
            values |= {name: column.to(points.device)[chosen] for name, column in logged.items()}
        if self.conditions.sampler:
            sampled = self._sampled(points)
            for name in values.keys() & sampled.keys():
                raise HardcaseError(
                    f"{self.conditions.sampler} gives {name!r}, which the table"
                    f" {self.conditions.table} gives too.",
                    fix="one of the two for each condition",
                )
            values |= sampled
        for i in plain:
            declared = self.conditions.ranges[self.owner[i]]
            z[:, :, i] = self._code(i, declared, next(columns), values)
        for block, drawn in zip(self.fields, normals, strict=True):
            declared = self.conditions.ranges[self.owner[block.start]]
            size = self._code(block.start, declared, next(columns), values)
            # a uniform draw at every control point would always be as severe as the largest of many
            flat = drawn.flatten(0, 1)
            longest = _Field(0, block.size, block.axes).lengths(flat).amax(1, keepdim=True)
            direction = (flat / longest).reshape(drawn.shape)
            z[:, :, block.start : block.stop] = size[:, :, None] * direction
        for i in free:
            z[:, :, i] = 2 * next(columns) - 1
        return z

    def _sampled(self, points: Float[Tensor, "n k p"]) -> dict[str, Float[Tensor, "n k"]]:
        """The user's sampler applied to uniform numbers: the same of a row at every call."""
        flat = points.flatten(0, 1).double().cpu().numpy()
        values = self._ask_sampler(flat)
        turned = self._ask_sampler(flat[::-1])
        self._require_same(values, {name: column[::-1] for name, column in turned.items()})
        halves = [self._ask_sampler(rows) for rows in np.array_split(flat, 2) if len(rows)]
        common = [name for name in values if all(name in half for half in halves)]
        joined = {name: np.concatenate([half[name] for half in halves]) for name in common}
        self._require_same(values, joined)
        shape = points.shape[:2]
        return {
            name: torch.from_numpy(numbers).reshape(shape).to(points.device)
            for name, numbers in values.items()
        }

    def _require_same(self, values: Columns, again: Columns) -> None:
        """Refuse a sampler that returns other values for the same rows."""
        for name, numbers in values.items():
            declared = self.conditions.ranges[name]
            other = again.get(name, np.full_like(numbers, np.nan))
            differs = ~(np.abs(numbers - other) <= SAME * (declared.high - declared.low))
            if differs.any():
                row = int(differs.argmax())
                raise HardcaseError(
                    f"{self.conditions.sampler} gives {name} = {numbers[row]:g} in row {row}, and"
                    f" {other[row]:g} when the same row is asked for in another order, or beside"
                    " others.",
                    "Values must depend on the uniform numbers of their own row alone.",
                    fix="no random numbers, counters or clocks in the sampler",
                )

    def _ask_sampler(self, uniform: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """A call of the user's sampler, with its columns checked."""
        sampler = self.conditions.sampler
        path, _, member = sampler.rpartition(":")
        draw = file_member(Path(path), member)
        try:
            with guarded(f"sampler {sampler}"), within(PATIENCE):
                columns = draw(uniform.copy())
        except Unanswered as late:
            raise HardcaseError(
                f"{sampler} gives nothing: {late}.", fix="a sampler that ends"
            ) from late
        if not isinstance(columns, Mapping):
            raise HardcaseError(
                f"{sampler} returns {type(columns).__name__}, which is no dictionary of columns.",
                fix='return {"rotation": ...}, an array of a value for every row of its argument',
            )
        return {str(name): self._checked(str(name), columns[name], uniform) for name in columns}

    def _checked(self, name: str, column: Any, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """A column of the user's sampler; values outside the declaration are refused with their
        row."""
        sampler = self.conditions.sampler
        if name not in self.conditions.ranges:
            raise HardcaseError(f"{sampler} gives {name!r}, which is not declared.")
        declared = self.conditions.ranges[name]
        try:
            numbers = np.asarray(column)
            if np.iscomplexobj(numbers):
                raise ValueError("they are complex")
            numbers = numbers.astype(np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise HardcaseError(
                f"{sampler} gives {name} as values that are no numbers: {error}."
            ) from error
        finite = int(np.isfinite(numbers).sum())
        if numbers.shape != (len(uniform),) or finite < len(uniform):
            raise HardcaseError(
                f"{sampler} gives {name} as {numbers.size:,} numbers, of which {finite:,} are"
                f" finite; {len(uniform):,} were asked for."
            )
        slack = SAME * (declared.high - declared.low)
        outside = (numbers < declared.low - slack) | (numbers > declared.high + slack)
        if outside.any():
            row = int(outside.argmax())
            raise HardcaseError(
                f"{sampler} gives {name} = {numbers[row]:g} in row {row}, outside what is declared"
                f" ({name} = {declared}).",
                fix="a wider range in the declaration, or values within it",
            )
        return numbers

    def _code(
        self,
        column: int,
        declared: DeclaredRange,
        point: Float[Tensor, "n k"],
        values: Mapping[str, Tensor],
    ) -> Float[Tensor, "n k"]:
        """The codes of uniform numbers by the distribution of a coordinate."""
        low = self.low[column]
        high = self.high[column]
        if self.owner[column] in values:
            return self._bounded(column, values[self.owner[column]])
        if declared.mean is not None:
            value = torch.special.ndtri(point.double()) * declared.deviation + declared.mean
            return self._bounded(column, value.clamp(declared.low, declared.high))
        return low + point * (high - low)

    def _bounded(self, column: int, value: Tensor) -> Tensor:
        """The codes of physical values, none outside the box."""
        row = DECLARABLE[self.owner[column]]
        declared = self.conditions.ranges[row.name]
        ends = (declared.low, declared.high)
        codes = (self.low[column], self.high[column])
        if row.neutral == 100:
            codes = codes[::-1]
        share = (value - ends[0]) / (ends[1] - ends[0])
        code = codes[0] + share * (codes[1] - codes[0])
        inside: Tensor = code.clamp(min(codes), max(codes)).float()
        return inside

    def digest(self) -> str:
        """Return a digest of what is drawn: equal for equal samples under whatever name.

        It covers the values of fixed samples, the rows of a table, the source of a sampler and of
        the user's modules that it imports, and the images that the space makes of them.
        """
        rows = torch.arange(DIGESTED)
        z = self.draw(Rng.numbered(0, "digest of conditions", DIGESTED), rows, DIGESTED).z
        parts: list[bytes | str] = [repr(self.space), repr((self.columns, self.low, self.high))]
        parts += [repr(self.conditions.rows), z.float().cpu().numpy().astype("<f4").tobytes()]
        if self.conditions.sampler:
            first, *others = source_files(Path(self.conditions.sampler.rpartition(":")[0]))
            files = [first, *sorted(others, key=lambda path: path.name)]  # wherever they lie
            parts += [read_plain(path, links=True) for path in files]
        return digest(parts)

    def to_record(self) -> dict[str, Any]:
        """Return what run.json keeps of this space."""
        return {
            "conditions": self.conditions.to_record(),
            "shape": list(self.space.shape),
            "scale": self.scale,
        }


def condition_box(conditions: Conditions, shape: tuple[int, ...]) -> ConditionBox:
    """Return the box of declared conditions for images of a shape.

    Args:
        conditions: The declaration.
        shape: Channels, height and width.

    Raises:
        HardcaseError: If images of that shape lack a declared coordinate, or a user's sampler does
            not return what is declared.
    """
    grey = shape[0] == 1
    if grey and conditions.name in PROFILES:
        for name in [name for name in conditions.ranges if DECLARABLE[name].colour]:
            conditions = conditions.without(name)
    options = dict[str, dict[str, float]]()
    severities = list[tuple[str, float]]()
    for name, declared in conditions.ranges.items():
        row = DECLARABLE[name]
        if grey and row.colour:
            raise HardcaseError(
                f"conditions declare {name}, which grey images do not have.",
                fix=f"a declaration without {name}",
            )
        reach = row.reach(declared.low, declared.high)
        if row.part == CorruptionPart.name:
            severities.append((row.option, reach))
            continue
        # what is not declared changes nothing and costs no time
        names = {option.name for option in fields(cast(Any, PARTS[row.part]))} - {"points"}
        part_options = options.setdefault(
            row.part, {key: 100.0 * (key == "quality") for key in names}
        )
        part_options[row.option] = (
            reach if row.option == "quality" else max(part_options[row.option], reach)
        )
    parts: list[ChangeFamily] = [PARTS[part](**options[part]) for part in PARTS if part in options]
    if severities:
        parts.append(CorruptionPart(tuple(severities)))
    space = Appearance(tuple(parts), (shape[0], shape[1], shape[2]))
    box = _bounded_box(conditions, space)
    if conditions.sampler:  # what is wrong with it is told before anything is measured
        box.draw(Rng.numbered(0, "first look", DIGESTED), torch.arange(DIGESTED), DIGESTED)
    return box


def conditions_digest(conditions: Conditions, shape: tuple[int, ...]) -> str:
    """Return a digest of what is drawn for images of a shape, whatever the declaration's name.

    Two declarations with equal digests give the same samples: values, rows of tables and the code
    of samplers count, names and paths do not.

    Args:
        conditions: The declaration.
        shape: Channels, height and width.

    Example:
        >>> import hardcase as hc
        >>> one = hc.Conditions({"rotation": "±8 deg"}, name="one")
        >>> other = hc.Conditions({"rotation": "-8..8 deg"}, name="other")
        >>> conditions_digest(one, (1, 28, 28)) == conditions_digest(other, (1, 28, 28))
        True
    """
    return condition_box(conditions, shape).digest()


def samples_of(
    box: ConditionBox,
    ids: Sequence[str],
    count: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    stream: str = "conditions",
) -> ConditionDraws:
    """Return the samples of declared conditions under which each image is measured.

    Sample `k` of an image follows from the run's seed, the image's id and `k` alone.

    Args:
        box: The declared conditions.
        ids: Names of the images.
        count: Samples per image.
        seed: The run's seed.
        device: Where the samples are computed.
        stream: What they are for; another name gives fresh samples.
    """
    rows = torch.arange(len(ids), device=device)
    return box.draw(Rng(seed, stream, keys_of(ids).to(device)), rows, count)


def _bounded_box(conditions: Conditions, space: Appearance) -> ConditionBox:
    columns = list[tuple[int, float, float, bool, str]]()
    smooth = list[_Field]()
    place = 0
    for part in space.parts:
        for group in part.groups(space.shape):
            rows = [DECLARABLE[name] for name in conditions.ranges]
            names = [row.name for row in rows if (row.part, row.group) == (part.name, group.name)]
            for column, coordinate in enumerate(group.coordinates, place):
                name = _owner(names, coordinate.name)
                if name is None:
                    continue
                low, high = _ends(conditions.ranges[name], coordinate)
                if group.axes:
                    low = -high
                columns.append((column, low, high, coordinate.counts, name))
            if group.axes and names:
                smooth.append(_Field(len(columns) - group.columns, len(columns), group.axes))
            place += group.columns
    each: Any = zip(*columns)
    at, low, high, counts, owner = each
    return ConditionBox(conditions, space, at, low, high, counts, owner, tuple(smooth))


def _owner(names: list[str], coordinate: str) -> str | None:
    """Which of the declared names of a group a coordinate of it belongs to."""
    if coordinate in names:
        return coordinate
    if len(names) == 1 and names[0] not in ("temperature", "tint"):
        return names[0]
    return None


def _ends(declared: DeclaredRange, coordinate: Any) -> tuple[float, float]:
    """The codes of a range; a direction takes its full circle."""
    if not coordinate.counts:
        return -1.0, 1.0
    unit = DECLARABLE[declared.name].unit
    length = None
    if unit == "%" and coordinate.side is not None:
        length = OF_THE_SIDE
    codes = [coordinate.code(value, length) for value in (declared.low, declared.high)]
    return min(codes), max(codes)


def sobol(rng: Rng, rows: Int[Tensor, " n"], count: int, size: int) -> Float[Tensor, "n k d"]:
    """Return `count` points of the unit cube for each row, shifted by random bits of that row.

    Every single point is uniform, and the points of a row fill the cube more evenly than
    independent ones (I. M. Sobol 1967; the digital shift is L. P. Cranley's and T. N. L.
    Patterson's idea in base 2). Rows are independent of each other.
    """
    if size == 0:
        return torch.zeros(len(rows), count, 0, device=rows.device)
    # A digital shift: the same random bits are xor-ed into every point of a row. Each point becomes
    # uniform, while dyadic boxes still hold as many points as before, which is what makes the
    # points of a row fill the cube evenly. The half puts them into the middle of their cells, off 0
    # and 1.
    shift = rng.integers(rows, 2**BITS, (size,))
    base = _base(count, size).to(shift.device)
    return ((base[None] ^ shift[:, None]).to(torch.float32) + 0.5) * 2.0**-BITS


@lru_cache(maxsize=8)
def _base(count: int, size: int) -> Int[Tensor, "k d"]:
    """The first points as integers of `BITS` bits."""
    engine = torch.quasirandom.SobolEngine(size)  # type: ignore[no-untyped-call]  # torch's own
    # Unscrambled, so that k points are the first of 2k: more samples continue a run and change
    # none.
    # In double precision, so that all `BITS` bits of a point are exact before they are shifted.
    points: Tensor = engine.draw(count, dtype=torch.float64)
    return points.mul(2**BITS).long()
