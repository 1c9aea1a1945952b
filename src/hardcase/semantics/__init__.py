"""What can be measured of a picture, and how it moved from a seed to a test."""

from __future__ import annotations

from hardcase.semantics.features import FEATURES, Feature, measured, moved

__all__ = ["FEATURES", "Feature", "measured", "moved"]
