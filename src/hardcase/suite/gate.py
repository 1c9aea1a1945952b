"""Pass, fail or inconclusive, for continuous integration: what an interval says, and nothing else.

A team that wants to pass may change the model, its data, its conditions and its files. So a rate
counts with what it rests on: both runs are verified, they drew the same samples of the same images
under the same labels, and what is left out speaks against the model. `docs/guides/ci.md` says what
this guards against, and what it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import SkipTest

from hardcase import statistics
from hardcase.analysis.slices import having, tagged_seeds
from hardcase.cache import write_atomically
from hardcase.conditions.box import conditions_digest
from hardcase.conditions.declared import Conditions
from hardcase.config import LimitsConfig, limits_in
from hardcase.errors import HardcaseError, choice
from hardcase.judges.judge import WEAK
from hardcase.plain import read_plain
from hardcase.runs.measured import Measured
from hardcase.runs.results import Run
from hardcase.statistics import LimitDecision, Outcome, decide, decide_counts
from hardcase.suite.junit import JunitCase, annotation, junit
from hardcase.suite.measured import (
    PairedRates,
    bounds_by_ties,
    measured_beside,
    measured_rows,
    paired_rates,
)
from hardcase.wording.gate import (
    MEASURE_MORE,
    counted_line,
    difference_line,
    rate_line,
    ties_line,
)
from hardcase.wording.summary import Decision, decide as decide_run, failure_of

__all__ = [
    *("Check", "GateLimits", "GateTally", "assert_failure_rate", "checks", "decision_of", "gate"),
    *(
        "github",
        "outcome",
        "limit_checks",
        "read_known",
        "require_believable",
        "weakness_of",
        "write_junit",
    ),
]

LABELS = "people (hardcase judge RUN --ask 20), or a label check that is sure of more"
CALIBRATE = "hardcase judge RUN --calibrate FILE.npz, or --max-risk, which needs no label check"
Names = frozenset[str]


class GateLimits(LimitsConfig):
    """What a run may at most show, as the section ``[limits]``; None: no limit."""

    known: Names = frozenset()
    """Ids of findings, or of images, whose failures are accepted as known and do not count."""

    @staticmethod
    def of(values: Mapping[str, Any], *, known: Names | None = None, **flags: Any) -> GateLimits:
        """Return the section ``[limits]`` of a file's values; flags that are not None override it.

        Args:
            values: What the file says.
            known: Ids of known failures.
            flags: Limits by their names.
        """
        flags_set = {name: value for name, value in flags.items() if value is not None}
        section = limits_in({**values, "limits": {**values.get("limits", {}), **flags_set}})
        chosen = section.model_dump(exclude_unset=True)  # what nobody has set stays a default
        return GateLimits(**chosen, known=known or frozenset())

    @property
    def on_findings(self) -> bool:
        """Whether a limit is about what the label check accepts."""
        rates = (self.accepted_rate, self.high_confidence_rate)
        return bool(self.slices) or any(limit is not None for limit in rates)

    @property
    def on_rates(self) -> bool:
        """Whether a limit is about the failure rate under the declared conditions."""
        rates = (self.risk, self.class_risk)
        return bool(self.classes) or any(limit is not None for limit in rates)

    @property
    def any(self) -> bool:
        """Whether there is any limit at all."""
        others = (self.witnessed_rate, self.accuracy)
        declared = any(limit is not None for limit in others)
        return self.on_findings or self.on_rates or declared


@dataclass(frozen=True, slots=True)
class Check:
    """A limit and the result of a run.

    Args:
        name: What is limited.
        outcome: What follows, see `LimitDecision`.
        text: The figure, its interval, its limit and the conditions, in a line.
        decide: What would decide it, where it is inconclusive.
        value: The figure.
        low: The lower end of its 95 % interval.
        high: The upper end.
        limit: What it is held against.
        images: How many images it rests on.
    """

    name: str
    outcome: Outcome
    text: str
    decide: str = ""
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    limit: float = 0.0
    images: int = 0

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"

    def to_json(self) -> dict[str, Any]:
        """Return the check as JSON holds it."""
        row = {**asdict(self), "passed": self.passed}
        return {key: None if value != value else value for key, value in row.items()}


Decide = Callable[[int], Check]
"""A limit that waits for the number of limits that share an error probability."""


def gate(
    run: Run, limits: GateLimits, baseline: Run | None = None, *, repaired: bool = False
) -> list[Check]:
    """Hold a run against limits, and against a baseline.

    Args:
        run: A verified run whose phases have ended.
        limits: What it may show at most.
        baseline: The version before: the failure rates of both are compared image by image.
        repaired: Whether the run is of a repair of the baseline's network: then only images count
            that are reserved for its proof, and unmodified ones must not be worse either.

    Returns:
        A check for every limit. A pass needs all of them; `outcome` joins them.

    Raises:
        HardcaseError: If there is nothing to decide, or a run is not intact.
    """
    require_believable(run)
    if baseline is not None:  # a run without findings is false
        require_believable(baseline)
    _require_conditions(run, limits)
    decided = checks(run, limits, baseline, repaired=repaired)
    if not decided:
        raise HardcaseError(
            "the gate has no limit to hold the run against.",
            fix="--max-risk 0.1, --baseline OLD, or [limits] in hardcase.toml",
        )
    return decided


def checks(
    run: Run, limits: GateLimits, baseline: Run | None = None, *, repaired: bool = False
) -> list[Check]:
    """Return what each limit comes to, as far as the run can tell, whether it is verified or not.

    By default the run is compared with the first model of its measurement.
    The arguments are those of `gate`.
    """
    waiting = [*_on_rates(run, limits), *_on_findings(run, limits)]
    paired = list[PairedRates]()
    if baseline is not None:
        paired = [paired_rates(run, baseline, reserved=repaired)]
    elif (run.record.get("risk") or {}).get("baselines"):
        paired = measured_beside(run)[:1]
    waiting += [_against(run, rates, limits.margin) for rates in paired]
    if repaired and baseline is not None:
        unmodified = paired_rates(run, baseline, reserved=True, unmodified=True)
        waiting.append(_against(run, unmodified, limits.margin, unmodified=True))
    return [decided(len(waiting)) for decided in waiting]


def limit_checks(run: Run, limits: GateLimits | None = None) -> list[Check]:
    """Return what each limit of a run comes to, as far as the run has come.

    Args:
        run: A run, which may be unfinished.
        limits: Upper limits; by default those of the run.
    """
    chosen = GateLimits.of(run.store.settings()) if limits is None else limits
    measured = bool(run.record.get("risk")) or chosen.on_findings
    return checks(run, chosen) if measured and failure_of(run.record) is None else []


def decision_of(run: Run, limits: GateLimits | None = None) -> Decision:
    """Return the decision on a run in a sentence; the arguments are those of `limit_checks`."""
    return decide_run(run.record, limit_checks(run, limits))


def outcome(found: Sequence[Check]) -> Outcome:
    """Return the decision of all checks: a failed check decides, then an inconclusive check."""
    outcomes = {check.outcome for check in found}
    decisive: tuple[Outcome, ...] = ("fail", "inconclusive")
    return next((word for word in decisive if word in outcomes), "pass")


# --- what may be believed


def require_believable(run: Run) -> None:
    """Refuse a run that is damaged, unfinished, or of which a phase has failed."""
    believed = run.verification
    if believed.state != "verified":
        raise HardcaseError(
            f"{run.folder} is {believed.state}, and a gate decides on verified runs only.",
            *believed.notes,
            fix=f"hardcase resume {run.folder} checks and mends it",
        )
    for name, phase in (run.record.get("phases") or {}).items():
        if phase.get("status") == "failed":
            why = str(phase.get("why", "unknown"))
            raise HardcaseError(
                f"the phase {name!r} of {run.folder} has failed: {why}",
                fix=f"hardcase resume {run.folder}",
            )
    if not run.record.get("complete"):
        raise HardcaseError(f"{run.folder} is not complete.", fix=f"hardcase resume {run.folder}")


def _require_conditions(run: Run, limits: GateLimits) -> None:
    """Refuse a run that was measured under other conditions than the limits are for."""
    if limits.conditions is None:
        return
    demanded = Conditions.load(limits.conditions)
    shape = tuple(run.record["shape"])
    if run.record.get("conditions_digest") == conditions_digest(demanded, shape):
        return
    declared = run.record.get("conditions") or {}
    raise HardcaseError(
        f"{run.folder} was not measured under the conditions that the limits are for.",
        f"demanded: {_ranges(demanded.to_record())}",
        f"measured: {_ranges(declared)}",
        "Tables and samplers count with what they draw.",
        fix=f"hardcase run ... --conditions {limits.conditions}",
    )


def _ranges(declared: Mapping[str, Any]) -> str:
    """A declaration in words."""
    ranges = [f"{name} {value}" for name, value in declared.items() if name != "name"]
    return ", ".join(ranges) or "none"


# --- limits on what was measured


def _on_rates(run: Run, limits: GateLimits) -> Iterator[Decide]:
    """The limits on failure rates and on the accuracy."""
    wanted = limits.on_rates or limits.accuracy is not None
    if not wanted:
        return
    rows = measured_rows(run)
    if not len(rows):
        raise HardcaseError(
            f"{run.folder} has measured no image.", fix=f"hardcase resume {run.folder}"
        )
    if limits.on_rates and not rows.samples:
        raise HardcaseError(
            f"{run.folder} was measured without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    if limits.accuracy is not None:
        yield _accuracy(rows, limits.accuracy)
    if limits.risk is not None:
        yield _failure_rate(run, rows, "failure rate", limits.risk)
    for label, limit in _class_limits(run, limits).items():
        of_class = rows.take(rows.label == label)
        yield _failure_rate(run, of_class, f"failure rate, class {run.classes[label]}", limit)


def _accuracy(rows: Measured, limit: float) -> Decide:
    """The accuracy on unmodified images, which is held as an error."""
    wrong, least, most = bounds_by_ties(rows, unmodified=True)

    def decided(limits: int) -> Check:
        clusters = rows.clusters
        decision = decide(
            wrong, 1 - limit, limits=limits, least=least, most=most, clusters=clusters
        )
        name = "error on unmodified images"
        text = rate_line(name, decision, len(rows))
        return _check(name, decision, text, len(rows), ties_line(least, most))

    return decided


def _failure_rate(run: Run, rows: Measured, name: str, limit: float) -> Decide:
    """A failure rate under the declared conditions."""
    shares, least, most = bounds_by_ties(rows)

    def decided(limits: int) -> Check:
        clusters = rows.clusters
        decision = decide(shares, limit, limits=limits, least=least, most=most, clusters=clusters)
        text = rate_line(name, decision, len(rows), run.record)
        return _check(name, decision, text, len(rows), ties_line(least, most))

    return decided


def _class_limits(run: Run, limits: GateLimits) -> dict[int, float]:
    """The limit of every class with a limit."""
    unknown = [name for name in limits.classes if name not in tuple(run.classes)]
    if unknown:
        raise choice("class", unknown[0], list(run.classes))
    limit_of = {
        i: limits.classes.get(name, limits.class_risk) for i, name in enumerate(run.classes)
    }
    return {label: limit for label, limit in limit_of.items() if limit is not None}


def _against(run: Run, rates: PairedRates, margin: float, *, unmodified: bool = False) -> Decide:
    """The failure rate against that of a baseline, image by image."""
    what = "error on unmodified images" if unmodified else "failure rate"
    unknown = f"the {rates.missing:,} images that only the baseline has: they may all fail"

    def decided(limits: int) -> Check:
        decision = decide(
            *(rates.values, margin, -1.0),
            limits=limits,
            least=rates.least,
            most=rates.most,
            clusters=rates.clusters,
        )
        text = difference_line(what, decision, rates, {} if unmodified else run.record)
        decisive = unknown if rates.missing else ties_line(rates.least, rates.most)
        return _check(f"{what} against {rates.name}", decision, text, rates.images, decisive)

    return decided


def _check(name: str, found: LimitDecision, text: str, images: int, decide: str = "") -> Check:
    """A check that says what would `decide` it only where it is inconclusive."""
    if found.outcome != "inconclusive":
        decide = ""
    elif not decide:
        decide = str(found.needed) if found.needed else MEASURE_MORE
    values = (found.value, found.low, found.high, found.limit)
    return Check(name, found.outcome, text, decide, *values, images)


# --- limits on what the search found


def _on_findings(run: Run, limits: GateLimits) -> Iterator[Decide]:
    """The limits on searched images: every image of the search counts."""
    if not limits.on_findings and limits.witnessed_rate is None:
        return
    if not run.store.searching:
        raise HardcaseError(
            f"{run.folder} was made without a search, so nothing was found that could be accepted.",
            fix="--max-risk, which needs no search, or a run with one",
        )
    tally = GateTally(run, limits.known)
    _require_judged(run, tally, limits)
    rates = (
        ("accepted failures", tally.accepted, limits.accepted_rate),
        ("accepted failures with high confidence", tally.confident, limits.high_confidence_rate),
    )
    for name, certain, limit in rates:
        if limit is not None:
            yield _share(tally, name, certain, tally.unsure, tally.images, limit)
    if limits.slices:
        tags, seeds = tagged_seeds(run)
        for name, limit in limits.slices.items():
            among = having(tags, seeds, name)
            parts = (tally.accepted & among, tally.unsure & among, among)
            yield _share(tally, f"accepted failures, slice {name}", *parts, limit)
    if limits.witnessed_rate is not None:
        unknown = tally.unsearched
        parts = (tally.witnessed or set(), unknown, tally.images)
        yield _share(tally, "witnessed failures", *parts, limits.witnessed_rate, judged=False)


def _share(
    tally: GateTally,
    name: str,
    certain: Collection[str],
    unsure: Collection[str],
    among: Collection[str],
    limit: float,
    *,
    judged: bool = True,
) -> Decide:
    """A share of the searched images of which only a lower and an upper bound is determined."""
    least = len({*certain})
    most = len({*certain, *unsure})
    total = len(among)
    weak = weakness_of(tally.run) if judged and tally.rows else ""

    def decided(limits: int) -> Check:
        decision = decide_counts(least, most, total, limit, limits=limits)
        text = counted_line(name, decision, least, most, total)
        check = _check(name, decision, text, total, LABELS if most > least else "")
        if not weak or check.outcome == "fail":
            return check
        doubt = {"outcome": "inconclusive", "text": f"{text}; {weak}", "decide": CALIBRATE}
        return Check(**{**asdict(check), **doubt})

    return decided


def _require_judged(run: Run, tally: GateTally, limits: GateLimits) -> None:
    if limits.witnessed_rate is not None and tally.witnessed is None:
        raise HardcaseError(
            f"{run.folder} was made without witnesses, so none of its failures is witnessed.",
            fix="hardcase run ... --witness default",
        )
    if limits.on_findings and run.verdicts is None and tally.rows:
        raise HardcaseError(
            f"the failures in {run.folder} have not been checked for their labels.",
            "A limit on accepted failures needs that; a limit on the failure rate does not.",
            fix=f"hardcase judge {run.folder}",
        )


def weakness_of(run: Run) -> str:
    """Return why the label check of a run may not pass anything; nothing if it may."""
    judge = run.record.get("judge") or {}
    share = judge.get("accuracy")
    if share is not None and share < WEAK:
        return f"the label check is weak: it gets {share:.0%} of real test images right"
    if not judge.get("calibrated"):
        return "the label check is not calibrated on this data"
    return ""


class GateTally:
    """The searched images of a run by the verdicts on their failures.

    An image that the model misreads unmodified counts as an accepted failure: a model that gets
    more images wrong has fewer to search, and would pass for it. An image that the search did not
    reach may have a failure.

    Args:
        run: A run with a search.
        known: Ids of findings or images whose failures do not count.
    """

    def __init__(self, run: Run, known: Collection[str] = ()) -> None:
        wanted = ["id", "original", "kind", "expected", "witnessed"]
        rows = [row for row in run.findings.select(wanted).to_pylist() if row["kind"] == "label"]
        self.run = run
        self.known = [row for row in rows if row["id"] in known or row["original"] in known]
        gone = {row["id"] for row in self.known}
        self.rows = [row for row in rows if row["id"] not in gone]
        self.verdicts: Mapping[str, Mapping[str, Any]] = run.verdicts or {}
        self._excused = {*known}
        self.unused = sorted(
            {*known} - gone - {row["original"] for row in self.known} - self.misread
        )

    def _status(self, row: Mapping[str, Any]) -> str:
        return statistics.verdict_status(self.verdicts.get(row["id"]))

    @cached_property
    def _searched(self) -> list[dict[str, Any]]:
        columns = ["id", "label", "status", "evaluated"]
        rows: list[dict[str, Any]] = self.run.seeds.select(columns).to_pylist()
        return rows

    @cached_property
    def images(self) -> set[str]:
        """Every image of the search."""
        return {row["id"] for row in self._searched}

    @cached_property
    def misread(self) -> set[str]:
        """Images that the model gets wrong as they are."""
        wrong = ("skipped: misclassified", "skipped: non-finite")
        return {row["id"] for row in self._searched if row["status"] in wrong}

    @cached_property
    def unsearched(self) -> set[str]:
        """Images that the model gets right and the search did not look at, or not to its end."""
        done = {row["id"] for row in self._searched if row["status"] == "done" and row["evaluated"]}
        return self.images - done - self.misread - self._excused

    @cached_property
    def _accepted_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if self._status(row) == "accepted"]

    @cached_property
    def accepted(self) -> set[str]:
        """Images with an accepted failure, and those that are misread as they are."""
        originals = {row["original"] for row in self._accepted_rows}
        return originals | (self.misread - self._excused)

    @cached_property
    def unsure(self) -> set[str]:
        """Images that may have an accepted failure: they are unsearched or unsure."""
        return (self.doubtful | self.unsearched) - self.accepted

    @cached_property
    def doubtful(self) -> set[str]:
        """Images with a failure of which the label check is unsure, and none that is accepted."""
        originals = {row["original"] for row in self.rows if self._status(row) == "unsure"}
        return originals - self.accepted

    @cached_property
    def confident(self) -> set[str]:
        """Images with an accepted failure on which the model was sure, or misread as they are."""
        sure = {row["original"] for row in self._accepted_rows if self._sure(row)}
        return sure | (self.misread - self._excused)

    def _sure(self, row: Mapping[str, Any]) -> bool:
        verdict = self.verdicts[row["id"]]
        return bool(verdict.get("high_confidence"))

    @cached_property
    def witnessed(self) -> set[str] | None:
        """Images with a failure on which every witness keeps the label; None without witnesses."""
        if not self.run.record.get("witnesses") and all(r["witnessed"] is None for r in self.rows):
            return None
        originals = {row["original"] for row in self.rows if row["witnessed"]}
        return originals | (self.misread - self._excused)


# --- around a gate


def assert_failure_rate(
    run: Run | str | Path, limit: float, *, margin: float | None = None, strict: bool = False
) -> None:
    """For your tests: fail, with the figures, if a model fails too often.

    Where that is inconclusive the test is skipped, with what would decide it.

    Args:
        run: A run or its folder.
        limit: The largest failure rate under the declared conditions.
        margin: By how much the rate may exceed that of the run's baseline.
        strict: Fail instead of skipping where it is inconclusive.
    """
    stored = run if isinstance(run, Run) else Run(run)
    decision = gate(stored, GateLimits.of({}, risk=limit, margin=margin))
    wrong = [check.text for check in decision if check.outcome == "fail"]
    unclear = [f"{check.text} ({check.decide})" for check in decision if check.decide]
    assert not wrong, "; ".join(wrong)
    assert not (strict and unclear), "; ".join(unclear)
    if unclear:
        raise SkipTest("; ".join(unclear))


def read_known(path: Path) -> Names:
    """Return the ids in a file of known failures: the id of a finding or image per line, ``#`` and
    why.

    Raises:
        HardcaseError: If the file cannot be read.
    """
    try:
        lines = read_plain(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HardcaseError(f"{path} cannot be read: {error}") from error
    plain = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return frozenset(filter(None, plain))


def write_junit(found: Sequence[Check], path: Path, *, name: str) -> Path:
    """Write the checks as a JUnit file; what is inconclusive is skipped, with the reason."""
    cases = []
    for check in found:
        message = check.text
        if check.outcome == "inconclusive":
            message = f"{check.text}; what would decide it: {check.decide}"
        cases.append(JunitCase(name, check.name, check.outcome, message))
    return write_atomically(path, junit("hardcase gate", cases))


def github(found: Sequence[Check]) -> list[str]:
    """Return the workflow commands that GitHub shows next to a change."""
    return [annotation(check.outcome, check.text) for check in found]
