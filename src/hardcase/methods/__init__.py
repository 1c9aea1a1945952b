"""Recipes: one file per paper, one row per method in `catalogue`."""

from hardcase.methods.pgd import cw, fgsm, pgd
from hardcase.methods.sinvad import sinvad

__all__ = ["cw", "fgsm", "pgd", "sinvad"]
