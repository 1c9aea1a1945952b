"""Failures too rare for random draws: the volume of the declared box in which an image fails.

A volume of the box that was declared, no probability in the field: nobody knows how often a
condition at the very edge of a range occurs there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from hardcase.conditions.box import ConditionBox
from hardcase.conditions.intervals import Bounds
from hardcase.conditions.risk import (
    RiskTable,
    Tell,
    asked_under,
    failing_rows,
    seeds_of,
    with_pattern,
)
from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.randomness import Rng, keys_of
from hardcase.tensors import chunks, margin, per_row
from hardcase.types import Images, Model, Seeds

__all__ = ["RareTable", "log_interval", "measure_rare", "split"]

FLOOR = 1e-6
"""Volumes below are reported as below it."""
PARTICLES = 32
REPEATS = 20
MOVES = 12
"""Steps of the random walk that makes a copied particle another one."""
ROWS = 512
"""Images that are rendered and answered at once."""

Score = Callable[[Float[Tensor, "m e"], Int[Tensor, " m"]], Float[Tensor, " m"]]
"""From normal numbers and the chain of each row: how near it is to failing; infinite if it fails.
"""


def split(
    score: Score,
    size: int,
    rng: Rng,
    *,
    particles: int = PARTICLES,
    moves: int = MOVES,
    floor: float = FLOOR,
) -> Float[Tensor, " c"]:
    """Return an unbiased estimate of the chance of an infinite score, for every key of `rng`.

    Splitting by the last particle: the lowest of the particles are replaced by moved copies of
    others until all have failed; each time the estimate shrinks by the share that is left
    (A. Guyader, N. Hengartner, E. Matzner-Løber, Applied Mathematics and Optimization 64, 2011).
    All that are equally low are replaced at once, so that plateaus do no harm (C.-E. Bréhier et
    al., Annals of Applied Probability 26, 2016).

    Args:
        score: What is raised, of standard normal numbers.
        size: How many numbers.
        rng: One sequence per chain.
        particles: Particles of each chain.
        moves: Steps of the random walk after each copy.
        floor: A chain ends, as 0, when its estimate is below a hundredth of it.
    """
    count = len(rng.drawn)
    chain = torch.arange(count, device=rng.drawn.device)
    every = chain.repeat_interleave(particles)
    g = rng.normal(every, (size,)).reshape(count, particles, size)
    scores = score(g.flatten(0, 1), every).reshape(count, particles)
    estimate = torch.ones(count, dtype=torch.float64, device=g.device)
    while True:
        level = scores.amin(1)
        going = level.isfinite() & (estimate > 0)
        if not bool(going.any()):
            return estimate
        dead = (scores <= level[:, None]) & going[:, None]
        estimate = estimate * (1 - dead.double().mean(1))
        estimate = torch.where(estimate < floor / 100, 0, estimate)
        dead &= (estimate > 0)[:, None]
        rows, places = dead.nonzero(as_tuple=True)
        if not len(rows):
            continue
        # a copy of one of the others, all with the same chance
        keys = rng.uniform(rows, (particles,)).masked_fill(scores[rows] <= level[rows, None], -1)
        source = keys.argmax(1)
        moved, value = g[rows, source], scores[rows, source]
        for _ in range(moves):
            # steps of all sizes: which one suits is not known, and chosen steps would bias
            step = per_row(10 ** (-1.5 * rng.uniform(rows)), moved)
            proposed = (1 - step.square()).sqrt() * moved + step * rng.normal(rows, (size,))
            new = score(proposed, rows)
            taken = new > level[rows]
            moved = torch.where(taken[:, None], proposed, moved)
            value = torch.where(taken, new, value)
        g[rows, places] = moved
        scores[rows, places] = value


def log_interval(estimates: NDArray[np.float64], *, floor: float = FLOOR) -> Bounds:
    """Return a 95 % interval for the mean of positive, skewed estimates of which these are repeats.

    Cox's interval for the mean of a log-normal variable with Student's quantile (U. Olsson, Journal
    of Statistics Education 13, 2005). Zeros count as a hundredth of the floor.

    Args:
        estimates: Independent repeats.
        floor: Below it nothing is distinguished.
    """
    if not estimates.any():
        return Bounds(0.0, floor)
    count = len(estimates)
    logs = np.log(np.maximum(estimates, floor / 100))
    spread = float(logs.var(ddof=1))
    half = stats.t.ppf(0.975, count - 1) * (spread / count + spread**2 / (2 * (count - 1))) ** 0.5
    centre = float(logs.mean()) + spread / 2
    return Bounds(float(np.exp(centre - half)), float(min(1.0, np.exp(centre + half))))


@dataclass(frozen=True, slots=True)
class RareTable:
    """Failing volumes of the declared box, of images of which no random draw failed.

    Args:
        id: Names of those images.
        volumes: Repeated estimates per image.
        seeds: All images, those with a failing draw included.
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
            "meaning": "volume of the declared box, no probability in the field",
        }


