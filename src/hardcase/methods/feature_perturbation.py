"""Feature perturbation: change what a conditional generator paints by perturbing its activations."""

from __future__ import annotations

import math
from dataclasses import replace

from hardcase.objectives import Margin, TargetMargin
from hardcase.oracles import Confident
from hardcase.searches.adam import AdamAscent
from hardcase.spaces.activations import Activations
from hardcase.types import Budget, Method


def feature_perturbation(
    *,
    space: Activations,
    stride: float = 0.01,
    confidence: float = 0.0,
    radius: float = math.inf,
    gradients: int = 200,
    target: int | None = None,
) -> Method:
    """Adam on perturbations of the generator's early activations until the subject fails, or fails by a margin.

    Isaac Dunn, Hadrien Pouget, Tom Melham, Daniel Kroening. Exposing Previously Undetectable Faults in Deep Neural Networks.
    ISSTA 2021. https://arxiv.org/abs/2106.00576

    The loss is the paper's confident targeted one (best other output minus the target's, plus `confidence`), or without a
    `target` its untargeted counterpart, on logits. Differences: the paper states neither optimiser, step size nor cap; here
    Adam with small steps, perturbations in units of each stage's own spread, and the norm bound of the space really
    enforced (`radius`). Seeds are fresh samples of the generator that the subject gets right.
    """
    return Method(
        name="feature-perturbation",
        space=replace(space, radius=radius),
        search=AdamAscent(stride=stride),
        objective=Margin() if target is None else TargetMargin(target),
        oracle=Confident(confidence=confidence, target=target),
        needs="gradients",
        budget=Budget(gradients=gradients),
    )
