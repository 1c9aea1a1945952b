"""Which accuracy to expect in the field, without labels: learned from synthetic fields with labels.

Many synthetic fields are rendered from the labelled images: conditions near the fitted ones, and
any others, mixes of classes, and changes that no fitted coordinate is. Of each the accuracy is
measured, and the features that need no labels: how sure the model is, how many images lie below the
threshold of its confidence that gives the accuracy of the labelled images (S. Garg et al., ICLR
2022), how far the field is. A regression in which similar fields count most predicts the accuracy
from these features. Where no synthetic field resembles the real field, there is no prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from hardcase.conditions.fitting.coordinates import Spread
from hardcase.conditions.fitting.embedding import Embedding, Vector, mixed_groups
from hardcase.conditions.fitting.render import Candidate, Renderer
from hardcase.conditions.fitting.search import Kept, Matching, Place
from hardcase.corruptions import corrupt
from hardcase.randomness import keys_of
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.types import Images, Model

__all__ = ["Confidence", "ExpectedAccuracy", "expected_accuracy", "logits_of"]

FIELDS = 90
"""Synthetic fields."""
IMAGES = 500
"""Images of each."""
NEAR_SHARE = 0.6
"""Share of them that lie near the fitted conditions."""
OUTSIDE_SHARE = 0.25
"""Share of them with a change that no fitted coordinate is."""
OUTSIDE = ("glass_blur", "impulse_noise", "spatter", "elastic_transform", "brightness")
"""Corruptions that stand for what the coordinates are not."""
JITTER = 0.35
"""Variation of widths around the fitted widths, as a logarithm."""
RIDGE = 0.3
LEAST_FIELDS = 12.0
"""Least effective number of synthetic fields for a prediction."""
FARTHEST = 1.5
"""How far from all synthetic fields a field may lie, in their own distances from each other."""
LEVEL = 0.95
ROWS = 512


@torch.no_grad()
def logits_of(model: Model, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k"]:
    """Return what a model answers about images."""
    return torch.cat([model(x[rows]).logits.cpu() for rows in chunks(len(x), ROWS)])


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure a model is of labelled images, against which it is held in the field.

    Args:
        temperature: What logits are divided by, so that confidence is accuracy on average.
        threshold: The confidence below which so many labelled images lie as are misread.
        mean: The mean confidence on labelled images.
        accuracy: The accuracy on labelled images.
    """

    temperature: float
    threshold: float
    mean: float
    accuracy: float

    @classmethod
    def fit(cls, logits: Float[Tensor, "n k"], y: Int[Tensor, " n"]) -> Confidence:
        """Return what labelled images say."""
        accuracy = float((logits.argmax(1) == y).double().mean())
        temperatures = torch.logspace(-1.0, 1.0, 81).tolist()
        losses = [float(torch.nn.functional.cross_entropy(logits / t, y)) for t in temperatures]
        temperature = temperatures[int(np.argmin(losses))]
        surest = (logits / temperature).softmax(1).amax(1)
        threshold = float(surest.quantile(1 - accuracy))
        return cls(temperature, threshold, float(surest.mean()), accuracy)

    def seen(self, logits: Float[Tensor, "n k"]) -> dict[str, float]:
        """Return accuracies that confidence alone suggests: ATC, and the difference of means."""
        probabilities = (logits / self.temperature).softmax(1)
        surest = probabilities.amax(1)
        return {
            "atc": float((surest >= self.threshold).double().mean()),
            "confidence": float(surest.double().mean()),
            "doc": self.accuracy - (self.mean - float(surest.double().mean())),
        }


