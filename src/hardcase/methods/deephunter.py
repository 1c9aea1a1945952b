"""DeepHunter: metamorphic mutation guided by coverage, from a corpus that grows by what is new."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hardcase.guides.corpus import Corpus, Fading
from hardcase.methods.neurons import Profiles
from hardcase.methods.parts import method, with_parts
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.registry import Preset
from hardcase.searches.fuzzing import AFFINE, LIGHT, NOISE, PIXELS, Fuzzing, Metamorphic
from hardcase.spaces.pixel import Pixels
from hardcase.types import Budget, Method, Model

__all__ = ["deephunter"]


@method(
    "deephunter",
    paper="Xie et al., ISSTA 2019",
    cite="xie2019deephunter",
    differences="from @code: brightness, contrast and blur are pixel changes, checked and "
    "repeatable, as the paper says; from the paper: a corpus per seed, signed differences, visible "
    "noise",
    toy={"criterion": "kmnc:k=20", "queries": 141},
    presets={
        "code": Preset(
            summary="DeepHunter with the operator classes and selection probabilities of its code",
            options={"operators": "code", "gamma": 5.0, "least": 0.2, "first": 0.8},
            differences="from deephunter: brightness, contrast and blur are applied once and "
            "unchecked, an entry's selection probability falls from 0.8 by 0.2; from the code: a "
            "corpus per seed, signed differences, visible noise",
        )
    },
)
def deephunter(
    subject: Model,
    profile: Profiles,
    *,
    criterion: str = "kmnc:k=1000",
    alpha: float = 0.02,
    beta: float = 0.20,
    operators: Literal["paper", "code"] = "paper",
    children: int = 20,
    capacity: int = 32,
    gamma: float = 20.0,
    least: float = 0.5,
    first: float = 1.0,
    queries: int = 401,
    space: str = "",
    search: str = "",
    objective: str = "",
) -> Method:
    """Metamorphic mutation guided by coverage: mutants that cover anything new are mutated again.

    Shifts, rotations, brightness, blur and noise, such that the label is kept: pixel changes that
    stay small (`alpha`, `beta`) and at most one affine change.

    Xiaofei Xie, Lei Ma, Felix Juefei-Xu, Minhui Xue, Hongxu Chen, Yang Liu, Jianjun Zhao, Bo Li,
    Jianxiong Yin, Simon See. DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural
    Networks. ISSTA 2019. https://arxiv.org/abs/1809.01266

    Differences from the reference: the code wraps bytes, so that brightening looks enormous, and
    its noise has a sigma of 0.3 grey levels; here differences are signed and noise is visible.
    Mutants of one batch that cover the same new thing are all kept.

    Where paper and code disagree, each has a switch: `operators` (in the code contrast, brightness
    and blur count as affine, so they come once and unchecked, and pixel changes join noise), and
    the selection probability of an entry, which starts at `first` and falls by 1 / `gamma` per pick
    to `least`.

    Args:
        criterion: Coverage criterion that guides the search, as ``--criterion`` names it.
        alpha: Share of values that may change by any amount.
        beta: Change, in units of [0, 1], that all values may make.
        operators: Ranges of the mutations: the paper's or the code's.
        children: Mutants of a parent per step.
        gamma: Picks after which an entry is hardly chosen any more.
        least: Smallest probability with which an entry is chosen.
        first: Probability of an entry that was never picked.
        space: Another space: its name, or ``file.py:name``.
        search: Another search, which the corpus then steers: its name, or ``file.py:name``.
    """
    mutator = Metamorphic(alpha=alpha, beta=beta)
    if operators == "code":
        mutator = replace(mutator, affine=(*AFFINE, *LIGHT), pixel=(PIXELS, NOISE))
    schedule = Fading(gamma, least, first)
    corpus = Corpus(profile.criterion(criterion, subject), LeavesLabel(), schedule, capacity)
    made = Method(
        space=Pixels(),
        search=Fuzzing(mutator=mutator, children=children),
        objective=Margin(),
        oracle=LeavesLabel(),
        guides=(corpus,),
        until="budget",
        needs="activations",
        keep="best-per-label",
        budget=Budget(queries=queries),
    )
    return with_parts(made, space=space, search=search, objective=objective)
