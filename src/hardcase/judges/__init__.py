"""Judges: is a finding valid, has it kept its label, which findings show one fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.judges.calibration import Calibration, People, calibrate, read_people
    from hardcase.judges.judge import NormJudge, PanelJudge
    from hardcase.judges.networks import Panel
    from hardcase.judges.panel import for_data, read, trained
    from hardcase.judges.photographs import feature_judge
    from hardcase.judges.reserved import reserved_judge
    from hardcase.judges.rules import DecisionRule, Signals, auroc

__getattr__, __dir__, __all__ = lazy(__name__)
