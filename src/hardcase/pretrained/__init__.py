"""Networks that others have trained, and adapters for whatever users have. Importing this folder imports no torch.

``fetch("resnet50-imagenet")`` brings a network into the cache, ``subject("resnet50-imagenet")`` loads it from there.
``adapted(anything)`` makes a network of whatever a user has, ``images_of(anything)`` a labelled image set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardcase.pretrained.catalogue import PRETRAINED, Pretrained

if TYPE_CHECKING:
    from hardcase.pretrained.adapt import Adapted, adapted
    from hardcase.pretrained.fetching import Fetched, fetch, is_fetched, load, subject
    from hardcase.pretrained.hubs import Hub, from_hub
    from hardcase.pretrained.images import images_of
    from hardcase.pretrained.names import ClassMap, class_map
    from hardcase.pretrained.normalisation import Normalisation, guess
    from hardcase.pretrained.streams import Stream

__all__ = [
    "PRETRAINED",
    "Adapted",
    "ClassMap",
    "Fetched",
    "Hub",
    "Normalisation",
    "Pretrained",
    "Stream",
    "adapted",
    "class_map",
    "fetch",
    "from_hub",
    "guess",
    "images_of",
    "is_fetched",
    "load",
    "subject",
]

_HOMES = {
    "Adapted": "adapt",
    "adapted": "adapt",
    "ClassMap": "names",
    "class_map": "names",
    "Fetched": "fetching",
    "fetch": "fetching",
    "is_fetched": "fetching",
    "load": "fetching",
    "subject": "fetching",
    "Hub": "hubs",
    "from_hub": "hubs",
    "images_of": "images",
    "Normalisation": "normalisation",
    "guess": "normalisation",
    "Stream": "streams",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
