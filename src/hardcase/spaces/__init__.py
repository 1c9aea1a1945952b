"""Where candidates live: appearances, pixels, latent codes, a generator's activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.spaces.activations import (
        Activations as Activations,
        Styles as Styles,
        early_places as early_places,
    )
    from hardcase.spaces.appearance import Appearance as Appearance, appearance as appearance
    from hardcase.spaces.coordinates import Coordinate as Coordinate
    from hardcase.spaces.latent import (
        Conditional as Conditional,
        Grid as Grid,
        Labelled as Labelled,
        Latent as Latent,
        Library as Library,
        ReEncoded as ReEncoded,
        WithResidual as WithResidual,
        collect as collect,
        latent as latent,
        partners as partners,
    )
    from hardcase.spaces.parts import (
        Camera as Camera,
        Focus as Focus,
        Light as Light,
        Sensor as Sensor,
        Warp as Warp,
        Weather as Weather,
    )
    from hardcase.spaces.pixel import (
        L2 as L2,
        Blackout as Blackout,
        Brightness as Brightness,
        Linf as Linf,
        Occlusion as Occlusion,
        Pixels as Pixels,
        Unclipped as Unclipped,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
