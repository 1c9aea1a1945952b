"""Failures too rare for random samples: the volume of the declared ranges in which an image fails.

A volume of the box that was declared, no probability in the field: nobody knows how often a
condition at the very edge of a range occurs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.conditions.box import ConditionBox
from hardcase.conditions.risk import (
    OnProgress,
    RiskTable,
    answered,
    iter_shards,
    logits_under_conditions,
    seeds_at_once,
    seeds_of,
)
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, keys_of
from hardcase.statistics import Bounds, log_interval
from hardcase.tensors import margin, per_row
from hardcase.types import Images, Model

__all__ = ["RareTable", "find_levels", "measure_rare", "split"]

FLOOR = 1e-6
"""Volumes below are reported as below it."""
PARTICLES = 32
REPEATS = 20
MOVES = 8
"""Steps of the random walk at each level."""
STALLS = 4
"""Rounds in which identical particles may move before the run of splitting ends."""
FAILING = torch.finfo(torch.float32).max
"""The level that failing scores alone exceed."""
DONE = torch.inf
"""In place of a level where a chain has fewer of them than others."""

Score = Callable[[Float[Tensor, "m e"], Int[Tensor, " m"]], Float[Tensor, " m"]]
"""From normal numbers and the chain of each row: how near it is to failing; infinite if it fails.
"""


def find_levels(
    score: Score,
    size: int,
    rng: Rng,
    *,
    particles: int = PARTICLES,
    moves: int = MOVES,
    floor: float = FLOOR,
) -> Float[Tensor, "c l"]:
    """Return rising scores of which each halves what is left, for every key of `rng`.

    A pilot: its own estimates are not used, since levels that follow from the particles they are
    applied to bias them wherever a moved copy still resembles its source.
    """
    chain, g, scores = _started(score, size, rng, particles)
    left = torch.ones(len(chain), dtype=torch.float64, device=g.device)
    over = torch.zeros_like(chain, dtype=torch.bool)
    stalled = torch.zeros_like(chain)
    before = torch.full_like(scores[:, 0], -torch.inf)
    levels = list[Tensor]()
    while not bool(over.all()):
        # Half of the particles pass each level, so about 20 levels reach one in a million.
        level = _halving(scores)
        share = (scores > level[:, None]).double().mean(1)
        # where all are alike they only move, for a few rounds
        stalled = torch.where(share == 0, stalled + 1, 0)
        level = torch.where(share == 0, before, level)
        left = torch.where(share == 0, left, left * share)
        # Two ways to end: nothing rises any more, or what is left lies far below the floor. Both
        # jump to the failing level, so that the estimate of such a chain is what it has reached,
        # not a guess.
        level = torch.where((stalled > STALLS) | (left < floor / 100), FAILING, level)
        levels.append(torch.where(over, DONE, level))
        over |= level >= FAILING
        before = level
        rows = (~over).nonzero().squeeze(1)
        if len(rows):
            _raise(score, g, scores, rows, level, rng, moves)
    return torch.stack(levels, 1)


def _halving(scores: Float[Tensor, "c p"]) -> Float[Tensor, " c"]:
    """A level for each chain that about half of its particles exceed; `FAILING` where half fail.

    On a plateau the median may leave next to none: then what lies below the plateau.
    """
    half = scores.shape[1] // 2
    ranked = scores.sort(1).values
    level = ranked[:, half - 1]
    # Saturated networks give many particles exactly one score. Where the median is such a plateau,
    # nobody exceeds it; the level goes just below, and the plateau itself passes.
    below = torch.where(scores < level[:, None], scores, -torch.inf).amax(1)
    sparse = (scores > level[:, None]).sum(1) < half // 4
    level = torch.where(sparse & below.isfinite(), below, level)
    return torch.where(ranked[:, half].isinf(), FAILING, level)


def split(
    score: Score,
    size: int,
    rng: Rng,
    levels: Float[Tensor, "c l"],
    *,
    particles: int = PARTICLES,
    moves: int = MOVES,
) -> Float[Tensor, " c"]:
    """Return an unbiased estimate of the chance of an infinite score, for every key of `rng`.

    Splitting at fixed levels (P. Del Moral, "Feynman-Kac Formulae", 2004, theorem 7.4.2: the
    product of the shares that pass each level is unbiased however little the random walk moves).
    Levels chosen by the particles themselves (A. Guyader, N. Hengartner, E. Matzner-Løber, Applied
    Mathematics and Optimization 64, 2011) bias it where a moved copy resembles its source.
    """
    chain, g, scores = _started(score, size, rng, particles)
    estimate = torch.ones(len(chain), dtype=torch.float64, device=g.device)
    for level in levels.unbind(1):
        share = (scores > level[:, None]).double().mean(1)
        # The product of the shares that pass is unbiased for any levels that were fixed beforehand:
        # these come from the pilot, whose particles are not used again.
        estimate = torch.where(level == DONE, estimate, estimate * share)
        rows = ((level < FAILING) & (estimate > 0)).nonzero().squeeze(1)
        if len(rows):
            _raise(score, g, scores, rows, level, rng, moves)
    return estimate


def _started(
    score: Score, size: int, rng: Rng, particles: int
) -> tuple[Int[Tensor, " c"], Float[Tensor, "c p e"], Float[Tensor, "c p"]]:
    """The chains, their particles and the scores of these."""
    chain = torch.arange(len(rng.drawn), device=rng.drawn.device)
    every = chain.repeat_interleave(particles)
    g = rng.normal(every, (size,))
    return chain, g.reshape(-1, particles, size), score(g, every).reshape(-1, particles)


def _raise(
    score: Score,
    g: Float[Tensor, "c p e"],
    scores: Float[Tensor, "c p"],
    rows: Int[Tensor, " r"],
    level: Float[Tensor, " c"],
    rng: Rng,
    moves: int,
) -> None:
    """Replace, in the chosen chains, particles that do not exceed the level by copies of others,
    and move all of them above it.
    """
    particles = g.shape[1]
    lost = scores[rows] <= level[rows, None]
    # Every lost particle draws a random survivor to copy: random keys, lost ones masked, the
    # largest wins. One argmax serves all chains at once, and its numbers follow from the chain's
    # name.
    keys = rng.uniform(rows, (particles, particles)).masked_fill(lost[:, None], -1)
    itself = torch.arange(particles, device=g.device)
    source = torch.where(lost, keys.argmax(2), itself)
    every = rows.repeat_interleave(particles)
    moved = g[rows[:, None], source].flatten(0, 1)
    value = scores[rows[:, None], source].flatten()
    least = level[every]
    for _ in range(moves):
        # steps of all sizes: which one suits is not known, and chosen steps would bias
        step = per_row(10 ** (-1.5 * rng.uniform(every)), moved)
        # Preconditioned Crank-Nicolson: this move leaves the standard normal law as it is whatever
        # the step, so the only thing to accept or refuse by is the level.
        proposed = (1 - step.square()).sqrt() * moved + step * rng.normal(every, moved.shape[1:])
        new = score(proposed, every)
        accepted = new > least
        moved = torch.where(accepted[:, None], proposed, moved)
        value = torch.where(accepted, new, value)
    g[rows] = moved.reshape(len(rows), particles, -1)
    scores[rows] = value.reshape(len(rows), particles)


@dataclass(frozen=True, slots=True)
class RareTable:
    """Failing volumes of the declared ranges, of images of which no random sample failed.

    Args:
        id: Names of those images.
        volumes: Repeated estimates per image.
        seeds: All images, those with a failing sample included.
    """

    id: tuple[str, ...]
    volumes: Float[Tensor, "n r"]
    seeds: int

    @property
    def value(self) -> float:
        """The mean volume over these images."""
        return float(self.volumes.mean()) if len(self.id) else 0.0

    @property
    def bounds(self) -> Bounds:
        """An interval for these images: only the splitting is random."""
        if not len(self.id):
            return Bounds(0.0, 0.0)
        return log_interval(self.volumes.mean(0).numpy(), floor=FLOOR / len(self.id))

    def to_json(self) -> dict[str, Any]:
        """Return what run.json and report.json keep under ``rare``."""
        return {
            "volume": self.value,
            "these_images": list(self.bounds),
            "seeds": len(self.id),
            "of": self.seeds,
            "above_floor": int((self.volumes.mean(1) >= FLOOR).sum()),
            "floor": FLOOR,
            "repeats": self.volumes.shape[1],
            "meaning": "volume of the declared ranges, no probability in the field",
        }


def measure_rare(
    subject: Model,
    images: ImageSet,
    box: ConditionBox,
    table: RiskTable,
    *,
    repeats: int = REPEATS,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> RareTable:
    """Estimate the failing volume of images none of whose random samples failed.

    Args:
        subject: The model.
        images: All images, as their failure rate was measured.
        box: The declared conditions for images of this shape.
        table: Their failure rate.
        repeats: Independent estimates per image, from which the interval follows.
        seed: Everything random follows from it and from the names of the images.
        on_progress: Called with how many images are done.

    Raises:
        HardcaseError: If the failure rate is of other images, or there are fewer than 20 repeats.
    """
    if repeats < REPEATS:
        raise HardcaseError(
            f"{repeats} repeats are too few for an interval.", fix=f"repeats={REPEATS}"
        )
    if len(table) != len(images):
        raise HardcaseError(f"the failure rate of {len(table)} images is given for {len(images)}.")
    names = list[str]()
    volumes = list[Tensor]()
    for before, shard in iter_shards(images, seeds_at_once(subject, repeats), on_progress):
        never = (table.failing[before : before + len(shard)] == 0).nonzero().squeeze(1)
        if len(never):
            chosen = shard.take(never)
            names += chosen.id
            volumes.append(_volumes(subject, chosen, box, repeats, seed))
    levels = torch.cat(volumes) if volumes else torch.zeros(0, repeats, dtype=torch.float64)
    return RareTable(tuple(names), levels, len(images))


def _volumes(
    subject: Model, images: Images, box: ConditionBox, repeats: int, seed: int
) -> Float[Tensor, "n r"]:
    origin = seeds_of(images, box, subject.device)
    chains = [f"{name}/{number}" for name in images.id for number in range(repeats)]
    rng = Rng(seed, "rare", keys_of(chains).to(subject.device))
    # Keys of its own for the pilot: with the same keys the estimate would repeat the pilot's
    # particles.
    pilot = Rng(seed, "levels", keys_of(images.id).to(subject.device))

    def score(g: Float[Tensor, "m e"], chain: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        """Logit margins, infinite where a sample fails."""
        of = chain // repeats
        y = origin.y[of]
        # the last number is the pattern: every step of a walk redraws grain and drops
        pattern = (torch.special.ndtr(g[:, -1].double()) * 2**31).long()
        logits = logits_under_conditions(
            subject, box, origin, of, box.from_normals(g[:, :-1]), pattern
        )
        return margin(logits, y).masked_fill(answered(logits, y).failed, torch.inf)

    size = box.normals + 1
    levels = find_levels(lambda g, image: score(g, image * repeats), size, pilot)
    estimate = split(score, size, rng, levels.repeat_interleave(repeats, 0))
    return estimate.reshape(len(images), repeats).cpu()
