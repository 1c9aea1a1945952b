"""DLFuzz and ADAPT: a single model is fuzzed along the gradient of chosen neurons and of what
leaves the label. Neurons are chosen by fixed strategies (DLFuzz) or by strategies learnt on the way
(ADAPT).
"""

from __future__ import annotations

from typing import Any, Literal

from hardcase.errors import HardcaseError
from hardcase.guides.adapt import Adaptive, Learning, constant
from hardcase.guides.units import Strategies
from hardcase.methods.neurons import (
    Profiles,
    Push,
    adapt_neurons,
    deepxplore_neurons,
    facts,
    incoming,
    kinds,
    push,
)
from hardcase.methods.parts import method, pixel_walk
from hardcase.objectives import Competitors, LabelFalls, Pushed, Sum
from hardcase.oracles import LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.fuzzing import Worklist
from hardcase.searches.gradient import raw, rms
from hardcase.types import Budget, Guide, Method, Model

LEARNT = "adaptive"
ADAPT_PAPER = "Lee, Cha, Lee and Oh, ISSTA 2020"
AS_CODED: dict[str, Any] = {
    "shared": False,
    "probabilities": True,
    "scale": False,
    "clip": False,
    "step_size": 0.1,
    "capacity": 64,
    "cover": 1.0,
    "gradients": 600,
}
"""ADAPT's loop and loss, which its baselines of DeepXplore and DLFuzz share."""
TOY = {"step_size": 0.3, "gradients": 30}


@method(
    "adapt",
    paper=ADAPT_PAPER,
    cite="lee2020adapt",
    differences="from @paper: logits instead of probabilities, scaled instead of raw gradients, "
    "clipped candidates, strategies shared by all images instead of one fuzzer per image",
    toy={"gradients": 36},
    presets={
        "paper": Preset(
            summary="ADAPT as published: one fuzzer per image, probabilities, raw gradients, three "
            "steps per queue entry",
            options=AS_CODED,
            differences="as published and coded; from both: networks see clipped 8-bit images, a "
            "budget of gradients instead of a clock, a vector is credited with its own coverage "
            "only, feature 7 is not lost",
            facts={"toy": TOY},
        )
    },
    explained_by=(Worklist,),
)
def adapt(
    subject: Model,
    profile: Profiles,
    *,
    metric: Literal["nc", "tknc"] = "nc",
    threshold: float = 0.5,
    neurons: int = 10,
    strategies: tuple[str, ...] = (),
    shared: bool = True,
    probabilities: bool = False,
    scale: bool = True,
    clip: bool = True,
    step_size: float = 0.03,
    steps: int = 3,
    radius: float = 0.5,
    capacity: int = 16,
    cover: float = 0.3,
    gradients: int = 150,
) -> Method:
    """Fuzzing that learns, from 29 features of a neuron, which neurons are worth pushing.

    Candidates are fuzzed from a list, pushing the neurons that a strategy vector over the features
    scores highest; the best vectors are bred.

    Seokhyun Lee, Sooyoung Cha, Dain Lee, Hakjoo Oh. Effective White-Box Testing of Deep Neural
    Networks with Adaptive Neuron-Selection Strategy. ISSTA 2020.
    https://doi.org/10.1145/3395363.3397346

    Differences from the reference: logits, as the gradient of probabilities vanishes where a
    network is certain; failure against the seed's verified label; feature 7, always 0 in the code
    by a slip, is there; a vector is credited with its coverage only (in the code the first of
    each batch inherits its predecessor's).

    With `strategies` nothing is learnt: neurons are chosen by these fixed strategies, taking turns
    list by list. ADAPT ships DeepXplore and DLFuzz for comparison in this form
    (``deepxplore@adapt``, ``dlfuzz@adapt``); ARGUS took its baselines from there.

    Args:
        metric: Coverage that strategies are rewarded for: ``nc`` or ``tknc``.
        neurons: Neurons that are pushed at a time.
        strategies: Fixed strategies in place of learnt ones.
        shared: Images of a shard share what was learnt.
        scale: Scale the activations of each layer to [0, 1] before the threshold.
    """
    units = adapt_neurons(profile, subject, threshold, {"nc": 0, "tknc": 3}[metric])
    guide: Guide
    if strategies:
        unit_facts = facts(profile, subject, units)
        turns = len(strategies) > 1
        guide = Strategies(LEARNT, units, unit_facts, strategies, neurons, cycle=turns, each=True)
    else:
        graph = profile.graph(subject)
        weight = incoming(graph, subject, units.selection)
        fixed = constant(units.selection.widths, kinds(graph, units.selection), weight)
        learning = Learning(alone=not shared)
        guide = Adaptive(LEARNT, units, fixed, LeavesLabel(), neurons, learning)
    return Method(
        **pixel_walk(clip=clip),
        search=Worklist(
            step_size=step_size,
            direction=rms if scale else raw,
            steps=steps,
            radius=radius,
            capacity=capacity,
        ),
        objective=Sum(
            ((0.5 * cover, Pushed(units.read, LEARNT)), (0.5, LabelFalls(probabilities)))
        ),
        oracle=LeavesLabel(),
        guides=(guide,),
        until="budget",
        needs="gradients",
        budget=Budget(gradients=gradients),
    )


FIXED = "strategies"
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
"""What paper and code share: an entry is predicted first, and an image ends with its queue."""


@method(
    "dlfuzz",
    paper="Guo, Jiang, Zhao, Chen and Sun, ESEC/FSE 2018",
    cite="guo2018dlfuzz",
    differences=(
        "from @paper and @code: clipped candidates, all four strategies (the fourth toward the"
        " threshold, as the paper says), any gain queues an entry, radius 0.3 instead of 0.02,"
        " lists restart; entries are copies, labels are compared with the original's"
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
                "that decays with the original's number"
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
                " required gain decays with the original's number, 'apart' pushes away from the"
                " threshold; from the code: clipped 8-bit images, entries copied, labels against"
                " the original's"
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
    explained_by=(Worklist,),
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
    fuzzed at once and share their coverage. The paper's text was available in secondary sources
    only. With `criterion`, that criterion and its gradient take the place of the strategies
    (``"none"``: no coverage, ``"random"``: any unit).

    Args:
        criterion: Coverage criterion; by default the neurons above `threshold`.
        strategies: How neurons are chosen, by name.
        neurons: Neurons that are pushed at a time.
        rivals: Other classes whose answers are raised.
        weight: Weight of the rivals.
    """
    least = 0.0
    if criterion:
        if gain:
            raise HardcaseError(
                f"gain is {gain} of the neurons, whose place criterion {criterion!r} takes.",
                fix="gain=0, or no criterion",
            )
        pushed = push(profile, criterion, subject)
    else:
        units = deepxplore_neurons(profile, subject, threshold)
        guide = Strategies(FIXED, units, facts(profile, subject, units), strategies, neurons)
        pushed = Push((guide,), (Pushed(units.read, FIXED),))
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
