"""Recipes of papers and of ours. A recipe is a space, a search, an objective and an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.methods.appearance_search import (
        natural as natural,
        natural_blackbox as natural_blackbox,
    )
    from hardcase.methods.deepxplore import (
        deepxplore as deepxplore,
        deepxplore_published as deepxplore_published,
        maxplore as maxplore,
    )
    from hardcase.methods.dlfuzz import adapt as adapt, dlfuzz as dlfuzz
    from hardcase.methods.fuzzers import (
        deephunter as deephunter,
        diffchaser as diffchaser,
        tensorfuzz as tensorfuzz,
    )
    from hardcase.methods.generative import (
        argus as argus,
        argus_adaptive as argus_adaptive,
        feature_perturbation as feature_perturbation,
        latte as latte,
        style_mixing as style_mixing,
    )
    from hardcase.methods.pgd import cw as cw, fgsm as fgsm, pgd as pgd
    from hardcase.methods.sinvad import (
        sinvad as sinvad,
        sinvad_between as sinvad_between,
        sinvad_between_code as sinvad_between_code,
        sinvad_code as sinvad_code,
        sinvad_gradient as sinvad_gradient,
        sinvad_surprise as sinvad_surprise,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
