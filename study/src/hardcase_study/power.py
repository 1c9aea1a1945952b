"""How exact a study will be, before anybody is asked: from a simulated crowd."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardcase_study.assignment import Sizes
from hardcase_study.crowd import ACCURACY, KEPT, SPLIT, SPREAD

REPEATS = 400
SWING = 0.5
"""How far raters differ in leniency, in standard deviations on the log-odds of an ambiguous image.
"""


SPREADS = {
    "scores": (0.8, 0.4, 0.7),
    "ranks": (0.8, 0.0, 1.2),
}
"""Assumed standard deviations of images, of raters and of single answers about both."""
UNITS = {"likert": "scores", "sinvad": "scores", "rank": "ranks", "argus": "ranks"}
"""What a design's mean is measured in; the others' are shares, in points of a hundred."""


def precision(sizes: Sizes, items: int, *, design: str = "label", seed: int = 0) -> dict[str, Any]:
    """The half-width of the 95 % interval of a study's first number.

    For shares ("of the answers that see the seed's class") studies of this size are simulated, and
    images and raters vary from one to the next; for mean scores and ranks it follows from
    `SPREADS`.

    >>> precision(Sizes(raters=12), 72)["sentence"].startswith("12 raters give ± ")
    True
    """
    unit = UNITS.get(design, "points")
    answers = sizes.raters * min(sizes.own, items)
    if unit in SPREADS:
        image, rater, rest = SPREADS[unit]
        variance = image**2 / items + rater**2 / sizes.raters + rest**2 / answers
        half = 1.959964 * variance**0.5
        shown = f"{half:.2f}"
        source = "assumed spreads"
    else:
        half = _of_share(sizes.raters, sizes.own, items, np.random.default_rng([seed, 5]))
        shown = f"{100 * half:.0f}"
        source = "simulated crowd, no people"
    return {
        "sentence": f"{sizes.raters} raters give ± {shown} {unit}",
        "unit": unit,
        "half_width": half,
        "source": source,
    }


def _of_share(raters: int, own: int, items: int, rng: np.random.Generator) -> float:
    """`REPEATS` studies at once; the first axis is the study."""
    shape = (REPEATS, items)
    kind = rng.random(shape)
    clear = np.where(kind < KEPT, 1.0, 0.0)
    lean = np.where(kind > 1 - SPLIT, rng.normal(0, 1, shape), np.nan)
    ability = rng.beta(ACCURACY * SPREAD, (1 - ACCURACY) * SPREAD, (REPEATS, raters))
    leniency = rng.normal(0, SWING, (REPEATS, raters))
    number = min(own, items)
    start = np.arange(raters) * number
    which = (start[:, None] + np.arange(number)) % items
    split = lean[:, which]
    seen = np.where(
        np.isnan(split), clear[:, which], 1 / (1 + np.exp(-split - leniency[..., None]))
    )
    chance = seen * ability[..., None] + (1 - seen) * (1 - ability[..., None]) / 10
    votes = rng.random(chance.shape) < chance
    return 1.959964 * float(votes.mean((1, 2)).std(ddof=1))
