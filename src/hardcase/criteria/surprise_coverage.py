"""Surprise adequacy as criteria: its mean over a suite, and the share of its range that is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.criterion import SUM, CriterionPlan, Tally, criterion
from hardcase.criteria.frame import Frame
from hardcase.criteria.memory import Bits, Counted, Folded, summed
from hardcase.criteria.network import Anatomy, Mode, Selection, select
from hardcase.criteria.profile import Profile
from hardcase.criteria.surprise import (
    Distance,
    Likelihood,
    Mahalanobis,
    SurpriseModel,
    Traces,
    refuse_few,
)
from hardcase.errors import Problem
from hardcase.randomness import Rng
from hardcase.types import State

# Surprise as a criterion: its mean over a suite (LSA, DSA, MDSA), and the share of its range seen
# (LSC, DSC, MDSC).
#
# J. Kim, R. Feldt, S. Yoo, "Guiding deep learning system testing using surprise adequacy", ICSE
# 2019. The authors' code cuts from the suite's own least surprise, gives n-1 bins and an overflow
# bin that swallows everything above the bound, and uses the bound 2000 for both kinds, which leaves
# DSC near 1/1000. Here the bounds are the least and greatest leave-one-out surprise of training
# data unless given; what lies outside covers nothing and is counted apart.

PATIENCE = 2048
"""Rows that are compared with training data together: a product of matrices pays off."""


def surprise_of(frame: Frame, selection: Selection, model: SurpriseModel) -> Float[Tensor, " m"]:
    """Each row's surprise, computed once a frame."""
    surprise: Tensor = frame.once(
        (id(model), selection), lambda: model(frame.matrix(selection), frame.predicted)
    )
    return surprise


@dataclass(frozen=True)
class MeanSurprise:
    """The mean surprise of the inputs. Not a ratio, not monotone:
    it says how far a suite is from training data.
    """

    patience = PATIENCE
    selection: Selection
    model: SurpriseModel

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        zero = torch.zeros(1, dtype=torch.float64)
        none = torch.full((1,), torch.inf, dtype=torch.float64)
        return Folded(
            {"count": zero, "sum": zero, "low": none, "high": -none, "without": zero}, _gathered
        )

    def observe(self, frame: Frame, memory: Folded) -> None:
        surprise = surprise_of(frame, self.selection, self.model).double()
        known = surprise[surprise.isfinite()]
        low, high = (
            (known.amin(), known.amax())
            if len(known)
            else (known.new_tensor(torch.inf), known.new_tensor(-torch.inf))
        )
        parts = {
            "count": len(known),
            "sum": known.sum(),
            "low": low,
            "high": high,
            "without": len(surprise) - len(known),
        }
        memory.add(
            {
                name: torch.as_tensor(value, dtype=torch.float64).reshape(1)
                for name, value in parts.items()
            }
        )

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """By how much the row alone would change the mean."""
        seen = memory.total()
        surprise = surprise_of(frame, self.selection, self.model)
        mean = (seen["sum"] / seen["count"].clamp_min(1)).to(frame.device)
        change = (surprise.double() - mean) / (seen["count"].to(frame.device) + 1)
        return change.where(surprise.isfinite(), 0).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Folded) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        """Surprise itself: up."""
        surprise = surprise_of(frame, self.selection, self.model)
        return surprise.where(surprise.isfinite(), 0)

    def tally(self, memory: Folded) -> Tally:
        seen = {name: float(value) for name, value in memory.total().items()}
        mean = seen["sum"] / max(seen["count"], 1)
        known = {"least": seen["low"], "greatest": seen["high"]} if seen["count"] else {}
        return Tally(
            mean,
            detail={
                "inputs": int(seen["count"]),
                "without surprise": int(seen["without"]),
                **known,
            },
        )


def _gathered(a: State, b: State) -> State:
    sums = {name: a[name] + b[name] for name in ("count", "sum", "without")}
    return {
        **sums,
        "low": torch.minimum(a["low"], b["low"]),
        "high": torch.maximum(a["high"], b["high"]),
    }


