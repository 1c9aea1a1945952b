"""hardcase finds realistic inputs on which an image classifier fails, and says how far each can be
trusted.

Importing it is cheap: nothing below is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.environment import VERSION
from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase import (
        analysis,
        criteria,
        data,
        generators,
        guides,
        judges,
        methods,
        models,
        objectives,
        oracles,
        searches,
        spaces,
        testing,
    )
    from hardcase.api import Execution, Witnesses, check, resume, run, search
    from hardcase.conditions import Conditions
    from hardcase.errors import Problem
    from hardcase.judges.verdicts import judge
    from hardcase.models import zoo
    from hardcase.models.subject import Subject
    from hardcase.randomness import Rng
    from hardcase.repair import Hardest, RepairRecipe, RepairResult, repair
    from hardcase.runs.results import Run
    from hardcase.suite.compare import compare
    from hardcase.suite.coverage import coverage
    from hardcase.suite.gate import assert_confirmed_rate
    from hardcase.suite.replay import replay
    from hardcase.suite.shrink import shrink
    from hardcase.types import (
        Budget,
        Evaluator,
        Feedback,
        Findings,
        Guide,
        Images,
        Judge,
        Method,
        Probe,
        Search,
        Seeds,
        Space,
        Verdicts,
    )

__version__ = VERSION

__getattr__, __dir__, __all__ = lazy(__name__)
