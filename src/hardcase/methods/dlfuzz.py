"""DLFuzz: one model is fuzzed along the gradient of its rival classes and of chosen neurons."""

from __future__ import annotations

from typing import Any, Literal

from hardcase.errors import Problem
from hardcase.guides.units import Strategies
from hardcase.methods.adapt import AS_CODED, PAPER as ADAPT_PAPER, TOY, adapt
from hardcase.methods.neurons import Profiles, Push, deepxplore_neurons, facts, push
from hardcase.methods.parts import method, pixel_walk
from hardcase.objectives import Competitors, Pushed, Sum
from hardcase.oracles import LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.gradient import rms
from hardcase.searches.worklist import Worklist
from hardcase.types import Budget, Method, Model

__all__ = ["OWN", "dlfuzz"]

OWN = "strategies"
PUBLISHED: dict[str, Any] = {
    "cover": 0.5,
    "radius": 0.02,
    "capacity": 64,
    "gain": 0.01,
    "restart": False,
    "peek": True,
    "clip": False,
    "gradients": 300,
}
"""What paper and code share: an entry is predicted first, and a seed ends with its queue."""


@method(
    "dlfuzz",
    paper="Guo, Jiang, Zhao, Chen and Sun, ESEC/FSE 2018",
    cite="guo2018dlfuzz",
    differences=(
        "from @paper and @code: clipped candidates, all four strategies (the fourth toward the"
        " threshold, as the paper says), any gain queues an entry, radius 0.3 instead of 0.02,"
        " lists restart; entries are copies, labels are compared with the seed's"
    ),
    presets={
        "paper": Preset(
            summary=(
                "DLFuzz as published: often covered neurons, full weight on four rivals, a "
                "required gain that decays with time"
            ),
            options={
                **PUBLISHED,
                "strategies": ("often",),
                "neurons": 10,
                "steps": 3,
                "weight": 1.0,
                "decay": "entries",
            },
            differences=(
                "from @code: often covered instead of heavy neurons, ten instead of five, "
                "three steps, rivals at full weight, the required gain decays with time; from the "
                "paper: networks see clipped 8-bit images, at most 64 entries wait"
            ),
            facts={"toy": {"step_size": 0.1}},
        ),
        "code": Preset(
            summary=(
                "DLFuzz's MNIST code: large weights, rivals at half weight, a required gain "
                "that decays with the seed's number"
            ),
            options={
                **PUBLISHED,
                "strategies": ("heavy",),
                "neurons": 5,
                "steps": 5,
                "weight": 0.5,
                "decay": "seeds",
            },
            differences=(
                "from @paper: heavy neurons, five of them, five steps, rivals at half weight, the"
                " required gain decays with the seed's number, 'apart' pushes away from the"
                " threshold; from the code: clipped 8-bit images, entries copied, labels against"
                " the seed's"
            ),
        ),
        "adapt": Preset(
            summary=(
                "DLFuzz as ADAPT ships it: most covered, least covered and heavy neurons take turns"
            ),
            make=adapt,
            options={**AS_CODED, "strategies": ("most", "least", "heavy")},
            paper=ADAPT_PAPER,
            cite="lee2020adapt",
            differences=(
                "from dlfuzz: three strategies take turns, neurons are the top of a list and not"
                " drawn, ADAPT's loop, probabilities and raw gradients; from ADAPT's code: as for"
                " adapt@paper"
            ),
            facts={"toy": TOY},
        ),
    },
)
def dlfuzz(
    subject: Model,
    profile: Profiles,
    *,
    criterion: str = "",
    strategies: tuple[str, ...] = ("often", "rarely", "heavy", "across"),
    neurons: int = 12,
    threshold: float = 0.5,
    rivals: int = 4,
    weight: float = 0.5,
    probabilities: bool = False,
    cover: float = 0.1,
    step_size: float = 0.02,
    steps: int = 5,
    radius: float = 0.3,
    capacity: int = 16,
    gain: float = 0.0,
    decay: Literal["none", "entries", "seeds"] = "none",
    restart: bool = True,
    peek: bool = False,
    clip: bool = True,
    gradients: int = 50,
) -> Method:
    """Rival classes and chosen neurons pushed up; what covers anything new is fuzzed again.

    Jianmin Guo, Yu Jiang, Yue Zhao, Quan Chen, Jiaguang Sun. DLFuzz: Differential Fuzzing Testing
    of Deep Learning Systems. ESEC/FSE 2018. https://arxiv.org/abs/1808.09413

    Differences from the reference: the code's queue entries alias the array that is fuzzed further,
    and it compares labels with the queue entry's, so that flipping back counts; here entries are
    copies and labels the seed's. The rival classes are those of the current image; all seeds are
    fuzzed at once and share their coverage. The paper's text was known from secondary sources only.
    With `criterion`, that criterion and its own gradient take the place of the strategies
    (``"none"``: no coverage, ``"random"``: any unit).

    Args:
        criterion: Coverage criterion; by default the neurons above `threshold`.
        strategies: How neurons are chosen, by name.
        neurons: Neurons that are pushed at a time.
        rivals: Other classes whose answers are raised.
        weight: Weight of the rivals.
        radius: Largest relative L2 distance from the seed.
        gain: Least new coverage that a candidate needs to be fuzzed again.
        decay: Whether that least gain falls with ``entries`` or with ``seeds``.
        restart: Every walk starts again from its entry.
        peek: Query an entry before guides choose what to push from it.
    """
    least = 0.0
    if criterion:
        if gain:
            raise Problem(
                f"gain is {gain} of the neurons, whose place criterion {criterion!r} takes.",
                fix="gain=0, or no criterion",
            )
        pushed = push(profile, criterion, subject)
    else:
        units = deepxplore_neurons(profile, subject, threshold)
        guide = Strategies(OWN, units, facts(profile, subject, units), strategies, neurons)
        pushed = Push((guide,), (Pushed(units.read, OWN),))
        least = gain * units.count
    raised = Competitors(rivals, weight, probabilities)
    return Method(
        **pixel_walk(clip=clip),
        search=Worklist(
            step_size=step_size,
            direction=rms,
            steps=steps,
            gain=least,
            radius=radius,
            capacity=capacity,
            restart=restart,
            peek=peek,
            decay=decay,
        ),
        objective=Sum(((1.0, raised), *((cover, score) for score in pushed.scores))),
        oracle=LeavesLabel(),
        guides=pushed.guides,
        until="budget",
        needs="gradients",
        budget=Budget(gradients=gradients),
    )
