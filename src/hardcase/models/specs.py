"""Words that name a pretrained or a user's own network, and the subject that they mean.

``zoo:NAME`` of the catalogue, ``timm:NAME``, ``hf:NAME-OR-PATH``, ``torchvision:NAME``,
``WEIGHTS@timm:NAME`` for weights of one's own, and files that hold a network whole (``net.pt2``,
``net.pt``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hardcase import registry
from hardcase.cache import named_path
from hardcase.errors import Problem
from hardcase.models.adapters import Adapted, from_model_file
from hardcase.models.hubs import LOADERS, from_hub
from hardcase.models.pretrained.catalogue import PRETRAINED, Pretrained
from hardcase.models.pretrained.fetching import load
from hardcase.models.pretrained.fetching import subject as fetched
from hardcase.models.subject import Subject

WHOLE = (".pt2", ".pt", ".pth", ".ts", ".jit", ".torchscript")
FORMS = (
    "zoo:NAME, timm:NAME, hf:NAME-OR-PATH, torchvision:NAME, WEIGHTS@timm:NAME, FILE.pt2, FILE.pt"
    " (TorchScript)"
)


def _register(row: Pretrained) -> None:
    """Put a network of the table on the registry, beside those that are trained here."""

    def fetched_network() -> nn.Module:
        net, _ = load(row.name)
        return net

    fetched_network.__doc__ = f"{row.summary}."
    registry.model(
        row.name,
        paper=row.paper,
        needs=f"hardcase fetch model {row.name}",
        size=row.size,
        lineage=row.lineage,
        licence=row.licence,
        accuracy=row.accuracy,
    )(fetched_network)


for _row in PRETRAINED.values():
    _register(_row)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A subject, the side of the images it takes (0: not known), and what to tell the user."""

    subject: Subject
    size: int
    note: str


def is_known(spec: str) -> bool:
    """Whether `load_spec` reads these words."""
    weights, _, code = spec.rpartition("@")
    kind, _, name = code.partition(":")
    if kind == "zoo":
        return name in PRETRAINED and not weights
    return kind in LOADERS or (not weights and named_path(spec).suffix in WHOLE)


def names_outputs(spec: str) -> bool:
    """Whether a model of this name may bring class names of its own, other than the data's."""
    if is_known(spec):
        return True
    return spec.partition(":")[0] not in ("zoo", "onnx", "http", "https")


def load_spec(
    spec: str,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
    offline: bool = False,
    trust: bool = False,
) -> Loaded:
    """The subject that `spec` names, with the normalisation that its source states unless the user
    states another.

    Args:
        spec: One of `FORMS`.
        mean: Per channel; replaces what the source states.
        std: Per channel.
        device: Where to ask it.
        offline: Fetch nothing.
        trust: Whether a file of weights may be unpickled.
    """
    if not is_known(spec):
        raise Problem(f"cannot tell what kind of model {spec!r} is.", f"known forms: {FORMS}")
    weights, _, code = spec.rpartition("@")
    kind, _, name = code.partition(":")
    if kind == "zoo":
        size = PRETRAINED[name].size
        own = fetched(name, device=device)
        own.sizing = f"resize={size}&crop=center"
        return Loaded(own, size, "")
    if kind in LOADERS:
        hub = from_hub(code, weights=weights, offline=offline, trust=trust)
        own = Subject(
            Adapted(hub.net),
            mean=mean or hub.mean,
            std=std or hub.std,
            classes=hub.classes,
            name=spec,
            device=device,
        )
        own.sizing = hub.options
        return Loaded(own, hub.size, str(hub))
    whole = from_model_file(named_path(spec))
    own = Subject(whole, mean=mean or (0.0,), std=std or (1.0,), name=spec, device=device)
    note = "" if mean else "the file states no normalisation; images in 0..1 are given as they are"
    return Loaded(own, 0, note)
