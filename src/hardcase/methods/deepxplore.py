"""DeepXplore, gradient ascent to inputs on which models disagree and idle neurons are active, and
MaXplore, which pushes units beyond their training range, alone or a filter's together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from hardcase.errors import HardcaseError
from hardcase.guides.units import Deviating, FailingOnly, StrongestUnits
from hardcase.methods.dlfuzz import ADAPT_PAPER, AS_CODED, TOY, adapt
from hardcase.methods.neurons import Profiles, Reader, first_convolutions, groups_of, push
from hardcase.methods.parts import method, pixel_walk
from hardcase.objectives import Differential, Pushed, Sum
from hardcase.oracles import failure_oracle
from hardcase.registry import Preset
from hardcase.searches.gradient import (
    GradientAscent,
    MultiStartAscent,
    Shape,
    Square,
    free,
    raw,
    rms,
)
from hardcase.spaces.pixel import Blackout, Brightness, Occlusion, Pixels, Unclipped
from hardcase.types import Budget, Guide, Method, Model, Objective, Space

Constraint = Literal["none", "light", "occlusion", "blackout"]
Deviates = Literal["subject", "random"]
PAPER = "Pei, Cao, Yang and Jana, SOSP 2017"
_ALONE = (
    "deepxplore runs its one-model variant, as --peer is absent: "
    "the original's label falls and idle units rise."
)


@method(
    "deepxplore@paper",
    paper=PAPER,
    cite="pei2017deepxplore",
    differences="from @code: a random model deviates, a new idle neuron each step, several black "
    "squares at once; from the paper: networks see clipped 8-bit images, each is visited once "
    "and together",
    peers="wanted",
)
def deepxplore_published(
    subject: Model,
    profile: Profiles,
    peers: tuple[Model, ...] = (),
    *,
    constraint: Constraint = "light",
    size: int = 0,
    count: int = 8,
    threshold: float = 0.0,
    differ: float = 1.0,
    cover: float = 0.1,
    step_size: float = 10.0,
    gradients: int = 50,
    probabilities: bool = False,
    renew: int = 1,
    deviating: Deviates = "random",
) -> Method:
    """DeepXplore's Algorithm 1: a random model deviates, each step pushes a new idle neuron.

    Paper and code share the coverage of failures only, the raw channel means that are pushed, and
    the unclipped walk. They disagree in three places, which are options: the `deviating` model (the
    code's is always the first), every how many steps another neuron is drawn (`renew`; the code's 0
    means the same neuron per walk), and the black squares, `count` of which stay in place (the
    code's 0 means a square that is drawn anew each step and dropped where the mean gradient inside
    it is not negative). A `size` of 0 takes the published ones for digits or for photographs.

    Images are visited together, so coverage is shared when a round ends (``campaign.shard=1``,
    ``campaign.round=1`` visits each alone).

    Args:
        peers: Networks that should agree with the model.
        constraint: What may change: ``light``, ``occlusion``, ``blackout`` or ``none`` (any pixel).
        size: Side of a square in pixels; 0: as published.
        count: Black squares that stay in place; 0: a single square, drawn anew each step.
        differ: Weight of the deviating model.
        cover: Weight of the neuron that is pushed.
        renew: Steps after which another neuron is drawn; 0: the same neuron for the walk.
        deviating: Which model deviates: ``random`` or ``subject``.
    """
    large, small = (size or 10, size or 6)
    if profile.image.shape[2] > 64:
        large, small = (size or 50, size or 10)
    spaces: dict[str, Space] = {
        "none": Unclipped(),
        "light": Brightness(),
        "occlusion": Occlusion((large, large), (0, 0), clip=False),
        "blackout": Blackout(small, count),
    }
    shape: Shape = free
    if constraint == "blackout" and not count:
        spaces["blackout"] = Unclipped()
        shape = Square(small)
    criteria = profile.criteria(
        f"nc:threshold={threshold}", subject, peers, convention="deepxplore"
    )
    pull = [
        (cover, Pushed(Reader(criterion.rule.selection), criterion.name)) for criterion in criteria
    ]
    oracle = failure_oracle(peers=peers)
    learning = [FailingOnly(criterion, oracle) for criterion in criteria]
    return _method(
        peers,
        deviating,
        space=spaces[constraint],
        search=GradientAscent(
            step_size=step_size, direction=rms, renew=renew, shape=shape, unchanged=False
        ),
        objective=Sum(((1.0, Differential(differ, probabilities)), *pull)),
        guides=learning,
        budget=Budget(gradients=gradients),
    )


@method(
    "deepxplore",
    paper=PAPER,
    cite="pei2017deepxplore",
    differences="from @paper and @code: clipped candidates, steps of 0.02 instead of 10, logits, "
    "any criterion with its own gradient, a new target every ten steps, the model deviates, "
    "constraints as spaces, coverage learns from every query",
    peers="wanted",
    toy={"gradients": 60, "step_size": 0.05},
    presets={
        "code": Preset(
            summary="DeepXplore's code: the model deviates, one idle neuron per walk, a random "
            "square each step for blackout",
            make=deepxplore_published,
            options={"constraint": "occlusion", "count": 0, "renew": 0, "deviating": "subject"},
            differences="from @paper: the model deviates, one idle neuron per walk, one random "
            "square per step, occlusion at the top left; from the code: networks see clipped 8-bit "
            "images, only correctly classified originals, each once",
            facts={"toy": {"size": 6}},
        ),
        "adapt": Preset(
            summary="DeepXplore as ADAPT ships it: random uncovered neurons of one model, ADAPT's "
            "loop and loss",
            make=adapt,
            options={**AS_CODED, "strategies": ("uncovered",)},
            paper=ADAPT_PAPER,
            cite="lee2020adapt",
            differences="from deepxplore: one model, ten random uncovered neurons, ADAPT's loop, "
            "probabilities and raw gradients; from ADAPT's code: as for adapt@paper",
            facts={"peers": "none", "toy": TOY},
        ),
    },
    explained_by=(GradientAscent,),
)
def deepxplore(
    subject: Model,
    profile: Profiles,
    peers: tuple[Model, ...] = (),
    *,
    criterion: str = "nc",
    constraint: Constraint = "none",
    size: int = 10,
    count: int = 8,
    differ: float = 1.0,
    cover: float = 0.1,
    step_size: float = 0.02,
    gradients: int = 50,
    renew: int = 10,
    deviating: Deviates = "subject",
) -> Method:
    """Models that should agree driven apart while uncovered units are pushed, under any criterion.

    The seed's label rises in all models but the deviating model, where it falls (`differ`); what is
    uncovered is pushed with weight `cover`.

    Kexin Pei, Yinzhi Cao, Junfeng Yang, Suman Jana. DeepXplore: Automated Whitebox Testing of Deep
    Learning Systems. SOSP 2017. https://arxiv.org/abs/1705.06640

    Differences from the reference: the code takes probabilities for ImageNet; `constraint` is a
    space, so occlusion and squares have fixed places per image; an image on which the models differ
    from the start is a failure at distance 0 (the code counts its coverage only).
    ``criterion="none"`` leaves the coverage term out, ``"random"`` pushes any unit.

    Args:
        criterion: Coverage criterion that guides the search, as ``--criterion`` names it.
        constraint: Which changes are allowed: ``none``, ``light``, ``occlusion`` or ``blackout``.
        size: Side of the squares of a constraint, in pixels.
        count: Number of black squares.
        differ: Weight of the deviating network's fall.
        deviating: Which network is to deviate: ``subject`` or ``random``.
    """
    pushed = push(profile, criterion, subject, peers)
    spaces: dict[str, Space] = {
        "none": Pixels(),
        "light": Brightness(),
        "occlusion": Occlusion((size, size)),
        "blackout": Blackout(size, count),
    }
    return _method(
        peers,
        deviating,
        space=spaces[constraint],
        search=GradientAscent(step_size=step_size, direction=rms, renew=renew),
        objective=Sum(((1.0, Differential(differ)), *((cover, score) for score in pushed.scores))),
        guides=pushed.guides,
        budget=Budget(gradients=gradients),
    )


def _method(
    peers: tuple[Model, ...],
    deviating: Deviates,
    *,
    objective: Objective,
    guides: Sequence[Guide],
    **parts: Any,
) -> Method:
    details = dict[str, Any]()
    if not peers:
        details = {"says": [_ALONE]}
    first: dict[Deviates, tuple[Guide, ...]] = {
        "subject": (),
        "random": (Deviating(1 + len(peers)),),
    }
    return Method(
        objective=objective,
        oracle=failure_oracle(peers=peers),
        guides=(*first[deviating], *guides),
        needs="gradients",
        details=details,
        **parts,
    )


_WITHOUT_PEERS = (
    "maxplore runs without comparison models, as --peer is absent: "
    "the original's label falls while units rise."
)
STRONGEST = "strongest"
MAXPLORE_CODED: dict[str, Any] = {"cover": 1.0, "step_size": 0.15, "scale": False, "clip": False}
"""MaXplore's report's and code's loop: raw gradients, candidates that are not clipped."""


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
            options={**MAXPLORE_CODED, "per": "layer"},
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
            options={**MAXPLORE_CODED, "per": "filter"},
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

    From each image there is a walk per filter, in which its `k` strongest units rise together.

    Te Wei Lee. MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore. Report,
    Singapore Management University, 2020. Forms: ``one`` (a walk for every unit of the first
    convolution), ``topk``, ``multi`` (with the models' difference).

    Differences from the reference: failing walks stop; `walks` limits how many filters, or units,
    get a walk, evenly spaced. Text and code disagree in `per`: the strongest of a layer, or of each
    of the sixteen filters of LeNet-1's two convolutions. One- and Topk-MaXplore use
    ``step_size=0.05, steps=10``.

    Args:
        form: ``multi``: `k` units together; ``one``: a single unit per walk.
        per: Units are grouped per ``filter`` or per ``layer``.
        k: Strongest units of a group that rise together.
        convolutions: How many convolutional layers, counted from the input.
        walks: Groups that are tried per seed.
        differ: Weight of the main objective.
        scale: Scale gradients by their root mean square.
    """
    if k < 1 or walks < 1:
        raise HardcaseError(
            f"{k} units in each of {walks} walks give nothing to push.", fix="k=6, walks=16"
        )
    together: str = per
    if form == "one":
        convolutions = 1
        together = "unit"
    selection = first_convolutions(profile, subject, convolutions)
    groups = groups_of(selection, together)
    groups = groups[torch.linspace(0, len(groups) - 1, min(walks, len(groups))).round().long()]
    guide = StrongestUnits(STRONGEST, Reader(selection), selection.taps, groups, k)
    scores: tuple[tuple[float, Objective], ...] = ((cover, Pushed(guide.read, STRONGEST)),)
    details = dict[str, Any]()
    if form == "multi":
        scores = ((1.0, Differential(differ)), *scores)
        if not peers:
            details = {"says": [_WITHOUT_PEERS]}
    return Method(
        **pixel_walk(clip=clip),
        search=MultiStartAscent(
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
