"""How good scores are against the truth: AUROC, rates with intervals, reliability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

REPEATS = 2000


def auroc(score: Float[Tensor, "*b m"], truth: Bool[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
    """The chance that a true one scores above a false one, ties counting half; NaN where one kind is missing."""
    order = score.argsort(-1)
    ranks = _mean_ranks(score.gather(-1, order))
    hits = truth.gather(-1, order).to(ranks.dtype)
    yes, no = hits.sum(-1), (1 - hits).sum(-1)
    return ((hits * ranks).sum(-1) - yes * (yes + 1) / 2) / (yes * no)


def _mean_ranks(ordered: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
    """Ranks from 1 of sorted values, equal values sharing the mean of theirs."""
    first = torch.searchsorted(ordered.contiguous(), ordered.contiguous())
    last = torch.searchsorted(ordered.contiguous(), ordered.contiguous(), right=True)
    return (first + last + 1).double() / 2


def auroc_interval(
    score: Float[Tensor, " m"], truth: Bool[Tensor, " m"], rng: torch.Generator, *, repeats: int = REPEATS
) -> dict[str, Any]:
    """AUROC with a 95 % bootstrap interval over the images."""
    score, truth = score.double().cpu(), truth.cpu()
    counts = {"yes": int(truth.sum()), "no": int((~truth).sum())}
    if not min(counts.values()):
        return {"value": None, "low": None, "high": None, **counts}
    drawn = torch.randint(len(score), (repeats, len(score)), generator=rng)
    values = auroc(score[drawn], truth[drawn])
    low, high = values[values.isfinite()].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return {"value": float(auroc(score, truth)), "low": low, "high": high, **counts}


def share(hits: int, total: int) -> dict[str, Any]:
    """A share with its counts and Wilson's 95 % interval."""
    low, high = wilson(hits, total)
    return {"hits": hits, "total": total, "share": hits / total if total else None, "low": low, "high": high}


def wilson(hits: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    if total == 0:
        return 0.0, 1.0
    rate, weight = hits / total, z * z / total
    centre = (rate + weight / 2) / (1 + weight)
    half = z * (rate * (1 - rate) / total + weight / (4 * total)) ** 0.5 / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def error_rates(answers: Sequence[bool | None], truth: Int[Tensor, " m"]) -> dict[str, Any]:
    """How often yes is said where it is so, and no where it is not; undecided and split ones are counted apart."""
    pairs = list(zip(answers, truth.tolist()))
    yes, no = ([said for said, right in pairs if right == kind] for kind in (1, 0))
    return {
        "tpr": share(yes.count(True), len(yes)),
        "tnr": share(no.count(False), len(no)),
        "false_yes": share(no.count(True), len(no)),
        "false_no": share(yes.count(False), len(yes)),
        "undecided": share(sum(said is None for said, _ in pairs), len(pairs)),
        "split": sum(right == -1 for _, right in pairs),
    }


def precision(answers: Sequence[bool | None], truth: Bool[Tensor, " m"]) -> dict[str, Any]:
    """Of those called yes, how many are; of those that are, how many were called so."""
    said = torch.tensor([answer is True for answer in answers], dtype=torch.bool)
    right = int((said & truth.cpu()).sum())
    return {"precision": share(right, int(said.sum())), "recall": share(right, int(truth.sum()))}


def reliability(
    probability: Float[Tensor, " m"], truth: Bool[Tensor, " m"], *, bins: int = 10
) -> tuple[list[dict[str, Any]], float | None]:
    """Said and true shares in equal bins of the probability, and their mean gap weighted by count (ECE)."""
    probability, truth = probability.double().cpu(), truth.cpu()
    place = (probability * bins).long().clamp(0, bins - 1)
    rows, gap = [], 0.0
    for i in range(bins):
        inside = place == i
        count = int(inside.sum())
        if count:
            said, hits = float(probability[inside].mean()), int(truth[inside].sum())
            rows.append({"from": i / bins, "to": (i + 1) / bins, "said": said, **share(hits, count)})
            gap += count / len(truth) * abs(said - hits / count)
    return rows, gap if rows else None
