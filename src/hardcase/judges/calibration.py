"""A judge against people: rules that agree with them, thresholds, and honest error rates.

Every image is scored by rules that were fitted without the generator it comes from; those scores are pooled and all error
rates are measured on them. The rules that are kept afterwards are fitted on all images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem
from hardcase.judges.panel import Signals
from hardcase.judges.people import People
from hardcase.judges.rules import Rule, agreeing
from hardcase.judges.scoring import auroc, auroc_interval, error_rates, precision, reliability

PRECISION, MISSED = 0.95, 0.05
"""Yes is said from the threshold at which this share of them is right; no where at most this share of the right ones fall."""
FOLDS = 5
Rules = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rules fitted to people, and what is known of their errors (plain values, for a card)."""

    rules: dict[str, Rule]
    measured: dict[str, Any]


def calibrate(signals: Signals, people: People, rules: Rules, rng: torch.Generator) -> Calibration:
    """Fit `rules` to what people said; measure them on generators they were not fitted to."""
    truths = {"label_kept": people.label_kept, "valid": people.valid}
    for name, truth in truths.items():
        _both_kinds(name, truth)
    fold, how = _folds(people)
    pooled = {name: _pooled(rules[name], signals, truths[name], fold) for name in rules}
    strict = {"label_kept": people.confirmed, "valid": truths["valid"] == 1}
    final = {
        name: _thresholds(_fitted(rules[name], signals, truths[name]), pooled[name], strict[name], truths[name])
        for name in rules
    }
    answers = {name: final[name].answers(pooled[name]) for name in rules}
    both = tuple(_and(kept, valid) for kept, valid in zip(answers["label_kept"], answers["valid"]))
    measured: dict[str, Any] = {name: _measured(pooled[name], answers[name], truths[name], rng) for name in rules}
    measured["confirmed"] = precision(both, people.confirmed)
    measured["generators"] = _per_generator(people, pooled, both)
    return Calibration(final, {"images": len(people), "pooled_over": how, **measured})


def _both_kinds(name: str, truth: Int[Tensor, " m"]) -> None:
    counts = {word: int((truth == kind).sum()) for word, kind in (("yes", 1), ("no", 0))}
    if min(counts.values()) < 2:
        raise Problem(
            f"people agree on {name.replace('_', ' ')} = yes for {counts['yes']} images and on no for {counts['no']}.",
            "Thresholds and error rates need at least two of each.", fix="more labelled images, also of bad ones",
        )  # fmt: skip


def _folds(people: People) -> tuple[Int[Tensor, " m"], str]:
    """Which images are scored together by rules that have not seen them: those of one generator."""
    names = sorted(set(people.generator))
    if len(names) > 1:
        return torch.tensor([names.index(name) for name in people.generator]), f"{len(names)} generators"
    return torch.arange(len(people)) % FOLDS, f"{FOLDS} parts of one generator"


def _fitted(rule: Rule, signals: Signals, truth: Int[Tensor, " m"]) -> Rule:
    """Scale and offset that agree with those images on which people agree; unchanged where only one answer occurs."""
    known = (truth >= 0).to(signals.seen.device)
    kinds = truth[truth >= 0]
    if not len(kinds) or int(kinds.min()) == int(kinds.max()):
        return rule
    return agreeing(rule, rule.evidence(signals)[known], truth.to(known.device)[known] == 1)


def _pooled(rule: Rule, signals: Signals, truth: Int[Tensor, " m"], fold: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    pooled = torch.zeros(len(truth), dtype=torch.float64)
    for number in sorted(set(fold.tolist())):
        inside = fold == number
        own = _fitted(rule, signals[~inside], truth[~inside])
        pooled[inside] = own.probability(signals[inside]).cpu()
    return pooled


def _thresholds(rule: Rule, pooled: Float[Tensor, " m"], strict: Bool[Tensor, " m"], truth: Int[Tensor, " m"]) -> Rule:
    """Thresholds chosen on the pooled scores; `strict` counts what people were split about as wrong."""
    order = pooled.argsort(descending=True)
    right = strict[order].double().cumsum(0) / torch.arange(1, len(order) + 1)
    good = (right >= PRECISION).nonzero()
    high = float(pooled[order][int(good.max())]) if len(good) else 1.0
    low = float(pooled[truth == 1].quantile(MISSED))
    return replace(rule, low=min(low, high), high=high)


def _measured(
    pooled: Float[Tensor, " m"], answers: tuple[bool | None, ...], truth: Int[Tensor, " m"], rng: torch.Generator
) -> dict[str, Any]:
    known = truth >= 0
    curve, gap = reliability(pooled[known], truth[known] == 1)
    return {
        "auroc": auroc_interval(pooled[known], truth[known] == 1, rng),
        **error_rates(answers, truth),
        "reliability": curve,
        "ece": gap,
    }


def _per_generator(
    people: People, pooled: Mapping[str, Float[Tensor, " m"]], both: tuple[bool | None, ...]
) -> dict[str, Any]:
    """AUROC inside each generator (None where people gave one answer only), and how many it would confirm."""
    rows = {}
    for name in sorted(set(people.generator)):
        inside = torch.tensor([other == name for other in people.generator])
        known = inside & (people.label_kept >= 0)
        value = float(auroc(pooled["label_kept"][known], people.label_kept[known] == 1))
        chosen = [said for said, own in zip(both, inside.tolist()) if own]
        rows[name] = {
            "images": int(inside.sum()),
            "label_kept_auroc": value if value == value else None,
            "confirmed": precision(chosen, people.confirmed[inside]),
        }
    return rows


def _and(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return True if first and second else None
