"""How far pictures drive units beyond anything training data did: MaXplore's Layer-SNAC, picture by picture."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.criteria.network import Selection, select
from hardcase.experiments.searching import search
from hardcase.experiments.trio import Trio
from hardcase.searches.gradient import Fan
from hardcase.tensors import chunks, flat, from_bytes
from hardcase.types import Images, Kind, Method, Probe


@dataclass(frozen=True, slots=True)
class Everything:
    """An oracle that keeps every look, so that an experiment sees where walks ended."""

    kind: Kind = "surprise"

    def __call__(self, probe: Probe) -> Bool[Tensor, " m"]:
        return torch.ones_like(probe.origin.y, dtype=torch.bool)


@dataclass(frozen=True, slots=True)
class Made:
    """Pictures, the seed each came from and the number of the walk that made it."""

    x: UInt8[Tensor, "t c h w"]
    seed: Int[Tensor, " t"]
    walk: Int[Tensor, " t"]


@dataclass(frozen=True)
class Bounds:
    """Every unit of the layers as frameworks with built-in activations count them, and the most that training data made of it.

    As in MaXplore's table a bound is at least 0 and at least what the seed itself shows.
    """

    trio: Trio
    selection: Selection
    most: Float[Tensor, " u"]

    @staticmethod
    def of(trio: Trio) -> Bounds:
        selection = select(trio.profile.anatomy(trio.subject), "activated", "unit")
        most = torch.zeros(selection.units)
        for part in chunks(len(trio.train), 256):
            most = torch.maximum(most, _values(trio, selection, trio.train.x[part]).amax(0))
        return Bounds(trio, selection, most)

    def raised(self, made: Made, seeds: Images) -> Bool[Tensor, "t u"]:
        """Which units each picture drives above its bound."""
        own = torch.maximum(_values(self.trio, self.selection, seeds.x), self.most)
        parts = []
        for part in chunks(len(made.x), 256):
            parts.append(_values(self.trio, self.selection, made.x[part]) > own[made.seed[part]])
        return torch.cat(parts) if parts else torch.zeros(0, self.selection.units, dtype=torch.bool)

    def shares(self, raised: Bool[Tensor, "t u"]) -> dict[str, Float[Tensor, " t"]]:
        """Layer-SNAC of each picture, layer by layer."""
        layers = zip(
            self.selection.names, self.selection.starts, self.selection.widths, strict=True
        )
        return {
            name: raised[:, start : start + width].float().mean(1) for name, start, width in layers
        }


def ends(trio: Trio, method: Method, seeds: Images, *, seed: int) -> Made:
    """The last picture of every walk of a method that walks in a fan and never stops early."""
    assert isinstance(method.search, Fan)
    walks, steps = method.search.walks, method.search.steps
    whole = replace(
        method, search=replace(method.search, width=walks), oracle=Everything(), until="budget"
    )
    found = search(trio.subject, whole, seeds, keep="all", seed=seed, shard=4).findings
    number = found.queries - 2  # the first query of a seed shows the seed itself
    last = number >= steps * walks
    return Made(found.x[last], found.seed[last], number[last] - steps * walks)


def spread(made: Made, seeds: Images) -> Float[Tensor, " t"]:
    """The share of values that differ from the seed's."""
    return (made.x != seeds.x[made.seed]).flatten(1).float().mean(1)


def distance(made: Made, seeds: Images) -> Float[Tensor, " t"]:
    return flat(from_bytes(made.x) - from_bytes(seeds.x[made.seed])).square().sum(1).sqrt()


@torch.no_grad()
def _values(trio: Trio, selection: Selection, x: UInt8[Tensor, "m c h w"]) -> Float[Tensor, "m u"]:
    answer = trio.subject(from_bytes(x.to(trio.subject.device)), selection.taps)
    return torch.cat(selection.read(answer.activations), 1).cpu()
