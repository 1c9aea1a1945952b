"""Fuzzers that need no gradients: DeepHunter and TensorFuzz mutate a corpus that grows by what is
new, DiffChaser breeds images on which a network and its quantised copy disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.criterion import Measure
from hardcase.criteria.network import Selection
from hardcase.criteria.profile import ActivationBatch
from hardcase.criteria.trace import Novelty, NovelVectors
from hardcase.errors import HardcaseError
from hardcase.guides.corpus import Corpus, Fading, Recent
from hardcase.methods.neurons import Profiles
from hardcase.methods.parts import method
from hardcase.objectives import Margin
from hardcase.oracles import Disagree, LeavesLabel, NonFinite
from hardcase.registry import Preset, with_parts
from hardcase.searches.fuzzing import AFFINE, LIGHT, NOISE, PIXELS, Fuzzing, Metamorphic, WhiteNoise
from hardcase.searches.genetic import PixelGenetic
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.types import Budget, Method, Model, Objective, Oracle, Probe


@method(
    "deephunter",
    paper="Xie et al., ISSTA 2019",
    cite="xie2019deephunter",
    differences="from @code: brightness, contrast and blur are pixel changes, checked and "
    "repeatable, as the paper says. From the paper: corpus per image, signed differences, visible "
    "noise",
    toy={"criterion": "kmnc:k=20", "queries": 141},
    presets={
        "code": Preset(
            summary="DeepHunter with the operator classes and selection probabilities of its code",
            options={"operators": "code", "gamma": 5.0, "least": 0.2, "first": 0.8},
            differences="from deephunter: brightness, contrast and blur are applied once and "
            "unchecked, an entry's selection probability falls from 0.8 by 0.2; from the code: a "
            "corpus per image, signed differences, visible noise",
        )
    },
    explained_by=(Fuzzing, Metamorphic),
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

    Shifts, rotations, brightness, blur and noise, that preserve the label: small pixel changes
    (`alpha`, `beta`) and at most 1 affine change.

    Xiaofei Xie, Lei Ma, Felix Juefei-Xu, Minhui Xue, Hongxu Chen, Yang Liu, Jianjun Zhao, Bo Li,
    Jianxiong Yin, Simon See. DeepHunter: A Coverage-Guided Fuzz Testing Framework for Deep Neural
    Networks. ISSTA 2019. https://arxiv.org/abs/1809.01266

    Differences from the reference: the code wraps bytes, so that brightening looks enormous, and
    its noise has a sigma of 0.3 grey levels; here differences are signed and noise is visible.
    Mutants of a batch that cover the same new unit all stay.

    Where paper and code disagree, each has a switch: `operators` (in the code contrast, brightness
    and blur count as affine, so they come once and unchecked, and pixel changes join noise), and
    the selection probability of an entry, which starts at `first` and falls by 1 / `gamma` per pick
    to `least`.

    Args:
        criterion: Coverage criterion that guides the search, as ``--criterion`` names it.
        operators: Ranges of the mutations: the paper's or the code's.
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
    base = Method(
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
    return with_parts(base, space=space, search=search, objective=objective)


_NUMBERS = (
    "tensorfuzz looks for answers that are not finite numbers, "
    "as there is no other model to disagree with."
)


@method(
    "tensorfuzz",
    paper="Odena, Olsson, Andersen and Goodfellow, ICML 2019",
    cite="odena2019tensorfuzz",
    differences="8-bit copy by default instead of float16 (copy=float16); images in [0, 1]; a "
    "corpus per image; exact nearest neighbours",
    peers="quantised",
    toy={"queries": 201},
    explained_by=(Fuzzing, WhiteNoise),
)
def tensorfuzz(
    subject: Model,
    profile: Profiles,
    peers: tuple[Model, ...] = (),
    *,
    threshold: float = 1.0,
    radius: float = 0.2,
    sigma: float = 0.1,
    children: int = 20,
    capacity: int = 32,
    queries: int = 1001,
    copy: Literal["int8", "float16", "bfloat16"] = "int8",
) -> Method:
    """Noise guided by novel logits, until an 8-bit copy disagrees or the output is not finite.

    Parents are candidates whose logits were far from those of all earlier candidates.

    Augustus Odena, Catherine Olsson, David Andersen, Ian Goodfellow. TensorFuzz: Debugging Neural
    Networks with Coverage-Guided Fuzzing. ICML 2019. https://arxiv.org/abs/1807.10875

    The default peer is an 8-bit copy of the model; `copy="float16"` makes that of the
    original paper, which hardly ever disagrees with a small network.
    ``--oracle non-finite`` looks for NaN and infinity instead. Differences from the reference:
    `sigma` and `radius` are half of those on [-1, 1] (0.2 and the paper's 0.4; its README has 1.0);
    `threshold` is compared with squared distances, as in the code (the paper says Euclidean).

    Args:
        threshold: Distance in logits from all earlier candidates that counts as novel.
        radius: Largest change of a pixel, in units of [0, 1].
        copy: The arithmetic of the copy, if no peer is named.
    """
    classes = subject(profile.image.to(subject.device)).logits.shape[1]
    novelty = Measure("novelty", Outputs(threshold=threshold, classes=classes))
    oracle: Oracle = Disagree()
    details = dict[str, Any]()
    if not peers:
        oracle = NonFinite()
        details = {"says": [_NUMBERS]}
    return Method(
        space=Pixels(Linf(radius)),
        search=Fuzzing(mutator=WhiteNoise(sigma), children=children),
        objective=Margin(),
        oracle=oracle,
        guides=(Corpus(novelty, oracle, Recent(), capacity),),
        needs="scores",
        budget=Budget(queries=queries),
        details=details,
    )


@dataclass(frozen=True)
class Outputs(Novelty):
    """The rule of TensorFuzz's coverage: novelty of the logits themselves, which needs no layer."""

    selection: Selection = field(default_factory=lambda: Selection(()))
    classes: int = 0

    def memory(self) -> NovelVectors:
        return NovelVectors(self.classes, self.threshold)

    def vectors(self, batch: ActivationBatch) -> Float[Tensor, "m k"]:
        return batch.logits


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How close the `k`-th best probability is to the best, in the model that hesitates most."""

    k: int = 2

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        count = min(self.k, probe.logits.shape[1])
        best = _answers(probe).topk(count, dim=2).values
        return (best[:, :, -1] - best[:, :, 0]).amax(0)


@dataclass(frozen=True, slots=True)
class TowardClass:
    """How close the probability of class `target` is to the best, in the model that is closest."""

    target: int

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        answers = _answers(probe)
        return (answers[:, :, self.target] - answers.amax(2)).amax(0)


def _answers(probe: Probe) -> Float[Tensor, "p m k"]:
    """The probabilities that the model and every peer give."""
    return torch.stack([logits.softmax(1) for logits in (probe.logits, *probe.peers)])


@method(
    "diffchaser",
    paper="Xie, Ma, Wang, Li, Liu and Li, IJCAI 2019",
    cite="xie2019diffchaser",
    differences="population, rates and limits are ours; 8-bit images; our own static 8-bit copy; "
    "the perturbation can be capped",
    peers="quantised",
    explained_by=(PixelGenetic,),
)
def diffchaser(
    peers: tuple[Model, ...],
    target: int | None = None,
    *,
    k: int = 2,
    drift: float = math.inf,
    population: int = 50,
    generations: int = 40,
    rate: float = 0.05,
    reach: float = 32 / 255,
) -> Method:
    """Genetic search over small pixel perturbations until a network and its 8-bit copy disagree.

    The fitness leads to where a model is uncertain; there it and its quantised copy differ.

    Xiaofei Xie, Lei Ma, Haijun Wang, Yuekang Li, Yang Liu, Xiaohong Li. DiffChaser: Detecting
    Disagreements for Deep Neural Networks. IJCAI 2019. Its fitness is k-uncertainty (`k`), or
    targeted at a `target`. `drift` caps how far any pixel may move from its seed (L∞).
    Without `peers`, the model's 8-bit copy is the peer.

    Differences from the paper: population, rates and limits are ours, since only its pseudo-code is
    public; all seeds are bred at once, images are rounded to 8 bits, the 8-bit copy uses our static
    rounding. A third-party version only brightens pixels
    and bounds the change against the parent; here changes go both ways and the bound, if any, is
    against the original. A finding is a disagreement; it counts as a label failure only where the
    model itself has left the original's label.

    Args:
        k: The `k`-th best probability is driven toward the best.
        drift: Largest change of a pixel from its original, in units of [0, 1].
    """
    if not peers:
        raise HardcaseError(
            "diffchaser compares with a second model, and there is none.", fix="--peer MODEL"
        )
    if k < 2 or not drift > 0:
        raise HardcaseError(
            f"k is {k} and drift {drift}; k-uncertainty needs k of 2 or more, a drift lies above 0."
        )
    objective: Objective = Uncertainty(k)
    if target is not None:
        objective = TowardClass(target)
    breed = PixelGenetic(population=population, generations=generations, rate=rate, reach=reach)
    return Method(
        space=Pixels(Linf(min(drift, 1.0))),
        search=breed,
        objective=objective,
        oracle=Disagree(),
        until="first",
        needs="scores",
        keep="first",
        budget=Budget(queries=population + (generations - 1) * (population - 1)),
    )
