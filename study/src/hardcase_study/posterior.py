"""What an image is, given who said what: a posterior with partially pooled abilities.

Every image is one of the classes, "none of these", or *ambiguous*; nothing is known of it
beforehand, least of all its original's label. A rater answers what a clear image is with his own
ability, else anything else with equal chance (one coin a rater); abilities come from one common
distribution that is learned as well, so a rater with few answers is judged like the others. An
ambiguous image is seen as one of two things, any two, about as often. "Cannot tell" is an answer
that favours no class; it is counted and says nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import betaln, gammaln

Array = np.ndarray
SURE = 0.9
EVEN = 2.0
"""The two things that an ambiguous image may be are seen in a proportion from Beta(EVEN, EVEN)."""
_MEANS = np.linspace(0.5, 0.99, 25)
_WEIGHTS = np.array([4.0, 8.0, 16.0, 32.0, 64.0])


@dataclass(frozen=True, slots=True)
class Posterior:
    """Outcomes are the classes (last "none of these") and, in the last column, ambiguous."""

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
    draws: int = 300,
    warm: int = 100,
) -> Posterior:
    """Gibbs sampling of outcomes, abilities and their distribution."""
    units = int(image.max()) + 1
    people = int(rater.max()) + 1
    counts = np.zeros((units, categories))
    np.add.at(counts, (image, answer), 1)
    proportion = _proportion(counts)
    ability = np.full(people, 0.85)
    share = 0.1
    total = np.zeros((units, categories + 1))
    abilities = np.zeros(people)
    pooled = 0.0
    shares = 0.0
    for step in range(warm + draws):
        chance = _outcomes(image, rater, answer, counts.shape, proportion, ability, share)
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
    """
    table = counts[None].astype(np.float64)
    good = table * np.log(ability)
    bad = table * np.log((1 - ability) / (len(counts) - 1))
    return float(_chances(_proportion(table), good, bad, ambiguous)[0, :-1].max())


def _proportion(counts: Float[Array, "u c"]) -> Float[Array, "u p"]:
    """For each pair of categories, the log-probability of how often each was answered."""
    one, two = np.triu_indices(counts.shape[1], 1)
    seen = betaln(counts[:, one] + EVEN, counts[:, two] + EVEN)
    return np.asarray(seen - betaln(EVEN, EVEN))


def _outcomes(
    image: Array,
    rater: Array,
    answer: Array,
    shape: tuple[int, int],
    proportion: Float[Array, "u p"],
    ability: Float[Array, " r"],
    share: float,
) -> Float[Array, "u o"]:
    """The probability of each outcome of each image, for known abilities."""
    good = np.zeros(shape)
    bad = np.zeros(shape)
    np.add.at(good, (image, answer), np.log(ability[rater]))
    slips = np.log((1 - ability[rater]) / (shape[1] - 1))
    np.add.at(bad, (image, answer), slips)
    return _chances(proportion, good, bad, share)


def _chances(
    proportion: Float[Array, "u p"],
    good: Float[Array, "u c"],
    bad: Float[Array, "u c"],
    share: float,
) -> Float[Array, "u o"]:
    """Outcomes of images, by Bayes' rule."""
    categories = good.shape[1]
    gain = good - bad
    slips = bad.sum(1, keepdims=True)
    clear = slips + gain + np.log((1 - share) / categories)
    one, two = np.triu_indices(categories, 1)
    pairs = slips + gain[:, one] + gain[:, two] + proportion
    most = pairs.max(1, keepdims=True)
    mixed = most + np.log(np.exp(pairs - most).sum(1, keepdims=True)) + np.log(share / len(one))
    whole = np.concatenate([clear, mixed], 1)
    chance = np.exp(whole - whole.max(1, keepdims=True))
    return np.asarray(chance / chance.sum(1, keepdims=True))


def _drawn(chance: Float[Array, "u o"], rng: np.random.Generator) -> Int[Array, " u"]:
    steps = chance.cumsum(1)
    return np.asarray((rng.random(len(chance))[:, None] > steps[:, :-1]).sum(1))


def _common(ability: Float[Array, " r"], rng: np.random.Generator) -> tuple[float, float]:
    """Mean and weight of the Beta distribution of abilities, drawn from a grid."""
    mean, weight = (one.ravel() for one in np.meshgrid(_MEANS, _WEIGHTS))
    yes = mean * weight
    no = (1 - mean) * weight
    logs = (yes - 1) * np.log(ability).sum() + (no - 1) * np.log1p(-ability).sum()
    logs -= len(ability) * (gammaln(yes) + gammaln(no) - gammaln(yes + no))
    chance = np.exp(logs - logs.max())
    pick = int(rng.choice(len(chance), p=chance / chance.sum()))
    return float(mean[pick]), float(weight[pick])
