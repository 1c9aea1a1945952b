"""How candidates move. A search sees scores and gradients; never a network or a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.searches.black_box import (
        Evolution as Evolution,
        SurrogateGradients as SurrogateGradients,
    )
    from hardcase.searches.boundary import BoundaryWalks as BoundaryWalks, Crossing as Crossing
    from hardcase.searches.fuzzing import (
        Fuzzing as Fuzzing,
        Metamorphic as Metamorphic,
        WhiteNoise as WhiteNoise,
        Worklist as Worklist,
    )
    from hardcase.searches.genetic import (
        Genetic as Genetic,
        HillClimbing as HillClimbing,
        Illumination as Illumination,
        PixelGenetic as PixelGenetic,
    )
    from hardcase.searches.gradient import (
        AdamAscent as AdamAscent,
        CarliniWagner as CarliniWagner,
        GradientAscent as GradientAscent,
        MultiStartAscent as MultiStartAscent,
        raw as raw,
        rms as rms,
        sign as sign,
        unit as unit,
    )
    from hardcase.searches.interpolation import (
        AnchoredSteps as AnchoredSteps,
        Bisection as Bisection,
        GrowingMix as GrowingMix,
        Interpolation as Interpolation,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
