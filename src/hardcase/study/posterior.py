"""What an image is, given who said what: a posterior with partially pooled abilities.

Every image is one of the classes, "none of these", or *ambiguous*; nothing is known of it
beforehand, least of all its seed's label. A rater answers what a clear image is with his own
ability, else anything else with equal chance (one coin a rater); abilities come from one common
distribution that is learned as well, so a rater with few answers is judged like the others. Of an
ambiguous image every mixture of answers is equally likely (a flat Dirichlet). "Cannot tell" is an
answer that favours no class; it is counted and says nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

Array = np.ndarray
SURE = 0.95
ENOUGH = 30
"""Answers of a rater to each class below which no confusion matrix of his is estimated."""
_MEANS = np.linspace(0.5, 0.99, 25)
_WEIGHTS = np.array([4.0, 8.0, 16.0, 32.0, 64.0])


@dataclass(frozen=True, slots=True)
class Posterior:
    """Outcomes are the classes (the last one "none of these") and, in the last column, ambiguous.

    Args:
        outcome: The probability of each outcome, a row per image.
        ability: Posterior means of the raters' abilities.
        pooled: Mean of the abilities' common distribution.
        ambiguous: The share of ambiguous images.
    """

    outcome: Float[Array, "u o"]
    ability: Float[Array, " r"]
    pooled: float
    ambiguous: float

    def decided(self, sure: float = SURE) -> Int[Array, " u"]:
        """The outcome of each image; -1 where none reaches `sure`."""
        best = self.outcome.argmax(1)
        return np.where(self.outcome.max(1) >= sure, best, -1)


def posterior(
    image: Int[Array, " n"],
    rater: Int[Array, " n"],
    answer: Int[Array, " n"],
    categories: int,
    rng: np.random.Generator,
    *,
    draws: int = 400,
    warm: int = 150,
) -> Posterior:
    """Gibbs sampling of outcomes, abilities and their distribution.

    Args:
        image: The number of the image of each answer, from 0.
        rater: The number of its rater, from 0.
        answer: The category given: a class, or ``categories - 1`` for "none of these".
        categories: How many there are, "none of these" included.

    >>> few = np.array([0, 0, 0, 1, 1, 1])
    >>> said = np.array([2, 2, 2, 1, 1, 1])
    >>> found = posterior(few, np.array([0, 1, 2] * 2), said, 4, np.random.default_rng(0))
    >>> found.outcome.argmax(1).tolist()
    [2, 1]
    """
    units, people = int(image.max()) + 1, int(rater.max()) + 1
    counts = np.zeros((units, categories))
    np.add.at(counts, (image, answer), 1)
    mixed = _flat_dirichlet(counts)
    ability = np.full(people, 0.85)
    share = 0.1
    total = np.zeros((units, categories + 1))
    abilities = np.zeros(people)
    pooled = 0.0
    shares = 0.0
    for step in range(warm + draws):
        chance = _outcomes(image, rater, answer, counts.shape, ability, mixed, share)
        outcome = _drawn(chance, rng)
        clear = outcome[image] < categories
        right = clear & (answer == outcome[image])
        hits = np.bincount(rater[right], minlength=people)
        misses = np.bincount(rater[clear & ~right], minlength=people)
        mean, weight = _common(ability, rng)
        ability = np.clip(rng.beta(mean * weight + hits, (1 - mean) * weight + misses), 0.02, 0.999)
        split = int((outcome == categories).sum())
        share = float(rng.beta(1 + split, 9 + units - split))
        if step >= warm:
            total += chance
            abilities += ability
            pooled += mean
            shares += share
    return Posterior(total / draws, abilities / draws, pooled / draws, shares / draws)


def certainty(counts: Int[Array, " c"], ability: float = 0.85, ambiguous: float = 0.1) -> float:
    """The posterior of the likeliest class of one image, for a known common ability.

    This is what the stop rule asks while a study runs.

    Args:
        counts: Answers for each category.

    >>> round(certainty(np.array([2, 0, 0, 0])), 3), round(certainty(np.array([1, 1, 0, 0])), 3)
    (0.984, 0.429)
    """
    categories = len(counts)
    wrong = np.log((1 - ability) / (categories - 1))
    clear = counts * np.log(ability) + (counts.sum() - counts) * wrong
    mixed = _flat_dirichlet(counts[None].astype(np.float64))[0] + np.log(ambiguous)
    logs = np.append(clear + np.log((1 - ambiguous) / categories), mixed)
    chance = np.exp(logs - logs.max())
    return float(chance[:-1].max() / chance.sum())


def confusion(
    found: Posterior, image: Int[Array, " n"], answer: Int[Array, " n"], categories: int
) -> Float[Array, "c c"] | None:
    """A rater's confusion matrix (rows: what it is), or None with too few answers of a class.

    Args:
        image: Images that this one rater answered.
        answer: What he said of them.
    """
    weight = found.outcome[image, :categories]
    if (weight.sum(0) < ENOUGH).any():
        return None
    table = np.zeros((categories, categories))
    np.add.at(table.T, answer, weight)
    return np.asarray(table / table.sum(1, keepdims=True))


def _flat_dirichlet(counts: Float[Array, "u c"]) -> Float[Array, " u"]:
    """log-probability of a row's answers when every mixture of categories is equally likely."""
    width = counts.shape[1]
    ways = gammaln(counts + 1).sum(1)
    return np.asarray(gammaln(width) + ways - gammaln(counts.sum(1) + width))


def _outcomes(
    image: Array,
    rater: Array,
    answer: Array,
    shape: tuple[int, int],
    ability: Float[Array, " r"],
    mixed: Float[Array, " u"],
    share: float,
) -> Float[Array, "u o"]:
    """The probability of each outcome of each image, for known abilities."""
    units, categories = shape
    good = np.log(ability[rater])
    bad = np.log((1 - ability[rater]) / (categories - 1))
    logs = np.repeat(np.bincount(image, bad, units)[:, None], categories, 1)
    np.add.at(logs, (image, answer), good - bad)
    logs += np.log((1 - share) / categories)
    whole = np.concatenate([logs, (mixed + np.log(share))[:, None]], 1)
    chance = np.exp(whole - whole.max(1, keepdims=True))
    return np.asarray(chance / chance.sum(1, keepdims=True))


def _drawn(chance: Float[Array, "u o"], rng: np.random.Generator) -> Int[Array, " u"]:
    steps = chance.cumsum(1)
    return np.asarray((rng.random(len(chance))[:, None] > steps[:, :-1]).sum(1))


def _common(ability: Float[Array, " r"], rng: np.random.Generator) -> tuple[float, float]:
    """Mean and weight of the Beta distribution of abilities, drawn from a grid."""
    mean, weight = (one.ravel() for one in np.meshgrid(_MEANS, _WEIGHTS))
    yes, no = mean * weight, (1 - mean) * weight
    logs = (yes - 1) * np.log(ability).sum() + (no - 1) * np.log1p(-ability).sum()
    logs -= len(ability) * (gammaln(yes) + gammaln(no) - gammaln(yes + no))
    chance = np.exp(logs - logs.max())
    pick = int(rng.choice(len(chance), p=chance / chance.sum()))
    return float(mean[pick]), float(weight[pick])
