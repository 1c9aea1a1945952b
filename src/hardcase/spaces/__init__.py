"""Where candidates live: pixels, latent codes, activations of a generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.spaces.activations import Activations, early_places
    from hardcase.spaces.latent import Conditional, Grid, Latent, Library, collect, latent, partners
    from hardcase.spaces.pixel import L2, Blackout, Brightness, Linf, Occlusion, Pixels, Unclipped

__getattr__, __dir__, __all__ = lazy(__name__)
