"""Judges: is a finding valid, has it kept its label, which findings show one fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.judges.calibration import Calibration, People, calibrate, read_people
    from hardcase.judges.judge import PanelJudge
    from hardcase.judges.panel import Panel, Signals
    from hardcase.judges.rules import DecisionRule, auroc
    from hardcase.judges.teach import for_data, read

__getattr__, __dir__, __all__ = lazy(__name__)
