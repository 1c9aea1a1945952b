"""The two published studies, analysed as their papers do: SINVAD's RQ1 and ARGUS's Figure 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float

from hardcase import statistics
from hardcase_study.agreement import crossed_difference, crossed_mean, kendall_w, welch_p
from hardcase_study.answers import Given
from hardcase_study.bundle import Study

SINVAD_PAPER: dict[str, dict[str, float]] = {
    "acceptability": {"real": 6.24, "cw": 6.24, "fgsm": 6.15, "sinvad": 6.12},
    "seconds": {"real": 6.13, "cw": 6.69, "fgsm": 6.90, "sinvad": 7.20},
    "most confusing": {"sinvad": 0.55},
}
"""Tables 1 and 2 and the text, MNIST: S. Kang, R. Feldt, S. Yoo, TOSEM 2023."""
EXACT = 12
"""Up to so many paired differences every assignment of signs is counted."""
ARGUS_PAPER = (
    "ARGUS 0.1 near rank 1, its rivals 5 to 7 and mostly below grade 2; no numbers printed"
)


@dataclass(frozen=True, slots=True)
class Rating:
    """One answer in SINVAD's form: how much an image looks like its source and its target class."""

    rater: str
    quadruple: str
    method: str
    source: int
    target: int
    seconds: float

    @property
    def confusion(self) -> int:
        """Eq. 2: 5 where both classes are equally likely, 1 where one is certain."""
        return 5 - abs(self.target - self.source)

    @property
    def leaning(self) -> int:
        """Figure 10: positive where the image still looks more like its source."""
        return self.source - self.target

    @property
    def acceptability(self) -> int:
        """Table 1: the sum of both, low for an image that looks like nothing."""
        return self.source + self.target


SHOWN = 12
"""Real images of Figure 12 that are shown."""


def ratings(study: Study, given: Sequence[Given]) -> list[Rating]:
    """Answers to SINVAD's form; images themselves have the method ``real``."""
    made = []
    for one in given:
        item = study.items[one.item]
        if item.form != "resemble":
            continue
        stimulus = study.stimuli[item.stimuli[0]]
        source, target = (int(one.value[name]) for name in item.truth)
        method = stimulus.method or "real"
        made.append(Rating(one.rater, stimulus.seed, method, source, target, one.seconds))
    return made


def sinvad(study: Study, given: Sequence[Given]) -> dict[str, Any]:
    """Eq. 2, Figures 9 to 12, Tables 1 and 2, and the tests of the paper."""
    found = ratings(study, given)
    methods = sorted({one.method for one in found}, key=lambda name: (name != "real", name))
    images: dict[tuple[str, str], list[Rating]] = {}
    for one in found:
        images.setdefault((one.method, one.quadruple), []).append(one)
    seeds = sorted({one.quadruple for one in found})
    won = [_winner(name, images) for name in seeds]
    counts = Counter(method for method, _ in won)
    rows = []
    for name in methods:
        own = [one for one in found if one.method == name]
        per = [some for (method, _), some in sorted(images.items()) if method == name]
        rows.append(
            {
                "method": name,
                "images": len(per),
                "ratings": len(own),
                "confusion": {**_means(per, "confusion"), "interval": _interval(own)},
                "leaning": _means(per, "leaning"),
                "acceptability": float(np.mean([one.acceptability for one in own])),
                "seconds": float(np.mean([one.seconds for one in own])),
                "most confusing": counts[name] / len(won),
                "of these sure": sum(sure for method, sure in won if method == name),
                "paper": {key: values.get(name) for key, values in SINVAD_PAPER.items()},
            }
        )
    squares = [{"method": method, "sure": sure} for method, sure in won]
    doubtful = {seed for seed, (method, _) in zip(seeds, won, strict=True) if method == "real"}
    shown = [one.id for one in study.stimuli.values() if not one.method and one.seed in doubtful]
    return {
        "methods": rows,
        "figure_11": squares,
        "figure_12": shown[:SHOWN],
        "tests": _tests(found, methods),
    }


def _means(per: Sequence[Sequence[Rating]], name: str) -> dict[str, Any]:
    """Mean of each image, and their mean and quartiles."""
    values = [float(np.mean([getattr(one, name) for one in some])) for some in per]
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {
        "mean": float(np.mean(values)),
        "low": low,
        "median": middle,
        "high": high,
        "values": [round(value, 3) for value in values],
    }


def _interval(own: Sequence[Rating]) -> list[float]:
    """95 % of the mean confusion, over raters and images."""
    values = np.array([float(one.confusion) for one in own])
    raters = np.unique([one.rater for one in own], return_inverse=True)[1]
    images = np.unique([one.quadruple for one in own], return_inverse=True)[1]
    found = crossed_mean(values, raters, images)
    return [found.low, found.high]


def _winner(seed: str, images: Mapping[tuple[str, str], list[Rating]]) -> tuple[str, bool]:
    """The most confusing method of an image, and whether Welch's test against the next is sure."""
    own = {
        m: [float(one.confusion) for one in some] for (m, s), some in images.items() if s == seed
    }
    ranked = sorted(own.items(), key=lambda pair: (-np.mean(pair[1]), pair[0]))
    if len(ranked) < 2 or min(len(ranked[0][1]), len(ranked[1][1])) < 2:
        return ranked[0][0], False
    return ranked[0][0], welch_p(ranked[0][1], ranked[1][1]) < 0.05


