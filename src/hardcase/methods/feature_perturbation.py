"""Feature perturbation: change what a conditional generator paints by perturbing its activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

from hardcase.objectives import Margin, TargetMargin
from hardcase.oracles import Confident
from hardcase.searches.gradient import AdamAscent
from hardcase.spaces.activations import Activations, early_places
from hardcase.types import Budget, Method


def feature_perturbation(
    *,
    space: Activations,
    stride: float = 0.005,
    confidence: float = 0.0,
    radius: float = 10.0,
    gradients: int = 300,
    retreat: int = 5,
    places: Sequence[int] | None = None,
    checkpoint: bool = False,
    target: int | None = None,
) -> Method:
    """Adam on perturbations of the generator's early activations until the subject fails, or fails by a margin.

    Isaac Dunn, Hadrien Pouget, Tom Melham, Daniel Kroening. Exposing Previously Undetectable Faults in Deep Neural Networks.
    ISSTA 2021. https://arxiv.org/abs/2106.00576

    The loss is the paper's confident targeted one (best other output minus the target's, plus `confidence`), or without a
    `target` its untargeted counterpart, on logits. Differences: the paper states neither optimiser, step size nor cap; here
    Adam with small steps, perturbations in units of each stage's own spread, the norm bound of the space really enforced
    (`radius`), and `retreat` halvings of the way back to the seed after the first failure. Seeds are fresh samples of the
    generator that the subject gets right. `places` are the generator's places that are perturbed (0: its latent code).
    With `checkpoint` the generator's features are computed again for each gradient instead of being held in memory.
    """
    space = replace(space, sparing=checkpoint)
    return _method(
        "feature-perturbation",
        space,
        stride,
        confidence,
        radius,
        gradients,
        retreat,
        places,
        target,
    )


def feature_perturbation_paper(
    *,
    space: Activations,
    stride: float = 0.01,
    confidence: float = 0.0,
    gradients: int = 200,
    places: Sequence[int] | None = None,
    checkpoint: bool = False,
    target: int | None = None,
) -> Method:
    """`feature_perturbation` as published: the norm is recorded and never bounded, and a seed ends at its first failure."""
    space = replace(space, sparing=checkpoint)
    return _method(
        "feature-perturbation@paper",
        space,
        stride,
        confidence,
        math.inf,
        gradients,
        0,
        places,
        target,
    )


def _method(
    name: str,
    space: Activations,
    stride: float,
    confidence: float,
    radius: float,
    gradients: int,
    retreat: int,
    places: Sequence[int] | None,
    target: int | None,
) -> Method:
    chosen = (
        space.places
        if places is None
        else early_places(space.generator, places, classes=space.classes)
    )
    return Method(
        name=name,
        space=replace(space, places=chosen, radius=radius),
        search=AdamAscent(stride=stride, retreat=retreat),
        objective=Margin() if target is None else TargetMargin(target),
        oracle=Confident(confidence=confidence, target=target),
        needs="gradients",
        until="budget" if retreat else "first",
        budget=Budget(gradients=gradients),
        details={"places": [{**asdict(place), "width": place.width} for place in chosen]},
    )
