"""Surprise adequacy as criteria: its mean over a suite, and the share of its range that is
covered."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.criterion import SUM, CoverageResult, CriterionPlan, criterion
from hardcase.criteria.memory import Accumulated, Bits, CountedBits, summed
from hardcase.criteria.network import LayerGraph, Selection
from hardcase.criteria.profile import ActivationBatch, Profile
from hardcase.criteria.surprise import Distance, Likelihood, Mahalanobis, SurpriseModel, refuse_few
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng
from hardcase.types import Scores, Targets

# J. Kim, R. Feldt, S. Yoo, "Guiding deep learning system testing using surprise adequacy", ICSE
# 2019. The authors' code cuts from the suite's own least surprise, gives n-1 bins and an overflow
# bin that swallows everything above the bound, and uses the bound 2000 for both kinds, which leaves
# DSC near 1/1000. Here the bounds are the least and greatest leave-one-out surprise of training
# data unless given; what lies outside covers nothing and is counted apart.


def surprise_of(batch: ActivationBatch, selection: Selection, model: SurpriseModel) -> Scores:
    """Each row's surprise, computed once a frame."""
    return batch.once(
        (id(model), selection), lambda: model(batch.matrix(selection), batch.predicted)
    )


@dataclass(frozen=True)
class MeanSurprise:
    """The mean surprise of the inputs: how far a suite is from training data; no ratio."""

    selection: Selection
    model: SurpriseModel

    def memory(self) -> Accumulated:
        zeros = dict.fromkeys(("count", "sum", "without"), torch.zeros(1, dtype=torch.float64))
        return Accumulated(zeros, summed)

    def observe(self, batch: ActivationBatch, memory: Accumulated) -> None:
        surprise = surprise_of(batch, self.selection, self.model).double()
        finite = surprise.isfinite()
        parts = {
            "count": finite.sum(),
            "sum": surprise[finite].sum(),
            "without": (~finite).sum(),
        }
        memory.add({name: value.double().reshape(1) for name, value in parts.items()})

    def gain(self, batch: ActivationBatch, memory: Accumulated) -> Scores:
        """By how much the row alone would change the mean."""
        total = memory.total()
        surprise = surprise_of(batch, self.selection, self.model)
        mean = (total["sum"] / total["count"].clamp_min(1)).to(batch.device)
        change = (surprise.double() - mean) / (total["count"].to(batch.device) + 1)
        return change.where(surprise.isfinite(), 0).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Accumulated) -> dict[str, Tensor]:
        return {}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Accumulated) -> Scores:
        """Surprise itself: up."""
        surprise = surprise_of(batch, self.selection, self.model)
        return surprise.where(surprise.isfinite(), 0)

    def result(self, memory: Accumulated) -> CoverageResult:
        total = {name: float(value) for name, value in memory.total().items()}
        detail = {"inputs": int(total["count"]), "without surprise": int(total["without"])}
        return CoverageResult(total["sum"] / max(total["count"], 1), detail=detail)


