"""What other programs find by entry points and call in every process: nothing imports torch."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

CHECKMAITE_API = "1.0.0"
"""The version of CheckMAITE's plug-ins that is spoken here."""


def lightning_callbacks() -> list[Any]:
    """Callbacks that Lightning attaches to every Trainer: none unless the environment asks.

    ``HARDCASE_LIGHTNING`` names the conditions, ``HARDCASE_LIGHTNING_EVERY`` how often.
    """
    conditions = os.environ.get("HARDCASE_LIGHTNING")
    if not conditions:
        return []
    from hardcase_teams.lightning import Robustness

    return [Robustness(conditions, every=int(os.environ.get("HARDCASE_LIGHTNING_EVERY", "5")))]


def maite_exports() -> dict[str, Any]:
    """What CheckMAITE finds for classification: classes by name, and the version they follow."""
    from hardcase_teams.maite import MaiteDataset, MaiteModel

    return {
        "__plugin_api_version__": CHECKMAITE_API,
        "HardcaseModel": MaiteModel,
        "HardcaseDataset": MaiteDataset,
        **_capabilities(),
    }


def _capabilities() -> dict[str, Any]:
    """The capability that measures a failure rate, where CheckMAITE itself asks."""
    if importlib.util.find_spec("checkmaite") is None:
        return {}
    from hardcase_teams.checkmaite import FailureRate, FailureRateConfig, FailureRateOutputs

    return {
        "HardcaseFailureRate": FailureRate,
        "HardcaseFailureRateConfig": FailureRateConfig,
        "HardcaseFailureRateOutputs": FailureRateOutputs,
    }


def maite_detection_exports() -> dict[str, Any]:
    """What CheckMAITE finds for object detection, likewise."""
    from hardcase_teams.maite import MaiteDetectionDataset, MaiteDetectionModel

    return {
        "__plugin_api_version__": CHECKMAITE_API,
        "HardcaseModel": MaiteDetectionModel,
        "HardcaseDataset": MaiteDetectionDataset,
    }
