"""The failures that a page shows: failing samples of the conditions and failures of the search.

Both are one kind of thing here, an image before and after with two classes, so that the pairs, the
matrix and the gallery treat them alike. No image that is reserved for proofs is among them: a run
keeps no sample of one as an image, and searches none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hardcase.analysis.conditions import shown_samples
from hardcase.errors import HardcaseError
from hardcase.report.words import Sheet, spread, triples
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.types import ClassNames
from hardcase.wording.report import change_in_brief

__all__ = ["Failure", "failing_samples", "gallery", "large_pairs", "matrix"]

Failure = dict[str, Any]
"""What is shown of one failure; `before` and `after` say where its images lie, see `pictures`."""
PAIRS = 6
"""Failures that are shown large."""
CLASSES_SHOWN = 20
"""A matrix of more classes than this cannot be read: the ones with the most failures are shown."""


def failing_samples(run: Run) -> list[Failure]:
    """Return the failing samples of the conditions that a run keeps as images."""
    samples = shown_samples(run)
    misread = _misread(run) if samples else frozenset()
    return [
        {
            "source": "conditions",
            "id": sample["original"],
            "kind": "label",
            "before": ["unmodified", place],
            "after": ["sample", place],
            "expected": sample["label"],
            "predicted": sample["predicted"],
            "change": sample["words"],
            "brief": change_in_brief(sample["words"]),
            "misread_unmodified": sample["original"] in misread,
            "confidence": None,
            "support": None,
            "verdict": None,
            "accepted": False,
        }
        for place, sample in enumerate(samples)
    ]


def _misread(run: Run) -> frozenset[str]:
    """The images that the model misreads unmodified."""
    try:
        rows = measured_rows(run.store)
    except HardcaseError:  # a damaged table: the rest of the page can be written
        return frozenset()
    return frozenset(name for name, wrong in zip(rows.id, rows.wrong.tolist()) if wrong)


def finding(sheet: Sheet, row: int) -> Failure:
    """Return what is shown of one failure of the search."""
    facts = sheet.facts(row)
    return {
        **facts,
        "source": "search",
        "before": ["seed", facts["seed_row"]],
        "after": ["test", row],
        "brief": change_in_brief(facts["change"]),
        "misread_unmodified": False,
    }


def large_pairs(sheet: Sheet, samples: Sequence[Failure]) -> list[Failure]:
    """Return at most six failures, one of each pair of classes while there are others.

    Failing samples come before findings: nothing chose them but chance. Those of images that the
    model misreads unmodified come last, for there the conditions did not make the failure. Of
    claims failures come first: only they know where their object is.
    """
    right = [sample for sample in samples if not sample["misread_unmodified"]]
    misread = [sample for sample in samples if sample["misread_unmodified"]]
    common = Counter(map(_pair, right))
    right.sort(key=lambda sample: -common[_pair(sample)])
    findings = [finding(sheet, row) for row in triples(sheet, 4 * PAIRS)]
    both = [*right, *findings, *misread]
    if sheet.run.record.get("claims"):
        both = [*findings, *right, *misread]
    shown = set[tuple[int, int]]()
    first, rest = list[Failure](), list[Failure]()
    for failure in both:
        (rest if _pair(failure) in shown else first).append(failure)
        shown.add(_pair(failure))
    return [*first, *rest][:PAIRS]


def gallery(sheet: Sheet, samples: Sequence[Failure], count: int) -> dict[str, Any]:
    """Return the failures of the gallery by their classes, and how many are left out."""
    pairs = sheet.expected.astype(np.int64) * 1_000_000 + sheet.predicted
    rows = spread(pairs, sheet.l2, max(count - len(samples), 0))
    failures = [*samples, *(finding(sheet, row) for row in rows.tolist())]
    failures.sort(key=_pair)
    total = len(sheet) + len(samples)
    return {"total": total, "left_out": total - len(failures), "failures": failures}


def matrix(sheet: Sheet, samples: Iterable[Failure], classes: ClassNames) -> dict[str, Any]:
    """Return how many failures there are of each expected and predicted class, and which classes
    have a line."""
    label = np.flatnonzero(sheet.label).tolist()
    counts = Counter((int(sheet.expected[row]), int(sheet.predicted[row])) for row in label)
    counts.update(map(_pair, samples))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    pairs = [{"expected": a, "predicted": b, "failures": count} for (a, b), count in ordered]
    labels = sorted({*range(len(classes)), *(label for pair in counts for label in pair)})
    shown = labels
    if len(labels) > CLASSES_SHOWN:
        shown = _busiest(counts)
    return {
        "pairs": pairs,
        "largest": pairs[0]["failures"] if pairs else 0,
        "total": sum(counts.values()),
        "shown": shown,
        "rows": [[counts[a, b] for b in shown] for a in shown],
        "left_out": len(labels) - len(shown),
    }


def _busiest(counts: Mapping[tuple[int, int], int]) -> list[int]:
    """The classes with the most failures, in their order."""
    failures = Counter[int]()
    for pair, count in counts.items():
        failures.update(dict.fromkeys(pair, count))
    ordered = sorted(failures, key=lambda label: (-failures[label], label))
    return sorted(ordered[:CLASSES_SHOWN])


def _pair(failure: Mapping[str, Any]) -> tuple[int, int]:
    return failure["expected"], failure["predicted"]