@dataclass(frozen=True)
class SurpriseBuckets:
    """Which of `n` equal buckets between `lower` and `upper` hold an input's surprise."""

    selection: Selection
    model: SurpriseModel
    lower: float
    upper: float
    n: int = 1000

    def memory(self) -> CountedBits:
        zeros = dict.fromkeys(("inputs", "below", "above", "without"), torch.zeros(1).long())
        return CountedBits(Bits(1, self.n), Accumulated(zeros, summed))

    def observe(self, batch: ActivationBatch, memory: CountedBits) -> None:
        surprise = surprise_of(batch, self.selection, self.model)
        memory.bits.mark(0, self.buckets(surprise)[None])
        counts = {
            "below": surprise < self.lower,
            "above": surprise > self.upper,
            "without": surprise.isnan(),
        }
        sums = {name: value.sum().reshape(1) for name, value in counts.items()}
        memory.sums.add({"inputs": torch.tensor([len(batch)]), **sums})

    def gain(self, batch: ActivationBatch, memory: CountedBits) -> Scores:
        cells = self.buckets(surprise_of(batch, self.selection, self.model))
        return memory.bits.news(0, cells[None]).squeeze(0).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: CountedBits) -> dict[str, Tensor]:
        return {"bucket": memory.bits.pick(rows, rng)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: CountedBits) -> Scores:
        """Toward the centre of the bucket, measured in widths of the entire range."""
        surprise = surprise_of(batch, self.selection, self.model)
        target = self.lower + (targets["bucket"] + 0.5) * self._width
        score = -((surprise - target) / (self.upper - self.lower)).square()
        return score.where(surprise.isfinite(), 0)

    def result(self, memory: CountedBits) -> CoverageResult:
        sums = {name: int(value) for name, value in memory.sums.total().items()}
        return CoverageResult.ratio(memory.bits.count(), self.n, **sums)

    @property
    def _width(self) -> float:
        return (self.upper - self.lower) / self.n

    def buckets(self, surprise: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The bucket of each value, from 1; 0 outside the bounds and for not-a-number."""
        place = ((surprise.double() - self.lower) / self._width).floor()
        place = place.where(surprise != self.upper, self.n - 1)
        outside = (surprise < self.lower) | (surprise > self.upper) | surprise.isnan()
        return place.masked_fill(outside, -1).clamp(-1, self.n - 1).long() + 1


# Factories: decorators are rows, signatures options.

_SURPRISE = (
    "Kim, Feldt, Yoo: Guiding deep learning system testing using surprise adequacy, ICSE 2019"
)
_MDSA = "Kim, Ju, Feldt, Yoo: Reducing DNN labelling cost using surprise adequacy, ESEC/FSE 2020"
_surprise = partial(criterion, layers="last-hidden", needs="activations, profile with traces")
_MEAN = "Mean over inputs of:"
_BUCKETS = "The range of surprise in n equal buckets; share of buckets hit by some input. Surprise:"


@_surprise("lsa", paper=_SURPRISE, cite="kim2019surprise", laws=SUM)
def lsa(
    selection: Selection,
    *,
    per: Literal["class", "all"] = "class",
    floor: float = 1e-5,
    most: int = 0,
) -> CriterionPlan:
    """Mean likelihood-based surprise of the inputs.

    Mean over inputs of: minus the logarithm of a kernel density over training traces of the
    predicted class.

    Args:
        per: A density per predicted class, or a single density.
        floor: Units that vary less in any class are left out.
        most: If above 0: keep that many units of highest variance instead.
    """
    options = {"floor": floor, "per_class": per == "class", "most": most}
    return _mean(selection, Likelihood, options)


@_surprise("dsa", paper=_SURPRISE, cite="kim2019surprise", laws=SUM)
def dsa(selection: Selection) -> CriterionPlan:
    """Mean distance-based surprise of the inputs.

    Mean over inputs of: distance to the nearest training trace of the predicted class over
    that trace's distance to other classes.
    """
    return _mean(selection, Distance, {})


@_surprise("mdsa", paper=_MDSA, cite="kim2020mdsa", laws=SUM)
def mdsa(
    selection: Selection, *, per: Literal["class", "all"] = "class", squared: bool = False
) -> CriterionPlan:
    """Mean Mahalanobis-based surprise of the inputs.

    Mean over inputs of: distance to the mean of the predicted class, measured in its spread.

    Args:
        per: A covariance per predicted class, or a single covariance.
        squared: Squared distances.
    """
    options = {"per_class": per == "class", "squared": squared}
    return _mean(selection, Mahalanobis, options)


def _mean(
    selection: Selection,
    model: type[Likelihood | Distance | Mahalanobis],
    options: Mapping[str, Any],
) -> CriterionPlan:
    """The mean surprise by `model`, fitted once for all criteria with the same options."""

    def rule(profile: Profile | None) -> MeanSurprise:
        assert profile is not None

        def fit() -> SurpriseModel:
            fitted = model.fit(profile.trace(selection), **options)
            if isinstance(fitted, Likelihood | Mahalanobis):
                refuse_few(fitted)
            return fitted

        return MeanSurprise(selection, profile.once((model, selection, *options.items()), fit))

    # only one of them compares training traces with one another
    distances = (selection,) * (model is Distance)
    return CriterionPlan(selection, rule, traces=(selection,), distances=distances)


def _coverage(
    name: str, kind: str, mean: Callable[..., CriterionPlan], **facts: Any
) -> Callable[..., CriterionPlan]:
    """Register the coverage of the surprise that `mean` averages: its options, and buckets."""

    def make(
        graph: LayerGraph,
        *,
        n: int = 1000,
        lower: float | str = "train",
        upper: float | str = "train",
        **options: Any,
    ) -> CriterionPlan:
        if n < 1:
            raise HardcaseError(f"surprise coverage with n={n} has no bucket between its bounds.")
        averaged = mean(graph, **options)

        def rule(profile: Profile | None) -> SurpriseBuckets:
            fitted = averaged.make(profile)
            assert isinstance(fitted, MeanSurprise)
            low, high = _bounds(fitted.model, {"lower": lower, "upper": upper})
            return SurpriseBuckets(fitted.selection, fitted.model, low, high, n)

        return replace(averaged, make=rule)

    _, *buckets, _ = inspect.signature(make).parameters.values()
    shared = inspect.signature(mean)
    signature = shared.replace(parameters=[*shared.parameters.values(), *buckets])
    setattr(make, "__signature__", signature)  # noqa: B010 - functions have none by type
    make.__annotations__ |= mean.__annotations__
    make.__name__ = make.__qualname__ = name
    _, _, rest = inspect.cleandoc(mean.__doc__ or "").partition("\n\n")
    summary = f"{kind} surprise coverage: share of the range of surprise that was seen."
    make.__doc__ = f"{summary}\n\n{rest.replace(_MEAN, _BUCKETS)}"
    return _surprise(name, **facts)(make)


lsc = _coverage("lsc", "Likelihood-based", lsa, paper=_SURPRISE, cite="kim2019surprise")
dsc = _coverage("dsc", "Distance-based", dsa, paper=_SURPRISE, cite="kim2019surprise")
mdsc = _coverage("mdsc", "Mahalanobis-based", mdsa, paper=_MDSA, cite="kim2020mdsa")


def _bounds(model: SurpriseModel, limits: dict[str, float | str]) -> tuple[float, float]:
    """The lower and the upper bound, from the training traces where they are ``train``."""
    if "train" in limits.values():
        surprise = model.training()
        surprise = surprise[surprise.isfinite()]
        if not len(surprise):
            raise HardcaseError(
                "the training traces have no surprise of their own, so bounds must be given.",
                fix="lower=0,upper=...",
            )
        trained = {"lower": float(surprise.amin()), "upper": float(surprise.amax())}
        limits |= {name: trained[name] for name in limits if limits[name] == "train"}
    try:
        lower, upper = map(float, limits.values())
    except ValueError as error:
        raise HardcaseError(f"bounds {limits} are neither numbers nor 'train'.") from error
    if not upper > lower:
        raise HardcaseError(
            f"surprise coverage needs lower < upper; they are {lower:g} and {upper:g}.",
            fix="lower=0,upper=...",
        )
    return lower, upper
