"""A capability of CheckMAITE that measures a failure rate under declared conditions.

It stands beside CheckMAITE's `NrtkRobustness`: that one applies each perturbation to the whole data
set and tells a metric for each. This one asks about random conditions of a declaration, all kinds
together, and tells one rate with its interval. Only CheckMAITE imports this module, by the entry
point ``checkmaite.plugins.image_classification``.
"""

from __future__ import annotations

from typing import Any

from checkmaite.core.capability_core import (  # type: ignore[import-not-found]
    Capability,
    CapabilityConfigBase,
    CapabilityOutputsBase,
    CapabilityRunBase,
    Number,
)

from hardcase.conditions import Conditions, condition_box, measure_risk
from hardcase_teams.maite import FromMaite, images_from_maite

__all__ = ["FailureRate", "FailureRateConfig", "FailureRateOutputs", "FailureRateRun"]


class FailureRateConfig(CapabilityConfigBase):  # type: ignore[misc]
    """Which conditions are declared, and how many samples are asked about.

    Args:
        conditions: A profile (``handheld``, ``outdoors`` ...) or a TOML file of ranges.
        samples: Random conditions per image.
        outputs: Whether the model answers ``logits`` or ``probabilities``.
        seed: Everything random follows from it.
    """

    conditions: str = "handheld"
    samples: int = 4
    outputs: str = "logits"
    seed: int = 0


class FailureRateOutputs(CapabilityOutputsBase):  # type: ignore[misc]
    """The failure rate under conditions, of unmodified images, and their difference.

    Args:
        rate: `value`, `low` and `high` under conditions, and counts.
        conditions: What was declared.
    """

    rate: dict[str, Any]
    conditions: dict[str, Any]


class FailureRateRun(CapabilityRunBase):  # type: ignore[misc]
    """A measured failure rate with what it was measured on."""

    config: FailureRateConfig
    outputs: FailureRateOutputs


class FailureRate(Capability):  # type: ignore[misc]
    """Measure how often a model fails under declared conditions."""

    _RUN_TYPE = FailureRateRun

    @classmethod
    def _create_config(cls) -> FailureRateConfig:
        return FailureRateConfig()

    @property
    def supports_datasets(self) -> Any:
        return Number.ONE

    @property
    def supports_models(self) -> Any:
        return Number.ONE

    @property
    def supports_metrics(self) -> Any:
        return Number.ZERO

    def _run(
        self,
        models: list[Any],
        datasets: list[Any],
        metrics: list[Any],
        config: FailureRateConfig,
        use_prediction_and_evaluation_cache: bool,
    ) -> FailureRateOutputs:
        subject = FromMaite(models[0], outputs=config.outputs)
        images = images_from_maite(datasets[0])
        declared = Conditions.load(config.conditions)
        box = condition_box(declared, images.shape)
        table = measure_risk(subject, images, box, samples=config.samples, seed=config.seed)
        return FailureRateOutputs(rate=table.to_json(), conditions=declared.to_record())
