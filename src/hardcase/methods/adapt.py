"""ADAPT: which neurons to push is learnt while fuzzing, or set by fixed strategies."""

from __future__ import annotations

from typing import Any, Literal

from hardcase.guides.adapt import Adaptive, Learning, constant
from hardcase.guides.units import Strategies
from hardcase.methods.neurons import Profiles, adapt_neurons, facts, incoming, kinds
from hardcase.methods.parts import method, pixel_walk
from hardcase.objectives import LabelFalls, Pushed, Sum
from hardcase.oracles import LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.gradient import raw, rms
from hardcase.searches.worklist import Worklist
from hardcase.types import Budget, Guide, Method, Model

__all__ = ["AS_CODED", "OWN", "PAPER", "TOY", "adapt"]

OWN = "adaptive"
PAPER = "Lee, Cha, Lee and Oh, ISSTA 2020"
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
"""ADAPT's own loop and loss, which its baselines of DeepXplore and DLFuzz share."""
TOY = {"step_size": 0.3, "gradients": 30}


@method(
    "adapt",
    paper=PAPER,
    cite="lee2020adapt",
    differences="from @paper: logits instead of probabilities, scaled instead of raw gradients, "
    "clipped candidates, strategies shared by all seeds instead of one fuzzer per seed",
    toy={"gradients": 36},
    presets={
        "paper": Preset(
            summary="ADAPT as published: one fuzzer per seed, probabilities, raw gradients, three "
            "steps per queue entry",
            options=AS_CODED,
            differences="as published and coded; from both: networks see clipped 8-bit images, a "
            "budget of gradients instead of a clock, a vector is credited with its own coverage "
            "only, feature 7 is not lost",
            facts={"toy": TOY},
        )
    },
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
    by a slip, is there; a vector is credited with its own coverage only (in the code the first of
    each batch inherits its predecessor's).

    With `strategies` nothing is learnt: neurons are chosen by these fixed strategies, taking turns
    list by list. ADAPT ships DeepXplore and DLFuzz for comparison in this form
    (``deepxplore@adapt``, ``dlfuzz@adapt``); ARGUS took its baselines from there.

    Args:
        metric: Coverage that strategies are rewarded for: ``nc`` or ``tknc``.
        neurons: Neurons that are pushed at a time.
        strategies: Fixed strategies in place of learnt ones.
        shared: Seeds of a shard share what was learnt.
        scale: Scale the activations of each layer to [0, 1] before the threshold.
        radius: Largest relative L2 distance from the seed.
    """
    units = adapt_neurons(profile, subject, threshold, {"nc": 0, "tknc": 3}[metric])
    guide: Guide
    if strategies:
        known = facts(profile, subject, units)
        turns = len(strategies) > 1
        guide = Strategies(OWN, units, known, strategies, neurons, cycle=turns, each=True)
    else:
        graph = profile.graph(subject)
        weight = incoming(graph, subject, units.selection)
        fixed = constant(units.selection.widths, kinds(graph, units.selection), weight)
        learning = Learning(alone=not shared)
        guide = Adaptive(OWN, units, fixed, LeavesLabel(), neurons, learning)
    return Method(
        **pixel_walk(clip=clip),
        search=Worklist(
            step_size=step_size,
            direction=rms if scale else raw,
            steps=steps,
            radius=radius,
            capacity=capacity,
        ),
        objective=Sum(((0.5 * cover, Pushed(units.read, OWN)), (0.5, LabelFalls(probabilities)))),
        oracle=LeavesLabel(),
        guides=(guide,),
        until="budget",
        needs="gradients",
        budget=Budget(gradients=gradients),
    )
