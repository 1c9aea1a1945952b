"""Recipes that move inside a generator: ARGUS, which mixes a seed's VQ-VAE code with codes of other
classes, and two baselines of ours, after Latte in the same code, after Mimicry in the later stages
of a conditional GAN; feature perturbation, which changes the activations of such a GAN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from hardcase.errors import HardcaseError
from hardcase.methods.parts import method
from hardcase.objectives import ConfidenceFalls, Margin, targeted_objective
from hardcase.oracles import Confident, LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.boundary import Partners
from hardcase.searches.gradient import AdamAscent
from hardcase.searches.interpolation import AnchoredSteps, Bisection, GrowingMix, Interpolation
from hardcase.spaces.activations import (
    Activations,
    Styles,
    conditioned_stages,
    early_places,
)
from hardcase.types import Budget, Method, Objective, Search, Space

PAPER = "Duan, Dwyer and Yang, 2025"


@method(
    "argus",
    paper=PAPER,
    cite="duan2025argus",
    differences="codebook updated by exponential moving averages (the paper trains it by gradient) "
    "and no discriminators by default; images whose reconstruction fails are set aside",
    generator="vqvae",
    toy={"mix": 0.7},
    presets={
        "paper": Preset(
            summary="ARGUS with its generator as published: codebook trained by gradient, then "
            "jointly with two discriminators",
            options={"mix": 0.2},
            differences="network sizes and the weights of the adversarial losses, which the paper "
            "does not state, are ours; images whose reconstruction fails are set aside",
            facts={"generator": "vqvae:gradient", "joint": True},
        )
    },
    explained_by=(Interpolation,),
)
def argus(space: Space, partners: Partners, *, mix: float = 0.3, queries: int = 30_000) -> Method:
    """Every image interpolated once with every training image of another class in a VQ-VAE's code.

    Algorithm 1: the interpolated codes are quantised and decoded; λ is `mix`.

    Bin Duan, Matthew B. Dwyer, Guowei Yang. Generating Realistic, Diverse, and Fault-Revealing
    Inputs with Latent Space Interpolation for Testing Deep Neural Networks. 2025.

    Differences from the paper: the paper's generator is ``vqvae:gradient`` trained jointly at the
    same λ, which ``@paper`` uses: 50 epochs, the rate cut every 20, codebook losses .25 and .75,
    then with a latent and an image discriminator, partners being of another class. The weights of
    the two adversarial losses are not stated; ours are 0.01 (``hardcase train vqvae
    --latent-weight`` trains others, which ``--generator vqvae:FOLDER`` then uses). Seeds whose
    reconstruction already fails would count as errors of the mixture.
    """
    if not 0 < mix <= 1:
        raise HardcaseError(f"mix is {mix}; a share of the partner lies above 0 and at most at 1.")
    return _mixture(space, Interpolation(partners=partners, mix=mix), queries, mix=mix)


@method(
    "argus-adaptive",
    paper="ours, after ARGUS",
    cite="duan2025argus",
    differences="bisection of the interpolation weight replaces ARGUS's fixed one; code positions "
    "that are not needed return to the original's code",
    generator="vqvae",
    explained_by=(Bisection,),
)
def argus_adaptive(
    space: Space,
    partners: Partners,
    *,
    rounds: int = 3,
    halvings: int = 7,
    blocks: tuple[int, ...] = (8, 1),
) -> Method:
    """Smallest interpolation weight, over the fewest code positions, that reaches each other class.

    Our variant of ARGUS, for near partners of every other class. Same generator, same black box;
    bisection replaces the fixed λ, so that each wrong label is reached with as little of the
    partner as possible. Then places of the code grid return to the seed's code, in blocks of
    the sizes `blocks`, wherever the wrong label stays; ``blocks=()`` leaves that out.
    """
    if rounds < 1 or halvings < 0 or any(size < 1 for size in blocks):
        raise HardcaseError(
            f"rounds is {rounds}, halvings {halvings}, blocks {blocks}; "
            "one round and blocks of 1 are the least."
        )
    walk = Bisection(partners=partners, rounds=rounds, halvings=halvings, blocks=blocks)
    most = walk.questions(partners.take(partners.label.new_zeros(1)).shape[1:])
    return _mixture(space, walk, (len(partners.by_class) - 1) * most)


@method(
    "latte",
    paper="ours, after Duan, Dwyer and Yang, 2026 (Latte)",
    cite="duan2026latte",
    differences="built from the abstract alone: how many anchors and how long a step, and our "
    "VQ-VAE, are ours; images whose reconstruction fails are set aside",
    generator="vqvae",
    toy={"anchors": 20, "step_sizes": (0.5, 0.8)},
    explained_by=(AnchoredSteps,),
)
def latte(
    space: Space,
    partners: Partners,
    *,
    anchors: int = 100,
    step_sizes: tuple[float, ...] = (0.2, 0.4, 0.6),
) -> Method:
    """A step in a VQ-VAE's code toward each of `partners` random training images of other classes.

    A baseline of ours, after Bin Duan, Matthew B. Dwyer, Guowei Yang. Latent Anchor-Driven Test
    Generation for Deep Neural Networks. 2026. https://arxiv.org/abs/2606.04310

    The seed's code z moves once, to z + t (anchor - z), and is then quantised and decoded: no step
    builds on another. Differences: of the paper only the abstract was at hand, which states neither
    the number of anchors nor the step sizes t. ARGUS, by the same authors, visits every partner at
    a fixed t instead.

    Args:
        space: Where candidates live, e.g. ``hc.spaces.Grid(vqvae)``.
    """
    if anchors < 1 or not step_sizes or not all(0 < t <= 1 for t in step_sizes):
        raise HardcaseError(
            f"anchors is {anchors}, step_sizes {step_sizes}; there is at least one anchor, and"
            " steps lie above 0 and at most at 1."
        )
    return _mixture(
        space,
        AnchoredSteps(partners=partners, anchors=anchors, step_sizes=step_sizes),
        anchors * len(step_sizes),
    )


@method(
    "style-mixing",
    paper="ours, after Weißl et al., 2024 (Mimicry)",
    cite="weissl2024mimicry",
    differences="a class-conditional GAN instead of a StyleGAN, so that styles are the class's "
    "scales and shifts; every other class is tried, whatever its probability",
    generator="gan",
    seeds="generator",
    toy={"untouched": 0},
    explained_by=(GrowingMix,),
)
def style_mixing(
    space: Activations, *, untouched: int = 1, steps: int = 4, halvings: int = 3
) -> Method:
    """Samples of a conditional GAN whose later stages turn, step by step, to another class.

    A baseline of ours, after Oliver Weißl et al. Targeted Deep Learning System Boundary Testing.
    2024. https://arxiv.org/abs/2408.06258 (first version: Deep Learning System Boundary Testing
    through Latent Space Style Mixing)

    The seed's latent code and class stay in the early stages. For every other class the mix grows
    from the last stage on until the label flips; bisection then finds the smallest such mix.
    Differences: Mimicry mixes styles of a StyleGAN, which carry a second latent code too, switches
    entire layers, and tries the classes with a positive probability.

    Args:
        space: Activations of a conditional generator.
        untouched: Conditioned stages, counted from the first, that keep the original's class.
    """
    stages = conditioned_stages(space.generator, space.classes)
    if not 0 <= untouched < len(stages) or steps < 1 or halvings < 0:
        raise HardcaseError(
            f"untouched is {untouched}, steps {steps}, halvings {halvings}; the generator has"
            f" {len(stages)} stages that are told the class, and one of them is mixed at least."
        )
    mixed = stages[untouched:]
    per_class = len(mixed) * steps + halvings
    return _mixture(
        Styles(space.generator, mixed, classes=space.classes),
        GrowingMix(steps=steps, halvings=halvings),
        (space.classes - 1) * per_class,
        stages=list(mixed),
    )


def _mixture(space: Space, search: Search, queries: int, **details: Any) -> Method:
    """A walk to other classes, of which the best failure of each class is stored."""
    return Method(
        space=space,
        search=search,
        objective=Margin(),
        oracle=LeavesLabel(),
        until="budget",
        needs="label",
        keep="best-per-label",
        budget=Budget(queries=1 + queries),
        details=details,
    )


@method(
    "feature-perturbation",
    paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
    cite="dunn2021features",
    differences="small Adam steps in units of each stage's spread, the norm bound enforced, and a "
    "bisection back to the original; the paper states neither optimiser nor step and only records "
    "the norm",
    generator="gan",
    seeds="generator",
    toy={"step_size": 0.05},
    presets={
        "paper": Preset(
            summary="the published text literally: confidence in the top class falls, the norm is "
            "only recorded, an image stops at its first failure",
            options={
                "step_size": 0.01,
                "radius": math.inf,
                "gradients": 200,
                "bisections": 0,
                "loss": "top confidence",
            },
            differences="optimiser, step, cap and units of the perturbation, which the paper does "
            "not state, are ours; its code is not published, so there is no @code",
        )
    },
)
def feature_perturbation(
    space: Activations,
    target: int | None = None,
    *,
    step_size: float = 0.005,
    confidence: float = 0.0,
    radius: float = 10.0,
    gradients: int = 300,
    bisections: int = 5,
    places: Sequence[int] | None = None,
    loss: Literal["margin", "top confidence"] = "margin",
) -> Method:
    """Images sampled from a conditional GAN, changed by perturbing its early activations.

    Adam moves the perturbation until the model fails, or fails by a margin of `confidence`.

    Isaac Dunn, Hadrien Pouget, Tom Melham, Daniel Kroening. Exposing Previously Undetectable Faults
    in Deep Neural Networks. ISSTA 2021. https://arxiv.org/abs/2106.00576

    The loss is the paper's confident targeted one (best other output minus the target's, plus
    `confidence`), or without a `target` its untargeted counterpart, on logits; `loss` "top
    confidence" is the paper's untargeted loss, max f_y on confidences. The paper states
    neither optimiser, step size nor cap, and only records the norm. Images are fresh samples of the
    generator that the model classifies correctly.

    Args:
        space: Activations of a conditional generator.
        confidence: Logit margin by which the wrong class must lead.
        radius: Largest length of the perturbation, in spreads of its places.
        bisections: Bisection steps back to the original after the first failure.
        places: Numbers of the activations to perturb; by default the early ones.
        loss: What is raised: the logit margin, or minus the top confidence.
    """
    chosen = space.places
    if places is not None:
        chosen = early_places(space.generator, places, classes=space.classes)
    losses: dict[str, Objective] = {"margin": Margin(), "top confidence": ConfidenceFalls()}
    return Method(
        space=replace(space, places=chosen, radius=radius),
        search=AdamAscent(step_size=step_size, bisections=bisections),
        objective=targeted_objective(target, losses[loss]),
        oracle=Confident(confidence=confidence, target=target),
        needs="gradients",
        until="budget" if bisections else "first",
        budget=Budget(gradients=gradients),
        details={"places": [{**asdict(place), "width": place.width} for place in chosen]},
    )