def measure_rare(
    subject: Model,
    images: ImageSet,
    box: ConditionBox,
    table: RiskTable,
    *,
    repeats: int = REPEATS,
    seed: int = 0,
    tell: Tell | None = None,
) -> RareTable:
    """Estimate the failing volume of images none of whose random draws failed.

    Args:
        subject: The model.
        images: All images, as their risk was measured.
        box: The declared conditions for images of this shape.
        table: Their risk.
        repeats: Independent estimates per image, from which the interval follows.
        seed: Everything random follows from it and from the names of the images.
        tell: Told how many images are done.

    Raises:
        Problem: If the risk is of other images, or there are fewer than 20 repeats.
    """
    if repeats < REPEATS:
        raise Problem(f"{repeats} repeats are too few for an interval.", fix=f"repeats={REPEATS}")
    if len(table) != len(images):
        raise Problem(f"the risk of {len(table)} images is given for {len(images)}.")
    names = list[str]()
    volumes = list[Tensor]()
    done = 0
    for shard in images.shards(max(1, ROWS // repeats)):
        never = (table.failing[done : done + len(shard)] == 0).nonzero().squeeze(1)
        done += len(shard)
        if len(never):
            chosen = shard.take(never)
            names += chosen.id
            volumes.append(_volumes(subject, chosen, box, repeats, seed))
        if tell is not None:
            tell(done, len(images))
    found = torch.cat(volumes) if volumes else torch.zeros(0, repeats, dtype=torch.float64)
    return RareTable(tuple(names), found, len(images))


def _volumes(
    subject: Model, images: Images, box: ConditionBox, repeats: int, seed: int
) -> Float[Tensor, "n r"]:
    origin = seeds_of(images, box, subject.device)
    chains = [f"{name}/{number}" for name in images.id for number in range(repeats)]
    rng = Rng(seed, "rare", keys_of(chains).to(subject.device))

    def score(g: Float[Tensor, "m e"], chain: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        # the last number is the pattern: every step of a walk redraws grain and drops
        pattern = (torch.special.ndtr(g[:, -1].double()) * 2**31).long()
        parts = [
            _score(subject, box, origin.take(chain[part] // repeats), g[part, :-1], pattern[part])
            for part in chunks(len(g), ROWS)
        ]
        return torch.cat(parts)

    return split(score, box.normals + 1, rng).reshape(len(images), repeats).cpu()


def _score(
    subject: Model,
    box: ConditionBox,
    origin: Seeds,
    g: Float[Tensor, "m e"],
    pattern: Int[Tensor, " m"],
) -> Float[Tensor, " m"]:
    """Logit margins, infinite where a draw fails."""
    origin = with_pattern(origin, pattern)
    with torch.inference_mode():
        logits = asked_under(subject, box, box.from_normals(g), origin)
    return margin(logits, origin.y).masked_fill(failing_rows(logits, origin.y)[0], torch.inf)
