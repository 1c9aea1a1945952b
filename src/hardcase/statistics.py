"""Rates with Wilson's interval, the funnel of a run in counts and words, tests of two samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.types import KINDS

__all__ = [
    *("METRICS", "STEPS", "Numbers", "Rate", "Test", "a12", "cliffs_delta", "count"),
    *("holm", "interval", "kinds_in_words", "magnitude", "mann_whitney", "mcnemar"),
    *("settings_in_words", "undecided", "verdict_status", "wilcoxon"),
]

STEPS = (
    *("seeds", "usable", "attempted", "failing", "witnessed", "valid", "label_kept"),
    *("confirmed", "distinct"),
)
"""Counts of seeds, except `distinct`, which counts groups. Steps that nobody judged are None."""

Verdict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of ``hardcase list metrics``: a number that runs report."""

    name: str
    summary: str
    needs: str
    paper: str = ""
    laws: tuple[str, ...] = ()


_WILSON = "Wilson's interval, JASA 1927"
_GROUPING = "Campello, Moulavi and Sander, PAKDD 2013; Hennig, CSDA 2007"
_SILENCE = "Geifman and El-Yaniv, NeurIPS 2017; Naeini et al., AAAI 2015"

_RATES = {
    "failing": ("a run", "seeds with a finding that leaves their label, of those attempted"),
    "witnessed": (
        "witnesses",
        "seeds with a failing finding on which every witness keeps the label",
    ),
    "valid": ("a judge", "seeds with a failing finding that looks like the data"),
    "label_kept": ("a judge", "seeds with a failing finding that still is what the seed was"),
    "confirmed": ("a judge", "seeds with one finding that is failing, valid and label kept"),
}
METRICS = (
    Metric("usable", "seeds that the subject classifies correctly, of all seeds", "labels"),
    Metric("attempted", "usable seeds that were searched from", "a run"),
    *(Metric(name, text, needs, _WILSON) for name, (needs, text) in _RATES.items()),
    Metric(
        "distinct",
        "groups of confirmed findings that look like one fault",
        "a judge",
        _GROUPING,
        ("same findings, same groups", "every confirmed finding is in one group"),
    ),
    Metric(
        "silent",
        "confirmed findings on which the model is as confident as on correctly classified seeds",
        "a judge and the model's confidences",
        _SILENCE,
        ("one alarm threshold for all findings",),
    ),
    Metric("distance", "how far a finding is from its seed in the method's own space", "a run"),
    Metric("l2", "Euclidean distance of a finding from its seed in pixels", "a run"),
    Metric("linf", "largest change of a pixel of a finding", "a run"),
    Metric("queries", "images given to the subject, per seed and per finding", "a run"),
    Metric("gradients", "images whose gradient was asked for, per seed", "a run"),
    Metric("witness_queries", "images given to witnesses, never charged to a budget", "witnesses"),
    Metric(
        "surrogate_queries",
        "images given to networks that stand for a black box, each with a gradient",
        "surrogates",
    ),
)
"""What runs count and measure."""


