"""Every interval and every test, once: what varies is an argument, and nothing else is resampled.

* `rates`: a proportion of independent units (Wilson; Clopper and Pearson).
* `bounded`: the mean of values in a known range, whatever their law (Gaffke).
* `means`: means and medians of a few units.
* `paired`: differences of two answers to the same questions.
* `tests`: whether samples differ, and corrections for asking several times.
* `ordering`: how well a score orders.
* `decisions`: pass, fail or inconclusive.
* `planning`: how many images it takes to decide.
* `counts`: what runs count.

`docs/concepts/statistics.md` says which of them each published number uses, and what it resamples.
"""

from hardcase.statistics.bounded import bounded_mean_interval
from hardcase.statistics.counts import (
    METRICS,
    STEPS,
    Metric,
    Verdict,
    accepted_by,
    count,
    kinds_in_words,
    settings_in_words,
    verdict_status,
)
from hardcase.statistics.decisions import LimitDecision, Outcome, decide, decide_counts
from hardcase.statistics.means import (
    ALL_FLIPS,
    DRAWN_FLIPS,
    LEAST_EXACT,
    LEAST_T,
    LEVEL,
    Interval,
    log_interval,
    mean_interval,
    median_interval,
    without_interval,
)
from hardcase.statistics.ordering import auroc, auroc_interval, auroc_of_counts
from hardcase.statistics.paired import newcombe_paired
from hardcase.statistics.planning import (
    NORMAL_POWER,
    POWER,
    ImagesNeeded,
    images_to_decide,
    needed_images,
)
from hardcase.statistics.rates import (
    NORMAL,
    ONE_SIDED,
    Bounds,
    Rate,
    binomial_interval,
    wilson_interval,
)
from hardcase.statistics.tests import (
    PERMUTATIONS,
    Numbers,
    Test,
    a12,
    cliffs_delta,
    flips,
    holm,
    largest_t,
    magnitude,
    mann_whitney,
    max_statistic,
    mcnemar,
    wilcoxon,
)

__all__ = [
    "ALL_FLIPS",
    "DRAWN_FLIPS",
    "LEAST_EXACT",
    "LEAST_T",
    "LEVEL",
    "METRICS",
    "NORMAL",
    "NORMAL_POWER",
    "ONE_SIDED",
    "PERMUTATIONS",
    "POWER",
    "STEPS",
    "Bounds",
    "ImagesNeeded",
    "Interval",
    "LimitDecision",
    "Metric",
    "Numbers",
    "Outcome",
    "Rate",
    "Test",
    "Verdict",
    "a12",
    "accepted_by",
    "auroc",
    "auroc_interval",
    "auroc_of_counts",
    "binomial_interval",
    "bounded_mean_interval",
    "cliffs_delta",
    "count",
    "decide",
    "decide_counts",
    "flips",
    "holm",
    "images_to_decide",
    "kinds_in_words",
    "largest_t",
    "log_interval",
    "magnitude",
    "mann_whitney",
    "max_statistic",
    "mcnemar",
    "mean_interval",
    "median_interval",
    "needed_images",
    "newcombe_paired",
    "settings_in_words",
    "verdict_status",
    "wilcoxon",
    "wilson_interval",
    "without_interval",
]
