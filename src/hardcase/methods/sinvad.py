"""SINVAD: search in the latent space of a variational auto-encoder."""

from __future__ import annotations

from typing import Literal

from hardcase.errors import HardcaseError
from hardcase.methods.neurons import Profiles, likelihood, trace
from hardcase.methods.parts import method
from hardcase.objectives import Margin, NearestFailing, NearestSplit, Surprise, targeted_objective
from hardcase.oracles import Splits, Surprising, failure_oracle
from hardcase.registry import Preset, with_parts
from hardcase.searches.boundary import BoundaryWalks, Crossing, Partners
from hardcase.searches.genetic import Genetic, HillClimbing
from hardcase.searches.gradient import AdamAscent
from hardcase.spaces.latent import ReEncoded, WithResidual
from hardcase.types import Budget, Method, Model, Space

PAPER = "Kang, Feldt and Yoo, SBST 2020 and TOSEM 2023"
CITE = ("kang2020sinvad", "kang2024sinvad")
GENETIC = "mutation size per original; failure against the verified label, on the 8-bit image"
"""Where both genetic searches depart from the authors' code."""
TEXT = {
    "elite": 10,
    "spread": 1.0,
    "scaled": False,
    "mutate": "equal",
    "smallest": 0.0,
    "distance": "re-encoded",
}
"""SINVAD's Figure 3 and Equation 1 where the authors' code does otherwise."""
DRAWS = 24
"""Codes drawn from the prior where there are no partners."""


@method(
    "sinvad@code",
    paper=PAPER,
    cite=CITE,
    differences=GENETIC,
    generator="vae",
    toy={"spread": 1.5, "generations": 20},
)
def sinvad_code(
    space: Space,
    target: int | None = None,
    *,
    population: int = 50,
    elite: int = 20,
    spread: float | None = None,
    mutation: float = 0.1,
    scaled: bool = True,
    mutate: Literal["different", "equal"] = "different",
    smallest: float = 1e-3,
    reset: float = 0.5,
    generations: int | None = None,
    distance: Literal["genotype", "re-encoded"] = "genotype",
) -> Method:
    """Genetic search for the nearest failing code in a VAE's latent space, as the authors coded it.

    Among codes whose image leaves the original's label, the nearest (Eqs. 1 and 4).

    The source is that of `sinvad`. Each place where the text and the authors' code disagree is an
    option; this has the code's values, ``sinvad@paper`` the text's. Differences from the code: the
    mutation size is stored per original (there it leaks from one image into the next and ends most
    searches in their first generation); failure is measured against the seed's verified label, on
    the 8-bit image; seeds whose reconstruction fails are set aside; the infinity of Eq. 1 is
    infinite (999 in the code).

    Args:
        space: The latent space.
        target: The class to reach (Eq. 4).
        population: Codes of a generation (the text gives no number).
        elite: Parents: 20 in the code, "top10" in Figure 3.
        spread: Deviation of the first population: 0.7 in the code (targeted: 1.0), 1 in the text.
        mutation: First mutation size.
        scaled: Mutations of the current size (code), or of deviation 1 (Figure 3, line 20).
        mutate: Coordinates that mutate: those that differ from the original's (code), or that are
            equal to it (Figure 3's elementCompare).
        smallest: A seed ends below this mutation size, after 13 generations without progress
            (code); 0: only after all generations (Figure 3).
        reset: Share of coordinates that go back to the original's.
        generations: 500, targeted 100, as in the code (the text gives no number).
        distance: Of what the search holds (code), or of the image encoded again (Eq. 1).
    """
    oracle = failure_oracle(target)
    usual = (500, 0.7)
    if target is not None:
        usual = (100, 1.0)
    generations = generations or usual[0]
    if spread is None:
        spread = usual[1]
    goal = NearestFailing(oracle)
    if distance == "re-encoded":
        space = ReEncoded(space)
        goal = NearestFailing(oracle, space.seen)
    return Method(
        space=space,
        search=Genetic(
            population=population,
            elite=elite,
            spread=spread,
            mutation=mutation,
            scaled=scaled,
            mutate=mutate,
            smallest=smallest,
            reset=reset,
            generations=generations,
        ),
        objective=goal,
        oracle=oracle,
        until="budget",
        needs="label",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )


@method(
    "sinvad",
    paper=PAPER,
    cite=CITE,
    differences=(
        "ours, not the authors': starts from labelled training codes of other classes and "
        "bisects instead of breeding; same goal, same black box"
    ),
    generator="vae",
    presets={
        "paper": Preset(
            summary="the published text literally: Figure 3's genetic search with Eq. 1 re-encoded",
            make=sinvad_code,
            options=TEXT,
            differences=(
                "population, number of generations and reset share, which the text does not "
                "state, are the code's; "
            )
            + GENETIC,
            facts={"toy": {"spread": 1.5, "generations": 20}},
        )
    },
    explained_by=(Crossing,),
)
def sinvad(
    space: Space,
    partners: Partners | None = None,
    target: int | None = None,
    *,
    classes: int = 4,
    neighbours: int = 50,
    cuts: tuple[float, ...] = (0.05, 0.25),
    halvings: int = 5,
    shorten: int = 40,
    closing: int = 10,
    every: bool = False,
    search: str = "",
    objective: str = "",
) -> Method:
    """Nearest failing code in a VAE's latent space, along steps between neighbouring classes.

    The result is the nearest code whose image leaves the original's label (Eq. 1, or reaches
    `target`, Eq. 4); about 63 queries per original are used.

    Sungmin Kang, Robert Feldt, Shin Yoo. Deceiving Humans and Machines Alike: Search-based Test
    Input Generation for DNNs using Variational Autoencoders. TOSEM 2023; first as SINVAD, SBST
    2020. https://arxiv.org/abs/2005.09296

    Ours, in place of the genetic algorithm (``sinvad@paper``: as its text says, ``sinvad@code``: as
    the authors coded it): it queries the same black box and minimises the L1 distance of codes that
    the search holds, but starts along the steps between neighbouring classes, taken from codes of
    training images (`partners`), instead of from random codes, and ends with a bisection that puts
    the image on the boundary. Codes stay within the range of
    training codes. Labels of partners come with the data; no query is spent on them. Without them,
    steps are drawn from the prior. With `every`, each other class is a separate goal, and the
    nearest code that reaches it is stored.

    With witnesses a code fails only where they keep the label; the walks stay the same, by queries
    alone. `sinvad_gradient` follows the gradients of model and witnesses instead.

    Args:
        every: Keep the nearest failure of every class, not of the nearest alone.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import ToyAutoencoder, toy_images, toy_subject
        >>> space = hc.spaces.latent(ToyAutoencoder())
        >>> codes = hc.spaces.partners(space, toy_images(40, seed=2), device="cpu")
        >>> method = hc.methods.sinvad(space, codes, halvings=4)
        >>> len(hc.search(toy_subject(), toy_images(4), method=method))
        4
    """
    if every and (target is not None or partners is None):
        raise HardcaseError(
            "every class as a goal needs partners and no target.", fix="every=False, or no target"
        )
    oracle = failure_oracle(target)
    goals = classes
    if partners is None:
        goals = DRAWS
    elif target is not None:
        goals = 1
    keep = "best"
    ends = 1
    if every and partners is not None:
        goals = ends = int(partners.label.max())
        keep = "best-per-label"
    base = Method(
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
        keep=keep,
        budget=Budget(
            queries=1 + (len(cuts) + 1) * goals * (1 + halvings) + ends * (shorten + closing)
        ),
    )
    return with_parts(base, search=search, objective=objective)


@method(
    "sinvad-gradient",
    paper="ours, after Kang, Feldt and Yoo (SINVAD) and Song et al. 2018",
    cite=(*CITE, "song2018unrestricted"),
    differences="Adam on the code in place of a search by queries; the original's detail stays",
    generator="vae",
)
def sinvad_gradient(
    space: Space,
    target: int | None = None,
    *,
    residual: bool = True,
    step_size: float = 0.05,
    target_margin: float = 12.0,
    gradients: int = 300,
    bisections: int = 8,
    search: str = "",
    objective: str = "",
) -> Method:
    """Adam on a VAE's code until the model leaves a label that witnesses keep.

    Where witnesses must keep the label there is no boundary to walk to, but a region in which the
    model errs and they do not. The search starts from the original's code, along the gradients
    of all of them, and the way back to the seed is halved. Of SINVAD it has the latent space alone.

    Args:
        residual: Add to every image what the generator's reconstruction of the seed lacks, so that
            the search begins at the original itself.
        step_size: Step of Adam in the code.
        target_margin: Logits by which witnesses should keep the label where the budget allows.
        bisections: Halvings of the way back to the original from the first (witnessed) failure.
        search: Another search, such as ``evolution`` for a black box, or ``file.py:name``.
    """
    if residual:
        space = WithResidual(space)
    base = Method(
        space=space,
        target_margin=target_margin,
        search=AdamAscent(step_size=step_size, bisections=bisections),
        objective=targeted_objective(target, Margin()),
        oracle=failure_oracle(target),
        until="budget",
        needs="gradients",
        budget=Budget(queries=1 + gradients + bisections, gradients=gradients),
    )
    return with_parts(base, search=search, objective=objective)


