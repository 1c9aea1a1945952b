"""SINVAD: search in the latent space of a variational auto-encoder."""

from __future__ import annotations

from hardcase.errors import Problem
from hardcase.objectives import NearestFailing
from hardcase.oracles import LeavesLabel, Reaches
from hardcase.searches.crossing import Crossing
from hardcase.searches.genetic import Genetic
from hardcase.searches.neighbours import Codes
from hardcase.types import Budget, Method, Space

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
        raise Problem("every class as a goal needs partners and no target.", fix="every=False, or no target")
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
        budget=Budget(queries=1 + (len(cuts) + 1) * goals * (1 + halvings) + (goals if every else 1) * once),
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
            population=population, elite=elite, spread=spread, mutation=mutation, reset=reset, generations=generations
        ),
        objective=NearestFailing(oracle),
        oracle=oracle,
        until="budget",
        needs="label",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )
