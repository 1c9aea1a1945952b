"""Images for people to rate: from one seed, images of three methods on the boundary between the same two classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from hardcase.experiments.searching import search, usable
from hardcase.experiments.world import World
from hardcase.methods.pgd import cw, fgsm
from hardcase.methods.sinvad import sinvad
from hardcase.types import Images, Method

METHODS = ("real", "fgsm", "cw", "sinvad")
EPSILONS = tuple(level / 255 for level in (*range(1, 41), *range(44, 129, 4)))


@dataclass(frozen=True, slots=True)
class Quadruples:
    """For each seed: source class, target class, and the four images in the order of `METHODS`."""

    seed: tuple[str, ...]
    source: Int[Tensor, " q"]
    target: Int[Tensor, " q"]
    x: UInt8[Tensor, "q 4 c h w"]
    tried: int

    def __len__(self) -> int:
        return len(self.seed)


def quadruples(here: World, count: int, *, seed: int = 0) -> Quadruples:
    """`count` complete quadruples; seeds from which one method does not reach the target are left out and counted."""
    pool = usable(here.subject, here.test.sample(count=min(2 * count, len(here.test)), seed=seed))
    found = search(
        here.subject, sinvad(space=here.space, partners=here.codes), pool, seed=seed
    ).findings
    seeds, target = pool.take(found.seed), found.predicted
    made = [
        _attacked(
            here,
            seeds,
            target,
            [[fgsm(epsilon=e, target=t) for e in EPSILONS] for t in _classes(seeds)],
            seed,
        ),
        _attacked(here, seeds, target, [[cw(target=t)] for t in _classes(seeds)], seed),
    ]
    complete = torch.stack([got for got, _ in made]).all(0).nonzero().squeeze(1)[:count]
    x = torch.stack([seeds.x, *(image for _, image in made), found.x], 1)[complete]
    ids = tuple(seeds.id[i] for i in complete.tolist())
    return Quadruples(ids, seeds.y[complete], target[complete], x, len(pool))


def _attacked(
    here: World, seeds: Images, target: Tensor, methods: Sequence[Sequence[Method]], seed: int
) -> tuple[Tensor, Tensor]:
    """For each seed the image of the first method (weakest first) that reaches its target, and whether one did."""
    got, images = torch.zeros(len(seeds), dtype=torch.bool), torch.zeros_like(seeds.x)
    for goal, growing in enumerate(methods):
        for method in growing:
            left = ((target == goal) & ~got).nonzero().squeeze(1)
            if not len(left):
                break
            found = search(here.subject, method, seeds.take(left), seed=seed).findings
            got[left[found.seed]] = True
            images[left[found.seed]] = found.x
    return got, images


def _classes(images: Images) -> range:
    return range(len(images.classes))
