"""Standard corruptions of images: batched, of any severity from 0 (the image itself) to 5, drawn
from a key per row."""

from __future__ import annotations

from hardcase.corruptions.table import CORRUPTIONS, Corruption, corrupt, corruption

__all__ = ["CORRUPTIONS", "Corruption", "corrupt", "corruption"]