@dataclass(frozen=True)
class SurpriseBuckets:
    """Which of `n` equal buckets between `lower` and `upper` hold some input's surprise.

    Buckets are right-open, the last one closed. `overflow` makes the last one hold everything above
    the others.
    """

    patience = PATIENCE
    selection: Selection
    model: SurpriseModel
    lower: float
    upper: float
    n: int = 1000
    overflow: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Counted:
        zero = torch.zeros(1, dtype=torch.int64)
        return Counted(
            Bits(1, self.n),
            Folded({"inputs": zero, "below": zero, "above": zero, "without": zero}, summed),
        )

    def observe(self, frame: Frame, memory: Counted) -> None:
        surprise = surprise_of(frame, self.selection, self.model)
        memory.bits.mark(0, self.buckets(surprise)[None])
        counts = {
            "below": surprise < self.lower,
            "above": surprise > self.upper,
            "without": surprise.isnan(),
        }
        sums = {name: value.sum().reshape(1) for name, value in counts.items()}
        memory.sums.add({"inputs": torch.tensor([len(frame)]), **sums})

    def gain(self, frame: Frame, memory: Counted) -> Float[Tensor, " m"]:
        cells = self.buckets(surprise_of(frame, self.selection, self.model))
        return memory.bits.news(0, cells[None]).squeeze(0).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Counted) -> dict[str, Tensor]:
        return {"bucket": memory.bits.pick(rows, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Counted) -> Float[Tensor, " m"]:
        """Toward the centre of the bucket, measured in widths of the whole range."""
        surprise = surprise_of(frame, self.selection, self.model)
        target = self.lower + (aim["bucket"] + 0.5) * self._width
        score = -((surprise - target) / (self.upper - self.lower)).square()
        return score.where(surprise.isfinite(), 0)

    def tally(self, memory: Counted) -> Tally:
        covered = memory.bits.count()
        return Tally(
            covered / self.n, covered, self.n, {k: int(v) for k, v in memory.sums.total().items()}
        )

    @property
    def _width(self) -> float:
        return (self.upper - self.lower) / (self.n - self.overflow)

    def buckets(self, surprise: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The bucket of each value, from 1; 0 outside the bounds and for not-a-number."""
        place = ((surprise.double() - self.lower) / self._width).floor()
        place = place.where(surprise != self.upper, self.n - 1)
        outside = (
            (surprise < self.lower)
            | surprise.isnan()
            | ((surprise > self.upper) & (not self.overflow))
        )
        return place.masked_fill(outside, -1).clamp(-1, self.n - 1).long() + 1


# Factories: decorators are rows, signatures options.

_SURPRISE = (
    "Kim, Feldt, Yoo: Guiding deep learning system testing using surprise adequacy, ICSE 2019"
)
_KIM2019 = """@inproceedings{kim2019surprise,
  author    = {Jinhan Kim and Robert Feldt and Shin Yoo},
  title     = {Guiding Deep Learning System Testing Using Surprise Adequacy},
  booktitle = {International Conference on Software Engineering (ICSE)},
  year      = {2019},
  doi       = {10.1109/ICSE.2019.00108}
}"""
_MDSA = "Kim, Ju, Feldt, Yoo: Reducing DNN labelling cost using surprise adequacy, ESEC/FSE 2020"
_KIM2020 = """@inproceedings{kim2020mdsa,
  author    = {Jinhan Kim and Jeongil Ju and Robert Feldt and Shin Yoo},
  title     = {Reducing {DNN} Labelling Cost Using Surprise Adequacy: An Industrial Case
               Study for Autonomous Driving},
  booktitle = {Joint European Software Engineering Conference and Symposium on the Foundations
               of Software Engineering (ESEC/FSE)},
  year      = {2020},
  doi       = {10.1145/3368089.3417065}
}"""
_surprise = partial(criterion, needs="activations, profile with traces")


@_surprise("lsa", paper=_SURPRISE, cite=_KIM2019, laws=SUM)
def lsa(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    per: Literal["class", "all"] = "class",
    floor: float = 1e-5,
    most: int = 0,
) -> CriterionPlan:
    """Mean likelihood-based surprise of the inputs.

    Mean over inputs of: minus the logarithm of a kernel density over training traces of the
    predicted class.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        per: One density per predicted class, or one for all.
        floor: Units that vary less in some class are left out.
        most: If above 0: keep that many units of highest variance instead.
    """
    selection = select(anatomy, layers, mode)
    return _mean_surprise(selection, _likelihood(per, floor, most))


@_surprise("dsa", paper=_SURPRISE, cite="kim2019surprise", laws=SUM)
def dsa(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    search: str = "exact",
) -> CriterionPlan:
    """Mean distance-based surprise of the inputs.

    Mean over inputs of: distance to the nearest training trace of the predicted class over
    that trace's distance to other classes.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        search: exact, faiss, or faiss-N for an inverted file of N lists.
    """
    selection = select(anatomy, layers, mode)
    return _mean_surprise(selection, _distance(search), compares=True)


@_surprise("mdsa", paper=_MDSA, cite=_KIM2020, laws=SUM)
def mdsa(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    per: Literal["class", "all"] = "class",
    squared: bool = False,
) -> CriterionPlan:
    """Mean Mahalanobis-based surprise of the inputs.

    Mean over inputs of: distance to the mean of the predicted class, measured in its spread.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        per: One covariance per predicted class, or one for all.
        squared: Squared distances.
    """
    selection = select(anatomy, layers, mode)
    return _mean_surprise(selection, _mahalanobis(per, squared))


@_surprise("lsc", paper=_SURPRISE, cite="kim2019surprise")
def lsc(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    per: Literal["class", "all"] = "class",
    floor: float = 1e-5,
    most: int = 0,
    n: int = 1000,
    lower: float | str = "train",
    upper: float | str = "train",
    overflow: bool = False,
) -> CriterionPlan:
    """Likelihood-based surprise coverage: share of the range of surprise that was seen.

    The range of surprise in n equal buckets; share of buckets hit by some input. Surprise:
    minus the logarithm of a kernel density over training traces of the predicted class.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        per: One density per predicted class, or one for all.
        floor: Units that vary less in some class are left out.
        most: If above 0: keep that many units of highest variance instead.
        n: Number of buckets.
        lower: Lower bound; train: the least leave-one-out surprise of training data.
        upper: Upper bound; train: the greatest leave-one-out surprise of training data.
        overflow: The last bucket holds everything above the others.
    """
    selection = select(anatomy, layers, mode)
    buckets = BucketBounds(n, lower, upper, overflow)
    return _buckets(selection, _likelihood(per, floor, most), buckets)


@_surprise("dsc", paper=_SURPRISE, cite="kim2019surprise")
def dsc(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    search: str = "exact",
    n: int = 1000,
    lower: float | str = "train",
    upper: float | str = "train",
    overflow: bool = False,
) -> CriterionPlan:
    """Distance-based surprise coverage: share of the range of surprise that was seen.

    The range of surprise in n equal buckets; share of buckets hit by some input. Surprise:
    distance to the nearest training trace of the predicted class over that trace's distance to
    other classes.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        search: exact, faiss, or faiss-N for an inverted file of N lists.
        n: Number of buckets.
        lower: Lower bound; train: the least leave-one-out surprise of training data.
        upper: Upper bound; train: the greatest leave-one-out surprise of training data.
        overflow: The last bucket holds everything above the others.
    """
    selection = select(anatomy, layers, mode)
    buckets = BucketBounds(n, lower, upper, overflow)
    return _buckets(selection, _distance(search), buckets, compares=True)


@_surprise("mdsc", paper=_MDSA, cite="kim2020mdsa")
def mdsc(
    anatomy: Anatomy,
    *,
    layers: str = "last-hidden",
    mode: Mode = "channel",
    per: Literal["class", "all"] = "class",
    squared: bool = False,
    n: int = 1000,
    lower: float | str = "train",
    upper: float | str = "train",
    overflow: bool = False,
) -> CriterionPlan:
    """Mahalanobis-based surprise coverage: share of the range of surprise that was seen.

    The range of surprise in n equal buckets; share of buckets hit by some input. Surprise:
    distance to the mean of the predicted class, measured in its spread.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        per: One covariance per predicted class, or one for all.
        squared: Squared distances.
        n: Number of buckets.
        lower: Lower bound; train: the least leave-one-out surprise of training data.
        upper: Upper bound; train: the greatest leave-one-out surprise of training data.
        overflow: The last bucket holds everything above the others.
    """
    selection = select(anatomy, layers, mode)
    buckets = BucketBounds(n, lower, upper, overflow)
    return _buckets(selection, _mahalanobis(per, squared), buckets)


@dataclass(frozen=True, slots=True)
class SurpriseFit:
    """A way to fit a model of surprise, equal to another if it would fit the same model."""

    model: type[Likelihood | Distance | Mahalanobis]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, traces: Traces) -> SurpriseModel:
        model = self.model.fit(traces, **dict(self.options))
        if isinstance(model, Likelihood | Mahalanobis):
            refuse_few(model)
        return model


def _likelihood(per: str, floor: float, most: int) -> SurpriseFit:
    options = (("floor", floor), ("per_class", per == "class"), ("most", most))
    return SurpriseFit(Likelihood, options)


def _distance(search: str) -> SurpriseFit:
    return SurpriseFit(Distance, (("search", search),))


def _mahalanobis(per: str, squared: bool) -> SurpriseFit:
    return SurpriseFit(Mahalanobis, (("per_class", per == "class"), ("squared", squared)))


@dataclass(frozen=True, slots=True)
class BucketBounds:
    """How the range of surprise is cut: bounds are numbers or ``train``."""

    n: int
    lower: float | str
    upper: float | str
    overflow: bool

    def bounds(self, model: SurpriseModel) -> tuple[float, float]:
        """The lower and the upper bound, from the training traces where they are ``train``."""
        seen = model.training() if "train" in (self.lower, self.upper) else None
        if seen is not None:
            seen = seen[seen.isfinite()]
            if not len(seen):
                raise Problem(
                    "the training traces have no surprise of their own, so bounds must be given.",
                    fix="lower=0,upper=...",
                )
        lower = _bound("lower", self.lower, None if seen is None else seen.amin())
        upper = _bound("upper", self.upper, None if seen is None else seen.amax())
        if not upper > lower:
            raise Problem(
                f"surprise coverage needs lower < upper; they are {lower:g} and {upper:g}.",
                fix="lower=0,upper=...",
            )
        return lower, upper


def _bound(key: str, given: float | str, trained: Tensor | None) -> float:
    if given == "train" and trained is not None:
        return float(trained)
    try:
        return float(given)
    except ValueError as error:
        raise Problem(f"{key}={given} is neither a number nor 'train'.") from error


def _mean_surprise(
    selection: Selection, fit: SurpriseFit, *, compares: bool = False
) -> CriterionPlan:
    return CriterionPlan(
        selection,
        lambda profile: MeanSurprise(selection, _model(profile, selection, fit)),
        traces=(selection,),
        distances=(selection,) if compares else (),
    )


def _buckets(
    selection: Selection, fit: SurpriseFit, buckets: BucketBounds, *, compares: bool = False
) -> CriterionPlan:
    if buckets.n < 1 + buckets.overflow:
        raise Problem(f"surprise coverage with n={buckets.n} has no bucket between its bounds.")

    def make(profile: Profile | None) -> SurpriseBuckets:
        model = _model(profile, selection, fit)
        lower, upper = buckets.bounds(model)
        return SurpriseBuckets(selection, model, lower, upper, buckets.n, buckets.overflow)

    return CriterionPlan(
        selection, make, traces=(selection,), distances=(selection,) if compares else ()
    )


def _model(profile: Profile | None, selection: Selection, fit: SurpriseFit) -> SurpriseModel:
    """The fitted model, fitted once for all criteria that share it."""
    assert profile is not None
    model: SurpriseModel = profile.once((fit, selection), lambda: fit(profile.trace(selection)))
    return model
