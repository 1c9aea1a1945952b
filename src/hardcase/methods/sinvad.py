"""SINVAD: search in the latent space of a variational auto-encoder."""

from __future__ import annotations

from typing import Literal

from hardcase.criteria.surprise import Likelihood
from hardcase.errors import Problem
from hardcase.methods.neurons import Profiles, likelihood, trace
from hardcase.objectives import NearestFailing, NearestSplit, Surprise
from hardcase.oracles import LeavesLabel, Reaches, Splits, Surprising
from hardcase.searches.boundary import Codes, Crossing, Exits
from hardcase.searches.genetic import Genetic
from hardcase.searches.hill_climbing import HillClimbing
from hardcase.types import Budget, Method, Model, Space

# --- SINVAD: search in the latent space of a variational auto-encoder.

DRAWS = 24
"""Codes drawn from the prior where there are no partners."""


def sinvad(
    *,
    space: Space,
    partners: Codes | None = None,
    classes: int = 4,
    neighbours: int = 50,
    cuts: tuple[float, ...] = (0.05, 0.25),
    halvings: int = 5,
    shorten: int = 40,
    closing: int = 10,
    every: bool = False,
    target: int | None = None,
) -> Method:
    """The nearest latent code whose image leaves the seed's label (Eq. 1, or Eq. 4 with `target`), in about 70 questions.

    Sungmin Kang, Robert Feldt, Shin Yoo. Deceiving Humans and Machines Alike: Search-based Test Input Generation for DNNs
    using Variational Autoencoders. TOSEM 2023; first as SINVAD, SBST 2020. https://arxiv.org/abs/2005.09296

    Ours, in place of the paper's genetic algorithm (`sinvad@paper`): it asks the same black box the same question and
    minimises the same L1 distance of codes, but starts along the steps between neighbouring classes, taken from codes of
    training images (`partners`), instead of from random codes, and ends with halvings that put the image on the boundary.
    Codes stay within the range of training codes. Labels of partners come with the data; no question is spent on them.
    Without them, steps are drawn from the prior. With `every`, each other class is a goal of its own, and the nearest code
    that reaches it is kept.
    """
    oracle = LeavesLabel() if target is None else Reaches(target)
    if every and (target is not None or partners is None):
        raise Problem(
            "every class as a goal needs partners and no target.", fix="every=False, or no target"
        )
    classes = classes if partners is None or not every else int(partners.label.max())
    goals = DRAWS if partners is None else classes if target is None else 1
    once = shorten + closing
    return Method(
        name="sinvad",
        space=space,
        search=Crossing(
            codes=partners,
            classes=goals,
            neighbours=neighbours,
            cuts=cuts,
            halvings=halvings,
            shorten=shorten,
            closing=closing,
            apart=every,
            toward=target,
        ),
        objective=NearestFailing(oracle),
        oracle=oracle,
        until="budget",
        needs="label",
        keep="best-per-label" if every else "best",
        budget=Budget(
            queries=1 + (len(cuts) + 1) * goals * (1 + halvings) + (goals if every else 1) * once
        ),
    )


def sinvad_paper(
    *,
    space: Space,
    population: int = 50,
    elite: int = 20,
    spread: float | None = None,
    mutation: float = 0.1,
    reset: float = 0.5,
    generations: int | None = None,
    target: int | None = None,
) -> Method:
    """The published genetic boundary search: among codes whose image leaves the seed's label, the nearest (Eq. 1, Eq. 4).

    Sungmin Kang, Robert Feldt, Shin Yoo. Deceiving Humans and Machines Alike: Search-based Test Input Generation for DNNs
    using Variational Autoencoders. TOSEM 2023; first as SINVAD, SBST 2020. https://arxiv.org/abs/2005.09296

    Where paper and code disagree this follows the code: 20 parents of 50 (the paper's Figure 3 says 10), a first
    population of deviation 0.7 (targeted: 1.0; the paper's is 1), mutation scaled by its size and only where a code
    *differs* from the seed's (the paper's text says "equal"), distance on the genotype (the paper re-encodes the image),
    500 generations (targeted: 100), end after 13 without progress. Differences from the code: the mutation size is
    kept per seed (there it leaks from one image into the next and ends most searches in their first generation); failure
    is measured against the seed's verified label, on the 8-bit image; seeds whose reconstruction fails are set aside.
    """
    oracle = LeavesLabel() if target is None else Reaches(target)
    generations = generations or (500 if target is None else 100)
    spread = spread if spread is not None else (0.7 if target is None else 1.0)
    return Method(
        name="sinvad@paper",
        space=space,
        search=Genetic(
            population=population,
            elite=elite,
            spread=spread,
            mutation=mutation,
            reset=reset,
            generations=generations,
        ),
        objective=NearestFailing(oracle),
        oracle=oracle,
        until="budget",
        needs="label",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )


# --- SINVAD's other searches: toward a surprise, and between two networks.
#
# Sungmin Kang, Robert Feldt, Shin Yoo. Deceiving Humans and Machines Alike: Search-based Test Input Generation for DNNs using
# Variational Autoencoders. TOSEM 2023; first as SINVAD, SBST 2020. https://arxiv.org/abs/2005.09296


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
    return _climbing(
        "sinvad-surprise", space, surprise, layer, goal, tolerance, start, passes, stride
    )


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
    return _climbing(
        "sinvad-surprise@paper", space, surprise, layer, goal, tolerance, start, passes, stride
    )


def sinvad_between(
    *,
    space: Space,
    partners: Codes | None = None,
    classes: int = 4,
    walks: int = 20,
    halvings: int = 9,
) -> Method:
    """The nearest code whose image the subject gets wrong and every peer gets right.

    Walks to the subject's own boundary with the `classes` nearest classes, each along other coordinates, and keeps the
    nearest candidate at which the peers still see the label: one that lies between the networks' boundaries.
    """
    reach = 1.5 if partners is not None else 4.0
    return Method(
        name="sinvad-between",
        space=space,
        search=Exits(
            codes=partners,
            walks=walks,
            halvings=halvings,
            classes=classes,
            answers=True,
            reach=reach,
        ),
        objective=NearestSplit(),
        oracle=Splits(),
        until="budget",
        needs="scores",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


def sinvad_between_code(
    *,
    space: Space,
    population: int = 50,
    elite: int = 20,
    spread: float = 1.2,
    generations: int = 5000,
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
