"""Questions about a run, and what people answered, entered into its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hardcase.errors import HardcaseError
from hardcase.judges.answers import PersonAnswer, read_answers, trusted
from hardcase.runs.files import locked
from hardcase.runs.results import Run
from hardcase_study.asking import Choice, FindingPopulation, RatingSession, one_per_image

UNKNOWN = 0.5
"""The probability of a kept label where the judge has none."""
OUTCOMES = {"kept": "confirmed", "unsure": "undecided", "lost": "rejected", "foreign": "rejected"}
"""What a person's answer makes of a failure, in one word."""


def questions_about(
    run: Run,
    *,
    budget: int,
    limit: float | None = None,
    seed: int = 0,
    choose: Choice = "random",
) -> tuple[RatingSession, list[int]]:
    """Return the questions about a judged run, and which of its failures they are about.

    Raises:
        HardcaseError: If people have seen a failure of every failing image.
    """
    verdicts = run.verdicts or {}
    table = run.findings.select(["id", "original", "kind"]).to_pylist()
    before = {one.image: one for one in trusted(read_answers(run.folder)) if not one.check}
    small = {row["original"] for row in table if verdicts.get(row["id"], {}).get("by") == "norm"}
    failing = [
        place
        for place, row in enumerate(table)
        if row["kind"] == "label" and row["original"] not in small
    ]
    chances = np.array([p_kept(verdicts.get(row["id"])) for row in table], dtype=np.float64)
    asked = np.array([table[row]["id"] in before for row in failing], dtype=bool)
    chosen = one_per_image([table[row]["original"] for row in failing], chances[failing], asked)
    rows = [failing[place] for place in chosen]
    if not rows:
        raise HardcaseError(
            "there is nothing to ask about: no failing image that people have not seen.",
            fix=f"hardcase report {run.folder}",
        )
    images = {row["id"]: row["original"] for row in table}
    confirmed = {images[one.image] for one in before.values() if one.kept and one.image in images}
    population = FindingPopulation(
        tuple(table[row]["id"] for row in rows),
        chances[rows],
        run.counts()["search_results"]["searched"] or 0,
        known=len(small | confirmed),
    )
    return RatingSession(population, budget, limit, seed, choose=choose), rows


def p_kept(verdict: Any) -> float:
    """Return what the judge said of a failure as a probability.

    >>> p_kept({"p_kept": 0.9}), p_kept(None)
    (0.9, 0.5)
    """
    value = (verdict or {}).get("p_kept")
    return UNKNOWN if value is None else float(value)


def enter_people(run: Run, session: RatingSession | None = None) -> dict[str, Any]:
    """Write what people said of a run into its record, as ``"people"``."""
    everything = read_answers(run.folder)
    answers = trusted(everything)
    checks = [one for one in everything if one.check]
    given = [one for one in answers if not one.check]
    with locked(run.folder):
        fresh = Run(run.folder)
        before = fresh.record.get("people") or {}
        outcomes = {one.image: OUTCOMES[one.verdict] for one in given}
        findings = {**before.get("findings", {}), **outcomes}
        counts = Counter(findings.values())
        entry: dict[str, Any] = {
            "rated": len(findings),
            "confirmed": counts["confirmed"],
            "undecided": counts["undecided"],
            "rate": before.get("rate"),
            "studies": before.get("studies", []),
            "findings": findings,
            "asked": {
                "answers": len(given),
                "people": len({one.rater for one in given}),
                "left_out": sum(not one.check for one in everything) - len(given),
                "checks": len(checks),
                "checks_passed": sum(one.kept for one in checks),
                "chosen": sorted({one.rule for one in given}),
                "seconds": _median_seconds(given),
            },
        }
        if session is not None and not entry["asked"]["left_out"]:
            now = session.status()
            entry["asked"]["decision"] = asdict(now)
            if now.value is not None:
                failing = fresh.counts()["search_results"]["failing"] or 0
                entry["rate"] = {
                    **{name: getattr(now, name) for name in ("value", "low", "high")},
                    "searched": session.population.attempted,
                    "rated": len(findings),
                    "failing": failing,
                }
        fresh.store.write_record({**fresh.record, "people": entry})
    return entry


def _median_seconds(given: Sequence[PersonAnswer]) -> float | None:
    return float(np.median([one.seconds for one in given])) if given else None
