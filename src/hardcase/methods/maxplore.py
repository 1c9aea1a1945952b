"""MaXplore: units pushed beyond their training range, alone or a filter's together."""

from __future__ import annotations

from typing import Any, Literal

import torch

from hardcase.errors import Problem
from hardcase.guides.units import StrongestUnits
from hardcase.methods.neurons import Profiles, Reader, first_convolutions, groups_of
from hardcase.methods.parts import failure_oracle, method, pixel_walk
from hardcase.objectives import Differential, Pushed, Sum
from hardcase.registry import Preset
from hardcase.searches.gradient import Fan, raw, rms
from hardcase.types import Budget, Method, Model, Objective

__all__ = ["maxplore"]

OWN = "strongest"
AS_CODED: dict[str, Any] = {"cover": 1.0, "step_size": 0.15, "scale": False, "clip": False}
"""The report's and the code's loop: raw gradients, candidates that are not clipped."""
_ALONE = (
    "maxplore runs without other models, as no --peer was given: "
    "the seed's label falls while units rise."
)


@method(
    "maxplore",
    paper="Te Wei Lee, report, Singapore Management University, 2020",
    cite="lee2020maxplore",
    differences=(
        "from @paper and @code: clipped candidates, scaled instead of raw gradients, steps "
        "of 0.03, units weigh 0.1 instead of 1; groups by filter, as the code"
    ),
    peers="wanted",
    presets={
        "paper": Preset(
            summary="MaXplore's text: the six strongest neurons of a layer rise together",
            options={**AS_CODED, "per": "layer"},
            differences=(
                "from @code: the strongest of a layer, not of each filter; from the report: "
                "networks see clipped 8-bit images"
            ),
            facts={"toy": {"step_size": 0.3}},
        ),
        "code": Preset(
            summary=(
                "MaXplore's code: the six strongest positions of each of sixteen filters rise "
                "together"
            ),
            options={**AS_CODED, "per": "filter"},
            differences=(
                "from @paper: the strongest of each filter, not of a layer; from the code: "
                "networks see clipped 8-bit images"
            ),
            facts={"toy": {"step_size": 0.3}},
        ),
    },
)
def maxplore(
    subject: Model,
    profile: Profiles,
    peers: tuple[Model, ...] = (),
    *,
    form: Literal["one", "topk", "multi"] = "multi",
    per: Literal["filter", "layer"] = "filter",
    k: int = 6,
    convolutions: int = 2,
    walks: int = 16,
    differ: float = 1.5,
    cover: float = 0.1,
    step_size: float = 0.03,
    steps: int = 25,
    scale: bool = True,
    clip: bool = True,
) -> Method:
    """Each filter's strongest units pushed beyond their training range, models driven apart.

    From each seed there is one walk per filter, in which its `k` strongest units rise together.

    Te Wei Lee. MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore. Report,
    Singapore Management University, 2020. Forms: ``one`` (a walk for every unit of the first
    convolution), ``topk``, ``multi`` (with the models' difference).

    Differences from the reference: failing walks stop; `walks` limits how many filters, or units,
    get a walk, evenly spaced. Text and code disagree in `per`: the strongest of a layer, or of each
    of the sixteen filters of LeNet-1's two convolutions. One- and Topk-MaXplore use
    ``step_size=0.05, steps=10``.

    Args:
        form: ``multi``: several units together; ``one``: one unit per walk.
        per: Units are grouped per ``filter`` or per ``layer``.
        k: Strongest units of a group that rise together.
        convolutions: How many convolutional layers, counted from the input.
        walks: Groups that are tried per seed.
        differ: Weight of the main objective.
        scale: Scale gradients by their root mean square.
    """
    if k < 1 or walks < 1:
        raise Problem(
            f"{k} units in each of {walks} walks give nothing to push.", fix="k=6, walks=16"
        )
    together: str = per
    if form == "one":
        convolutions = 1
        together = "unit"
    selection = first_convolutions(profile, subject, convolutions)
    groups = groups_of(selection, together)
    groups = groups[torch.linspace(0, len(groups) - 1, min(walks, len(groups))).round().long()]
    guide = StrongestUnits(OWN, Reader(selection), selection.taps, groups, k)
    scores: tuple[tuple[float, Objective], ...] = ((cover, Pushed(guide.read, OWN)),)
    details = dict[str, Any]()
    if form == "multi":
        scores = ((1.0, Differential(differ)), *scores)
        if not peers:
            details = {"says": [_ALONE]}
    return Method(
        **pixel_walk(clip=clip),
        search=Fan(
            walks=guide.walks,
            step_size=step_size,
            steps=steps,
            direction=rms if scale else raw,
            stop=form == "multi",
        ),
        objective=Sum(scores),
        oracle=failure_oracle(peers=peers),
        guides=(guide,),
        until="budget",
        needs="gradients",
        budget=Budget(queries=1 + guide.walks * (steps + 1), gradients=guide.walks * steps),
        details=details,
    )
