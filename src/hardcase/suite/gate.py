"""Pass or fail for continuous integration: limits on what was confirmed,
never on what merely failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hardcase import statistics
from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.runs.results import Run
from hardcase.statistics import Rate

USABLE = 20
"""Usable seeds below which a rate says too little to pass anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may at most show; None: no limit. `upper` compares the upper end of the 95 %
    interval instead of the rate.
    """

    confirmed_rate: float | None = None
    class_rate: float | None = None
    silent_rate: float | None = None
    distinct: int | None = None
    usable: int = USABLE
    upper: bool = False

    def __post_init__(self) -> None:
        for name in ("confirmed_rate", "class_rate", "silent_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise Problem(
                    f"--max-{name.replace('_', '-')} is {value}; a rate lies between 0 and 1."
                )


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, what was seen, and whether it holds."""

    name: str
    passed: bool
    text: str


def gate(run: Run, limits: Limits) -> list[Check]:
    """Hold a judged run against `limits`; at least one of them must be given."""
    _decidable(run, limits)
    counts = run.counts()["funnel"]
    attempted = counts["attempted"] or 0
    usable = counts["usable"] or 0
    checks = [_at_least("usable seeds", usable, limits.usable)]
    if limits.confirmed_rate is not None:
        checks.append(
            _rate(
                "confirmed",
                counts["confirmed"] or 0,
                attempted,
                limits.confirmed_rate,
                limits.upper,
            )
        )
    if limits.class_rate is not None:
        checks += [
            _rate(f"confirmed, class {name}", hits, total, limits.class_rate, limits.upper)
            for name, hits, total in _classes(run)
        ]
    if limits.silent_rate is not None:
        checks.append(
            _rate(
                "confirmed and confident", _silent(run), attempted, limits.silent_rate, limits.upper
            )
        )
    if limits.distinct is not None:
        seen = counts["distinct"] or 0
        text = f"{seen} distinct groups of confirmed findings; at most {limits.distinct} allowed"
        checks.append(Check("distinct", seen <= limits.distinct, text))
    return checks


def passed(checks: Sequence[Check]) -> bool:
    return all(check.passed for check in checks)


def assert_confirmed_rate(
    run: Run | str | Path, limit: float, *, usable: int = USABLE, upper: bool = False
) -> None:
    """For tests of one's own: fail with the numbers if more than `limit` of the attempted seeds
    have a confirmed failure.
    """
    checks = gate(
        run if isinstance(run, Run) else Run(run),
        Limits(confirmed_rate=limit, usable=usable, upper=upper),
    )
    wrong = [check.text for check in checks if not check.passed]
    assert not wrong, "; ".join(wrong)


def _decidable(run: Run, limits: Limits) -> None:
    named = (limits.confirmed_rate, limits.class_rate, limits.silent_rate, limits.distinct)
    if all(limit is None for limit in named):
        raise Problem(
            "the gate has no limit to hold the run against.", fix="--max-confirmed-rate 0.05"
        )
    if not run.record.get("complete"):
        raise Problem(f"{run.folder} is not complete.", fix=f"hardcase resume {run.folder}")
    if run.verdicts is None:
        raise Problem(
            f"no judge has seen the findings of {run.folder}.",
            "A gate counts confirmed failures; unjudged ones may be no fault of the model.",
            fix=f"hardcase judge {run.folder}",
        )


def _at_least(name: str, seen: int, least: int) -> Check:
    return Check(name, seen >= least, f"{seen} {name}; at least {least} needed")


def _rate(name: str, hits: int, total: int, limit: float, upper: bool) -> Check:
    rate = Rate(hits, total)
    share = rate.share or 0.0
    held = rate.high if upper else share
    what = "upper end of the interval" if upper else "rate"
    seen = f"{hits} of {total} attempted seeds = {100 * share:.1f} %, 95 % interval {rate.bounds}"
    return Check(name, held <= limit, f"{name}: {seen}; {what} at most {100 * limit:.1f} %")


def _classes(run: Run) -> list[tuple[str, int, int]]:
    """Name, confirmed and attempted seeds of every class."""
    seeds = run.seeds.select(["id", "label", "status", "looked", "failing"]).to_pylist()
    findings = run.findings.select(["id", "seed", "kind", "expected"]).to_pylist()
    rows = []
    for label, name in enumerate(run.classes):
        own = [row for row in seeds if row["label"] == label]
        found = [row for row in findings if row["expected"] == label]
        counts = statistics.count(own, found, run.verdicts)["funnel"]
        rows.append((name, counts["confirmed"] or 0, counts["attempted"] or 0))
    return [row for row in rows if row[2]]


def _silent(run: Run) -> int:
    """Attempted seeds with a confirmed finding on which the subject was sure."""
    verdicts: dict[str, dict[str, Any]] = run.verdicts or {}
    rows = run.findings.select(["id", "seed"]).to_pylist()
    return len({row["seed"] for row in rows if verdicts.get(row["id"], {}).get("silent")})


def junit(checks: Sequence[Check], path: Path, *, name: str) -> Path:
    """The checks as a JUnit file."""
    suite = ElementTree.Element(
        "testsuite",
        name="hardcase gate",
        tests=str(len(checks)),
        failures=str(sum(not c.passed for c in checks)),
    )
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=check.name)
        if check.passed:
            ElementTree.SubElement(case, "system-out").text = check.text
        else:
            ElementTree.SubElement(case, "failure", message=check.text).text = check.text
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return write_atomically(
        path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    )


def github(checks: Sequence[Check]) -> list[str]:
    """Workflow commands that GitHub shows beside a change."""
    return [
        f"::{'notice' if check.passed else 'error'} title=hardcase gate::{_escaped(check.text)}"
        for check in checks
    ]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
