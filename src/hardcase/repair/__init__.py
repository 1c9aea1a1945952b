"""Training on with the search inside the loop; weights, and a proof on images nobody saw."""

from hardcase.repair.front import RepairResult, repair
from hardcase.repair.hardest import WorstOfK
from hardcase.repair.loop import RepairRecipe

__all__ = ["RepairRecipe", "RepairResult", "WorstOfK", "repair"]
