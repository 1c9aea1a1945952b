"""Which images of runs are shown: a probability sample, stratified by the judge's verdict.

The population of a run are its failing seeds, each with one finding that stands for it. Seeds on
which a method failed to find anything belong to the attempted ones and are known not to be
confirmed, so they need no rating. Probabilities are stored; rates of the population follow from
them (see `hardcase.study.confirmed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.runs.results import Run

VERDICTS = ("confirmed", "undecided", "rejected", "unjudged")
RATED = "people.json"
"""Beside a run: which of its findings people have rated, in which study."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One finding of the sample, with the stratum it was drawn from and with which probability."""

    row: dict[str, Any]
    verdict: str
    stratum: str
    probability: float
    fixed: bool = True


def verdict_of(said: Mapping[str, Any] | None) -> str:
    """A judge's row in one word: ``confirmed``, ``rejected``, ``undecided`` or ``unjudged``."""
    if said is None:
        return "unjudged"
    answers = (said["valid"], said["label_kept"])
    if False in answers:
        return "rejected"
    return "undecided" if None in answers else "confirmed"


def rated_before(folder: Path) -> dict[str, str]:
    """Findings of the run in `folder` that people have rated, and what they said."""
    try:
        return dict(json.loads((folder / RATED).read_text(encoding="utf-8"))["findings"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Problem(f"{folder / RATED} cannot be read: {error}") from error


def findings(run: Run, *, kind: str = "label") -> list[dict[str, Any]]:
    """Rows of the run's findings of one kind (``""``: of any), images included."""
    rows = run.findings.to_pylist()
    return [row for row in rows if not kind or row["kind"] == kind]


def population(run: Run, rng: np.random.Generator) -> dict[str, tuple[dict[str, Any], str]]:
    """Each failing seed's finding and the judge's verdict on it, by seed.

    The one that stands for a seed is drawn at random among those with the best verdict, so a seed
    the judge calls confirmed is represented by a finding it calls confirmed. Seeds with a finding
    that people have rated before are no longer unseen and left out.
    """
    said = run.verdicts or {}
    known = rated_before(run.folder)
    over = {row["seed"] for row in findings(run) if row["id"] in known}
    best: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for row in findings(run):
        if row["seed"] in over:
            continue
        verdict = verdict_of(said.get(row["id"]))
        held = best.get(row["seed"], [])
        rank = VERDICTS.index(verdict) - (VERDICTS.index(held[0][1]) if held else len(VERDICTS))
        if rank < 0:
            best[row["seed"]] = [(row, verdict)]
        elif rank == 0:
            held.append((row, verdict))
    return {seed: held[int(rng.integers(len(held)))] for seed, held in sorted(best.items())}


def sample(
    runs: Mapping[str, Run],
    count: int,
    rng: np.random.Generator,
    *,
    fixed: float = 1.0,
) -> tuple[list[Drawn], dict[str, dict[str, Any]]]:
    """`count` findings, without replacement inside each stratum (run and verdict).

    Strata share `count` in proportion to their size, at least two each where they have them.

    Args:
        runs: Runs by the name they have in the study.
        fixed: The share of each stratum, drawn at random, that gets a number of answers which does
            not depend on the answers; its probabilities are those of this second draw as well.

    Returns:
        The sample, and of each stratum its size, how many were drawn and how many of them fixed.
    """
    strata: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for name, run in runs.items():
        for row, verdict in population(run, rng).values():
            strata.setdefault(f"{name}/{verdict}", []).append((row, verdict))
    sizes = allocate({name: len(rows) for name, rows in strata.items()}, count)
    drawn: list[Drawn] = []
    facts: dict[str, dict[str, Any]] = {}
    for name in sorted(strata):
        rows = strata[name]
        number = sizes[name]
        kept = number if fixed >= 1 else max(min(2, number), round(fixed * number))
        chosen = rng.permutation(len(rows))[:number].tolist()
        facts[name] = {"size": len(rows), "drawn": number, "fixed": kept}
        for place, i in enumerate(chosen):
            row, verdict = rows[i]
            probability = (kept if place < kept else number) / len(rows)
            drawn.append(Drawn(row, verdict, name, probability, place < kept))
    return drawn, facts


def allocate(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` over strata in proportion to size, never above it, two at least where there are two.

    >>> allocate({"a": 90, "b": 9, "c": 1}, 20)
    {'a': 17, 'b': 2, 'c': 1}
    """
    total = sum(sizes.values())
    if total <= count:
        return dict(sizes)
    least = {name: min(2, size) for name, size in sizes.items()}
    wanted = {name: max(least[name], count * size / total) for name, size in sizes.items()}
    given = {name: min(sizes[name], int(share)) for name, share in wanted.items()}
    while sum(given.values()) > count and any(given[n] > least[n] for n in given):
        most = max((n for n in given if given[n] > least[n]), key=lambda n: given[n] - wanted[n])
        given[most] -= 1
    while sum(given.values()) < count:
        gaps = [name for name in given if given[name] < sizes[name]]
        given[max(gaps, key=lambda n: wanted[n] - given[n])] += 1
    return given


def real_images(runs: Sequence[Run], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Seeds that the subject correctly classified, each once, in random order."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for row in run.seeds.to_pylist():
            if row["label"] == row["predicted"]:
                found.setdefault(row["id"], row)
    rows = [found[name] for name in sorted(found)]
    return [rows[i] for i in rng.permutation(len(rows))]


def by_seed(run: Run, *, kind: str = "label") -> dict[str, list[dict[str, Any]]]:
    """Findings of a run by their seed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in findings(run, kind=kind):
        groups.setdefault(row["seed"], []).append(row)
    return groups


def seed_rows(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Rows of all seeds of all runs by id."""
    return {row["id"]: row for run in runs for row in run.seeds.to_pylist()}
