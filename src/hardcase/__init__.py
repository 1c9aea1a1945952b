"""hardcase measures how often your image classifier fails under conditions you choose, and shows
you the images.

Importing it is cheap: nothing below is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.environment import VERSION
from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase import (
        analysis as analysis,
        conditions as conditions,
        criteria as criteria,
        data as data,
        generators as generators,
        guides as guides,
        judges as judges,
        methods as methods,
        models as models,
        objectives as objectives,
        oracles as oracles,
        searches as searches,
        spaces as spaces,
        testing as testing,
    )
    from hardcase.api import (
        Execution as Execution,
        Witnesses as Witnesses,
        check as check,
        resume as resume,
        run as run,
        search as search,
    )
    from hardcase.attack import AttackedImages as AttackedImages, attack as attack
    from hardcase.conditions import Conditions as Conditions
    from hardcase.errors import HardcaseError as HardcaseError
    from hardcase.judges.verdicts import judge as judge
    from hardcase.models import zoo as zoo
    from hardcase.models.subject import Subject as Subject
    from hardcase.randomness import Rng as Rng
    from hardcase.repair import (
        RepairRecipe as RepairRecipe,
        RepairResult as RepairResult,
        WorstOfK as WorstOfK,
        repair as repair,
    )
    from hardcase.report import report as report
    from hardcase.runs.results import Run as Run
    from hardcase.suite.compare import compare as compare
    from hardcase.suite.coverage import coverage as coverage
    from hardcase.suite.export import export as export
    from hardcase.suite.gate import assert_failure_rate as assert_failure_rate
    from hardcase.suite.replay import replay as replay
    from hardcase.suite.shrink import shrink as shrink
    from hardcase.types import (
        Budget as Budget,
        Evaluator as Evaluator,
        Feedback as Feedback,
        Findings as Findings,
        Guide as Guide,
        ImagePairs as ImagePairs,
        Images as Images,
        Judge as Judge,
        Method as Method,
        Probe as Probe,
        Search as Search,
        Seeds as Seeds,
        Space as Space,
        Verdicts as Verdicts,
    )

__version__ = VERSION

__getattr__, __dir__, __all__ = lazy(__name__)
