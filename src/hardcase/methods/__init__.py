"""Recipes: one file per paper. A recipe is a space, a search, an objective and an oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.methods.adapt import adapt
    from hardcase.methods.appearance_search import natural, natural_blackbox
    from hardcase.methods.argus import argus, argus_adaptive
    from hardcase.methods.deephunter import deephunter
    from hardcase.methods.deepxplore import deepxplore, deepxplore_published
    from hardcase.methods.diffchaser import diffchaser
    from hardcase.methods.dlfuzz import dlfuzz
    from hardcase.methods.feature_perturbation import feature_perturbation
    from hardcase.methods.maxplore import maxplore
    from hardcase.methods.pgd import cw, fgsm, pgd
    from hardcase.methods.sinvad import (
        sinvad,
        sinvad_between,
        sinvad_between_code,
        sinvad_code,
        sinvad_gradient,
        sinvad_surprise,
    )
    from hardcase.methods.tensorfuzz import tensorfuzz

__getattr__, __dir__, __all__ = lazy(__name__)
