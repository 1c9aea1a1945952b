"""Declared conditions and the figures that follow from them."""

from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import PROFILES, Conditions
from hardcase.conditions.risk import RiskTable, compare_risk, measure_risk

__all__ = [
    "PROFILES",
    "ConditionBox",
    "Conditions",
    "RiskTable",
    "compare_risk",
    "condition_box",
    "measure_risk",
]
