"""Declared conditions and the figures that follow from them."""

from hardcase.conditions.box import ConditionBox, condition_box
from hardcase.conditions.declared import PROFILES, Conditions
from hardcase.conditions.rare import RareTable, measure_rare
from hardcase.conditions.risk import RiskTable, measure_risk
from hardcase.conditions.worst import WorstCase, measure_worst

__all__ = [
    "PROFILES",
    "ConditionBox",
    "Conditions",
    "RareTable",
    "RiskTable",
    "WorstCase",
    "condition_box",
    "measure_rare",
    "measure_risk",
    "measure_worst",
]
