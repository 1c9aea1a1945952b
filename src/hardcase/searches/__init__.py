"""How candidates move. A search sees scores and gradients; never a network or a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.searches.boundary import Bisection, Crossing, Exits
    from hardcase.searches.carlini_wagner import CarliniWagner
    from hardcase.searches.evolution import Evolution
    from hardcase.searches.fuzzing import Fuzzing, Metamorphic, WhiteNoise
    from hardcase.searches.genetic import Genetic, PixelGenetic
    from hardcase.searches.gradient import AdamAscent, Fan, GradientAscent, raw, rms, sign, unit
    from hardcase.searches.hill_climbing import HillClimbing
    from hardcase.searches.illumination import Illumination
    from hardcase.searches.interpolation import Interpolation
    from hardcase.searches.surrogates import SurrogateGradients
    from hardcase.searches.worklist import Worklist

__getattr__, __dir__, __all__ = lazy(__name__)
