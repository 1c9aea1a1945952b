"""Silent failures: confirmed tests on which the subject is sure; and what its own confidence would have caught."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.judges.scoring import share

REFUSED, BINS, POINTS = 0.05, 10, 60
"""Share of right answers that a user would give up; bins of the calibration error; points of the curve that are kept."""


def alarm(right: Float[Tensor, " n"]) -> float:
    """The confidence below which `REFUSED` of the subject's right answers on seeds lie; 1 if there are none."""
    return float(right.double().quantile(REFUSED)) if len(right) else 1.0


def silent(confidence: Float[Tensor, " t"], right: Float[Tensor, " n"]) -> Bool[Tensor, " t"]:
    """Tests on which a subject that refuses below `alarm` would still have answered."""
    return confidence.double() >= alarm(right)


def silence(confirmed: Float[Tensor, " t"], right: Float[Tensor, " n"]) -> dict[str, Any]:
    """Facts about the confidences of confirmed tests (all answered wrongly) beside those of rightly answered seeds.

    `risk_coverage`: answering only the most confident share (coverage) of seeds and tests together, how many of the answers
    are wrong (risk). `ece` is the expected calibration error on both together, `ece_tests` on the tests alone.
    """
    quiet = silent(confirmed, right)
    both = torch.cat([right, confirmed]).double()
    wrong = torch.cat([torch.zeros(len(right)), torch.ones(len(confirmed))]).double()
    return {
        "refused": REFUSED,
        "alarm": alarm(right),
        "silent": share(int(quiet.sum()), len(confirmed)),
        "caught": share(int((~quiet).sum()), len(confirmed)),
        "risk_coverage": _risk_coverage(both, wrong),
        "ece": ece(both, 1 - wrong) if len(both) else None,
        "ece_tests": ece(confirmed.double(), torch.zeros(len(confirmed)).double()) if len(confirmed) else None,
    }


def _risk_coverage(confidence: Float[Tensor, " b"], wrong: Float[Tensor, " b"]) -> list[dict[str, float]]:
    """The curve at the end of every stretch of equal confidences, thinned; the surest answers come first."""
    if not len(confidence):
        return []
    order = confidence.argsort(descending=True, stable=True)
    sure = confidence[order]
    last = torch.cat([sure[1:] != sure[:-1], torch.ones(1, dtype=torch.bool)]).nonzero().squeeze(1)
    last = last[torch.linspace(0, len(last) - 1, min(POINTS, len(last))).round().long()]
    risk = wrong[order].cumsum(0)[last] / (last + 1)
    return [
        {"coverage": (i + 1) / len(order), "risk": value, "confidence": float(sure[i])}
        for i, value in zip(last.tolist(), risk.tolist())
    ]


def ece(confidence: Float[Tensor, " b"], right: Float[Tensor, " b"]) -> float:
    """Expected calibration error in equal bins of confidence (M. Naeini, G. Cooper, M. Hauskrecht, AAAI 2015)."""
    place = (confidence * BINS).long().clamp(0, BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, confidence - right)
    return float(gap.abs().sum() / len(confidence))
