"""Images under conditions that are being fitted: the same random numbers for every candidate.

A coordinate of an image has a fixed normal number, whatever else changes. Two candidates then
differ by their spreads alone, and small differences show in small samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import DECLARABLE
from hardcase.conditions.fitting.coordinates import Spread, conditions_of
from hardcase.imaging.resample import resample_sharply
from hardcase.randomness import Rng, keys_of
from hardcase.spaces.appearance import Appearance
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.types import Images, Seeds

__all__ = ["Candidate", "Renderer"]

ROWS = 256
"""Images that are rendered at once."""


class SharpAppearance(Appearance):
    """Changes of an image that do not blur it by being read between pixels.

    What moved before the camera is as sharp as what did not. Read bilinearly, every moved image is
    a little blurred, and a fit would take that for a reason against its having moved.
    """

    __slots__ = ()

    @staticmethod
    def read(x: Tensor, places: Tensor) -> Tensor:
        return resample_sharply(x, places)


def _sharp(box: ConditionBox) -> ConditionBox:
    return replace(box, space=SharpAppearance(box.space.parts, box.space.shape))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Conditions that may be those of the field.

    Args:
        spreads: By coordinate, how it is spread; what is not named stays as it is.
        together: By pair of coordinates, how far they go together (a correlation of normals).
    """

    spreads: Mapping[str, Spread] = field(default_factory=dict)
    together: Mapping[tuple[str, str], float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A text that is equal for equal candidates."""
        spread = [f"{name}:{self.spreads[name]}" for name in sorted(self.spreads)]
        pairs = [f"{pair}:{self.together[pair]:g}" for pair in sorted(self.together)]
        return "; ".join(spread + pairs)

    def having(self, name: str, spread: Spread) -> Candidate:
        """Return the same candidate with this spread of a coordinate."""
        return Candidate({**self.spreads, name: spread}, self.together)

    def without(self, name: str) -> Candidate:
        """Return the same candidate with a coordinate at neutral."""
        spreads = {key: value for key, value in self.spreads.items() if key != name}
        return Candidate(spreads, {k: v for k, v in self.together.items() if name not in k})


@dataclass(frozen=True, slots=True)
class Renderer:
    """Shows labelled images as they would look under candidates.

    Args:
        images: The images.
        seed: What the normal numbers follow from, together with the images' names.
        stream: What they are for; another name gives fresh numbers.
    """

    images: Images
    seed: int = 0
    stream: str = "fitted conditions"

    def __call__(self, candidate: Candidate) -> Float[Tensor, "n c h w"]:
        """Return every image under a random sample of a candidate, on the grid of 8 bits."""
        x = from_bytes(self.images.x)
        if not candidate.spreads:
            return to_grid(x)
        box = _sharp(condition_box(conditions_of(candidate.spreads), self.images.shape))
        z = box.from_normals(self._normals(box, candidate.together))
        pattern = self._rng("pattern").integers(torch.arange(len(x)), 2**31 - 1)
        parts = []
        for rows in chunks(len(x), ROWS):
            number = torch.arange(len(x))[rows]
            origin = Seeds(
                z[rows], x[rows], self.images.y[rows], number, {"pattern": pattern[rows]}
            )
            parts.append(to_grid(box.decode(z[rows], origin)))
        return torch.cat(parts)

    def values(self, candidate: Candidate) -> dict[str, Float[Tensor, " n"]]:
        """Return the physical values of each plain coordinate, image by image."""
        box = condition_box(conditions_of(candidate.spreads), self.images.shape)
        z = box.from_normals(self._normals(box, candidate.together))
        return physical_values(box, z)

    def _normals(
        self, box: ConditionBox, together: Mapping[tuple[str, str], float]
    ) -> Float[Tensor, "n e"]:
        """The normal numbers of every image in the order in which a box takes them."""
        owners = [*cube_owners(box), *(box.owner[block.start] for block in box.fields)]
        sizes = [1] * (len(owners) - len(box.fields)) + [block.size for block in box.fields]
        columns = list[Tensor]()
        for place, (name, size) in enumerate(zip(owners, sizes)):
            # The name of a stream holds the coordinate, not its place in the code: adding a
            # coordinate leaves the numbers of all others as they are.
            kind = "field" if size > 1 else owners[:place].count(name)
            columns.append(self._normal(f"{name}/{kind}", size))
        first = {name: owners.index(name) for name in dict.fromkeys(owners)}
        plain = [column.clone() for column in columns]
        for (block, other), correlation in together.items():
            # A Gaussian copula of two coordinates: the second becomes a mix with correlation rho of
            # the first and of itself, and keeps unit variance.
            shared = correlation * plain[first[block]]
            independent = (1 - correlation**2) ** 0.5 * plain[first[other]]
            columns[first[other]] = shared + independent
        return torch.cat(columns, 1)

    def _normal(self, name: str, size: int) -> Float[Tensor, "n k"]:
        return _normals_of(self.images.id, self.seed, f"{self.stream}/{name}", size)

    def _rng(self, name: str) -> Rng:
        return Rng(self.seed, f"{self.stream}/{name}", keys_of(self.images.id))


@lru_cache(maxsize=256)
def _normals_of(ids: tuple[str, ...], seed: int, name: str, size: int) -> Float[Tensor, "n k"]:
    """The normal numbers of images for a purpose, cached: half of a candidate's time otherwise."""
    return Rng(seed, name, keys_of(ids)).normal(torch.arange(len(ids)), (size,))


def cube_owners(box: ConditionBox) -> list[str]:
    """Return whose value each uniform number of a draw is: columns, sizes of fields, directions."""
    inside = {i for block in box.fields for i in range(block.start, block.stop)}
    free = [i for i, scales in enumerate(box.counts) if not scales]
    plain = [i for i in range(box.size) if i not in inside and i not in free]
    columns = [*plain, *(block.start for block in box.fields), *free]
    return [box.owner[i] for i in columns]


def physical_values(box: ConditionBox, z: Float[Tensor, "m d"]) -> dict[str, Float[Tensor, " m"]]:
    """Return the value of every coordinate in the unit in which it is declared.

    Of two columns it is that of the first, of a field the greatest length at any point.
    """
    values = dict[str, Tensor]()
    lengths = {box.owner[block.start]: block.lengths(z).amax(1) for block in box.fields}
    for column, name in enumerate(box.owner):
        if name in values or not box.counts[column]:
            continue
        code = lengths.get(name, z[:, column])
        declared = box.conditions.ranges[name]
        low = 0.0 if name in lengths else box.low[column]
        share = (code - low) / (box.high[column] - low)
        if DECLARABLE[name].neutral == 100:
            share = 1 - share
        values[name] = declared.low + share * (declared.high - declared.low)
    return values
