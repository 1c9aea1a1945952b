"""MaXplore: push units beyond anything training data made them say, one by one or the strongest of a filter together."""

from __future__ import annotations

import torch

from hardcase.errors import Problem, choice
from hardcase.guides.units import Strongest
from hardcase.methods.neurons import Profiles, Reader, first_convolutions, groups_of
from hardcase.objectives import Differential, Pushed, Sum
from hardcase.oracles import Disagree, LeavesLabel
from hardcase.searches.gradient import Fan, raw, rms
from hardcase.spaces.pixel import Pixels, Unclipped
from hardcase.types import Budget, Method, Model

OWN = "strongest"
FORMS, PER = ("one", "topk", "multi"), ("filter", "layer")
_ALONE = "maxplore runs without other models, as no --peer was given: the seed's label falls while units rise."


def maxplore(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    form: str = "multi",
    per: str = "filter",
    k: int = 6,
    convolutions: int = 2,
    walks: int = 16,
    differ: float = 1.5,
    cover: float = 0.1,
    stride: float = 0.03,
    steps: int = 25,
) -> Method:
    """From each seed a walk for every filter: its `k` strongest units on the seed rise together while models are driven apart.

    Te Wei Lee. MaXplore: Deep Learning Testing Inputs Generation Based on DeepXplore. Report, Singapore Management University,
    2020. Forms: ``one`` (a walk for every unit of the first convolution), ``topk``, ``multi`` (with the models' difference).

    Differences from the reference: pictures stay in [0, 1] and 8 bits, gradients are scaled and steps are in [0, 1] units, so
    the weight of the units (`cover`) is smaller; failing walks stop; `walks` limits how many filters, or units, get a walk, evenly
    spaced.
    Layer-SNAC is the criterion ``layer-snac:mode=unit``, measured beside any method.
    """
    return _method(
        "maxplore", subject, peers, profile, form=form, per=per, k=k, convolutions=convolutions, walks=walks, differ=differ,
        cover=cover, stride=stride, steps=steps, clipped=True,
    )  # fmt: skip


def maxplore_paper(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    form: str = "multi",
    per: str = "layer",
    k: int = 6,
    walks: int = 16,
    stride: float = 0.15,
    steps: int = 25,
) -> Method:
    """As the report's text: the k strongest neurons of a layer. One- and Topk-MaXplore use ``stride=0.05, steps=10``.

    Differences: networks see clipped 8-bit pictures only (the walk itself is not clipped).
    """
    return _method(
        "maxplore@paper", subject, peers, profile, form=form, per=per, k=k, convolutions=2, walks=walks, differ=1.5,
        cover=1.0, stride=stride, steps=steps, clipped=False,
    )  # fmt: skip


def maxplore_code(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    form: str = "multi",
    k: int = 6,
    walks: int = 16,
    stride: float = 0.15,
    steps: int = 25,
) -> Method:
    """As the author's code: the k strongest positions of each of the sixteen filters of LeNet-1's two convolutions.

    Differences: networks see clipped 8-bit pictures only (the walk itself is not clipped).
    """
    return _method(
        "maxplore@code", subject, peers, profile, form=form, per="filter", k=k, convolutions=2, walks=walks, differ=1.5,
        cover=1.0, stride=stride, steps=steps, clipped=False,
    )  # fmt: skip


def _method(
    name: str,
    subject: Model,
    peers: tuple[Model, ...],
    profile: Profiles,
    *,
    form: str,
    per: str,
    k: int,
    convolutions: int,
    walks: int,
    differ: float,
    cover: float,
    stride: float,
    steps: int,
    clipped: bool,
) -> Method:
    guide = _guide(subject, profile, form, per, k, 1 if form == "one" else convolutions, walks)
    push = (cover, Pushed(guide.read, OWN))
    apart = (1.0, Differential(differ))
    method = Method(
        name=name,
        space=Pixels() if clipped else Unclipped(),
        search=Fan(
            walks=guide.walks,
            stride=stride,
            steps=steps,
            direction=rms if clipped else raw,
            stop=form == "multi",
        ),
        objective=Sum((apart, push) if form == "multi" else (push,)),
        oracle=Disagree() if peers else LeavesLabel(),
        guides=(guide,),
        until="budget",
        needs="gradients",
        keep="best-per-label" if clipped else "all",
        budget=Budget(queries=1 + guide.walks * (steps + 1), gradients=guide.walks * steps),
        details={} if peers or form != "multi" else {"says": [_ALONE]},
    )
    return method


def _guide(
    subject: Model, profile: Profiles, form: str, per: str, k: int, convolutions: int, walks: int
) -> Strongest:
    if form not in FORMS:
        raise choice("form of maxplore", form, FORMS)
    if per not in PER:
        raise choice("group of maxplore", per, PER)
    if k < 1 or walks < 1:
        raise Problem(
            f"{k} units in each of {walks} walks give nothing to push.", fix="k=6, walks=16"
        )
    selection = first_convolutions(profile, subject, convolutions)
    groups = groups_of(selection, "unit" if form == "one" else per)
    groups = groups[torch.linspace(0, len(groups) - 1, min(walks, len(groups))).round().long()]
    return Strongest(OWN, Reader(selection), selection.taps, groups, k)
