"""DeepXplore: inputs on which models that should agree do not, found by gradient ascent that also wakes idle neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardcase.criteria.criterion import Measure
from hardcase.errors import choice
from hardcase.guides.units import Deviating, FailingOnly
from hardcase.methods.neurons import Profiles, Reader, push
from hardcase.objectives import Differential, Pushed, Sum
from hardcase.oracles import Disagree, LeavesLabel
from hardcase.searches.gradient import GradientAscent, Shape, Square, free, rms
from hardcase.spaces.pixel import Blackout, Light, Occlusion, Pixels, Unclipped
from hardcase.types import Budget, Guide, Method, Model, Objective, Space

CONSTRAINTS = ("none", "light", "occlusion", "blackout")
_ALONE = "deepxplore runs its one-model form, as no --peer was given: the seed's label falls and idle units rise."


def deepxplore(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    criterion: str = "nc",
    constraint: str = "none",
    size: int = 10,
    count: int = 8,
    differ: float = 1.0,
    cover: float = 0.1,
    stride: float = 0.02,
    gradients: int = 50,
    renew: int = 10,
    deviating: str = "subject",
) -> Method:
    """Raise the seed's label in all models but one, lower it there (`differ`), and push what is uncovered (`cover`).

    Kexin Pei, Yinzhi Cao, Junfeng Yang, Suman Jana. DeepXplore: Automated Whitebox Testing of Deep Learning Systems. SOSP
    2017. https://arxiv.org/abs/1705.06640

    Differences from the reference: pictures stay in [0, 1] and 8 bits, the step is given in those units, logits everywhere
    (the code takes probabilities for ImageNet); any criterion with its own gradient takes the place of neuron coverage; all
    seeds are searched at once, so coverage learns from every look, and each walk gets a new target every `renew` steps; the
    subject deviates (paper: a random model); `constraint` is a space, so occlusion and squares have fixed places for each
    seed. ``criterion="none"`` leaves the coverage term out, ``"random"`` pushes any unit. A seed on which the models differ from the start is a finding at distance 0 (the code counts its coverage only).
    """
    pushed = push(profile, criterion, subject, peers)
    spaces: dict[str, Space] = {
        "none": Pixels(),
        "light": Light(),
        "occlusion": Occlusion((size, size)),
        "blackout": Blackout(size, count),
    }
    if constraint not in spaces:
        raise choice("constraint", constraint, CONSTRAINTS)
    return _method(
        "deepxplore",
        peers,
        space=spaces[constraint],
        search=GradientAscent(stride=stride, direction=rms, renew=renew),
        objective=Sum(((1.0, Differential(differ)), *((cover, score) for score in pushed.scores))),
        guides=(*_deviating(deviating, peers), *pushed.guides),
        budget=Budget(gradients=gradients),
    )


def deepxplore_paper(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    constraint: str = "light",
    size: int = 0,
    count: int = 8,
    threshold: float = 0.0,
    differ: float = 1.0,
    cover: float = 0.1,
    stride: float = 10.0,
    gradients: int = 50,
    probabilities: bool = False,
) -> Method:
    """As the paper's Algorithm 1: a random model deviates from the others, and every step pushes a newly drawn idle neuron.

    Differences from the paper: networks see clipped 8-bit pictures only (the walk itself is not clipped); seeds are visited
    once and together, so coverage is shared when a round ends (``campaign.shard=1``, ``campaign.round=1`` for one by one).
    """
    form = _Form(
        "deepxplore@paper", constraint, size, threshold, differ, cover, stride, gradients, probabilities,
        renew=1, deviating="random", squares=count,
    )  # fmt: skip
    return _published(form, subject, peers, profile)


def deepxplore_code(
    *,
    subject: Model,
    peers: tuple[Model, ...] = (),
    profile: Profiles,
    constraint: str = "occlusion",
    size: int = 0,
    threshold: float = 0.0,
    differ: float = 1.0,
    cover: float = 0.1,
    stride: float = 10.0,
    gradients: int = 50,
    probabilities: bool = False,
) -> Method:
    """As the authors' code: the first model deviates, one neuron of each model is drawn for the whole walk, a black square is
    drawn at random each step and dropped where the mean gradient inside it is not negative.

    Differences from the code: networks see clipped 8-bit pictures only (the walk itself is not clipped); seeds are rightly
    classified, each is used once, and all are walked together.
    """
    form = _Form(
        "deepxplore@code", constraint, size, threshold, differ, cover, stride, gradients, probabilities,
        renew=0, deviating="subject", squares=0,
    )  # fmt: skip
    return _published(form, subject, peers, profile)


@dataclass(frozen=True, slots=True)
class _Form:
    """A published form. `squares`: how many lie still in each picture, or 0 for one drawn anew each step."""

    name: str
    constraint: str
    size: int
    threshold: float
    differ: float
    cover: float
    stride: float
    gradients: int
    probabilities: bool
    renew: int
    deviating: str
    squares: int


def _published(form: _Form, subject: Model, peers: tuple[Model, ...], profile: Profiles) -> Method:
    """What paper and code share: coverage of findings only, raw channel means pushed, an unclipped walk."""
    criteria = profile.criteria(
        f"nc:threshold={form.threshold}", subject, peers, convention="deepxplore"
    )
    pull = [(form.cover, Pushed(Reader(one.rule.selections[0]), one.name)) for one in criteria]
    oracle = Disagree() if peers else LeavesLabel()
    drawn = form.constraint == "blackout" and not form.squares
    shape: Shape = Square(_side(form, profile, 6, 10)) if drawn else free
    return _method(
        form.name,
        peers,
        space=_space(form, profile),
        search=GradientAscent(stride=form.stride, direction=rms, renew=form.renew, shape=shape),
        objective=Sum(((1.0, Differential(form.differ, form.probabilities)), *pull)),
        guides=(*_deviating(form.deviating, peers), *_failing_only(criteria, oracle)),
        budget=Budget(gradients=form.gradients),
    )


def _space(form: _Form, profile: Profiles) -> Space:
    large = _side(form, profile, 10, 50)
    spaces: dict[str, Space] = {
        "none": Unclipped(),
        "light": Light(),
        "occlusion": Occlusion((large, large), (0, 0), clip=False),
        "blackout": Blackout(_side(form, profile, 6, 10), form.squares)
        if form.squares
        else Unclipped(),
    }
    if form.constraint not in spaces:
        raise choice("constraint", form.constraint, CONSTRAINTS)
    return spaces[form.constraint]


def _side(form: _Form, profile: Profiles, small: int, large: int) -> int:
    """The side of a rectangle: as asked, else as published for digits or for photographs."""
    return form.size or (small if profile.image.shape[2] <= 64 else large)


def _method(
    name: str,
    peers: tuple[Model, ...],
    *,
    objective: Objective,
    guides: Sequence[Guide],
    **parts: Any,
) -> Method:
    oracle = Disagree() if peers else LeavesLabel()
    method = Method(
        name=name,
        objective=objective,
        oracle=oracle,
        guides=tuple(guides),
        needs="gradients",
        **parts,
    )
    return method if peers else replace(method, details={"says": [_ALONE]})


def _deviating(which: str, peers: tuple[Model, ...]) -> tuple[Guide, ...]:
    if which not in ("subject", "random"):
        raise choice("deviating model", which, ("subject", "random"))
    return (Deviating(1 + len(peers)),) if which == "random" else ()


def _failing_only(criteria: Sequence[Measure], oracle: Disagree | LeavesLabel) -> list[Guide]:
    return [FailingOnly(one, oracle) for one in criteria]