def _crossed(found: Sequence[Rating], measure: str, one: str, two: str) -> list[float]:
    """95 % of the difference of means, second minus first, for other raters and other seeds."""
    some = [rating for rating in found if rating.method in (one, two)]
    value = np.array([float(getattr(rating, measure)) for rating in some])
    second = np.array([rating.method == two for rating in some])
    rater, seed = (
        np.unique(names, return_inverse=True)[1]
        for names in ([r.rater for r in some], [r.quadruple for r in some])
    )
    means = value[~second].mean(), value[second].mean()
    residual = np.where(second, value - means[1], means[0] - value)
    count = np.where(second, second.sum(), (~second).sum())
    interval = crossed_difference(residual, count, rater, seed, float(means[1] - means[0]))
    return [interval.low, interval.high]


def _tests(found: Sequence[Rating], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Every two methods: Welch's test and Cliff's delta of confusion, acceptability and time, as
    the paper has them, and the interval over raters and images, which both vary."""
    rows = []
    for measure in ("confusion", "acceptability", "seconds"):
        values = {m: [float(getattr(r, measure)) for r in found if r.method == m] for m in methods}
        for one, two in combinations(methods, 2):
            if min(len(values[one]), len(values[two])) < 2:
                continue
            delta = statistics.cliffs_delta(values[two], values[one])
            rows.append(
                {
                    "measure": measure,
                    "method": two,
                    "minus": one,
                    "difference": float(np.mean(values[two]) - np.mean(values[one])),
                    "interval": _crossed(found, measure, one, two),
                    "p": welch_p(values[two], values[one]),
                    "delta": delta,
                    "size": statistics.magnitude(delta),
                }
            )
    return rows


def argus(study: Study, given: Sequence[Given]) -> dict[str, Any]:
    """Figure 3: mean ranks and grades of every method over originals, with tests between methods.

    Quartiles are of the originals' means over people; intervals are for other raters and originals.
    """
    rows = [one for one in given if study.items[one.item].use == "main" and "order" in one.value]
    shown = (one for item in study.main.values() for one in item.stimuli)
    methods = sorted({_method(study, one) for one in shown})
    units = sorted({one.item for one in rows})
    ranks = np.full((len(units), len(methods), max(1, len({r.rater for r in rows}))), np.nan)
    grades = np.full_like(ranks, np.nan)
    raters = {name: i for i, name in enumerate(sorted({one.rater for one in rows}))}
    for one in rows:
        for place, stimulus in enumerate(one.value["order"], 1):
            method = methods.index(_method(study, stimulus))
            cell = (units.index(one.item), method, raters[one.rater])
            ranks[cell] = place
            grade = one.value.get(f"grade-{stimulus}")
            grades[cell] = float(grade) if grade else np.nan
    made: dict[str, Any] = {"methods": [], "tests": [], "paper": ARGUS_PAPER, "w": {}}
    measures = {"rank": ranks, "grade": grades}
    for i, name in enumerate(methods):
        row: dict[str, Any] = {"method": name}
        for measure, values in measures.items():
            row[measure] = _spread(values[:, i])
        made["methods"].append(row)
    for measure, values in measures.items():
        table = _mean_over_raters(values)
        if np.isfinite(table).all() and table.size:
            made["tests"] += _pairs(measure, table, methods)
    complete = (table.T[np.isfinite(table).all(0)] for table in ranks)
    concordance = [kendall_w(table) for table in complete]
    finite = [value for value in concordance if np.isfinite(value)]
    made["w"] = {"mean": float(np.mean(finite)) if finite else None, "originals": len(finite)}
    return made


def _mean_over_raters(values: np.ndarray) -> np.ndarray:
    there = np.isfinite(values)
    count = there.sum(-1)
    total = np.where(there, values, 0.0).sum(-1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _spread(values: Float[np.ndarray, "u r"]) -> dict[str, Any] | None:
    """Of one method: a row per original, a column per rater, NaN where nothing was said."""
    original, rater = np.nonzero(np.isfinite(values))
    if not len(original):
        return None
    means = _mean_over_raters(values)
    finite = means[np.isfinite(means)]
    found = crossed_mean(values[original, rater], rater, original)
    first, middle, third = np.quantile(finite, (0.25, 0.5, 0.75)).tolist()
    return {
        "mean": found.value,
        "interval": [found.low, found.high],
        "low": first,
        "median": middle,
        "high": third,
        "values": [round(float(value), 3) for value in finite],
    }


def _pairs(measure: str, table: np.ndarray, methods: Sequence[str]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for i, j in combinations(range(len(methods)), 2):
        gaps = table[:, i] - table[:, j]
        made.append(
            {
                "measure": measure,
                "method": methods[i],
                "minus": methods[j],
                "difference": float(gaps.mean()),
                "p": signed_ranks(gaps),
            }
        )
    corrected = statistics.holm([row["p"] for row in made])
    return [{**row, "p_holm": p} for row, p in zip(made, corrected)]


def signed_ranks(gaps: Float[np.ndarray, " n"]) -> float:
    """Wilcoxon's two-sided p of paired differences: exact, also with ties, for few of them.

    >>> signed_ranks(np.array([1.0, 2, 3, 4, 5]))
    0.0625
    """
    left = gaps[gaps != 0]
    if len(left) < 2:
        return 1.0
    if len(left) > EXACT:
        return statistics.wilcoxon(left.tolist(), [0.0] * len(left)).p
    from scipy.stats import permutation_test, rankdata

    def positive_ranks(rows: np.ndarray, axis: int) -> np.ndarray:
        """Of all patterns of signs at once: `wilcoxon` asks for them one by one."""
        summed: np.ndarray = (rankdata(np.abs(rows), axis=axis) * (rows > 0)).sum(axis)
        return summed

    signs = {"permutation_type": "samples", "n_resamples": np.inf, "vectorized": True}
    return float(permutation_test((left,), positive_ranks, **signs).pvalue)


def _method(study: Study, stimulus: str) -> str:
    one = study.stimuli[stimulus]
    return one.run or one.method or one.role
