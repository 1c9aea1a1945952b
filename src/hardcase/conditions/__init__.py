"""Declared conditions, the figures that follow from them, and conditions found from a field.

Nothing below is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.conditions.box import (
        ConditionBox as ConditionBox,
        condition_box as condition_box,
    )
    from hardcase.conditions.declared import PROFILES as PROFILES, Conditions as Conditions
    from hardcase.conditions.fitting.fit import FieldFit as FieldFit, fit as fit
    from hardcase.conditions.rare import RareTable as RareTable, measure_rare as measure_rare
    from hardcase.conditions.risk import RiskTable as RiskTable, measure_risk as measure_risk
    from hardcase.conditions.worst import WorstCase as WorstCase, measure_worst as measure_worst

__getattr__, __dir__, __all__ = lazy(__name__)
