"""Where candidates live: appearances, pixels, latent codes, a generator's activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.spaces.activations import Activations, early_places
    from hardcase.spaces.appearance import Appearance, appearance
    from hardcase.spaces.coordinates import Coordinate
    from hardcase.spaces.latent import (
        Conditional,
        Grid,
        Labelled,
        Latent,
        Library,
        ReEncoded,
        WithResidual,
        collect,
        latent,
        partners,
    )
    from hardcase.spaces.parts import Camera, Focus, Light, Sensor, Warp, Weather
    from hardcase.spaces.pixel import L2, Blackout, Brightness, Linf, Occlusion, Pixels, Unclipped

__getattr__, __dir__, __all__ = lazy(__name__)
