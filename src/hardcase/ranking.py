"""Which images to label first: scores that put likely errors in front, and how good an order was.

Every score is higher for images that should be labelled earlier. None of them is a probability of
error; `apfd` on a set whose errors are known says which one suits a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem, choice
from hardcase.tensors import chunks

if TYPE_CHECKING:
    from hardcase.criteria.surprise import SurpriseModel

Score = Callable[[Float[Tensor, "n k"]], Float[Tensor, " n"]]


def deepgini(probability: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The chance that two draws from the answer differ.

    Y. Feng et al., "DeepGini: prioritizing massive tests to enhance the robustness of deep neural
    networks", ISSTA 2020, https://arxiv.org/abs/1903.00661.

    Example:
        >>> deepgini(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
        [0.0, 0.5]
    """
    return 1 - probability.square().sum(1)


def small_margin(probability: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """One minus the lead of the most probable class over the second (prediction-confidence
    score)."""
    if probability.shape[1] < 2:
        raise Problem("a margin needs two classes or more.")
    best = probability.topk(2, dim=1).values
    return 1 - (best[:, 0] - best[:, 1])


def low_confidence(probability: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """One minus the probability of the answer (vanilla softmax)."""
    return 1 - probability.amax(1)


def entropy(probability: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """The entropy of the answer, in nats."""
    terms: Tensor = torch.special.xlogy(probability, probability)
    return -terms.sum(1)


def surprise(
    model: SurpriseModel, traces: Float[Tensor, "n d"], predicted: Int[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Surprise adequacy as a score: a fitted `Distance` (DSA), `Likelihood` (LSA) or `Mahalanobis`
    (MDSA) of the criteria.

    Args:
        model: Fitted to training traces.
        traces: Activations of the images.
        predicted: What the subject answers.

    Returns:
        What is infinitely surprising stays so; what has no surprise (not a number) comes first, as
        nothing is known of it.
    """
    return torch.nan_to_num(model(traces, predicted), nan=torch.inf, posinf=torch.inf)


def near_failures(
    features: Float[Tensor, "n d"], failures: Float[Tensor, "f d"], *, batch: int = 1024
) -> Float[Tensor, " n"]:
    """Minus the distance to the nearest found failure.

    Args:
        features: Of the images to be ordered: activations, or pixels.
        failures: Of found failing tests (or of the seeds they came from), by the same network.
        batch: Images compared at once.
    """
    if not len(failures):
        raise Problem("there is no found failure to be near to.", fix="a run that found some")
    parts = [torch.cdist(features[part], failures).amin(1) for part in chunks(len(features), batch)]
    return -torch.cat(parts) if parts else features.new_zeros(0)


SCORES: Mapping[str, Score] = {
    "deepgini": deepgini,
    "margin": small_margin,
    "confidence": low_confidence,
    "entropy": entropy,
}
"""Scores that need the answer alone."""


def by_answer(name: str, logits: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
    """A score of `SCORES` by its name, from logits. What is not a number comes first."""
    if name not in SCORES:
        raise choice("score", name, tuple(SCORES))
    return torch.nan_to_num(SCORES[name](logits.double().softmax(1)), nan=torch.inf)


def order(score: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Rows from the highest score to the lowest; equal ones stay as they were."""
    return score.argsort(descending=True, stable=True)


def apfd(wrong: Bool[Tensor, " n"], ranked: Int[Tensor, " n"]) -> float:
    """The average percentage of faults detected: near 1 if all errors come first, 0.5 by chance.

    G. Rothermel, R. H. Untch, C. Chu, M. J. Harrold, "Prioritizing test cases for regression
    testing", 2001; each wrongly classified image is one fault. Without any error it is not defined
    (not a number).

    Args:
        wrong: Whether each image is misclassified.
        ranked: All rows, the first to be labelled first.

    Example:
        >>> apfd(torch.tensor([False, True, False, False]), torch.tensor([1, 0, 2, 3]))
        0.875
    """
    if sorted(ranked.tolist()) != list(range(len(wrong))):
        raise Problem(f"an order of {len(wrong)} images must name each of them once.")
    place = wrong[ranked].nonzero().squeeze(1).double() + 1
    if not len(place):
        return float("nan")
    return float(1 - place.sum() / (len(place) * len(wrong)) + 1 / (2 * len(wrong)))


def table(
    scores: Mapping[str, Float[Tensor, " n"]],
    wrong: Bool[Tensor, " n"],
    shares: Sequence[float] = (0.1, 0.2),
) -> list[dict[str, float | str]]:
    """How good each score was on images whose errors are known: APFD, and the errors among the
    first of them.

    Args:
        scores: By name.
        wrong: Whether each image is misclassified.
        shares: For which first shares of the images the share of all errors is told.
    """
    rows: list[dict[str, float | str]] = []
    total = int(wrong.sum())
    for name, score in scores.items():
        ranked = order(score)
        row: dict[str, float | str] = {"score": name, "apfd": apfd(wrong, ranked)}
        for share in shares:
            first = ranked[: round(share * len(ranked))]
            row[f"errors in the first {share:.0%}"] = (
                int(wrong[first].sum()) / total if total else float("nan")
            )
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["apfd"]))
