"""The panel for photographs: probes on features of frozen networks, and their signals.

Where a class has too few images to fit a probe (a photograph per class, as in samples of
ImageNet), the encoder's head is the probe, and the images only determine the usual distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.imaging.blur import binomial
from hardcase.judges.features import (
    ALL,
    FITS,
    VIEWS,
    Encoder,
    FeatureProbe,
    HeadProbe,
    NearestProbe,
    OnProgress,
    features_at,
    kept_features,
    probe_from_card,
    temperature,
)
from hardcase.judges.judge import SignalSource, closer, split_rows
from hardcase.judges.networks import CONTRAST, spread
from hardcase.judges.rules import Signals
from hardcase.judges.training_data import camera_processed
from hardcase.randomness import stream
from hardcase.tensors import chunks, constant, digest_tensors, fingerprints, from_bytes, steady
from hardcase.types import Answer, Images

SCALES = 4
PER_SCALE = 7
COLOUR = 4
COUNT = SCALES * PER_SCALE + COLOUR + SCALES - 1


def statistics(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m s"]:
    """Numbers that photographs share: shapes of local contrast, likeness of neighbours,
    fall of energy with scale, colour.
    """
    grey = x.mean(1, keepdim=True)
    rows = []
    energies = []
    for _ in range(SCALES):
        mean = binomial(binomial(grey))
        rough = (grey - mean).square()
        deviation = binomial(binomial(rough)).clamp_min(0).sqrt()
        normed = (grey - mean) / (deviation + 1 / 255)
        energies.append((rough.flatten(1).mean(1) + 1e-6).log())
        rows += [_shape(normed), *_neighbours(normed), *_contrast(deviation)]
        grey = binomial(grey)
        if min(grey.shape[2:]) >= 16:
            grey = functional.avg_pool2d(grey, 2)
    falls = [fine - rough for fine, rough in pairwise(energies)]
    return torch.stack([*rows, *falls, *_colour(x)], 1)


def _shape(normed: Tensor) -> Float[Tensor, " m"]:
    """How peaked the normed pixels lie: 0.45 for a Gaussian, more for heavy tails."""
    flat = normed.flatten(1)
    return (flat.square().mean(1) + 1e-6).log() - 2 * (flat.abs().mean(1) + 1e-3).log()


def _neighbours(normed: Tensor) -> list[Float[Tensor, " m"]]:
    """Similarity of a pixel and its right, lower and diagonal neighbour."""
    power = normed.flatten(1).square().mean(1) + 1e-3
    pairs = (
        normed[:, :, :, 1:] * normed[:, :, :, :-1],
        normed[:, :, 1:] * normed[:, :, :-1],
        normed[:, :, 1:, 1:] * normed[:, :, :-1, :-1],
    )
    return [pair.flatten(1).mean(1) / power for pair in pairs]


def _contrast(deviation: Tensor) -> list[Float[Tensor, " m"]]:
    """Middle and spread of the local contrast (logarithm), and the share of places with next to
    none.
    """
    flat = (deviation.flatten(1) + 0.5 / 255).log()
    sampled = flat[:, :: max(1, flat.shape[1] // 4096)]
    low, middle, high = sampled.quantile(constant((0.1, 0.5, 0.9), flat.dtype, flat.device), dim=1)
    return [middle, high - middle, middle - low]


def _colour(x: Tensor) -> list[Float[Tensor, " m"]]:
    """Lightness, and the strength of the two opponent colours relative to it; no colour
    in grey images.
    """
    light = x.mean(1).flatten(1)
    wide = (light.std(1) + 1 / 255).log()
    middle = light.mean(1)
    if x.shape[1] != 3:
        return [middle, wide, torch.zeros_like(middle), torch.zeros_like(middle)]
    warm = (x[:, 0] - x[:, 1]).flatten(1).std(1)
    cold = (x[:, 2] - (x[:, 0] + x[:, 1]) / 2).flatten(1).std(1)
    return [middle, wide, (warm + 1 / 255).log() - wide, (cold + 1 / 255).log() - wide]


class Textures(nn.Module):
    """A Gaussian over `statistics` of real pictures: has an image their fine structure?

    After A. Mittal, R. Soundararajan, A. Bovik, "Making a 'completely blind' image quality
    analyzer", IEEE SPL 2013. Differences: more scales, robust statistics, colour, a shrunk
    covariance, and the real pictures also enter blurred, noisy, compressed, darker and brighter,
    so that sharpness or compression alone makes no picture unlike a photograph.
    """

    centre: Tensor
    whitening: Tensor
    typical: Tensor
    width: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(COUNT))
        self.register_buffer("whitening", torch.zeros(COUNT, COUNT))
        self.register_buffer("typical", torch.tensor(0.0))
        self.register_buffer("width", torch.tensor(1.0))

    @torch.no_grad()
    def fit_to(self, x: Float[Tensor, "n c h w"], rng: torch.Generator, *, copies: int = 2) -> None:
        """Learn from real pictures and `copies` of each as they look after usual handling."""
        parts = [statistics(x[rows]) for rows in chunks(len(x), 64)]
        parts += [
            statistics(camera_processed(x[rows], rng))
            for _ in range(copies)
            for rows in chunks(len(x), 64)
        ]
        values = torch.cat(parts).double()
        low, middle, high = values.quantile(
            torch.tensor([0.16, 0.5, 0.84], device=values.device, dtype=values.dtype), dim=0
        )
        spread = ((high - low) / 2).clamp_min(1e-3)
        scaled = ((values - middle) / spread).clamp(-5, 5)
        covariance = scaled.T @ scaled / len(scaled)
        share = min(0.5, COUNT / len(scaled))
        shrunk = (1 - share) * covariance + share * torch.eye(COUNT, device=values.device)
        variance, directions = torch.linalg.eigh(shrunk)
        self.centre.copy_(middle)
        self.whitening.copy_(directions / variance.sqrt() / spread[:, None])
        distances = self.distance(values.float())
        self.typical.copy_(distances.median())
        self.width.copy_((distances.quantile(0.84) - distances.median()).clamp_min(1e-3))

    def distance(self, values: Float[Tensor, "m s"]) -> Float[Tensor, " m"]:
        return ((values - self.centre) @ self.whitening).square().mean(1).sqrt()

    @torch.no_grad()
    def likeness(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
        """How much nearer than a middling real picture, in their spreads; below -3: unlike;
        never above 1.
        """
        size = 64 if steady(x.device) else 256
        parts = [self.distance(statistics(x[rows])) for rows in chunks(len(x), size)]
        gaps = torch.cat(parts or [x.new_zeros(0)])
        return ((self.typical - gaps) / self.width).clamp(-20, 1)


FEWEST = 3
"""Images of a class from which on a probe is fitted to it."""
WEAKER = 0.1
"""A probe whose accuracy on held-out images is this far below the best has no weight."""
TEXTURED = 256
"""Images, evenly spread, that say what fine structure is usual."""
LIMIT = 20.0
"""Signals are cut off here."""
DISAGREE = -1
"""The class in images on which model families disagree whether the expected class is first."""
_Self = TypeVar("_Self", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlan:
    """Settings of a panel."""

    views: tuple[str, ...] = ("plain", "flipped")
    kinds: tuple[str, ...] = ("logistic", "mahalanobis", "nearest")
    held_out: float = 0.2


USUAL = PanelPlan()


class FeaturePanel(SignalSource):
    """Probes, usual distances and textures; its encoders are not stored with it."""

    energy: Tensor
    batch = 32

    def __init__(
        self,
        encoders: Sequence[Encoder],
        *,
        views: Sequence[str],
        classifiers: Sequence[FeatureProbe],
        distances: Sequence[FeatureProbe],
        learned: int,
    ) -> None:
        super().__init__()
        self.encoders = tuple(encoders)
        self.views = tuple(views)
        self.classifiers = nn.ModuleList(classifiers)
        self.distances = nn.ModuleList(distances)
        self.textures = Textures()
        self.register_buffer("energy", torch.tensor([[0.0, 1.0]]).repeat(len(self.encoders), 1))
        self.register_buffer("learned", torch.zeros(learned, dtype=torch.int64))

    @property
    def networks(self) -> list[nn.Module]:
        """The encoders."""
        return [each.subject.net for each in self.encoders]

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Encoders go wherever the panel goes."""
        for each in getattr(self, "encoders", ()):
            each.subject._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it bare
        return self

    def read_batch(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]
    ) -> tuple[list[Signals], Float[Tensor, "m f"]]:
        """Return signals (of the single training), and unit features of the deepest layer of every
        encoder side by side, in the first view.
        """
        answers = [[each(VIEWS[view](x)) for view in self.views] for each in self.encoders]
        votes = self.votes(answers)
        mean = votes.logsumexp(0) - votes.new_tensor(len(votes)).log()
        named = votes.argmax(2) == expected
        split = named.any(0) & ~named.all(0)
        energies = [
            (view_answer.logits.logsumexp(1) - usual) / width
            for each, views, (usual, width) in zip(self.encoders, answers, self.energy)
            for view_answer in views
            if each.classifies
        ]
        nearness = [
            (probe.typical / distances.amin(1).clamp_min(1e-9)).log()
            for probe, distances in self._distances(self.distances, answers)
        ]
        low, high = spread(x)
        signals = Signals(
            seen=mean.argmax(1).masked_fill(split, DISAGREE),
            classifiers=mean.gather(1, expected[:, None]).squeeze(1).clamp_min(-LIMIT),
            neighbours=self._neighbours(answers, mean, expected).clamp(-LIMIT, LIMIT),
            something=torch.stack(energies).mean(0).clamp(-LIMIT, LIMIT),
            nearness=torch.stack(nearness).mean(0).clamp(-LIMIT, LIMIT),
            likeness=self.textures.likeness(x),
            contrast=((high - low).flatten() / CONTRAST).clamp(1e-3, 1).log(),
        )
        first = zip(self.encoders, [views[0] for views in answers])
        deepest = [view_answer.activations[each.layers[-1]] for each, view_answer in first]
        return [signals], torch.cat([functional.normalize(each, dim=1) for each in deepest], 1)

    def votes(self, seen: Sequence[Sequence[Answer]]) -> Float[Tensor, "l m k"]:
        """Return log-probabilities by every lineage: the mean over the probes that have a weight,
        and all views, of its networks. A network of unknown model family is its only member.
        """
        opinions: dict[str, list[Tensor]] = {}
        for probe in _probes(self.classifiers):
            each = self.encoders[probe.encoder]
            if float(probe.weight) > 0:
                family_votes = opinions.setdefault(each.lineage or f"encoder {probe.encoder}", [])
                family_votes += [probe.log_probabilities(answer) for answer in seen[probe.encoder]]
        means = [torch.stack(each).logsumexp(0) - math.log(len(each)) for each in opinions.values()]
        return torch.stack(means)

    def _neighbours(
        self, seen: Sequence[Sequence[Answer]], mean: Tensor, expected: Tensor
    ) -> Float[Tensor, " m"]:
        """How much nearer training images of the expected class are; without training images,
        the margin of the classifiers.
        """
        nearest = [probe for probe in self.classifiers if isinstance(probe, NearestProbe)]
        rows = [closer(gaps, expected) for _, gaps in self._distances(nearest, seen)]
        if rows:
            return torch.stack(rows).mean(0)
        of_label = mean.gather(1, expected[:, None])
        others = mean.scatter(1, expected[:, None], -torch.inf)
        return (of_label - others.amax(1, keepdim=True)).squeeze(1)

    @staticmethod
    def _distances(
        probes: Sequence[nn.Module] | nn.ModuleList, seen: Sequence[Sequence[Answer]]
    ) -> list[tuple[FeatureProbe, Tensor]]:
        """Distances by every probe in every view."""
        return [
            (probe, probe.distances(features_at(answer, probe.layer)))
            for probe in _probes(probes)
            for answer in seen[probe.encoder]
        ]

    def hashes(self) -> dict[str, str]:
        """Return the hash of every encoder, and of the probes."""
        encoder_hashes = {f"encoder {i}": each.hash for i, each in enumerate(self.encoders, 1)}
        return {**encoder_hashes, "probes": digest_tensors(self.state_dict())}

    @property
    def described(self) -> dict[str, Any]:
        """What a card needs to build the panel again around its encoders."""
        return {
            "views": list(self.views),
            "classifiers": [probe.described for probe in _probes(self.classifiers)],
            "distances": [probe.described for probe in _probes(self.distances)],
        }


def _probes(modules: Sequence[nn.Module] | nn.ModuleList) -> list[FeatureProbe]:
    return [probe for probe in modules if isinstance(probe, FeatureProbe)]


def build(encoders: Sequence[Encoder], parts: Mapping[str, Any], *, learned: int) -> FeaturePanel:
    """Return an empty panel of the shape that a card describes."""
    probes = {
        role: [probe_from_card(row) for row in parts[role]] for role in ("classifiers", "distances")
    }
    return FeaturePanel(encoders, views=parts["views"], learned=learned, **probes)


def fit(
    encoders: Sequence[Encoder],
    train: Images,
    *,
    plan: PanelPlan = USUAL,
    heads: Sequence[Int[Tensor, " k"]] = (),
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> FeaturePanel:
    """Fit a panel to training images, which must not hold the originals that it will judge."""
    if not any(each.classifies for each in encoders):
        raise HardcaseError(
            "a panel for photographs needs a network that classifies.",
            fix="--judge-features zoo:resnet50-imagenet",
        )
    classes = len(train.classes)
    fitted, held_out = split_rows(train.y, train.id, plan.held_out)
    held_out = held_out.sort().values
    enough = int(train.y[fitted].bincount(minlength=classes).min()) >= FEWEST
    classifiers = list[FeatureProbe]()
    distances = list[FeatureProbe]()
    energies = list[list[float]]()
    for number, each in enumerate(encoders):
        features = kept_features(each, train.x, view=plan.views[0], on_progress=on_progress)
        probes = list[FeatureProbe]()
        if enough:  # a regression on all layers, distances on the deepest
            layers = dict.fromkeys(plan.kinds, each.layers[-1]) | {"logistic": ALL}
            probes = [
                _fitted(kind, number, layers[kind], features, train.y, fitted)
                for kind in plan.kinds
            ]
        elif each.classifies:
            outputs = [*heads][number : number + 1] or [_own_outputs(each, features, classes)]
            probes = [HeadProbe(number, "", {"outputs": outputs[0]})]
        for probe in probes:
            logits = probe.logits(features_at(features, probe.layer)[held_out])
            probe.scale.fill_(temperature(logits, train.y[held_out]))
            probe.weight.fill_(float((logits.argmax(1) == train.y[held_out]).float().mean()))
        classifiers += probes
        usual, read = "mahalanobis", each.layers
        labels = train.y * enough  # one Gaussian for all where classes have too few images
        if not each.classifies:
            usual, read, labels = "nearest", each.layers[-1:], torch.zeros_like(labels)
        for layer in read:
            probe = _fitted(usual, number, layer, features, labels, fitted)
            probe.typical.copy_(
                probe.distances(features.activations[layer][held_out]).amin(1).median()
            )
            distances.append(probe)
        energy = features.logits[held_out].logsumexp(1)
        spread_of = energy.quantile(torch.tensor([0.16, 0.5, 0.84], dtype=energy.dtype))
        low, middle, high = spread_of.tolist()
        energies.append([middle, max((high - low) / 2, 1e-3)])
    best = max(float(probe.weight) for probe in classifiers)
    for probe in classifiers:  # so far the accuracy
        probe.weight.fill_(float(float(probe.weight) >= best - WEAKER))
    panel = FeaturePanel(
        encoders,
        views=plan.views,
        classifiers=classifiers,
        distances=distances,
        learned=len(train),
    )
    panel.energy.copy_(torch.tensor(energies))
    panel.learned.copy_(fingerprints(train.x).sort().values)
    spaced = torch.linspace(0, len(fitted) - 1, min(TEXTURED, len(fitted))).long()
    panel.textures.fit_to(from_bytes(train.x[fitted[spaced]]), stream(seed, "judge", "textures"))
    return panel.eval().to(encoders[0].subject.device)


def _fitted(
    kind: str, number: int, layer: str, seen: Answer, labels: Tensor, rows: Tensor
) -> FeatureProbe:
    probe = FITS[kind]
    tensors = probe.fit(features_at(seen, layer)[rows], labels[rows], int(labels.max()) + 1)
    return probe(number, layer, tensors)


def _own_outputs(each: Encoder, seen: Answer, classes: int) -> Int[Tensor, " k"]:
    outputs = seen.logits.shape[1]
    if outputs != classes:
        raise HardcaseError(
            f"there are fewer than {FEWEST} images of some class, so no probe can be fitted, and"
            f" {each.spec} has {outputs} outputs for {classes} classes.",
            fix="more images of every class, or an encoder whose outputs are mapped to these"
            " classes",
        )
    return torch.arange(classes)
