"""What white-box recipes share: units, profiles, and objectives that push units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.criterion import Measure, build_criteria, profile_for, requirements, toward
from hardcase.criteria.network import (
    Layer,
    Layered,
    LayerGraph,
    Selection,
    channel_means,
    row_extremes,
    select,
    trace_layers,
)
from hardcase.criteria.profile import ActivationBatch, Needs, Profile
from hardcase.criteria.surprise import Likelihood, Traces
from hardcase.errors import HardcaseError
from hardcase.guides.units import Facts, Strategies
from hardcase.objectives import Pushed
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Guide, Images, Model, Objective, Probe, Tap

# What white-box recipes know about networks before a campaign: their units, and criteria over them.

MOST = 5000
"""Training traces of a density estimate."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Makes criteria for the networks of a campaign."""

    image: Float[Tensor, "1 c h w"]
    training: Callable[[], Images]

    def graph(self, model: Model, prefix: str = "") -> LayerGraph:
        if not isinstance(model, Layered):
            raise HardcaseError(
                f"the units of {model.name} cannot be seen; it offers {model.offers} only.",
                fix="a torch model",
            )
        return trace_layers(model, self.image.to(model.device)).prefixed(prefix)

    def criterion(
        self, spec: str, model: Model, *, prefix: str = "", convention: str = "default"
    ) -> Measure:
        """The criterion over the layers of `model`, which a run shows under `prefix`."""
        graph = self.graph(model)
        fitted: Profile | None = None
        if requirements([spec], graph, convention=convention) != Needs():
            profile = profile_for(
                model, self.training(), [spec], convention=convention, graph=graph
            )
            fitted = replace(profile, prefix=prefix)
        return build_criteria(
            spec,
            graph.prefixed(prefix),
            fitted,
            convention=convention,
            name=_named(spec, prefix),
        )

    def criteria(
        self, spec: str, subject: Model, peers: tuple[Model, ...], *, convention: str
    ) -> tuple[Measure, ...]:
        """A criterion of the same kind for the model and for each peer."""
        guiding = self.criterion(spec, subject, convention=convention)
        others = [
            self.criterion(spec, peer, prefix=f"peer{i}/", convention=convention)
            for i, peer in enumerate(peers)
        ]
        return (guiding, *others)


@dataclass(frozen=True)
class Reader:
    """Reads the units of a selection, all layers side by side."""

    selection: Selection

    def __call__(self, probe: Probe) -> Float[Tensor, "m u"]:
        return torch.cat(self.selection.read(probe.activations), 1)


def likelihood(subject: Model, profile: Profiles, *, per_class: bool) -> tuple[Likelihood, str]:
    """Fit likelihood-based surprise to the layer before the last; return it and the layer."""
    layer = profile.graph(subject).layers[-2].name
    images = profile.training()
    if not per_class:
        traces = _traces(subject, images, layer)
        return Likelihood.fit(traces, per_class=False, most=100), layer
    sample = images.sample(count=min(MOST, len(images)), seed=0)
    return Likelihood.fit(_traces(subject, sample, layer)), layer


@torch.no_grad()
def _traces(subject: Model, images: Images, layer: str) -> Traces:
    traces = []
    predicted = []
    for rows in chunks(len(images), 256):
        answer = subject(from_bytes(images.x[rows].to(subject.device)), {layer: trace})
        traces.append(answer.activations[layer])
        predicted.append(answer.logits.argmax(1))
    return Traces(torch.cat(traces).cpu(), torch.cat(predicted).cpu(), images.y)


def trace(values: Tensor) -> Float[Tensor, "m d"]:
    """A dense layer as it is, an image as the mean of each channel."""
    if values.ndim > 2:
        return values.flatten(2).mean(2)
    return values.clone()


def _named(spec: str, prefix: str) -> str:
    """A guide's name in a campaign: that of a peer says whose it is."""
    return "@".join(filter(None, (spec, prefix.rstrip("/"))))