@dataclass(frozen=True, slots=True)
class ExpectedAccuracy:
    """The accuracy to expect in the field.

    Args:
        value: The estimate; None where it is refused.
        low: The lower end of its 95 % interval.
        high: The upper end.
        refused: Why there is no prediction; empty if there is.
        unmodified: The accuracy on the labelled images as they are.
        fitted: The accuracy on the labelled images under the fitted conditions and classes.
        atc: What a threshold of confidence alone suggests.
        confidence: The mean confidence in the field.
        doc: What the difference of mean confidences alone suggests.
    """

    value: float | None
    low: float | None
    high: float | None
    refused: str
    unmodified: float
    fitted: float
    atc: float
    confidence: float
    doc: float

    def to_json(self) -> dict[str, Any]:
        """Return what a record keeps of it; what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True)
class _Synthetic:
    """Makes synthetic fields of labelled images."""

    model: Model
    images: Images
    embedding: Embedding
    matching: Matching
    place: Place
    confidence: Confidence
    seed: int

    def field(self, number: int) -> NDArray[np.float64]:
        """Accuracy, features and embedding of a synthetic field, as a row."""
        chance = np.random.default_rng([self.seed, number])
        near = chance.random() < NEAR_SHARE
        candidate = self._near(chance) if near else self._anywhere(chance)
        images = self._mixed(chance, near)
        x = Renderer(images, self.seed, f"synthetic field {number}")(candidate)
        if chance.random() < OUTSIDE_SHARE:
            name = OUTSIDE[chance.integers(len(OUTSIDE))]
            severity = torch.full((len(x),), float(chance.uniform(0.5, 4)))
            x = to_grid(corrupt(x, name, severity, keys_of(images.id)))
        logits = logits_of(self.model, x)
        right = float((logits.argmax(1) == images.y).double().mean())
        embedded = self.embedding.of(x)
        return np.concatenate([[right], self.seen(logits, embedded), embedded])

    def seen(self, logits: Float[Tensor, "n k"], embedding: Vector) -> Vector:
        """The features of a field that need no labels."""
        sure = self.confidence.seen(logits)
        start = self.matching.place(Candidate())
        distance = float(np.linalg.norm(embedding - start.embedding))
        left = float(np.linalg.norm(embedding - self.place.embedding))
        return np.array([sure["atc"], sure["doc"], distance, left])

    def _near(self, chance: np.random.Generator) -> Candidate:
        """Conditions near the fitted conditions, perhaps with another coordinate."""
        candidate = self.place.candidate
        for name, spread in candidate.spreads.items():
            row = self.matching.rows(name)
            centre, deviation = spread.in_sizes(row)
            factor = float(np.exp(JITTER * chance.standard_normal()))
            centre = centre * factor + 0.15 * float(chance.standard_normal())
            candidate = candidate.having(name, Spread.of(row, centre, deviation * factor))
        if chance.random() < 0.5:
            candidate = self._with_another(candidate, chance, most=0.6)
        return Candidate(candidate.spreads)

    def _anywhere(self, chance: np.random.Generator) -> Candidate:
        candidate = Candidate()
        for _ in range(int(chance.integers(0, 4))):
            candidate = self._with_another(candidate, chance, most=1.5)
        return candidate

    def _with_another(
        self, candidate: Candidate, chance: np.random.Generator, most: float
    ) -> Candidate:
        rows = [r for r in self.matching.coordinates if r.name not in candidate.spreads]
        if not rows:
            return candidate
        row = rows[int(chance.integers(len(rows)))]
        deviation = float(chance.uniform(0.1, most))
        centre = float(chance.uniform(0, most)) if row.one_sided else 0.0
        return candidate.having(row.name, Spread.of(row, centre, deviation))

    def _mixed(self, chance: np.random.Generator, near: bool) -> Images:
        """Labelled images, drawn with another mix of classes."""
        groups = mixed_groups(self.images).numpy()
        shares = self.place.shares if near else np.ones(int(groups.max()) + 1)
        if chance.random() < 0.5:
            shares = shares * chance.dirichlet(np.full(len(shares), 20.0))
        weights = shares[groups] / np.bincount(groups, minlength=len(shares))[groups]
        rows = chance.choice(len(groups), IMAGES, p=weights / weights.sum())
        images = self.images.take(torch.from_numpy(rows))
        names = tuple(f"{name}#{i}" for i, name in enumerate(images.id))  # each its own sample
        return Images(images.x, images.y, names, images.classes, images.name, images.split)


def expected_accuracy(
    model: Model,
    images: Images,
    field: Float[Tensor, "n c h w"],
    matching: Matching,
    place: Place,
    *,
    rejected: bool,
    seed: int = 0,
    kept: Kept | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExpectedAccuracy:
    """Return the accuracy to expect of a model in the field.

    Args:
        model: The model.
        images: Labelled images that it was not trained on.
        field: The field's images.
        matching: What the fit measured with.
        place: Where the fit ended.
        rejected: Whether something of the field is left that no condition explains.
        seed: What synthetic fields follow from.
        kept: Cached measurements.
        on_progress: Called with how many synthetic fields are done, and with their total.
    """
    kept = kept or Kept()
    logits = logits_of(model, from_bytes(images.x))
    confidence = Confidence.fit(logits, images.y)
    synthetic = _Synthetic(model, images, matching.embedding, matching, place, confidence, seed)
    rows = list[Vector]()
    for number in range(FIELDS):
        name = f"synthetic {number} of {place.candidate.key} by {_of_model(logits)}"
        rows.append(kept.get(name, lambda number=number: synthetic.field(number)))  # type: ignore[misc]
        on_progress(number + 1, FIELDS)
    table = np.stack(rows)
    features_here = synthetic.seen(logits_of(model, field), matching.field)
    width = len(features_here)
    value, low, high, refused = _regressed(
        table[:, 0],
        table[:, 1 : 1 + width],
        features_here,
        _distances(table[:, 1 + width :], matching.field),
    )
    if rejected:
        refused = "part of the field is explained by no condition"
    figures = {
        "unmodified": confidence.accuracy,
        "fitted": _under(model, images, place),
        **confidence.seen(logits_of(model, field)),
    }
    if refused:
        return ExpectedAccuracy(None, None, None, refused, **figures)
    return ExpectedAccuracy(value, low, high, "", **figures)


def _of_model(logits: Float[Tensor, "n k"]) -> str:
    """A text that differs where a model answers differently."""
    return f"{float(logits.double().square().sum()):.9g}"


def _under(model: Model, images: Images, place: Place) -> float:
    """The accuracy under fitted conditions and the fitted mix of classes."""
    right = logits_of(model, Renderer(images, 1)(place.candidate)).argmax(1) == images.y
    groups = mixed_groups(images).numpy()
    shares = [right.numpy()[groups == g].mean() for g in range(len(place.shares))]
    return float(place.shares @ np.array(shares))


def _distances(embeddings: NDArray[np.float64], field: Vector) -> Mapping[str, Vector]:
    """The distance of each synthetic field from the real field, and from the nearest other
    field."""
    between = np.linalg.norm(embeddings[:, None] - embeddings[None], axis=2)
    np.fill_diagonal(between, np.inf)
    return {
        "field": np.linalg.norm(embeddings - field, axis=1),
        "nearest": between.min(1),
    }


def _regressed(
    accuracy: Vector, features: NDArray[np.float64], here: Vector, distances: Mapping[str, Vector]
) -> tuple[float, float, float, str]:
    """The predicted accuracy, its interval, and the reason for a refusal, if any."""
    away = distances["field"]
    # Extrapolation is refused first: the field must lie about as near to a synthetic field as these
    # lie to each other.
    if away.min() > FARTHEST * np.quantile(distances["nearest"], 0.9):
        return 0.0, 0.0, 1.0, "no synthetic field looks like this one"
    reach = np.sort(away)[len(away) // 3]
    # Local regression: the nearest third of the synthetic fields lies within one bandwidth. Kish's
    # effective sample size, the squared sum over the sum of squares, decides whether that is
    # enough.
    weights = np.exp(-0.5 * np.square(away / reach))
    if weights.sum() ** 2 / np.square(weights).sum() < LEAST_FIELDS:
        return 0.0, 0.0, 1.0, "too few synthetic fields look like this one"
    centre = np.average(features, axis=0, weights=weights)
    scale = np.sqrt(np.average(np.square(features - centre), axis=0, weights=weights)) + 1e-9
    inputs = np.column_stack([np.ones(len(features)), (features - centre) / scale])
    ridge = RIDGE * np.diag([0.0, *np.ones(features.shape[1])])
    root = np.sqrt(weights)[:, None]
    gram = (inputs * root).T @ (inputs * root) + ridge
    slopes = np.linalg.solve(gram, (inputs * root).T @ (accuracy * root[:, 0]))
    # A residual over 1 - leverage is that of the field left out of the fit, without fitting again
    # (PRESS). The floor keeps a field that determines the fit from counting as infinitely wrong.
    leverage = np.einsum("ij,ji->i", inputs * weights[:, None], np.linalg.solve(gram, inputs.T))
    residuals = np.abs(accuracy - inputs @ slopes) / np.maximum(1 - leverage, 0.1)
    value = float(np.array([1.0, *((here - centre) / scale)]) @ slopes)
    # Half the interval is the weighted quantile of left-out residuals: the same fields that count
    # for the value count for its error.
    order = residuals.argsort()
    heard = weights[order].cumsum() / weights.sum()
    half = float(residuals[order][np.searchsorted(heard, LEVEL).clip(max=len(order) - 1)])
    value = min(max(value, 0.0), 1.0)
    return value, max(value - half, 0.0), min(value + half, 1.0), ""
