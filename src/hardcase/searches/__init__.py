"""How candidates move. A search sees scores and gradients; never a network or a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.searches.boundary import (
        Bisection as Bisection,
        Crossing as Crossing,
        Exits as Exits,
    )
    from hardcase.searches.carlini_wagner import CarliniWagner as CarliniWagner
    from hardcase.searches.evolution import Evolution as Evolution
    from hardcase.searches.fuzzing import (
        Fuzzing as Fuzzing,
        Metamorphic as Metamorphic,
        WhiteNoise as WhiteNoise,
    )
    from hardcase.searches.genetic import Genetic as Genetic, PixelGenetic as PixelGenetic
    from hardcase.searches.gradient import (
        AdamAscent as AdamAscent,
        Fan as Fan,
        GradientAscent as GradientAscent,
        raw as raw,
        rms as rms,
        sign as sign,
        unit as unit,
    )
    from hardcase.searches.hill_climbing import HillClimbing as HillClimbing
    from hardcase.searches.illumination import Illumination as Illumination
    from hardcase.searches.interpolation import (
        AnchoredSteps as AnchoredSteps,
        GrowingMix as GrowingMix,
        Interpolation as Interpolation,
    )
    from hardcase.searches.surrogates import SurrogateGradients as SurrogateGradients
    from hardcase.searches.worklist import Worklist as Worklist

__getattr__, __dir__, __all__ = lazy(__name__)