# The units that white-box methods choose from.


@dataclass(frozen=True, slots=True)
class FixedRange:
    """Channel means, and their layer's extremes without gradient: only means are pushed.

    The extremes are read outside the graph: a gradient of zero by them would be spread over the
    entire layer all the same, which took a third of DLFuzz's time.
    """

    layer: Layer

    def __call__(self, output: Tensor) -> Float[Tensor, "m w"]:
        output = self.layer.arranged(output)
        means = channel_means(self.layer, output)
        return torch.cat([means, row_extremes(output.detach())], 1).float()


@dataclass(frozen=True)
class Neurons:
    """Channel means of a network's layers. `active`: scaled within the image and above
    `threshold` (NC), or, with `top` above 0, among the `top` strongest of their layer (TKNC).
    """

    selection: Selection
    threshold: float = 0.5
    epsilon: float = 0.0
    top: int = 0

    @property
    def taps(self) -> Mapping[str, Tap]:
        taps = self.selection.taps
        ranged = [name for name, tap in taps.items() if tap.kept == "means and range"]
        return {**taps, **{name: FixedRange(taps[name].layer) for name in ranged}}

    @property
    def count(self) -> int:
        return self.selection.units

    def read(self, probe: Probe) -> Float[Tensor, "m u"]:
        """The values themselves, as objectives push them."""
        return torch.cat(self.selection.read(probe.activations), 1)

    def scaled(self, probe: Probe) -> Float[Tensor, "m u"]:
        frame = ActivationBatch(probe.activations, probe.logits)
        return frame.scaled(self.selection, self.epsilon).nan_to_num(0)

    def active(self, probe: Probe) -> Bool[Tensor, "m u"]:
        """Which units the candidates cover."""
        if not self.top:
            return self.scaled(probe) > self.threshold
        shown = ActivationBatch(probe.activations, probe.logits)
        strongest = shown.top(self.selection, self.top).flatten(1)
        shape = (len(strongest), self.count + 1)  # -1, no unit, falls on the spare column
        active = torch.zeros(shape, dtype=torch.bool, device=strongest.device)
        return active.scatter_(1, strongest % (self.count + 1), True)[:, :-1]


def deepxplore_neurons(profile: Profiles, subject: Model, threshold: float) -> Neurons:
    """As DeepXplore and DLFuzz count them: softmax included, scaled before averaging."""
    return Neurons(
        select(profile.graph(subject), "activated-softmax", "channel", "scale-mean"), threshold
    )


def adapt_neurons(
    profile: Profiles, subject: Model, threshold: float = 0.5, top: int = 0
) -> Neurons:
    """As ADAPT counts them: all but the softmax, averaged before scaling."""
    return Neurons(select(profile.graph(subject), "activated", "channel"), threshold, 1e-6, top)


def facts(profile: Profiles, subject: Model, neurons: Neurons) -> Facts:
    """Units with the largest tenth of incoming weights, and units in layers with a plane."""
    weight = incoming(profile.graph(subject), subject, neurons.selection)
    usable = torch.where(weight > 0, weight, -torch.inf)
    best = usable.argsort(descending=True, stable=True)[: max(1, neurons.count // 10)]
    heavy = torch.zeros(neurons.count, dtype=torch.bool).index_fill_(0, best, True) & (
        usable > -torch.inf
    )
    planes = _by_layer(
        neurons.selection, [float(len(layer.shape) > 1) for layer in neurons.selection.layers]
    )
    return Facts(heavy=heavy, crossing=planes > 0, threshold=neurons.threshold)


def incoming(graph: LayerGraph, subject: Model, selection: Selection) -> Float[Tensor, " u"]:
    """The mean weight into each unit, through activations; NaN where a layer has none."""
    assert isinstance(subject, Layered)
    modules = subject.layers()
    parts = list[Tensor]()
    for layer in selection.layers:
        source = _source(graph, layer)
        mean = torch.full((layer.channels,), torch.nan)
        if source is not None:
            weight = getattr(modules[source.name.split("#")[0]], "weight", None)
            if isinstance(weight, Tensor) and len(weight) == layer.channels:
                mean = weight.detach().float().flatten(1).mean(1).cpu()
        parts.append(mean)
    per_unit = torch.cat(parts)
    return torch.nn.functional.pad(per_unit, (0, selection.units - len(per_unit)), value=torch.nan)


def kinds(graph: LayerGraph, selection: Selection) -> list[str]:
    """The kind of each layer; an activation counts as the layer it belongs to."""
    active = [(_source(graph, layer) or layer).kind for layer in selection.layers]
    return [*active, *["activation"] * (len(selection.widths) - len(active))]


def _source(graph: LayerGraph, layer: Layer) -> Layer | None:
    """The layer whose weights lead into this layer, with at most activations and norms between."""
    for other in reversed(graph.layers[: graph.layers.index(layer) + 1]):
        if other.kind in ("conv", "linear"):
            return other
        if other.kind not in ("activation", "norm", "plumbing"):
            return None
    return None


def _by_layer(selection: Selection, values: list[float]) -> Float[Tensor, " u"]:
    """A value for each layer, repeated for its units; 0 for the softmax."""
    values = [*values, *[0.0] * (len(selection.widths) - len(values))]
    return torch.tensor(values).repeat_interleave(torch.tensor(selection.widths))


def first_convolutions(profile: Profiles, subject: Model, count: int) -> Selection:
    """Every unit of the first convolutions (else dense layers), after activation."""
    graph = profile.graph(subject)
    units_of = select(graph, "activated", "unit")
    kind = kinds(graph, units_of)
    wanted = "linear"
    if "conv" in kind:
        wanted = "conv"
    layers = tuple(
        layer for layer, what in zip(units_of.layers, kind, strict=True) if what == wanted
    )
    return Selection(layers[: max(1, count)], "unit")


def groups_of(selection: Selection, per: str) -> Int[Tensor, "w 2"]:
    """The first unit and the number of units of every unit, filter or layer."""
    rows = []
    for start, layer in zip(selection.starts, selection.layers, strict=True):
        parts = {"unit": layer.units, "filter": layer.channels, "layer": 1}[per]
        size = layer.units // parts
        rows += [[start + i * size, size] for i in range(parts)]
    return torch.tensor(rows)


# What a method pushes beside its main objective.

CONTROLS = ("none", "random")
"""Instead of a criterion: no coverage term at all, or units drawn evenly whether covered or not."""


@dataclass(frozen=True, slots=True)
class Push:
    """Guides that choose what to push, and the score that pushes it, for each model."""

    guides: tuple[Guide, ...]
    scores: tuple[Objective, ...]


def push(profile: Profiles, criterion: str, subject: Model, peers: tuple[Model, ...] = ()) -> Push:
    """`criterion` (or a control of `CONTROLS`) on the model and on each peer, with its gradient."""
    if criterion == "none":
        return Push((), ())
    if criterion == "random":
        prefixes = ["", *(f"peer{i}/" for i in range(len(peers)))]
        parts = [_random(profile, *pair) for pair in zip((subject, *peers), prefixes)]
        guides, scores = zip(*parts)
        return Push(guides, scores)
    criteria = profile.criteria(criterion, subject, peers, convention="default")
    return Push(criteria, tuple(toward(one) for one in criteria))


def _random(profile: Profiles, model: Model, prefix: str) -> tuple[Guide, Objective]:
    """A channel of a convolution or dense layer, drawn evenly: coverage without memory."""
    units = Neurons(select(profile.graph(model, prefix), "conv-linear", "channel"))
    nothing = torch.zeros(units.count, dtype=torch.bool)
    name = _named("random", prefix)
    guide = Strategies(name, units, Facts(heavy=nothing, crossing=nothing), ("anything",), 1)
    return guide, Pushed(units.read, name)
