"""What white-box recipes know about networks before a campaign: their units, and criteria over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.criteria.anatomy import Anatomy, Layered, survey
from hardcase.criteria.building import build, requirements
from hardcase.criteria.measure import Measure
from hardcase.criteria.profile import Needs, Profile
from hardcase.criteria.surprise import Likelihood
from hardcase.criteria.traces import Traces
from hardcase.criteria.units import Selection, select
from hardcase.errors import Problem
from hardcase.measuring import profile_for
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Answer, Images, Model, Offer, Probe, Tap

MOST = 5000
"""Training traces of a density estimate."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Makes criteria for the networks of a campaign. `image` gives the shape; training data are fetched if a criterion needs them."""

    image: Float[Tensor, "1 c h w"]
    training: Callable[[], Images]

    def anatomy(self, model: Model, prefix: str = "") -> Anatomy:
        if not isinstance(model, Layered):
            raise Problem(
                f"the units of {model.name} cannot be seen; it offers {model.offers} only.", fix="a torch model"
            )
        return survey(model, self.image.to(model.device)).prefixed(prefix)

    def criterion(self, spec: str, model: Model, *, prefix: str = "", convention: str = "default") -> Measure:
        """The criterion over the layers of `model`, which a campaign shows under `prefix`."""
        anatomy = self.anatomy(model, prefix)
        known: Profile | None = None
        if requirements([spec], anatomy, convention=convention) != Needs():
            shown = _Shown(model, prefix)
            known = profile_for(shown, self.training(), [spec], convention=convention, anatomy=anatomy)
        return build(spec, anatomy, known, convention=convention, name=_named(spec, prefix))

    def criteria(self, spec: str, subject: Model, peers: tuple[Model, ...], *, convention: str) -> tuple[Measure, ...]:
        """One criterion of the same kind for the subject and one for each peer."""
        own = self.criterion(spec, subject, convention=convention)
        others = [self.criterion(spec, peer, prefix=f"peer{i}/", convention=convention) for i, peer in enumerate(peers)]
        return (own, *others)


@dataclass(frozen=True)
class Reader:
    """Reads the units of a selection, all layers side by side."""

    selection: Selection

    def __call__(self, probe: Probe) -> Float[Tensor, "m u"]:
        return torch.cat(self.selection.read(probe.activations), 1)


def selection(anatomy: Anatomy, layers: str = "activated") -> Selection:
    """Channel means of the named layers."""
    return select(anatomy, layers, "channel")


def likelihood(subject: Model, profile: Profiles, *, per_class: bool) -> tuple[Likelihood, str]:
    """The surprise of the layer before the last, fitted to what training images do there; and that layer."""
    layer = profile.anatomy(subject).layers[-2].name
    images = profile.training()
    some = images.sample(count=min(MOST, len(images)), seed=0) if per_class else images
    traces = _traces(subject, some, layer)
    if per_class:
        return Likelihood.fit(traces), layer
    return Likelihood.fit(traces, per_class=False, most=100), layer


@torch.no_grad()
def _traces(subject: Model, images: Images, layer: str) -> Traces:
    seen, said = [], []
    for rows in chunks(len(images), 256):
        answer = subject(from_bytes(images.x[rows].to(subject.device)), {layer: trace})
        seen.append(answer.activations[layer])
        said.append(answer.logits.argmax(1))
    return Traces(torch.cat(seen).cpu(), torch.cat(said).cpu(), images.y)


def trace(values: Tensor) -> Float[Tensor, "m d"]:
    """A dense layer as it is, a picture as the mean of each channel."""
    return values.flatten(2).mean(2) if values.ndim > 2 else values.clone()


def _named(spec: str, prefix: str) -> str:
    return f"{spec}@{prefix.rstrip('/')}" if prefix else spec


class _Shown:
    """A peer whose layers carry the names under which a campaign shows them."""

    def __init__(self, model: Model, prefix: str) -> None:
        self.model, self.prefix, self.name, self.hash = model, prefix, model.name, model.hash

    @property
    def offers(self) -> Offer:
        return self.model.offers

    @property
    def device(self) -> torch.device:
        return self.model.device

    def layers(self) -> Mapping[str, nn.Module]:
        assert isinstance(self.model, Layered)
        return {self.prefix + name: module for name, module in self.model.layers().items()}

    def __call__(self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None) -> Answer:
        answer = self.model(x, {name.removeprefix(self.prefix): tap for name, tap in (taps or {}).items()})
        return Answer(answer.logits, {self.prefix + name: value for name, value in answer.activations.items()})
