"""DLFuzz: one model is fuzzed along the gradient of its rival classes and of chosen neurons; what is new is fuzzed again."""

from __future__ import annotations

from typing import Literal

from hardcase.guides.units import Strategies
from hardcase.methods.neurons import Neurons, Profiles, Push, deepxplore_neurons, facts, push
from hardcase.objectives import Competitors, Pushed, Sum
from hardcase.oracles import LeavesLabel
from hardcase.searches.gradient import rms
from hardcase.searches.worklist import Worklist
from hardcase.spaces.pixel import Pixels, Unclipped
from hardcase.types import Budget, Method, Model

OWN = "strategies"


def dlfuzz(
    *,
    subject: Model,
    profile: Profiles,
    criterion: str = "",
    strategies: tuple[str, ...] = ("often", "rarely", "heavy", "across"),
    neurons: int = 12,
    threshold: float = 0.5,
    rivals: int = 4,
    cover: float = 0.1,
    stride: float = 0.02,
    steps: int = 5,
    radius: float = 0.3,
    capacity: int = 16,
    gradients: int = 50,
) -> Method:
    """Raise the best rival classes and some neurons, lower the seed's label; candidates that cover anything new are fuzzed next.

    Jianmin Guo, Yu Jiang, Yue Zhao, Quan Chen, Jiaguang Sun. DLFuzz: Differential Fuzzing Testing of Deep Learning Systems.
    ESEC/FSE 2018. https://arxiv.org/abs/1808.09413

    Differences from the reference: pictures stay in [0, 1] and 8 bits; failure is measured against the seed's verified
    label; queue entries are copies (in the code they alias the array that is fuzzed further); any new coverage is enough to
    be queued; the fourth strategy pushes across the threshold as the paper says (the code pushes away from it); the rival
    classes are those of the current picture; all seeds are fuzzed at once and share their coverage. With `criterion`, that
    criterion and its own gradient take the place of the strategies (``"none"``: no coverage, ``"random"``: any unit).
    """
    if criterion:
        pushed = push(profile, criterion, subject)
    else:
        units = deepxplore_neurons(profile, subject, threshold)
        guide = Strategies(OWN, units, facts(profile, subject, units), strategies, neurons)
        pushed = Push((guide,), (Pushed(units.read, OWN),))
    return Method(
        name="dlfuzz",
        space=Pixels(),
        search=Worklist(
            stride=stride, direction=rms, steps=steps, radius=radius, capacity=capacity
        ),
        objective=Sum(((1.0, Competitors(rivals)), *((cover, score) for score in pushed.scores))),
        oracle=LeavesLabel(),
        guides=pushed.guides,
        until="budget",
        needs="gradients",
        keep="best-per-label",
        budget=Budget(gradients=gradients),
    )


def dlfuzz_paper(
    *,
    subject: Model,
    profile: Profiles,
    strategies: tuple[str, ...] = ("often",),
    neurons: int = 10,
    threshold: float = 0.5,
    stride: float = 0.02,
    steps: int = 3,
    gradients: int = 300,
) -> Method:
    """As published: strategy 1, ten neurons, rival classes with full weight, entries queued for a coverage gain that is asked
    for less and less as time goes on, within 2 % of the seed.

    Differences from the paper: networks see clipped 8-bit pictures only (the walk itself is not clipped); the queue holds at
    most 64 entries; all seeds are fuzzed at once. The paper's text was known from secondary sources only.
    """
    units = deepxplore_neurons(profile, subject, threshold)
    search = _published(stride, steps, 0.01 * units.count, "entries")
    return _method(
        "dlfuzz@paper",
        profile,
        subject,
        units,
        strategies,
        neurons,
        Competitors(4, 1.0),
        search,
        gradients,
    )


def dlfuzz_code(
    *,
    subject: Model,
    profile: Profiles,
    strategies: tuple[str, ...] = ("heavy",),
    neurons: int = 5,
    threshold: float = 0.5,
    stride: float = 0.02,
    steps: int = 5,
    probabilities: bool = False,
    gradients: int = 300,
) -> Method:
    """As the authors' code for MNIST: large weights, five neurons, rivals at half weight, the gain asked for decays with the
    seed's number. `strategies` may name ``apart``, their fourth strategy.

    Differences from the code: networks see clipped 8-bit pictures only; entries are copies; labels are compared with the
    seed's (there, with the queue entry's, so that flipping back counts too); the rival classes are those of the current
    picture (there, of the queue entry); several strategies share the neurons out (there, the fourth drops the others'); the
    queue holds at most 64 entries; all seeds are fuzzed at once.
    """
    units = deepxplore_neurons(profile, subject, threshold)
    rivals, search = (
        Competitors(4, 0.5, probabilities),
        _published(stride, steps, 0.01 * units.count, "seeds"),
    )
    return _method(
        "dlfuzz@code", profile, subject, units, strategies, neurons, rivals, search, gradients
    )


def _published(
    stride: float, steps: int, gain: float, decay: Literal["entries", "seeds"]
) -> Worklist:
    """The loop that paper and code share: an entry is predicted first, and a seed ends with its queue."""
    return Worklist(
        stride=stride, direction=rms, steps=steps, gain=gain, decay=decay, radius=0.02, capacity=64, restart=False, peek=True
    )  # fmt: skip


def _method(
    name: str,
    profile: Profiles,
    subject: Model,
    units: Neurons,
    strategies: tuple[str, ...],
    neurons: int,
    rivals: Competitors,
    search: Worklist,
    gradients: int,
) -> Method:
    guide = Strategies(OWN, units, facts(profile, subject, units), strategies, neurons)
    return Method(
        name=name,
        space=Unclipped(),
        search=search,
        objective=Sum(((1.0, rivals), (0.5, Pushed(units.read, OWN)))),
        oracle=LeavesLabel(),
        guides=(guide,),
        until="budget",
        needs="gradients",
        keep="all",
        budget=Budget(gradients=gradients),
    )
