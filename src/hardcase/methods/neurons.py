"""The units that white-box methods choose from: which a look covers, and what is known of each from the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.anatomy import Anatomy, Layer, Layered
from hardcase.criteria.frame import Frame
from hardcase.criteria.taps import Means, MeansAndRange
from hardcase.criteria.units import Scaling, Selection, select
from hardcase.guides.strategies import Facts
from hardcase.methods.watching import Profiles
from hardcase.types import Model, Probe, Tap


@dataclass(frozen=True, slots=True)
class FixedRange:
    """Channel means with the extremes of their layer, through which no gradient goes: what is pushed are the means."""

    layer: Layer

    def __call__(self, output: Tensor) -> Float[Tensor, "m w"]:
        with torch.no_grad():
            whole = self.layer.arranged(output).flatten(1)
            extremes = torch.stack([whole.amin(1), whole.amax(1)], 1).float()
        return torch.cat([Means(self.layer)(output), extremes], 1)


@dataclass(frozen=True)
class Neurons:
    """Channel means of a network's layers. `active`: scaled within the picture and above `threshold` (NC), or, with `top`
    above 0, among the `top` strongest of their layer (TKNC)."""

    selection: Selection
    threshold: float = 0.5
    epsilon: float = 0.0
    top: int = 0

    @property
    def taps(self) -> Mapping[str, Tap]:
        taps = self.selection.taps
        return {name: FixedRange(tap.layer) if isinstance(tap, MeansAndRange) else tap for name, tap in taps.items()}

    @property
    def count(self) -> int:
        return self.selection.units

    def read(self, probe: Probe) -> Float[Tensor, "m u"]:
        """The values themselves, as objectives push them."""
        return torch.cat(self.selection.read(probe.activations), 1)

    def scaled(self, probe: Probe) -> Float[Tensor, "m u"]:
        frame = Frame(probe.activations, probe.logits)
        return frame.scaled(self.selection, Scaling("input", self.epsilon)).nan_to_num(0)

    def active(self, probe: Probe, scaled: Float[Tensor, "m u"] | None = None) -> Bool[Tensor, "m u"]:
        """Which units the look covers; `scaled` spares scaling them once more."""
        if not self.top:
            return (self.scaled(probe) if scaled is None else scaled) > self.threshold
        strongest = Frame(probe.activations, probe.logits).top(self.selection, self.top).flatten(1)
        found = torch.zeros(len(strongest), self.count + 1, dtype=torch.bool, device=strongest.device)
        return found.scatter_(1, strongest % (self.count + 1), True)[:, :-1]  # -1, no unit, falls on the spare column


def deepxplore_neurons(profile: Profiles, subject: Model, threshold: float) -> Neurons:
    """As DeepXplore and DLFuzz count them: softmax included, scaled before averaging."""
    return Neurons(select(profile.anatomy(subject), "activated-softmax", "channel", "scale-mean"), threshold)


def adapt_neurons(profile: Profiles, subject: Model, threshold: float = 0.5, top: int = 0) -> Neurons:
    """As ADAPT counts them: all but the softmax, averaged before scaling."""
    return Neurons(select(profile.anatomy(subject), "activated", "channel"), threshold, 1e-6, top)


def facts(profile: Profiles, subject: Model, neurons: Neurons) -> Facts:
    """Units with the largest tenth of incoming weights, and units in layers that have a plane (DLFuzz's fourth strategy)."""
    weight = incoming(profile.anatomy(subject), subject, neurons.selection)
    usable = torch.where(weight > 0, weight, -torch.inf)
    best = usable.argsort(descending=True, stable=True)[: max(1, neurons.count // 10)]
    heavy = torch.zeros(neurons.count, dtype=torch.bool).index_fill_(0, best, True) & (usable > -torch.inf)
    planes = _by_layer(neurons.selection, [float(len(layer.shape) > 1) for layer in neurons.selection.layers])
    return Facts(heavy=heavy, crossing=planes > 0, threshold=neurons.threshold)


def incoming(anatomy: Anatomy, subject: Model, selection: Selection) -> Float[Tensor, " u"]:
    """The mean weight into each unit; NaN where a layer has none. An activation has the weights of the layer it follows."""
    assert isinstance(subject, Layered)
    modules, parts = subject.layers(), list[Tensor]()
    for layer in selection.layers:
        source = _source(anatomy, layer)
        weight = None if source is None else getattr(modules[source.name.split("#")[0]], "weight", None)
        fits = isinstance(weight, Tensor) and len(weight) == layer.channels
        parts.append(_mean(weight) if fits else torch.full((layer.channels,), torch.nan))
    whole = torch.cat(parts)
    return torch.nn.functional.pad(whole, (0, selection.units - len(whole)), value=torch.nan)


def kinds(anatomy: Anatomy, selection: Selection) -> list[str]:
    """The kind of each layer; an activation counts as the layer it belongs to, as in frameworks with built-in activations."""
    found = [(_source(anatomy, layer) or layer).kind for layer in selection.layers]
    return [*found, *["activation"] * (len(selection.widths) - len(found))]


def _source(anatomy: Anatomy, layer: Layer) -> Layer | None:
    """The convolution or dense layer whose weights lead into this one, with at most activations and norms between."""
    for other in reversed(anatomy.layers[: anatomy.layers.index(layer) + 1]):
        if other.kind in ("conv", "linear"):
            return other
        if other.kind not in ("activation", "norm", "plumbing"):
            return None
    return None


def _mean(weight: Any) -> Float[Tensor, " c"]:
    mean: Tensor = weight.detach().float().flatten(1).mean(1).cpu()
    return mean


def _by_layer(selection: Selection, values: list[float]) -> Float[Tensor, " u"]:
    """A value for each layer, repeated for its units; 0 for the softmax."""
    values = [*values, *[0.0] * (len(selection.widths) - len(values))]
    return torch.tensor(values).repeat_interleave(torch.tensor(selection.widths))


def first_convolutions(profile: Profiles, subject: Model, count: int) -> Selection:
    """Every unit of the first convolutions, after activation; of the first dense layers, if a network has none."""
    anatomy = profile.anatomy(subject)
    whole = select(anatomy, "activated", "unit")
    kind = kinds(anatomy, whole)
    wanted = "conv" if "conv" in kind else "linear"
    layers = tuple(layer for layer, what in zip(whole.layers, kind, strict=True) if what == wanted)
    return Selection(layers[: max(1, count)], "unit")


def groups_of(selection: Selection, per: str) -> Int[Tensor, "w 2"]:
    """The first unit and the number of units of every unit, filter or layer."""
    rows = []
    for start, layer in zip(selection.starts, selection.layers, strict=True):
        parts = {"unit": layer.units, "filter": layer.channels, "layer": 1}[per]
        size = layer.units // parts
        rows += [[start + i * size, size] for i in range(parts)]
    return torch.tensor(rows)
