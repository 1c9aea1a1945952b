"""SINVAD: search in the latent space of a variational auto-encoder."""

from __future__ import annotations

from hardcase.objectives import NearestFailing
from hardcase.oracles import LeavesLabel, Reaches
from hardcase.searches.genetic import Genetic
from hardcase.types import Budget, Method, Space


def sinvad(
    *,
    space: Space,
    population: int = 50,
    elite: int = 20,
    spread: float = 0.7,
    mutation: float = 0.1,
    generations: int = 100,
    target: int | None = None,
) -> Method:
    """The genetic boundary search: among latent codes whose image leaves the seed's label, the nearest one (Eq. 1).

    Sungmin Kang, Robert Feldt, Shin Yoo. SINVAD: Search-based Image Space Navigation for DNN Image Classifier Test Input
    Generation. SBST 2020; journal version: Deceiving Humans and Machines Alike, TOSEM 2023. https://arxiv.org/abs/2005.09296

    Follows the authors' code: L1 on the genotype, mutation only where a code differs from its seed's (the paper's text
    says "equal"), 20 parents of 50, reset mask 0.5. Differences: the mutation size is kept per seed (in the code it
    leaks from one image into the next and ends most searches in their first generation); failure is measured against
    the seed's verified label, on the 8-bit image; seeds whose reconstruction already fails are set aside.
    """
    oracle = LeavesLabel() if target is None else Reaches(target)
    return Method(
        name="sinvad",
        space=space,
        search=Genetic(population=population, elite=elite, spread=spread, mutation=mutation, generations=generations),
        objective=NearestFailing(oracle),
        oracle=oracle,
        until="budget",
        needs="label",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )
