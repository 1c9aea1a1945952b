"""A panel for photographs: features that networks learnt elsewhere, probes fitted in seconds, and
the fine structure of pictures.

`fit` makes a `FeaturePanel` from encoders and training images; it answers what
`hardcase.judges.panel.Panel` answers, in the same `Signals`. Where a class has too few images to
fit a probe (one photograph a class, as in samples of ImageNet), the encoder's own head is the
probe, and the images only say what is usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem
from hardcase.judges.encoders import Encoder, Seen, view_named
from hardcase.judges.feature_store import FeatureStore, Tell
from hardcase.judges.panel import Signals, closer, spread
from hardcase.judges.probes import (
    FITS,
    KINDS,
    HeadProbe,
    MahalanobisProbe,
    NearestProbe,
    Probe,
    mahalanobis,
    tempered,
)
from hardcase.judges.textures import Textures
from hardcase.randomness import balanced_order, stream
from hardcase.tensors import chunks, digest_tensors, fingerprints, from_bytes
from hardcase.types import Images

FEWEST = 3
"""Images of a class from which on a probe is fitted to it."""
ALL = "all layers"
WEAKER = 0.1
"""A probe whose accuracy on held-out images is this much below the best has no voice."""
TEXTURED = 256
"""Images, evenly spread, that say what fine structure is usual."""
LIMIT = 20.0
"""Signals are cut off here."""
_Self = TypeVar("_Self", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPlan:
    """How a panel is made.

    Args:
        views: What every image is looked at as; each costs one pass of every encoder. The first is
            the one that is kept.
        kinds: The probes; see `hardcase.judges.probes`.
        held_out: Share of the images on which probes are tempered and what is usual is measured.
    """

    views: tuple[str, ...] = ("plain", "flipped")
    kinds: tuple[str, ...] = ("logistic", "mahalanobis", "nearest")
    held_out: float = 0.2


USUAL = PanelPlan()


class ProbeSeat(nn.Module):
    """One probe of one encoder as a module, so that a panel is stored as one file.

    Args:
        encoder: Number of the encoder.
        layer: The layer that it reads, or `ALL` of them side by side, or empty for the encoder's
            own scores.
        kind: A name of `KINDS`.
        shapes: Of the probe's tensors.
    """

    scale: Tensor
    voice: Tensor
    typical: Tensor

    def __init__(
        self, encoder: int, layer: str, kind: str, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer = layer
        self.kind = kind
        whole = {"counts", "outputs"}
        for name, shape in shapes.items():
            dtype = torch.int64 if name in whole else torch.float32
            self.register_buffer(f"probe_{name}", torch.zeros(*shape, dtype=dtype))
        for name in ("scale", "voice", "typical"):
            self.register_buffer(name, torch.tensor(1.0))

    @property
    def probe(self) -> Probe:
        kind = KINDS[self.kind]
        return kind(**{each.name: getattr(self, f"probe_{each.name}") for each in fields(kind)})

    @staticmethod
    def of(encoder: int, layer: str, kind: str, probe: Probe) -> ProbeSeat:
        tensors = {each.name: getattr(probe, each.name) for each in fields(probe)}
        seat = ProbeSeat(
            encoder, layer, kind, {name: tuple(value.shape) for name, value in tensors.items()}
        )
        for name, value in tensors.items():
            getattr(seat, f"probe_{name}").copy_(value)
        return seat.to(next(iter(tensors.values())).device)

    @property
    def place(self) -> dict[str, Any]:
        """What a card needs to build it again."""
        shapes = {
            name.removeprefix("probe_"): list(value.shape) for name, value in self.named_buffers()
        }
        own = {
            name: shape
            for name, shape in shapes.items()
            if name not in ("scale", "voice", "typical")
        }
        return {"encoder": self.encoder, "layer": self.layer, "kind": self.kind, "shapes": own}

    def reads(self, seen: Seen) -> Float[Tensor, "m f"]:
        return reading(seen, self.layer)

    def log_probabilities(self, seen: Seen) -> Float[Tensor, "m k"]:
        return (self.scale * self.probe.logits(self.reads(seen))).log_softmax(1)


def reading(seen: Seen, layer: str) -> Float[Tensor, "m f"]:
    """The features that a seat reads: of one layer, of all (each made unit length),
    or the encoder's own scores.
    """
    if not layer:
        return seen.logits
    if layer == ALL:
        return torch.cat(
            [functional.normalize(value, dim=1) for value in seen.features.values()], 1
        )
    return seen.features[layer]


class FeaturePanel(nn.Module):
    """Probes, usual distances and textures as one network; its encoders are beside it and are not
    stored with it.

    Args:
        encoders: The networks whose features are read.
        classes: How many classes there are.
        views: Names of the views.
        voices: Seats that say which class it is.
        distances: Seats (`MahalanobisProbe`) that say how far an image is from what is usual.
        learned: How many images it was made from.
    """

    energy: Tensor
    learned: Tensor

    def __init__(
        self,
        encoders: Sequence[Encoder],
        *,
        classes: int,
        views: Sequence[str],
        voices: Sequence[ProbeSeat],
        distances: Sequence[ProbeSeat],
        learned: int,
    ) -> None:
        super().__init__()
        self.encoders = tuple(encoders)
        self.classes = classes
        self.views = tuple(views)
        self.voices = nn.ModuleList(voices)
        self.distances = nn.ModuleList(distances)
        self.textures = Textures()
        self.register_buffer("energy", torch.tensor([[0.0, 1.0]]).repeat(len(self.encoders), 1))
        self.register_buffer("learned", torch.zeros(learned, dtype=torch.int64))

    @property
    def members(self) -> tuple[nn.Module, ...]:
        """The networks of the panel, so that a search that used one of them is recognised."""
        return tuple(each.subject.net for each in self.encoders)

    def _apply(self: _Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Self:
        """Encoders go wherever the panel goes."""
        for each in getattr(self, "encoders", ()):
            each.subject._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it bare
        return self

    @torch.no_grad()
    def look(self, x: Float[Tensor, "m c h w"]) -> list[list[Seen]]:
        """What every encoder makes of every view; the outer list is over encoders."""
        return [[each(view_named(view)(x)) for view in self.views] for each in self.encoders]

    def opinions(self, looks: list[list[Seen]]) -> Float[Tensor, "p m k"]:
        """Log-probabilities by every probe that has a voice, in every view."""
        spoken = [
            seat.log_probabilities(seen)
            for seat in self._seats(self.voices)
            if float(seat.voice) > 0
            for seen in looks[seat.encoder]
        ]
        return torch.stack(spoken)

    def signals(self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"]) -> Signals:
        """Everything the rules need to know of these images, given the class each is expected to
        show.
        """
        return self._signals(x, self.look(x), expected)

    def _signals(
        self, x: Float[Tensor, "m c h w"], looks: list[list[Seen]], expected: Int[Tensor, " m"]
    ) -> Signals:
        mean = _mixed(self.opinions(looks))
        low, high = spread(x)
        return Signals(
            seen=mean.argmax(1),
            classifiers=mean.gather(1, expected[:, None]).squeeze(1).clamp_min(-LIMIT),
            neighbours=self._neighbours(looks, mean, expected),
            something=self._something(looks),
            nearness=self._nearness(looks),
            likeness=self.textures.likeness(x),
            contrast=((high - low).flatten() / 0.1).clamp(1e-3, 1).log(),
        )

    @torch.no_grad()
    def read(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 32
    ) -> tuple[Signals, Float[Tensor, "m f"]]:
        """`signals` and `features` together, in batches: every view of every encoder is asked
        once.
        """
        plain = self.views.index("plain") if "plain" in self.views else None
        if plain is None or not len(x):
            return self.ask(x, expected, batch=batch), self.features(x, batch=batch)
        signals = list[Signals]()
        features = list[Tensor]()
        for rows in chunks(len(x), batch):
            looks = self.look(x[rows])
            signals.append(self._signals(x[rows], looks, expected[rows]))
            features.append(self._deepest([views[plain] for views in looks]))
        return Signals.join(signals), torch.cat(features)

    @torch.no_grad()
    def ask(
        self, x: Float[Tensor, "m c h w"], expected: Int[Tensor, " m"], *, batch: int = 32
    ) -> Signals:
        """`signals` in batches."""
        parts = [self.signals(x[rows], expected[rows]) for rows in chunks(len(x), batch)]
        return Signals.join(parts) if parts else self._nothing(expected)

    @torch.no_grad()
    def agreement(self, x: Float[Tensor, "m c h w"], *, batch: int = 32) -> Float[Tensor, " m"]:
        """The share of voices and views that say what the panel as a whole says."""
        parts = [x.new_zeros(0)]
        for rows in chunks(len(x), batch):
            spoken = self.opinions(self.look(x[rows]))
            parts.append((spoken.argmax(2) == _mixed(spoken).argmax(1)).float().mean(0))
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, x: Float[Tensor, "m c h w"], *, batch: int = 32) -> Float[Tensor, "m f"]:
        """Unit features of the deepest layer of every encoder, side by side."""
        parts = [
            self._deepest([each(x[rows]) for each in self.encoders])
            for rows in chunks(len(x), batch)
        ]
        return torch.cat(parts) if parts else x.new_zeros(0, 0)

    def _deepest(self, plain: Sequence[Seen]) -> Float[Tensor, "m f"]:
        """The same of what the encoders have seen of one batch, in the plain view."""
        pairs = zip(self.encoders, plain)
        unit = [functional.normalize(seen.features[each.layers[-1]], dim=1) for each, seen in pairs]
        return torch.cat(unit, 1)

    def hashes(self) -> dict[str, str]:
        """The weights of every network on the panel."""
        own = {f"encoder {i}": each.hash for i, each in enumerate(self.encoders, 1)}
        return {**own, "probes": digest_tensors(self.state_dict())}

    @property
    def lineages(self) -> tuple[str, ...]:
        return tuple(each.lineage for each in self.encoders if each.lineage)

    @property
    def places(self) -> dict[str, Any]:
        """What a card needs to build the panel again around its encoders."""
        return {
            "views": list(self.views),
            "voices": [seat.place for seat in self._seats(self.voices)],
            "distances": [seat.place for seat in self._seats(self.distances)],
            "layers": [list(each.layers) for each in self.encoders],
        }

    def _neighbours(
        self, looks: list[list[Seen]], mean: Tensor, expected: Tensor
    ) -> Float[Tensor, " m"]:
        """How much nearer training images of the expected class are; without training images,
        the margin of the voices.
        """
        rows = [
            closer(seat.probe.distances(seat.reads(seen)), expected)
            for seat in self._seats(self.voices)
            if isinstance(seat.probe, NearestProbe)
            for seen in looks[seat.encoder]
        ]
        if rows:
            return torch.stack(rows).mean(0).clamp(-LIMIT, LIMIT)
        own = mean.gather(1, expected[:, None])
        others = mean.scatter(1, expected[:, None], -torch.inf)
        return (own - others.amax(1, keepdim=True)).squeeze(1).clamp(-LIMIT, LIMIT)

    def _something(self, looks: list[list[Seen]]) -> Float[Tensor, " m"]:
        """How much stronger the encoders' own scores are than is usual for real images,
        in their spreads.
        """
        rows = [
            (seen.logits.logsumexp(1) - self.energy[number, 0]) / self.energy[number, 1]
            for number, views in enumerate(looks)
            for seen in views
        ]
        return torch.stack(rows).mean(0).clamp(-LIMIT, LIMIT)

    def _nearness(self, looks: list[list[Seen]]) -> Float[Tensor, " m"]:
        """How near the usual is, against real images that were held out (logarithm),
        over layers and views.
        """
        rows = []
        for seat in self._seats(self.distances):
            probe = seat.probe
            assert isinstance(probe, MahalanobisProbe)
            for seen in looks[seat.encoder]:
                rows.append(
                    (seat.typical / probe.distances(seat.reads(seen)).amin(1).clamp_min(1e-9)).log()
                )
        return torch.stack(rows).mean(0).clamp(-LIMIT, LIMIT)

    def _nothing(self, expected: Tensor) -> Signals:
        none = torch.zeros(0, device=expected.device)
        names = [each.name for each in fields(Signals) if each.name != "seen"]
        return Signals(seen=expected[:0], **dict.fromkeys(names, none))

    @staticmethod
    def _seats(modules: nn.ModuleList) -> list[ProbeSeat]:
        return [seat for seat in modules if isinstance(seat, ProbeSeat)]


def _mixed(spoken: Float[Tensor, "p m k"]) -> Float[Tensor, "m k"]:
    """The logarithm of the mean probability."""
    return spoken.logsumexp(0) - torch.tensor(float(len(spoken))).log().to(spoken.device)


def build(
    encoders: Sequence[Encoder], places: Mapping[str, Any], *, classes: int, learned: int
) -> FeaturePanel:
    """An empty panel of the shape that a card describes."""
    seats = {
        role: [
            ProbeSeat(row["encoder"], row["layer"], row["kind"], row["shapes"])
            for row in places[role]
        ]
        for role in ("voices", "distances")
    }
    return FeaturePanel(encoders, classes=classes, views=places["views"], learned=learned, **seats)


def fit(
    encoders: Sequence[Encoder],
    train: Images,
    *,
    plan: PanelPlan = USUAL,
    heads: Sequence[Int[Tensor, " k"]] = (),
    store: FeatureStore | None = None,
    seed: int = 0,
    tell: Tell | None = None,
) -> FeaturePanel:
    """A panel from encoders and training images, which must not hold the seeds that it will judge.

    Args:
        encoders: Networks that take no part in the search.
        train: Labelled images; the more, the better the probes. With fewer than `FEWEST` of some
            class no probe is fitted and the heads are asked.
        plan: Views, probes and the share that is held out.
        heads: For every encoder, the output that means each class; if not given, its outputs are
            the classes in order.
        store: Where features are kept; that of the user's cache if not given.
        seed: Of what is drawn for the textures.
        tell: Told how many images are done, of how many.
    """
    if not encoders:
        raise Problem(
            "a panel for photographs needs an encoder.",
            fix="--judge-features zoo:resnet50-imagenet",
        )
    store = store or FeatureStore()
    classes = len(train.classes)
    fitted, held_out = parts(train.y, train.id, plan.held_out)
    enough = int(train.y[fitted].bincount(minlength=classes).min()) >= FEWEST
    voices = list[ProbeSeat]()
    distances = list[ProbeSeat]()
    energies = list[list[float]]()
    for number, each in enumerate(encoders):
        seen = store.features(each, train.x, view=plan.views[0], tell=tell)
        if enough:
            voices += _voices(number, each, seen, train.y, fitted, held_out, classes, plan.kinds)
        else:
            outputs = heads[number] if heads else _own_outputs(each, seen, classes)
            voices.append(
                _measured(
                    ProbeSeat.of(number, "", "head", HeadProbe(outputs)), seen, train.y, held_out
                )
            )
        distances += _distances(
            number, each, seen, train.y, fitted, held_out, classes if enough else 1
        )
        energies.append(_middle_and_width(seen.logits[held_out].logsumexp(1)))
    _quieten(voices)
    panel = FeaturePanel(
        encoders,
        classes=classes,
        views=plan.views,
        voices=voices,
        distances=distances,
        learned=len(train),
    )
    panel.energy.copy_(torch.tensor(energies))
    panel.learned.copy_(fingerprints(train.x).sort().values)
    spaced = torch.linspace(0, len(fitted) - 1, min(TEXTURED, len(fitted))).long()
    some = train.x[fitted[spaced]]
    panel.textures.settle(from_bytes(some), stream(seed, "judge", "textures"))
    return panel.eval().to(encoders[0].subject.device)


def parts(
    y: Tensor, ids: Sequence[str], share: float
) -> tuple[Int[Tensor, " f"], Int[Tensor, " h"]]:
    """Rows to fit and rows held out, the classes taking turns in the latter."""
    order, _ = balanced_order(y, ids, seed=0)
    count = max(1, min(round(share * len(y)), 3000))
    return order[count:].sort().values, order[:count].sort().values


def _voices(
    number: int,
    each: Encoder,
    seen: Seen,
    y: Tensor,
    fitted: Tensor,
    held_out: Tensor,
    classes: int,
    kinds: Sequence[str],
) -> list[ProbeSeat]:
    """Probes that say the class: a regression on all layers, distances on the deepest."""
    seats = []
    for kind in kinds:
        layer = ALL if kind == "logistic" else each.layers[-1]
        features = reading(seen, layer)
        seat = ProbeSeat.of(number, layer, kind, FITS[kind](features[fitted], y[fitted], classes))
        seats.append(_measured(seat, seen, y, held_out))
    return seats


def _measured(seat: ProbeSeat, seen: Seen, y: Tensor, held_out: Tensor) -> ProbeSeat:
    """Temper a seat, and note its accuracy as its voice for now."""
    logits = seat.probe.logits(reading(seen, seat.layer)[held_out])
    seat.scale.fill_(tempered(logits, y[held_out]))
    seat.voice.fill_(float((logits.argmax(1) == y[held_out]).float().mean()))
    return seat


def _quieten(voices: Sequence[ProbeSeat]) -> None:
    """From accuracies to voices: 1 for those near the best, 0 for the others."""
    best = max(float(seat.voice) for seat in voices)
    for seat in voices:
        seat.voice.fill_(1.0 if float(seat.voice) >= best - WEAKER else 0.0)


def _distances(
    number: int,
    each: Encoder,
    seen: Seen,
    y: Tensor,
    fitted: Tensor,
    held_out: Tensor,
    classes: int,
) -> list[ProbeSeat]:
    """What is usual in every layer: Gaussians of the classes,
    or one for all where classes have too few images.
    """
    labels = y if classes > 1 else torch.zeros_like(y)
    seats = []
    for layer in each.layers:
        features = seen.features[layer]
        probe = mahalanobis(features[fitted], labels[fitted], classes)
        seat = ProbeSeat.of(number, layer, "mahalanobis", probe)
        seat.typical.copy_(probe.distances(features[held_out]).amin(1).median())
        seats.append(seat)
    return seats


def _own_outputs(each: Encoder, seen: Seen, classes: int) -> Int[Tensor, " k"]:
    outputs = seen.logits.shape[1]
    if outputs != classes:
        raise Problem(
            f"there are fewer than {FEWEST} images of some class, so no probe can be fitted, and"
            f" {each.spec} has {outputs} outputs for {classes} classes.",
            fix=(
                "more images of every class, or an encoder whose outputs are mapped to these"
                " classes"
            ),
        )
    return torch.arange(classes)


def _middle_and_width(values: Float[Tensor, " m"]) -> list[float]:
    low, middle, high = values.quantile(
        torch.tensor([0.16, 0.5, 0.84], dtype=values.dtype)
    ).tolist()
    return [middle, max((high - low) / 2, 1e-3)]
