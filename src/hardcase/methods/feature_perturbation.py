"""Feature perturbation: perturb the activations of a conditional generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Literal

from hardcase.methods.parts import method
from hardcase.objectives import ConfidenceFalls, Margin, targeted_objective
from hardcase.oracles import Confident
from hardcase.registry import Preset
from hardcase.searches.gradient import AdamAscent
from hardcase.spaces.activations import Activations, early_places
from hardcase.types import Budget, Method, Objective


@method(
    "feature-perturbation",
    paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
    cite="dunn2021features",
    differences="small Adam steps in units of each stage's spread, the norm bound enforced, and a "
    "bisection back towards the seed; the paper states neither optimiser nor step and only records "
    "the norm",
    generator="gan",
    seeds="generator",
    toy={"step_size": 0.05},
    presets={
        "paper": Preset(
            summary="the published text literally: confidence in the top class falls, the norm is "
            "only recorded, a seed stops at its first failure",
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
    """Seeds sampled from a conditional GAN, changed by perturbing its early activations.

    Adam moves the perturbation until the subject fails, or fails by a margin of `confidence`.

    Isaac Dunn, Hadrien Pouget, Tom Melham, Daniel Kroening. Exposing Previously Undetectable Faults
    in Deep Neural Networks. ISSTA 2021. https://arxiv.org/abs/2106.00576

    The loss is the paper's confident targeted one (best other output minus the target's, plus
    `confidence`), or without a `target` its untargeted counterpart, on logits; `loss` "top
    confidence" is the paper's own untargeted loss, max f_y on confidences. The paper states
    neither optimiser, step size nor cap, and only records the norm. Seeds are fresh samples of the
    generator that the subject classifies correctly.

    Args:
        space: Activations of a conditional generator.
        confidence: Logit margin by which the wrong class must lead.
        radius: Largest length of the perturbation, in spreads of its places.
        bisections: Bisection steps back to the seed after the first failure.
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