def interval(hits: float, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion, at 95 % unless `z` says otherwise."""
    if total == 0:
        return 0.0, 1.0
    share = hits / total
    weight = z * z / total
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    return low, 1.0 if hits == total else min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Rate:
    """A proportion that is never told without its counts and its 95 % interval (Wilson's).

    Args:
        hits: How many are so.
        of: Of how many.
        units: Independent units among them, where there are fewer: the interval is of these, as if
            those of one unit were all alike.

    Example:
        >>> print(Rate(29, 57))
        29 of 57 = 50.9 % (38.3 to 63.4)
    """

    hits: int
    of: int
    units: int | None = None

    @property
    def share(self) -> float | None:
        """The proportion; None of nothing."""
        return self.hits / self.of if self.of else None

    @property
    def low(self) -> float:
        return self._ends[0]

    @property
    def high(self) -> float:
        return self._ends[1]

    @property
    def _ends(self) -> tuple[float, float]:
        if self.units is None or not self.of:
            return interval(self.hits, self.of)
        return interval(self.hits * self.units / self.of, self.units)

    def to_json(self) -> dict[str, Any]:
        """The form it has in every JSON file: `hits`, `total`, `share`, `low`, `high`."""
        low, high = self._ends
        return {
            "hits": self.hits,
            "total": self.of,
            "share": self.share,
            "low": low,
            "high": high,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Rate:
        """The rate that `to_json` wrote."""
        return Rate(value["hits"], value["total"])

    def __str__(self) -> str:
        if self.share is None:
            return "0 of 0"
        return f"{self.hits:,} of {self.of:,} = {100 * self.share:.1f} % {self.bounds}"

    @property
    def bounds(self) -> str:
        """The interval alone, in per cent: ``(38.3 to 63.4)``."""
        low, high = self._ends
        return f"({100 * low:.1f} to {100 * high:.1f})"


_KIND_WORDS = {
    "label": ("failing", "failing"),
    "disagreement": ("disagreement", "disagreements"),
    "non_finite": ("answer that is not a number", "answers that are not numbers"),
    "surprise": ("surprise", "surprises"),
}


def settings_in_words(options: Mapping[str, Any]) -> str:
    """The options of a method as people write them; grey levels as parts of 255.

    Example:
        >>> settings_in_words({"epsilon": 8 / 255, "norm": "linf", "step_size": None})
        'epsilon 8/255, norm linf'
    """
    said = {name: value for name, value in options.items() if value not in (None, "")}
    return ", ".join(f"{name.replace('_', ' ')} {_setting(value)}" for name, value in said.items())


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and 0 < value < 1:
        levels = value * 255
        near = abs(levels - round(levels)) < 1e-6
        return f"{round(levels)}/255" if near and value * 100 % 1 > 1e-6 else f"{value:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def kinds_in_words(kinds: Mapping[str, int]) -> str:
    """How many findings there are of each kind; only what leaves its seed's label is failing.

    Example:
        >>> kinds_in_words({"label": 3, "disagreement": 5})
        '8 findings: 3 failing, 5 disagreements'
    """
    total = sum(kinds.values())
    head = f"{total:,} finding{'' if total == 1 else 's'}"
    some = [(name, number) for name in KINDS if (number := kinds.get(name, 0))]
    told = [f"{number:,} {_KIND_WORDS[name][number != 1]}" for name, number in some]
    return f"{head}: {', '.join(told)}" if told else head


def count(
    seeds: Iterable[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, Verdict] | None,
    *,
    witnesses: bool = False,
    generated: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, int | None]]:
    """`funnel`, `skipped` and `findings` of run.json, from the rows of seeds and findings (without
    images).

    A verdict says `valid` and `label_kept` (True, False or None for undecided) and `group` of one
    finding.
    Without `witnesses` nobody is counted as witnessed: the step is None. Where seeds were
    `generated`, the funnel begins with the samples and those that independent networks verified.
    """
    first = generated or {}
    statuses = Counter[str]()
    attempted = looked = left = 0
    for row in seeds:
        statuses[row["status"]] += 1
        attempted += row["status"] in ("done", "out of time") and row["looked"] > 0
        looked += row["looked"]
        left += row["failing"]
    unusable = statuses["skipped: misclassified"] + statuses["skipped: non-finite"]
    failing = [row for row in findings if row["kind"] == "label"]
    judged = _judged(failing, verdicts)
    kept = len({row["seed"] for row in failing if row["witnessed"]}) if witnesses else None
    distinct = None
    if verdicts is not None:
        groups = {verdicts[row["id"]].get("group") for row in judged["confirmed"] or []}
        distinct = len(groups - {None})
    return {
        "funnel": {
            **{name: first[name] for name in ("generated", "verified") if name in first},
            "seeds": statuses.total(),
            "usable": statuses.total() - unusable,
            "attempted": attempted,
            "failing": len({row["seed"] for row in failing}),
            "witnessed": kept,
            **{
                name: None if rows is None else len({row["seed"] for row in rows})
                for name, rows in judged.items()
            },
            "distinct": distinct,
        },
        "skipped": {
            "misclassified": statuses["skipped: misclassified"],
            "non_finite": statuses["skipped: non-finite"],
            "target": statuses["skipped: target"],
            "reconstruction": statuses["skipped: reconstruction"],
            "out_of_time": statuses["out of time"],
            "waiting": statuses["waiting"],
        },
        "findings": {
            "looked": looked,
            "failing": left,
            "kept": len(findings),
            **{name: None if rows is None else len(rows) for name, rows in judged.items()},
        },
    }


def _judged(
    failing: list[Mapping[str, Any]], verdicts: Mapping[str, Verdict] | None
) -> dict[str, list[Mapping[str, Any]] | None]:
    if verdicts is None:
        return {"valid": None, "label_kept": None, "confirmed": None}
    known = [(row, verdicts[row["id"]]) for row in failing if row["id"] in verdicts]
    return {
        "valid": [row for row, said in known if said["valid"]],
        "label_kept": [row for row, said in known if said["label_kept"]],
        "confirmed": [row for row, said in known if said["valid"] and said["label_kept"]],
    }


def verdict_status(verdict: Verdict | None) -> Literal["confirmed", "refused", "open"]:
    """What a verdict comes to; open where nobody judged, or where the judge could not tell.

    >>> verdict_status({"valid": True, "label_kept": None})
    'open'
    >>> verdict_status({"valid": False, "label_kept": None})
    'refused'
    """
    if verdict is None:
        return "open"
    said = (verdict["valid"], verdict["label_kept"])
    if False in said:
        return "refused"
    return "confirmed" if all(said) else "open"


def confirmed_by(verdicts: Mapping[str, Verdict], finding: str) -> bool:
    """Whether a judge says of this finding that it is valid and has kept its label."""
    return verdict_status(verdicts.get(finding)) == "confirmed"


def undecided(
    findings: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Verdict] | None
) -> int | None:
    """Seeds with no confirmed finding and not only refused ones; None if nobody judged."""
    if verdicts is None:
        return None
    failing = [row for row in findings if row["kind"] == "label"]
    rows = [(row["seed"], verdict_status(verdicts.get(row["id"]))) for row in failing]
    known = {seed for seed, said in rows if said == "confirmed"}
    return len({seed for seed, said in rows if said == "open"} - known)


Numbers = Sequence[float] | Sequence[int] | Tensor


@dataclass(frozen=True, slots=True)
class Test:
    """A two-sided test: its statistic, its p-value, and how many values took part."""

    statistic: float
    p: float
    count: int


def cliffs_delta(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, minus the chance that it is below.

    From -1 to 1 (N. Cliff, 1993).
    """
    one = _sample(a, 1)
    two = _sample(b, 1).sort().values
    below = torch.searchsorted(two, one)
    above = len(two) - torch.searchsorted(two, one, right=True)
    return float((below - above).sum() / (len(one) * len(two)))


def a12(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, ties counting half.

    From 0 to 1 (A. Vargha and H. Delaney, 2000).
    """
    return (cliffs_delta(a, b) + 1) / 2


def magnitude(delta: float) -> str:
    """A word for a Cliff's delta, by the thresholds of J. Romano et al., 2006."""
    for limit, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")):
        if abs(delta) < limit:
            return word
    return "large"


def mann_whitney(a: Numbers, b: Numbers) -> Test:
    """Test whether values of one sample tend to be larger (H. Mann and D. Whitney, 1947).

    Two samples that cannot differ give p = 1.
    """
    from scipy.stats import mannwhitneyu

    one = _sample(a, 1)
    two = _sample(b, 1)
    count = len(one) + len(two)
    if len({*one.tolist(), *two.tolist()}) == 1:
        return Test(len(one) * len(two) / 2, 1.0, count)
    found = mannwhitneyu(one.numpy(), two.numpy(), alternative="two-sided")
    return Test(float(found.statistic), float(found.pvalue), count)


def wilcoxon(a: Numbers, b: Numbers) -> Test:
    """Test whether paired values differ (F. Wilcoxon, 1945).

    Pairs without a difference are left out; none left gives p = 1.
    """
    from scipy.stats import wilcoxon as signed_ranks

    one = _sample(a, 1)
    two = _sample(b, 1)
    if len(one) != len(two):
        raise Problem(
            f"{len(one)} and {len(two)} values are no pairs; the signed-rank test needs as many of"
            " each."
        )
    gap = (one - two)[one != two]
    if not len(gap):
        return Test(0.0, 1.0, 0)
    found = signed_ranks(gap.numpy())
    return Test(float(found.statistic), float(found.pvalue), len(gap))


def mcnemar(only_first: int, only_second: int) -> Test:
    """Test whether two yes-or-no answers to the same questions differ (Q. McNemar, 1947).

    Exact, from the pairs that disagree.
    """
    from scipy.stats import binomtest

    count = only_first + only_second
    statistic = float(min(only_first, only_second))
    if not count:
        return Test(statistic, 1.0, 0)
    return Test(statistic, float(binomtest(only_first, count, 0.5).pvalue), count)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the order given (S. Holm, 1979)."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected = [0.0] * len(p)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = worst
    return corrected


def _sample(values: Numbers, least: int) -> Float[Tensor, " n"]:
    sample = torch.as_tensor(values, dtype=torch.float64).flatten()
    if len(sample) < least or not bool(sample.isfinite().all()):
        raise Problem(
            f"a sample of {len(sample)} values cannot be compared; it needs {least} or more, all"
            " finite."
        )
    return sample
