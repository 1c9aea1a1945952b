"""DeepHunter: metamorphic mutation guided by coverage, from a corpus that grows by what covers anything new."""

from __future__ import annotations

from hardcase.guides.corpus import Corpus, Fading
from hardcase.methods.neurons import Profiles
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.fuzzing import AFFINE, LIGHT, NOISE, PIXELS, Fuzzing, Metamorphic
from hardcase.spaces.pixel import Pixels
from hardcase.types import Budget, Method, Model


def deephunter(
    *,
    subject: Model,
    profile: Profiles,
    criterion: str = "kmnc:k=1000",
    alpha: float = 0.02,
    beta: float = 0.20,
    children: int = 20,
    capacity: int = 32,
    gamma: float = 20.0,
    least: float = 0.5,
    power: bool = False,
    queries: int = 401,
) -> Method:
    """Mutate pictures in ways that keep their meaning, by pixel changes that stay small and at most one affine change.

    Xiaofei Xie, Lei Ma, Felix Juefei-Xu, Minhui Xue, Hongxu Chen, Yang Liu, Jianjun Zhao, Bo Li, Jianxiong Yin, Simon See.
    DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural Networks. ISSTA 2019.
    https://arxiv.org/abs/1809.01266

    Differences from the reference: each seed has a corpus of its own (coverage is shared), so that budgets are per seed;
    differences are taken on signed numbers (the code wraps bytes, so that brightening looks enormous); noise is visible and
    salt is white (there, a sigma of 0.3 grey levels and salt of grey level 1); failure against the seed's verified label;
    mutants of one batch that cover the same new thing are all kept. The operators' classes are the paper's.
    """
    mutator = Metamorphic(alpha=alpha, beta=beta)
    schedule = Fading(gamma, least, power=power)
    return _method(
        "deephunter", subject, profile, criterion, mutator, schedule, children, capacity, queries
    )


def deephunter_code(
    *,
    subject: Model,
    profile: Profiles,
    criterion: str = "kmnc:k=1000",
    alpha: float = 0.02,
    beta: float = 0.20,
    children: int = 20,
    capacity: int = 32,
    queries: int = 401,
) -> Method:
    """As the authors' code classes operators and fades entries: contrast, brightness and blur count as affine, so they come once
    and unchecked; pixel changes join noise; the chance of an entry falls from 0.8 by a fifth to 0.2.

    Differences: those of ``deephunter``, the classes and the chances apart.
    """
    mutator = Metamorphic(affine=(*AFFINE, *LIGHT), pixel=(PIXELS, NOISE), alpha=alpha, beta=beta)
    schedule = Fading(5.0, 0.2, 0.8)
    return _method(
        "deephunter@code",
        subject,
        profile,
        criterion,
        mutator,
        schedule,
        children,
        capacity,
        queries,
    )


def _method(
    name: str,
    subject: Model,
    profile: Profiles,
    criterion: str,
    mutator: Metamorphic,
    schedule: Fading,
    children: int,
    capacity: int,
    queries: int,
) -> Method:
    corpus = Corpus(profile.criterion(criterion, subject), LeavesLabel(), schedule, capacity)
    return Method(
        name=name,
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
