"""Class escape: which classes border on which, as the subject sees them.

Kang, Feldt and Yoo (TOSEM 2023, RQ3) count how often a genetic search from images of one class reaches another. Ours
asks a tenth of the questions for all classes together: random walks leave a seed's class, are halved to the border, and
what counts is the class they enter there. In a network trained on mixed labels the second most likely class is the
same all over a class, so the walks enter it all around.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.experiments.searching import probabilities, search, usable, walk
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.exits import Exits, lengths
from hardcase.searches.neighbours import Codes
from hardcase.tensors import chunks
from hardcase.types import OFFERS, Budget, Images, Method, Model, Space, State

SHARD = 64


@dataclass(frozen=True, slots=True)
class Escapes:
    """`attempts` from each class, and how many of them ended in each other class (n classes by n classes)."""

    attempts: Int[Tensor, " k"]
    entered: Int[Tensor, "k k"]
    queries: int
    seeds: int

    @property
    def rate(self) -> Float[Tensor, "k k"]:
        """Share of the attempts from each class (row) that end in each other class (column); NaN where none was made."""
        rate = self.entered / self.attempts[:, None].where(self.attempts[:, None] > 0, torch.nan)
        return rate.fill_diagonal_(torch.nan)


@dataclass(frozen=True, slots=True)
class Walks:
    """Where every walk started, what it entered (-1: nothing), how long it is and the code where it crosses."""

    seed: Int[Tensor, " w"]
    entered: Int[Tensor, " w"]
    length: Float[Tensor, " w"]
    code: Float[Tensor, "w *code"]


def ways_out(space: Space, codes: Codes | None, *, walks: int = 10, halvings: int = 6) -> Method:
    """Random walks out of a seed's class; see `Exits`."""
    return Method(
        name="exits",
        space=space,
        search=Exits(codes=codes, walks=walks, halvings=halvings),
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


def measure(subject: Model, method: Method, images: Images, *, seed: int = 0) -> tuple[Escapes, Walks, Images]:
    """Walks from all usable `images`, counted by class; also the walks themselves and the seeds they started from."""
    seeds, kinds = usable(subject, images), len(images.classes)
    parts, spent = [_nowhere()], 0
    for number, rows in enumerate(chunks(len(seeds), SHARD)):
        some = seeds.take(torch.arange(len(seeds))[rows])
        state, queries = walk(subject, method, some, seed=seed, number=number)
        parts.append(_walks(state, rows.start))
        spent += int(queries.sum())
    parts[0] = replace(parts[0], code=parts[-1].code[:0])
    joined = Walks(*(torch.cat([getattr(p, name) for p in parts]) for name in Walks.__dataclass_fields__))
    out = joined.entered >= 0
    own = seeds.y[joined.seed]
    entered = (own[out] * kinds + joined.entered[out]).bincount(minlength=kinds * kinds).reshape(kinds, kinds)
    return Escapes(own[out].bincount(minlength=kinds), entered, spent, len(seeds)), joined, seeds


def _nowhere() -> Walks:
    whole = torch.zeros(0, dtype=torch.int64)
    return Walks(whole, whole, torch.zeros(0), torch.zeros(0, 0))


def _walks(state: State, first: int) -> Walks:
    code = state["seed"][state["row"]] + state["end"][:, None] * state["far"]
    code = code.reshape(-1, *state["shape"].tolist())
    return Walks((state["row"] + first).cpu(), state["entered"].cpu(), lengths(state).cpu(), code.cpu())


def measure_as_published(
    subject: Model, method: Callable[[int], Method], images: Images, *, seed: int = 0, targets: tuple[int, ...] = ()
) -> Escapes:
    """The paper's count: `method` (``sinvad_paper`` with a target) is asked for one class after the other; a seed stops there."""
    seeds, kinds = usable(subject, images), len(images.classes)
    attempts, entered, spent = torch.zeros(kinds, dtype=torch.int64), torch.zeros(kinds, kinds, dtype=torch.int64), 0
    for target in targets or range(kinds):
        others = seeds.take((seeds.y != target).nonzero().squeeze(1))
        if not len(others):
            continue
        done = search(subject, replace(method(target), until="first"), others, seed=seed)
        entered[:, target] = done.findings.expected.bincount(minlength=kinds)
        attempts = attempts.maximum(others.y[done.attempted].bincount(minlength=kinds))
        spent += int(done.queries.sum())
    return Escapes(attempts, entered, spent, len(seeds))


def confusion(subject: Model, images: Images) -> Int[Tensor, "k k"]:
    """How often images of each class (row) are given to each class (column)."""
    kinds = len(images.classes)
    said = probabilities(subject, images.x).argmax(1)
    return (images.y * kinds + said).bincount(minlength=kinds * kinds).reshape(kinds, kinds)


def floor(subject: Model, images: Images) -> Float[Tensor, "k k"]:
    """The median probability that images of each class (row) are given for each other class (column).

    Few hard images do not move it; mixed labels do: with a share of them mixed, every image gets about that probability.
    NaN where the subject offers labels only, and for classes without images.
    """
    kinds = len(images.classes)
    middle = torch.full((kinds, kinds), torch.nan)
    if OFFERS.index(subject.offers) < OFFERS.index("scores"):
        return middle
    said = probabilities(subject, images.x)
    for c in set(images.y.tolist()):
        middle[c] = said[images.y == c].median(0).values
    return middle.fill_diagonal_(torch.nan)
