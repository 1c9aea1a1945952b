"""How well a score orders what is so before what is not: the area under the ROC curve."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.statistics.rates import NORMAL

__all__ = ["auroc", "auroc_interval", "auroc_of_counts"]


def auroc(score: Float[Tensor, " m"], truth: Bool[Tensor, " m"]) -> float:
    """Return the chance that a true one scores above a false one, ties counting half; NaN where all
    or none are true.
    """
    from sklearn.metrics import roc_auc_score

    if bool(truth.all()) or not bool(truth.any()):
        return math.nan
    return float(roc_auc_score(truth.cpu().numpy(), score.cpu().numpy()))


def auroc_interval(score: Float[Tensor, " m"], truth: Bool[Tensor, " m"]) -> dict[str, Any]:
    """Return AUROC with its 95 % interval over the images, and how many are true and false."""
    yes = int(truth.sum())
    no = len(truth) - yes
    if not (yes and no):
        return {"value": None, "low": None, "high": None, "yes": yes, "no": no}
    return auroc_of_counts(auroc(score, truth), yes, no)


def auroc_of_counts(value: float, yes: int, no: int) -> dict[str, Any]:
    """Return an AUROC with its 95 % score interval.

    R. Newcombe, Statistics in Medicine 2006, 559-573, method 5: the areas from which `value` lies
    no further than 1.96 standard errors, each computed at that area. Unlike a bootstrap or DeLong's
    variance it does not call a perfect order of ten images certain.
    """

    def low_end(value: float) -> float:
        def excess(area: float) -> float:
            shared = (1 - area) / (2 - area) + area / (1 + area)
            variance = area * (1 - area) * (1 + ((yes + no) / 2 - 1) * shared) / (yes * no)
            return float((value - area) ** 2 - NORMAL**2 * variance)

        if value <= 0:
            return 0.0
        # at an area of 1 the variance is 0: that root is not the one looked for
        low, high = 0.0, min(value, 1 - 1e-9)
        for _ in range(60):  # bisection, without the slow import of an optimizer
            middle = (low + high) / 2
            if excess(middle) > 0:
                low = middle
            else:
                high = middle
        return low

    ends = {"low": low_end(value), "high": 1 - low_end(1 - value)}
    return {"value": value, **ends, "yes": yes, "no": no}
