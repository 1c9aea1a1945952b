"""Exact nearest neighbours at the price of a matrix product.

Distances by products of matrices are fast but lose digits where points are close. So the product only nominates a few
candidates, their distances are computed from differences, and a row whose runner-up is within the error bound is redone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import Problem, choice

SMALL, BLOCK, CANDIDATES = 512, 32, 4


@dataclass(frozen=True, slots=True)
class Corpus:
    """Points to be near to. `half` is half their squared length from their centre; both are filled up to whole blocks."""

    values: Float[Tensor, "n d"]
    centre: Float[Tensor, " d"]
    centred: Float[Tensor, "p d"]
    half: Float[Tensor, " p"]

    @staticmethod
    def of(values: Float[Tensor, "n d"]) -> Corpus:
        centre = values.mean(0) if len(values) else values.new_zeros(values.shape[1])
        spare = -len(values) % BLOCK
        centred = torch.nn.functional.pad(values - centre, (0, 0, 0, spare))
        half = torch.nn.functional.pad((values - centre).square().sum(1) / 2, (0, spare), value=torch.inf)
        return Corpus(values, centre, centred, half)

    def to(self, device: torch.device) -> Corpus:
        return self if self.values.device == device else Corpus.of(self.values.to(device))

    def nearest(
        self, points: Float[Tensor, "m d"], skip: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"]]:
        """Distance and place of the nearest point of the corpus, ties to the first; `skip` names one to pass over."""
        if not len(self.values):
            raise Problem("there is nothing to be near to: the corpus is empty.")
        if len(self.values) <= SMALL or not len(points):
            return self._brute(points, skip)
        approximate = torch.addmm(self.half, points - self.centre, self.centred.t(), alpha=-1)
        if skip is not None:
            approximate.scatter_(1, skip[:, None], torch.inf)
        places, doubtful = self._nominate(points, approximate)
        distance = (points[:, None] - self.values[places]).norm(dim=2)
        best, winner = distance.min(1)
        index = places.gather(1, winner[:, None]).squeeze(1)
        again = doubtful.nonzero().squeeze(1)
        if len(again):
            best[again], index[again] = self._brute(points[again], None if skip is None else skip[again])
        return best, index

    def _nominate(self, points: Tensor, approximate: Float[Tensor, "m n"]) -> tuple[Int[Tensor, "m c"], Tensor]:
        """The places of the best few, and the rows where another one might be better."""
        blocks = (
            torch.unflatten(approximate, 1, (-1, BLOCK)).amin(2).topk(CANDIDATES + 1, dim=1, largest=False, sorted=True)
        )
        inside = (blocks.indices[:, :-1, None] * BLOCK + torch.arange(BLOCK, device=points.device)).flatten(1)
        few = approximate.gather(1, inside).topk(CANDIDATES + 1, dim=1, largest=False, sorted=True)
        places = inside.gather(1, few.indices[:, :-1]).clamp_max(len(self.values) - 1).sort(1).values
        rival = torch.minimum(blocks.values[:, -1], few.values[:, -1])
        reach = self.half[: len(self.values)].amax()
        size = (points - self.centre).norm(dim=1) * (2 * reach).sqrt() + reach
        error = (points.shape[1] + 4) * torch.finfo(points.dtype).eps * size
        return places, ~(rival - few.values[:, 0] > 2 * error)

    def _brute(self, points: Tensor, skip: Int[Tensor, " m"] | None) -> tuple[Tensor, Tensor]:
        distance = torch.cdist(points, self.values, compute_mode="donot_use_mm_for_euclid_dist")
        if skip is not None:
            distance.scatter_(1, skip[:, None], torch.inf)
        return distance.min(1)


class FaissCorpus:
    """The same through faiss, for corpora where even a product is too much.

    Exact with ``cells=0``; otherwise an inverted file of `cells` lists, `probes` of which are read: faster, not exact.
    """

    def __init__(self, values: Float[Tensor, "n d"], *, cells: int = 0, probes: int = 8) -> None:
        try:
            import faiss
        except ImportError as error:
            raise Problem(
                "the nearest-neighbour back end faiss is not installed.", fix="pip install faiss-cpu"
            ) from error
        self.values, points = values, values.cpu().contiguous().numpy()
        self.index = faiss.IndexFlatL2(values.shape[1])
        if cells:
            self.index = faiss.IndexIVFFlat(self.index, values.shape[1], min(cells, len(values)))
            self.index.train(points)
            self.index.nprobe = probes
        self.index.add(points)

    def to(self, device: torch.device) -> FaissCorpus:
        return self

    def nearest(
        self, points: Float[Tensor, "m d"], skip: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"]]:
        _, found = self.index.search(points.detach().cpu().contiguous().numpy(), 1 if skip is None else 2)
        places = torch.from_numpy(found).to(points.device)
        place = places[:, 0] if skip is None else torch.where(places[:, 0] == skip, places[:, 1], places[:, 0])
        return (points - self.values.to(points.device)[place]).norm(dim=1), place


Searchable = Corpus | FaissCorpus


def searchable(values: Float[Tensor, "n d"], search: str = "exact") -> Searchable:
    """Points made ready for search: ``exact``, ``faiss`` (exact too) or ``faiss-N`` (an inverted file of N lists)."""
    if search == "exact":
        return Corpus.of(values)
    backend, _, cells = search.partition("-")
    if backend != "faiss" or not (cells or "0").isdigit():
        raise choice("nearest-neighbour search", search, ["exact", "faiss", "faiss-N"])
    return FaissCorpus(values, cells=int(cells or 0))
