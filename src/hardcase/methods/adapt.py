"""ADAPT: which neurons to push is learnt while fuzzing; and its one-model forms of DeepXplore and DLFuzz."""

from __future__ import annotations

from hardcase.errors import choice
from hardcase.guides.adapt import Adaptive, Learning, constant
from hardcase.guides.units import Strategies
from hardcase.methods.neurons import Neurons, Profiles, adapt_neurons, facts, incoming, kinds
from hardcase.objectives import LabelFalls, Pushed, Sum
from hardcase.oracles import LeavesLabel
from hardcase.searches.gradient import raw, rms
from hardcase.searches.worklist import Worklist
from hardcase.spaces.pixel import Pixels, Unclipped
from hardcase.types import Budget, Guide, Method, Model

OWN = "adaptive"
METRICS = ("nc", "tknc")


def adapt(
    *,
    subject: Model,
    profile: Profiles,
    metric: str = "nc",
    threshold: float = 0.5,
    neurons: int = 10,
    stride: float = 0.03,
    steps: int = 3,
    radius: float = 0.5,
    capacity: int = 16,
    cover: float = 0.3,
    probabilities: bool = False,
    gradients: int = 150,
) -> Method:
    """Fuzz from a list, pushing the neurons that a strategy vector over 29 features scores highest; breed the best vectors.

    Seokhyun Lee, Sooyoung Cha, Dain Lee, Hakjoo Oh. Effective White-Box Testing of Deep Neural Networks with Adaptive
    Neuron-Selection Strategy. ISSTA 2020. https://doi.org/10.1145/3395363.3397346

    Differences from the reference: logits, not probabilities, whose gradient vanishes where a network is sure (`cover` is the
    weight of each neuron beside them); gradients scaled by their size and steps in [0, 1] units; pictures stay in [0, 1] and
    8 bits; failure against the seed's verified label; all seeds are fuzzed at once and share their strategies, so that they
    learn together; a list holds at most `capacity` entries. Feature 7, always 0 in the code by a slip, is there.
    """
    units = _units(profile, subject, metric, threshold)
    guide = _adaptive(profile, subject, units, neurons, Learning())
    search = Worklist(stride=stride, direction=rms, steps=steps, radius=radius, capacity=capacity)
    return _method(
        "adapt",
        units,
        guide,
        search,
        gradients,
        clipped=True,
        cover=cover,
        probabilities=probabilities,
    )


def adapt_paper(
    *,
    subject: Model,
    profile: Profiles,
    metric: str = "nc",
    threshold: float = 0.5,
    neurons: int = 10,
    stride: float = 0.1,
    steps: int = 3,
    radius: float = 0.5,
    gradients: int = 600,
) -> Method:
    """As published and coded: a fuzzer for each seed, the class's probability, raw gradients, ten neurons, three steps.

    Differences: networks see clipped 8-bit pictures only (the walk itself is not clipped); failure against the seed's
    verified label; a budget of gradients instead of a clock; at most 64 entries wait; a vector is credited with its own
    coverage only (in the code the first of each batch inherits its predecessor's); feature 7 is there.
    """
    units = _units(profile, subject, metric, threshold)
    guide = _adaptive(profile, subject, units, neurons, Learning(alone=True))
    return _as_coded("adapt@paper", units, guide, stride, steps, radius, gradients)


def deepxplore_adapt(
    *,
    subject: Model,
    profile: Profiles,
    threshold: float = 0.5,
    neurons: int = 10,
    stride: float = 0.1,
    steps: int = 3,
    radius: float = 0.5,
    gradients: int = 600,
) -> Method:
    """DeepXplore as ADAPT ships it for comparison: ADAPT's loop and loss on one model, random uncovered neurons, no constraint.

    ARGUS took its "DeepXplore" baseline from there. Differences: as for ``adapt@paper``.
    """
    units = adapt_neurons(profile, subject, threshold)
    guide = Strategies(
        OWN, units, facts(profile, subject, units), ("uncovered",), neurons, each=True
    )
    return _as_coded("deepxplore@adapt", units, guide, stride, steps, radius, gradients)


def dlfuzz_adapt(
    *,
    subject: Model,
    profile: Profiles,
    threshold: float = 0.5,
    neurons: int = 10,
    stride: float = 0.1,
    steps: int = 3,
    radius: float = 0.5,
    gradients: int = 600,
) -> Method:
    """DLFuzz as ADAPT ships it for comparison: most covered, least covered and heavy neurons take turns, list by list.

    ARGUS took its "DLFuzz" baseline from there. Differences: as for ``adapt@paper``.
    """
    units = adapt_neurons(profile, subject, threshold)
    strategies = ("most", "least", "heavy")
    guide = Strategies(
        OWN, units, facts(profile, subject, units), strategies, neurons, cycle=True, each=True
    )
    return _as_coded("dlfuzz@adapt", units, guide, stride, steps, radius, gradients)


def _as_coded(
    name: str,
    units: Neurons,
    guide: Guide,
    stride: float,
    steps: int,
    radius: float,
    gradients: int,
) -> Method:
    search = Worklist(stride=stride, direction=raw, steps=steps, radius=radius, capacity=64)
    return _method(
        name, units, guide, search, gradients, clipped=False, cover=1.0, probabilities=True
    )


def _method(
    name: str,
    units: Neurons,
    guide: Guide,
    search: Worklist,
    gradients: int,
    *,
    clipped: bool,
    cover: float,
    probabilities: bool,
) -> Method:
    return Method(
        name=name,
        space=Pixels() if clipped else Unclipped(),
        search=search,
        objective=Sum(((0.5 * cover, Pushed(units.read, OWN)), (0.5, LabelFalls(probabilities)))),
        oracle=LeavesLabel(),
        guides=(guide,),
        until="budget",
        needs="gradients",
        keep="best-per-label" if clipped else "all",
        budget=Budget(gradients=gradients),
    )


def _units(profile: Profiles, subject: Model, metric: str, threshold: float) -> Neurons:
    if metric not in METRICS:
        raise choice("metric of adapt", metric, METRICS)
    return adapt_neurons(profile, subject, threshold, top=3 if metric == "tknc" else 0)


def _adaptive(
    profile: Profiles, subject: Model, units: Neurons, neurons: int, learning: Learning
) -> Adaptive:
    anatomy = profile.anatomy(subject)
    weight = incoming(anatomy, subject, units.selection)
    fixed = constant(units.selection.widths, kinds(anatomy, units.selection), weight)
    return Adaptive(OWN, units, fixed, LeavesLabel(), neurons, learning)
