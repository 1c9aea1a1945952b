"""Labelled image sets by name: ``load("mnist5k", split="test")``.

Importing this imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.data.public import fetch as fetch
    from hardcase.data.sources import describe as describe, images_of as images_of, load as load

__getattr__, __dir__, __all__ = lazy(__name__)