@method(
    "sinvad-surprise",
    paper=PAPER,
    cite=CITE,
    differences="one density per class, whitened once; an image stops when it has arrived",
    generator="vae",
    toy={"passes": 2},
    presets={
        "paper": Preset(
            summary="the published text literally: hill climbing whose every step is N(0, 1)",
            options={"goal": 111.0, "step_size": 1.0, "adapt": "never"},
            differences=(
                "the goal and the number of passes, which the text does not state, are the "
                "code's; an image stops when it has arrived"
            ),
            facts={"toy": {"passes": 2, "goal": 10.0, "tolerance": 4.0}},
        ),
        "code": Preset(
            summary=(
                "hill climbing to surprise 111 by one density over all training traces, "
                "first step size 5"
            ),
            options={"goal": 111.0, "step_size": 5.0, "per_class": False},
            differences="the 100 most varying units; an image stops when it has arrived",
            facts={"toy": {"passes": 2, "goal": 10.0, "tolerance": 4.0, "step_size": 2.0}},
        ),
    },
    explained_by=(HillClimbing,),
)
def sinvad_surprise(
    space: Space,
    subject: Model,
    profile: Profiles,
    *,
    goal: float | None = None,
    tolerance: float = 0.5,
    start: Literal["seed", "prior"] = "seed",
    passes: int = 3,
    step_size: float = 1.0,
    adapt: Literal["accepted", "never"] = "accepted",
    per_class: bool = True,
) -> Method:
    """Hill climbing in a VAE's latent space to a given surprise, or beyond all training images'.

    Likelihood-based surprise of what enters the last layer, with a density per class over up to
    5,000 training traces, whitened once; all seeds climb in the same batch. Without `per_class` a
    single density covers all training traces of the 100 most varying units. The source is that of
    `sinvad`.

    Differences from the reference: classes have separate densities; a seed stops when it has
    arrived. The step size adapts (`adapt`) as in the authors' code; the text's is always 1
    (``@paper``). The preset ``@code`` has a single density, as the code, whose first step size is 5
    (2 in pixels) and which takes the first 100 units of deviation 0.6 or more.

    Args:
        goal: Surprise to reach; by default the largest of the training images.
        tolerance: How near to the goal counts as reached.
        per_class: A density per predicted class, or a single density.
    """
    surprise, layer = likelihood(subject, profile, per_class=per_class)
    objective = Surprise(surprise, layer, goal)
    least = -tolerance
    if goal is None:
        least = float(surprise.training().max())
    return Method(
        space=space,
        search=HillClimbing(passes=passes, step_size=step_size, start=start, adapt=adapt),
        objective=objective,
        oracle=Surprising(objective, least),
        needs="activations",
        budget=Budget(queries=5000),
        taps={layer: trace},
    )


@method(
    "sinvad-between",
    paper=PAPER,
    cite=CITE,
    differences="walks to the model's boundary with near classes instead of breeding",
    generator="vae",
    peers="quantised",
    explained_by=(BoundaryWalks,),
)
def sinvad_between(
    space: Space,
    partners: Partners | None = None,
    *,
    classes: int = 4,
    walks: int = 20,
    halvings: int = 9,
) -> Method:
    """Nearest latent code whose image the model misclassifies and all comparison models get right.

    Walks to the model's boundary with the `classes` nearest classes, each along other
    coordinates, and keeps the nearest candidate at which the peers still see the label: it lies
    between the networks' boundaries.

    Args:
        classes: How many of the nearest other classes are tried.
    """
    reach = 1.5
    if partners is None:
        reach = 4.0
    return Method(
        space=space,
        search=BoundaryWalks(
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
        needs="label",
        budget=Budget(queries=1 + walks * (1 + halvings)),
    )


@method(
    "sinvad-between@code",
    paper=PAPER,
    cite=CITE,
    differences=GENETIC,
    generator="vae",
    peers="quantised",
    toy={"spread": 1.5, "generations": 20},
    explained_by=(Genetic,),
)
def sinvad_between_code(
    space: Space,
    *,
    population: int = 50,
    elite: int = 20,
    spread: float = 1.2,
    generations: int = 5000,
) -> Method:
    """Genetic search for images that the first network misclassifies and the second classifies
    correctly.

    As in the authors' code: first population of deviation 1.2, reset mask 0.2, mutation halved when
    the best gains no more than 0.001. The journal paper does not have this search. Differences as
    for `sinvad@code`.
    """
    return Method(
        space=space,
        search=Genetic(
            population=population,
            elite=elite,
            spread=spread,
            reset=0.2,
            decay=0.5,
            tolerance=1e-3,
            generations=generations,
        ),
        objective=NearestSplit(),
        oracle=Splits(),
        until="budget",
        needs="scores",
        budget=Budget(queries=1 + population + generations * (population - elite)),
    )
