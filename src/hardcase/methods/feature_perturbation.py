"""Feature perturbation: change what a conditional generator paints by perturbing its activations."""

from __future__ import annotations

from hardcase.objectives import Margin, TargetMargin
from hardcase.oracles import Confident
from hardcase.searches.adam import AdamAscent
from hardcase.types import Budget, Method, Space


def feature_perturbation(
    *, space: Space, stride: float = 0.01, confidence: float = 0.0, gradients: int = 200, target: int | None = None
) -> Method:
    """Adam on perturbations of the generator's early activations until the subject fails, or fails by a margin.

    Isaac Dunn, Hadrien Pouget, Daniel Kroening, Tom Melham. Exposing Previously Undetectable Faults in Deep Neural Networks.
    ISSTA 2021. https://arxiv.org/abs/2106.00576

    The loss is the paper's confident targeted one (best other output minus the target's, plus `confidence`), or without a
    `target` its untargeted counterpart, on logits. Differences: the paper states neither optimiser, step size nor cap; here
    Adam with small steps, perturbations in units of each stage's own spread, and the norm bound of the space really
    enforced. Seeds are fresh samples of the generator that the subject gets right.
    """
    return Method(
        name="feature-perturbation",
        space=space,
        search=AdamAscent(stride=stride),
        objective=Margin() if target is None else TargetMargin(target),
        oracle=Confident(confidence=confidence, target=target),
        needs="gradients",
        budget=Budget(gradients=gradients),
    )
