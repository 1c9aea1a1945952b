"""TensorFuzz: noise guided by novel outputs; finds NaNs, and disagreement with a coarser copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.batch import ActivationBatch
from hardcase.criteria.criterion import Measure
from hardcase.criteria.network import Selection
from hardcase.criteria.trace import Novelty, NovelVectors
from hardcase.guides.corpus import Corpus, Recent
from hardcase.methods.neurons import Profiles
from hardcase.methods.parts import method
from hardcase.objectives import Margin
from hardcase.oracles import Disagree, NonFinite
from hardcase.searches.fuzzing import Fuzzing, WhiteNoise
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.types import Budget, Method, Model, Oracle

__all__ = ["Outputs", "tensorfuzz"]

_NUMBERS = (
    "tensorfuzz looks for answers that are not finite numbers, "
    "as there is no other model to disagree with."
)


@method(
    "tensorfuzz",
    paper="Odena, Olsson, Andersen and Goodfellow, ICML 2019",
    cite="odena2019tensorfuzz",
    differences="8-bit copy by default instead of float16 (copy=float16); images in [0, 1]; a "
    "corpus per seed; exact nearest neighbours",
    peers="quantised",
    toy={"queries": 201},
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

    Parents are candidates whose logits were far from all seen before.

    Augustus Odena, Catherine Olsson, David Andersen, Ian Goodfellow. TensorFuzz: Debugging Neural
    Networks with Coverage-Guided Fuzzing. ICML 2019. https://arxiv.org/abs/1807.10875

    The peer is, unless one is given, the subject's own 8-bit copy; `copy="float16"` makes the
    original's, which hardly ever disagrees with a small network.
    ``--oracle non-finite`` looks for NaN and infinity instead. Differences from the reference:
    `sigma` and `radius` are half of those on [-1, 1] (0.2 and the paper's 0.4; its README has 1.0);
    `threshold` is compared with squared distances, as in the code (the paper says Euclidean).

    Args:
        threshold: Distance in logits from everything seen that counts as novel.
        radius: Largest change of a pixel, in units of [0, 1].
        sigma: Standard deviation of the noise.
        children: Mutants of a parent per step.
        copy: The arithmetic of the copy that is made where no peer is named.
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
