"""SINVAD's other searches: toward a surprise, and between two networks.

Sungmin Kang, Robert Feldt, Shin Yoo. Deceiving Humans and Machines Alike: Search-based Test Input Generation for DNNs using
Variational Autoencoders. TOSEM 2023; first as SINVAD, SBST 2020. https://arxiv.org/abs/2005.09296
"""

from __future__ import annotations

from typing import Literal

from hardcase.criteria.surprise import Likelihood
from hardcase.methods.watching import Profiles, likelihood, trace
from hardcase.objectives import NearestSplit, Surprise
from hardcase.oracles import Splits, Surprising
from hardcase.searches.exits import Exits
from hardcase.searches.genetic import Genetic
from hardcase.searches.hill_climbing import HillClimbing
from hardcase.searches.neighbours import Codes
from hardcase.types import Budget, Method, Model, Space


def sinvad_surprise(
    *,
    space: Space,
    subject: Model,
    profile: Profiles,
    goal: float | None = None,
    tolerance: float = 0.5,
    start: Literal["seed", "prior"] = "seed",
    passes: int = 3,
    stride: float = 1.0,
) -> Method:
    """Hill climbing to an image of surprise `goal`, or to one more surprising than any training image.

    Likelihood-based surprise of what enters the last layer, one density a class over up to 5,000 training traces, whitened
    once; all seeds climb in one batch. `start="prior"` begins at random codes in place of the seeds' own.
    Differences from the reference: classes have densities of their own (`sinvad-surprise@paper` has one for all, as the
    authors' code); a seed stops when it is there. The stride adapts as in the code; the paper's is always 1.
    """
    surprise, layer = likelihood(subject, profile, per_class=True)
    return _climbing("sinvad-surprise", space, surprise, layer, goal, tolerance, start, passes, stride)


def sinvad_surprise_paper(
    *,
    space: Space,
    subject: Model,
    profile: Profiles,
    goal: float = 111.0,
    tolerance: float = 0.5,
    start: Literal["seed", "prior"] = "seed",
    passes: int = 3,
    stride: float = 5.0,
) -> Method:
    """The published hill climbing: toward a surprise of 111, by one density over all training traces of the 100 most varying units.

    The authors' code takes the first 100 units of deviation 0.6 or more, a first stride of 5 (2 in pixels) and three passes;
    it goes on to the end, where this stops a seed that has arrived.
    """
    surprise, layer = likelihood(subject, profile, per_class=False)
    return _climbing("sinvad-surprise@paper", space, surprise, layer, goal, tolerance, start, passes, stride)


def sinvad_between(
    *, space: Space, partners: Codes | None = None, classes: int = 4, walks: int = 20, halvings: int = 9
) -> Method:
    """The nearest code whose image the subject gets wrong and every peer gets right.

    Walks to the subject's own boundary with the `classes` nearest classes, each along other coordinates, and keeps the
    nearest candidate at which the peers still see the label: one that lies between the networks' boundaries.
    """
    reach = 1.5 if partners is not None else 4.0
    return Method(
        name="sinvad-between",
        space=space,
        search=Exits(codes=partners, walks=walks, halvings=halvings, classes=classes, answers=True, reach=reach),
        objective=NearestSplit(),
        oracle=Splits(),
        until="budget",
        needs="scores",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


def sinvad_between_code(
    *, space: Space, population: int = 50, elite: int = 20, spread: float = 1.2, generations: int = 5000
) -> Method:
    """The genetic search of the authors' code for images that one network gets wrong and another right.

    First population of deviation 1.2, reset mask 0.2, mutation halved when the best gains no more than 0.001. The journal
    paper does not have this search. Differences as for `sinvad@paper`.
    """
    return Method(
        name="sinvad-between@code",
        space=space,
        search=Genetic(
            population=population, elite=elite, spread=spread, reset=0.2, decay=0.5, tolerance=1e-3, generations=generations
        ),
        objective=NearestSplit(),
        oracle=Splits(),
        until="budget",
        needs="scores",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )  # fmt: skip


def _climbing(
    name: str, space: Space, surprise: Likelihood, layer: str, goal: float | None, tolerance: float,
    start: Literal["seed", "prior"], passes: int, stride: float,
) -> Method:  # fmt: skip
    objective = Surprise(surprise, layer, goal)
    least = float(surprise.training().max()) if goal is None else -tolerance
    return Method(
        name=name,
        space=space,
        search=HillClimbing(passes=passes, stride=stride, start=start),
        objective=objective,
        oracle=Surprising(objective, least),
        needs="activations",
        budget=Budget(queries=5000),
        taps={layer: trace},
    )
