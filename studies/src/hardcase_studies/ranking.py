"""Which images to label first: scores that put likely errors in front, and how good an order was.

Every score is higher for images that should be labelled earlier. None of them is a probability of
error; `apfd` on a set whose errors are known says which one suits a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.criteria.criterion import layer_graph, plan, profile_for
from hardcase.criteria.profile import ActivationBatch
from hardcase.criteria.surprise import SurpriseModel
from hardcase.criteria.surprise_coverage import MeanSurprise, surprise_of
from hardcase.errors import HardcaseError, choice
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Model

SURPRISE = ("dsa", "lsa", "mdsa")
NEAR = "near-failures"
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
        raise HardcaseError("a margin needs two classes or more.")
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

    Returns:
        What is infinitely surprising stays so; what has no surprise (not a number) comes first, as
        nothing is known of it.
    """
    return torch.nan_to_num(model(traces, predicted), nan=torch.inf, posinf=torch.inf)


def near_failures(
    features: Float[Tensor, "n d"], failures: Float[Tensor, "f d"], *, batch: int = 1024
) -> Float[Tensor, " n"]:
    """Minus the distance to the nearest found failure."""
    if not len(failures):
        raise HardcaseError("there is no found failure to be near to.", fix="a run that found some")
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

    Example:
        >>> apfd(torch.tensor([False, True, False, False]), torch.tensor([1, 0, 2, 3]))
        0.875
    """
    if sorted(ranked.tolist()) != list(range(len(wrong))):
        raise HardcaseError(f"an order of {len(wrong)} images must name each of them once.")
    place = wrong[ranked].nonzero().squeeze(1).double() + 1
    if not len(place):
        return float("nan")
    return float(1 - place.sum() / (len(place) * len(wrong)) + 1 / (2 * len(wrong)))


@dataclass(frozen=True, slots=True)
class Ranked:
    """Images in the order in which to label them, by one score."""

    score: str
    order: Int[Tensor, " n"]
    values: Float[Tensor, " n"]
    predicted: Int[Tensor, " n"]

    def rows(self, images: Images, first: int | None = None) -> list[dict[str, Any]]:
        """Rank, id, score and answer of the first images (all, if None)."""
        chosen = self.order[: len(self.order) if first is None else first].tolist()
        said = [
            images.classes[i] if i < len(images.classes) else str(i)
            for i in self.predicted.tolist()
        ]
        return [
            {"rank": rank, "id": images.id[i], "score": float(self.values[i]), "predicted": said[i]}
            for rank, i in enumerate(chosen, 1)
        ]


def rank_images(
    subject: Model,
    images: Images,
    score: str = "deepgini",
    *,
    train: Images | None = None,
    failures: UInt8[Tensor, "f c h w"] | None = None,
    batch: int = 256,
) -> Ranked:
    """Put images into the order in which to label them."""
    known = (*SCORES, *SURPRISE, NEAR)
    if score not in known:
        raise choice("score", score, known)
    if not len(images):
        raise HardcaseError(
            "there are no images to put into an order.", fix="another --data or --split"
        )
    logits = _logits(subject, images.x, batch)
    if score in SCORES:
        values = by_answer(score, logits)
    elif score == NEAR:
        if failures is None or not len(failures):
            raise HardcaseError("near-failures needs found failing tests.", fix="--near RUN")
        values = near_failures(logits, _logits(subject, failures, batch)).double()
    else:
        if train is None:
            raise HardcaseError(
                f"{score} compares with training images; none were given.", fix="--profile DATA"
            )
        values = surprise_scores(subject, images, train, score, batch=batch)
    return Ranked(score, order(values), values, logits.argmax(1))


def surprise_scores(
    subject: Model, images: Images, train: Images, name: str = "dsa", *, batch: int = 256
) -> Float[Tensor, " n"]:
    """The surprise of each image by the criterion of that name, compared with training images."""
    graph = layer_graph(subject, images)
    rule = plan(name, graph).make(profile_for(subject, train, name, graph=graph))
    if not isinstance(rule, MeanSurprise):
        raise choice("surprise", name, SURPRISE)
    parts = []
    for part in chunks(len(images), batch):
        with torch.no_grad():
            answer = subject(from_bytes(images.x[part]).to(subject.device), rule.selection.taps)
            parts.append(
                surprise_of(
                    ActivationBatch(answer.activations, answer.logits), rule.selection, rule.model
                ).cpu()
            )
    return torch.nan_to_num(torch.cat(parts).double(), nan=torch.inf, posinf=torch.inf)


@torch.no_grad()
def _logits(subject: Model, x: UInt8[Tensor, "n c h w"], batch: int) -> Float[Tensor, "n k"]:
    parts = [
        subject(from_bytes(x[part]).to(subject.device)).logits.cpu()
        for part in chunks(len(x), batch)
    ]
    return torch.cat(parts)
