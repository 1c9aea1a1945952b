"""Pairs of inputs that agree on almost all of a layer's signs, found by hashing: never by comparing all with all.

The hash of a sign pattern is the sum of a random number for each positive unit, so flipping one unit shifts it by a known
amount, and the pattern one flip away is found by looking that hash up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.randomness import stream
from hardcase.tensors import chunks

CELLS = 2**22
"""Entries of the largest table made at a time."""


def keys_of(width: int) -> Int[Tensor, " s"]:
    return torch.randint(-(2**63), 2**63 - 1, (width,), generator=stream(0, "signs"))


def hash_signs(signs: Bool[Tensor, "n s"]) -> Int[Tensor, " n"]:
    keys = keys_of(signs.shape[1])
    parts = [
        torch.where(signs[part], keys, 0).sum(1) for part in chunks(len(signs), max(1, CELLS // max(1, len(keys))))
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class PatternSet:
    """The different sign patterns of a layer, sorted by hash, and the pattern of each row."""

    hashes: Int[Tensor, " p"]
    signs: Bool[Tensor, "p s"]
    of_row: Int[Tensor, " n"]

    @staticmethod
    def of(signs: Bool[Tensor, "n s"]) -> PatternSet:
        hashes, of_row = torch.unique(hash_signs(signs), return_inverse=True)
        first = torch.zeros(len(hashes), dtype=torch.int64).scatter_(0, of_row, torch.arange(len(signs)))
        return PatternSet(hashes, signs[first], of_row)

    def counts(self) -> Int[Tensor, " p"]:
        return self.of_row.bincount(minlength=len(self.hashes))

    def edges(self) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"], Int[Tensor, " e"]]:
        """All patterns p, q that differ in one unit u, each once: p has it off, q on. At most p·log2(p)/2 of them exist."""
        keys, found = keys_of(self.signs.shape[1]), [torch.empty(3, 0, dtype=torch.int64)]
        for part in chunks(len(self.hashes), max(1, CELLS // max(1, len(keys)))):
            wanted = self.hashes[part, None] + keys
            place = torch.searchsorted(self.hashes, wanted).clamp_max(len(self.hashes) - 1)
            row, unit = ((self.hashes[place] == wanted) & ~self.signs[part]).nonzero(as_tuple=True)
            found.append(torch.stack([row + part.start, place[row, unit], unit]))
        low, high, unit = torch.cat(found, 1)
        return low, high, unit

    def near(self, flips: int) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
        """All patterns that differ in 1 to `flips` units: cut into ``flips + 1`` bands, they agree on one band at least."""
        pairs = [torch.empty(0, dtype=torch.int64)]
        for band in self.signs.tensor_split(flips + 1, dim=1):
            for a, b in _alike(hash_signs(band)):
                few = (self.signs[a] != self.signs[b]).sum(1) <= flips
                pairs.append(a[few] * len(self.hashes) + b[few])
        joined = torch.unique(torch.cat(pairs))
        return joined // max(1, len(self.hashes)), joined % max(1, len(self.hashes))


def _alike(hashes: Int[Tensor, " p"]) -> list[tuple[Int[Tensor, " e"], Int[Tensor, " e"]]]:
    """Rows with equal hashes, every two of them once, in pieces."""
    order = hashes.argsort(stable=True)
    _, sizes = torch.unique_consecutive(hashes[order], return_counts=True)
    last = sizes.cumsum(0).repeat_interleave(sizes)  # where the run of each sorted row ends
    later = last - torch.arange(len(order)) - 1
    pieces = []
    for part in _balanced(later):
        left = torch.arange(part.start, part.stop).repeat_interleave(later[part])
        offset = torch.arange(len(left)) - (later[part].cumsum(0) - later[part]).repeat_interleave(later[part])
        a, b = order[left], order[left + 1 + offset]
        pieces.append((torch.minimum(a, b), torch.maximum(a, b)))
    return pieces


def _balanced(amounts: Int[Tensor, " n"], limit: int = 2**18) -> list[slice]:
    """Slices of consecutive entries whose amounts sum to about `limit`."""
    if not len(amounts):
        return []
    group = (amounts.cumsum(0) - amounts) // limit
    ends = torch.cat([(group[1:] != group[:-1]).nonzero().squeeze(1) + 1, torch.tensor([len(amounts)])]).tolist()
    return [slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def groups_of_many(of_row: Int[Tensor, " n"]) -> list[Int[Tensor, "g l"]]:
    """Rows that share a pattern, as tables: a line per pattern with two rows or more, short ones filled up with -1.

    Groups of like size (to a factor of two) share a table.
    """
    order = of_row.argsort(stable=True)
    _, sizes = torch.unique_consecutive(of_row[order], return_counts=True)
    starts, tables, size = sizes.cumsum(0) - sizes, [], 2
    while len(sizes) and size <= 2 * int(sizes.max()):
        chosen = ((sizes > size // 2) & (sizes <= size) & (sizes > 1)).nonzero().squeeze(1)
        if len(chosen):
            place = torch.arange(size)
            index = order[(starts[chosen, None] + place).clamp_max(len(order) - 1)]
            tables.append(index.masked_fill(place >= sizes[chosen, None], -1))
        size *= 2
    return tables


def matches(wanted: Int[Tensor, "m w"], known: Int[Tensor, " n"]) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Every (row of `wanted`, place in `known`) where the row names that hash."""
    ordered, order = known.sort(stable=True)
    left, right = (
        torch.searchsorted(ordered, wanted.contiguous()),
        torch.searchsorted(ordered, wanted.contiguous(), right=True),
    )
    counts = (right - left).flatten()
    row = torch.arange(wanted.shape[0]).repeat_interleave(wanted.shape[1]).repeat_interleave(counts)
    offset = torch.arange(len(row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return row, order[left.flatten().repeat_interleave(counts) + offset]


def grouped(values: Float[Tensor, "n t"], group: Int[Tensor, " n"], count: int, how: str) -> Float[Tensor, "g t"]:
    """The greatest ("amax") or least ("amin") value of each group; -inf or +inf for an empty one."""
    start = values.new_full((count, values.shape[1]), -torch.inf if how == "amax" else torch.inf)
    return start.scatter_reduce_(0, group[:, None].expand_as(values), values, how)
