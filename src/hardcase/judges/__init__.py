"""Judges: has an image kept its label, how visible is its change, which failures are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.judges.judge import (
        JudgeRequest as JudgeRequest,
        NormJudge as NormJudge,
        TrainedJudge as TrainedJudge,
    )
    from hardcase.judges.panel import for_data as for_data, read as read, trained as trained
    from hardcase.judges.photographs import (
        feature_judge as feature_judge,
        reserved_judge as reserved_judge,
    )
    from hardcase.judges.rules import DecisionRule as DecisionRule, Signals as Signals

__getattr__, __dir__, __all__ = lazy(__name__)
