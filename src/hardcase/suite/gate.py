"""Pass, fail or cannot tell, for continuous integration: the undecided counts both ways."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import SkipTest
from xml.etree import ElementTree

from hardcase import statistics
from hardcase.analysis.references import common_samples
from hardcase.analysis.slices import attempted_labels, having, tagged_seeds
from hardcase.cache import write_atomically
from hardcase.conditions.risk import RiskComparison
from hardcase.config import LimitsConfig, limits_in
from hardcase.environment import one_line
from hardcase.errors import Problem, choice
from hardcase.judges.judge import WEAK
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.statistics import Bounds, Rate, needed_images
from hardcase.wording.numbers import percent, span

Outcome = Literal["pass", "fail", "cannot tell"]
MORE_SEEDS = "more seeds: hardcase run ... --seeds N"
VERDICTS = "a verdict on the undecided findings: people (hardcase study new RUN) or a better judge"
CALIBRATE = (
    "hardcase judge RUN --calibrate FILE.npz, or --max-witnessed-rate in a run with witnesses"
)
"""What would decide a check that cannot be told."""


class GateLimits(LimitsConfig):
    """What a run may at most show, as the section ``[limits]``; None: no limit."""

    accepted: frozenset[str] = frozenset()
    """Ids of findings, or of seeds, whose failures are known and accepted."""

    @staticmethod
    def of(
        values: Mapping[str, Any], *, accepted: frozenset[str] | None = None, **flags: Any
    ) -> GateLimits:
        """The section ``[limits]`` of a file's values; flags that are not None override it."""
        given = {name: value for name, value in flags.items() if value is not None}
        section = limits_in({"limits": {**values.get("limits", {}), **given}})
        return GateLimits(**section.model_dump(), accepted=accepted or frozenset())

    @property
    def judged(self) -> bool:
        """Whether a limit needs a judge."""
        known = (self.confirmed_rate, self.class_rate, self.silent_rate, self.distinct)
        return bool(self.classes or self.slices) or any(limit is not None for limit in known)

    @property
    def counts_searched(self) -> bool:
        """Whether a limit is about the images that were searched; others count all measured."""
        own = GateLimits.model_fields["usable"].default
        return self.judged or self.witnessed_rate is not None or self.usable != own

    @property
    def any(self) -> bool:
        """Whether there is any limit at all."""
        known = (self.witnessed_rate, self.accuracy, self.risk, self.least_scale)
        return self.judged or any(limit is not None for limit in known)


@dataclass(frozen=True, slots=True)
class Check:
    """One limit, what was seen, and what follows.

    Args:
        name: What is limited.
        outcome: Whether the limit holds, is broken, or cannot be told.
        text: The counts in words.
        decide: What would decide it, where it cannot be told.
        least: What certainly counts.
        most: The same with everything undecided.
        of: What both are a part of; None for a plain count.
        limit: The limit.
    """

    name: str
    outcome: Outcome
    text: str
    decide: str = ""
    least: int = 0
    most: int = 0
    of: int | None = None
    limit: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"


def _check(name: str, outcome: Outcome, text: str, decide: str, *counts: Any, **more: Any) -> Check:
    """A check that says what would `decide` it only where it cannot be told."""
    if outcome != "cannot tell":
        decide = ""
    return Check(name, outcome, text, decide, *counts, **more)


def gate(run: Run, limits: GateLimits, baseline: Run | None = None) -> list[Check]:
    """Hold a complete run against `limits`, or, where none is given, against its reference."""
    _decidable(run, limits)
    if baseline is None:
        return checks(run, limits)
    return [*_declared(run, limits), compare_baseline(run, baseline, limits.risk_margin)]


def checks(run: Run, limits: GateLimits) -> list[Check]:
    """What each limit comes to, as far as the run can tell: unjudged is undecided.

    The risk must not exceed that of the version before by more than the margin; where no limit is
    declared, not that of the first reference either.
    """
    found = _declared(run, limits)
    if run.record.get("risk") and (not limits.any or run.record.get("baseline")):
        found.append(_compare_reference(run, limits.risk_margin))
    return found


def _declared(run: Run, limits: GateLimits) -> list[Check]:
    tally = GateTally(run, limits.accepted)
    every = set(tally.labels)
    found = list[Check]()
    if limits.counts_searched or not run.record.get("risk"):
        found.append(_usable(run, limits.usable))

    def confirmed(name: str, certain: set[str], among: set[str], limit: float) -> None:
        check = _rate(tally, name, certain & among, tally.undecided & among, among, limit, limits)
        found.append(_judged(tally, check))

    if limits.confirmed_rate is not None:
        confirmed("confirmed", tally.confirmed, every, limits.confirmed_rate)
    for label, limit in _class_limits(run, limits).items():
        among = {seed for seed, own in tally.labels.items() if own == label}
        if among:
            confirmed(f"confirmed, class {run.classes[label]}", tally.confirmed, among, limit)
    if limits.slices:
        tags, seeds = tagged_seeds(run)
        for name, limit in limits.slices.items():
            among = having(tags, seeds, name)
            confirmed(f"confirmed, slice {name}", tally.confirmed, among, limit)
    if limits.silent_rate is not None:
        confirmed("confirmed and confident", tally.silent, every, limits.silent_rate)
    if limits.distinct is not None:
        found.append(_judged(tally, _distinct(tally, limits.distinct)))
    if limits.witnessed_rate is not None:
        found.append(_witnessed(tally, limits.witnessed_rate, limits))
    if limits.accuracy is not None:
        found.append(_accuracy(run, limits.accuracy))
    if limits.risk is not None:
        found.append(_risk(run, limits.risk))
    if limits.least_scale is not None:
        found.append(_least_scale(run, limits.least_scale))
    return found


def _usable(run: Run, least: int) -> Check:
    """Whether enough images were correctly classified for rates of those that were searched."""
    usable = run.counts()["funnel"]["usable"] or 0
    text = f"{usable} usable seeds; at least {least} needed"
    enough = _between(False, usable >= least)
    return _check("usable seeds", enough, text, MORE_SEEDS, usable, usable, None, least)


def _rate(
    tally: GateTally,
    name: str,
    certain: set[str],
    undecided: set[str],
    among: set[str],
    limit: float,
    limits: GateLimits,
) -> Check:
    """A limit on a share of seeds of which only a lower and an upper bound is known."""
    least = len(certain)
    most = len(certain | undecided)
    of = len(among)
    low, high = (tally.run.rate(hits, of) or Rate(hits, of) for hits in (least, most))
    held, rule = high.share or 0.0, "the rate"
    if limits.upper:
        held, rule = high.high, "the upper end of the interval"
    outcome = _between((low.share or 0.0) > limit, held <= limit)
    decide = "more seeds: the interval is too wide"
    more = ""
    if most > least:
        decide = VERDICTS
        more = f", {most - least} undecided (with them {100 * (high.share or 0):.1f} %)"
    if not of:
        outcome = "cannot tell"
        decide = "a longer run: no seed was attempted"
    text = (
        f"{name}: {least} of {of} attempted seeds = {100 * (low.share or 0):.1f} %, "
        f"95 % interval {low.bounds}{more}; {rule} at most {100 * limit:.1f} %"
    )
    return _check(name, outcome, text, decide, least, most, of, limit)


def _judged(tally: GateTally, check: Check) -> Check:
    """A weak or uncalibrated judge may fail a run, but passes none that has failures."""
    why = weakness_of(tally.run)
    if not tally.rows or not why or check.outcome == "fail":
        return check
    if check.outcome == "pass":
        text = f"{check.text}; {why}"
        return replace(check, outcome="cannot tell", text=text, decide=CALIBRATE)
    return replace(check, decide=f"{check.decide}; {CALIBRATE}")


def _distinct(tally: GateTally, limit: int) -> Check:
    least = tally.groups()
    undecided = sum(tally.status(row) == "open" for row in tally.rows)
    most = least + undecided
    text = (
        f"{least} distinct groups of confirmed findings, {undecided} findings undecided; "
        f"at most {limit} allowed"
    )
    outcome = _between(least > limit, most <= limit)
    return _check("distinct", outcome, text, VERDICTS, least, most, None, float(limit))


def _witnessed(tally: GateTally, limit: float, limits: GateLimits) -> Check:
    if tally.witnessed is None:
        decide = "hardcase run ... --witness default"
        return Check("witnessed", "cannot tell", "no witness was asked", decide, limit=limit)
    return _rate(tally, "witnessed", tally.witnessed, set(), set(tally.labels), limit, limits)


def _accuracy(run: Run, least: float) -> Check:
    """The accuracy on unchanged images: its interval decides."""
    known = run.record.get("accuracy") or {}
    images = known.get("images") or 0
    seen = Rate(round((known.get("value") or 0) * images), images)
    outcome = _between(seen.high < least, seen.low >= least and images > 0)
    text = f"accuracy {seen}; at least {100 * least:.1f} %"
    return _check("accuracy", outcome, text, MORE_SEEDS, limit=least)


def _risk(run: Run, limit: float) -> Check:
    """The risk under the declared conditions: its interval for images like these decides."""
    risk = run.record.get("risk")
    if not risk:
        decide = "a run with declared conditions: hardcase run ... --conditions NAME"
        return Check("risk", "cannot tell", "the risk was not measured", decide, limit=limit)
    low, high = risk["low"], risk["high"]
    outcome = _between(low > limit, high <= limit)
    text = f"failure rate {percent(risk['value'])} ({span(low, high)}), limit {percent(limit)}"
    failing, draws = risk["failing"], max(risk["samples"], 1) * risk["images"]
    return _check("risk", outcome, text, MORE_SEEDS, failing, failing, draws, limit)


def _least_scale(run: Run, least: float) -> Check:
    """The scale of the conditions within which a tenth of the images was made to fail.

    What a search finds is an upper bound, so that it may break the limit; it holds as far as the
    search could see, and not at all where gradients are masked.
    """
    seen = run.record.get("least_scale")
    if not seen:
        text = "the least scale was not measured"
        return Check("least scale", "cannot tell", text, "hardcase curve RUN", limit=least)
    scale = seen["quantiles"].get("0.1")
    broken = scale is not None and scale < least
    comparable = (run.record.get("worst_case") or {}).get("comparable", True)
    found = f"less than a tenth of {seen['seeds']:,} images fail within the whole box"
    if scale is not None:
        found = (
            f"a tenth of {seen['seeds']:,} images fail within {scale:.2f} of the declared ranges"
        )
    decide = "another search: the gradients of this model are masked"
    text = f"{found}; at least {least:.2f} wanted"
    return _check("least scale", _between(broken, comparable), text, decide, limit=least)


def _compare_reference(run: Run, margin: float) -> Check:
    """The failure rate beside that of the first baseline it was measured with."""
    for one in run.record["risk"]["baselines"]:
        found = one["difference"]
        bounds = Bounds(found["low"], found["high"])
        seen = RiskComparison(found["value"], bounds, one["images"], margin)
        return _compared(one["name"], seen, None)
    text = "failure rate: no limit was declared, and there is no baseline to compare with"
    decide = "--max-risk SHARE, or --baseline OLD"
    return Check("risk", "cannot tell", text, decide, limit=margin)


def compare_baseline(run: Run, baseline: Run, margin: float) -> Check:
    """The failure rate beside that of the version before, image by image."""
    mine, theirs = common_samples(run, measured_rows(run.store), baseline)
    found = mine.difference(theirs.shares)
    seen = RiskComparison(found["value"], Bounds(found["low"], found["high"]), len(mine), margin)
    needed = None
    if seen.verdict == "cannot tell" and seen.seeds > 1 and margin:
        needed = needed_images(mine.shares - theirs.shares, margin)
    return _compared("the baseline", seen, needed)


def _compared(name: str, seen: RiskComparison, needed: int | None) -> Check:
    low, high = seen.bounds
    text = (
        f"risk minus that of {name}: {100 * seen.difference:+.1f} points "
        f"({100 * low:+.1f} to {100 * high:+.1f}) over {seen.seeds:,} common seeds, "
        f"at most {100 * seen.margin:+.1f}"
    )
    count = str(needed) if needed is not None and needed > seen.seeds else "N"
    decide = f"more seeds: --seeds {count}"
    return _check(f"risk against {name}", seen.verdict, text, decide, limit=seen.margin)


def outcome(found: Sequence[Check]) -> Outcome:
    """Of all checks together: one that fails decides, then one that cannot tell."""
    outcomes = {check.outcome for check in found}
    decisive: tuple[Outcome, ...] = ("fail", "cannot tell")
    return next((one for one in decisive if one in outcomes), "pass")


def assert_confirmed_rate(
    run: Run | str | Path,
    limit: float,
    *,
    usable: int = 20,
    upper: bool = False,
    strict: bool = False,
) -> None:
    """For tests of one's own: fail with the numbers if too many seeds have a confirmed failure.

    Where that cannot be told (too much is undecided, the judge is weak or not calibrated) the test
    is skipped with what would decide it.

    Args:
        run: A judged run or its folder.
        limit: The largest share of attempted seeds with a confirmed failure.
        usable: Fewer usable seeds than this never pass.
        upper: Hold the upper end of the 95 % interval to the limit.
        strict: Fail instead of skipping where it cannot be told.
    """
    stored = run if isinstance(run, Run) else Run(run)
    limits = GateLimits.of({}, confirmed_rate=limit, usable=usable, upper=upper)
    found = gate(stored, limits)
    wrong = [check.text for check in found if check.outcome == "fail"]
    open_ = [f"{check.text} ({check.decide})" for check in found if check.outcome == "cannot tell"]
    assert not wrong, "; ".join(wrong)
    assert not (strict and open_), "; ".join(open_)
    if open_:
        raise SkipTest("; ".join(open_))


def read_accepted(path: Path) -> frozenset[str]:
    """The ids in a file of known failures: a finding's or a seed's a line, ``#`` and why."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    plain = (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines)
    return frozenset(filter(None, plain))


def weakness_of(run: Run) -> str:
    """Why the judge of a run may not pass anything; nothing if it may."""
    judge = run.record.get("judge") or {}
    share = judge.get("accuracy")
    if share is not None and share < WEAK:
        return f"the judge is weak: it gets {share:.0%} of real test images right"
    if not judge.get("calibrated"):
        return "the judge is not calibrated on this data"
    return ""


class GateTally:
    """The seeds of a run by what is known of their failures, without accepted ones."""

    def __init__(self, run: Run, accepted: Collection[str] = ()) -> None:
        wanted = ["id", "seed", "kind", "expected", "witnessed"]
        rows = [row for row in run.findings.select(wanted).to_pylist() if row["kind"] == "label"]
        self.run = run
        self.accepted = [r for r in rows if r["id"] in accepted or r["seed"] in accepted]
        gone = {row["id"] for row in self.accepted}
        self.rows = [row for row in rows if row["id"] not in gone]
        self.verdicts: Mapping[str, Mapping[str, Any]] = run.verdicts or {}
        self.unused = sorted({*accepted} - gone - {row["seed"] for row in self.accepted})

    def status(self, row: Mapping[str, Any]) -> Literal["confirmed", "refused", "open"]:
        return statistics.verdict_status(self.verdicts.get(row["id"]))

    @cached_property
    def _confirmed(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if self.status(row) == "confirmed"]

    @cached_property
    def confirmed(self) -> set[str]:
        """Seeds with a confirmed finding."""
        return {row["seed"] for row in self._confirmed}

    @cached_property
    def undecided(self) -> set[str]:
        """Seeds that may or may not have one: nothing is confirmed, and not everything refused."""
        return {row["seed"] for row in self.rows if self.status(row) == "open"} - self.confirmed

    @cached_property
    def silent(self) -> set[str]:
        """Seeds with a confirmed finding on which the subject was sure."""
        return {row["seed"] for row in self._confirmed if self.verdicts[row["id"]].get("silent")}

    @cached_property
    def witnessed(self) -> set[str] | None:
        """Seeds with a finding on which every witness keeps the label; None without witnesses."""
        if not self.run.record.get("witnesses") and all(r["witnessed"] is None for r in self.rows):
            return None
        return {row["seed"] for row in self.rows if row["witnessed"]}

    @cached_property
    def labels(self) -> dict[str, int]:
        """The class of every attempted seed."""
        return attempted_labels(self.run)

    def groups(self) -> int:
        """Distinct groups of confirmed findings."""
        return len({self.verdicts[row["id"]].get("group") for row in self._confirmed} - {None})


def _between(broken: bool, holds: bool) -> Outcome:
    if broken:
        return "fail"
    return "pass" if holds else "cannot tell"


def _class_limits(run: Run, limits: GateLimits) -> dict[int, float]:
    """The limit of every class that has one."""
    unknown = [name for name in limits.classes if name not in tuple(run.classes)]
    if unknown:
        raise choice("class", unknown[0], list(run.classes))
    known = {i: limits.classes.get(name, limits.class_rate) for i, name in enumerate(run.classes)}
    return {label: limit for label, limit in known.items() if limit is not None}


def _decidable(run: Run, limits: GateLimits) -> None:
    if not limits.any and not run.record.get("risk"):
        raise Problem(
            "the gate has no limit to hold the run against.",
            fix="--max-risk 0.1 of a run with conditions, or [limits] in hardcase.toml",
        )
    believed = run.verification
    if believed.state != "verified":
        raise Problem(
            f"{run.folder} is {believed.state}, and a gate decides on verified runs only.",
            *believed.notes,
            fix=f"hardcase resume {run.folder} checks and mends it",
        )
    if not run.record.get("complete"):
        raise Problem(f"{run.folder} is not complete.", fix=f"hardcase resume {run.folder}")
    tally = GateTally(run, limits.accepted)
    if limits.witnessed_rate is not None and tally.witnessed is None:
        raise Problem(
            f"{run.folder} was made without witnesses, so none of its failures is witnessed.",
            fix="hardcase run ... --witness default",
        )
    if limits.risk is not None and not run.record.get("risk"):
        raise Problem(
            f"{run.folder} has no risk: it was run without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    if limits.judged and run.verdicts is None and tally.rows:
        raise Problem(
            f"no judge has seen the findings of {run.folder}.",
            "A gate counts confirmed failures; unjudged ones may be no fault of the model.",
            fix=f"hardcase judge {run.folder}",
        )


class JunitCase(NamedTuple):
    """One test case: the group and the name it is shown under, how it ended, and what is said."""

    group: str
    name: str
    outcome: Outcome = "pass"
    message: str = ""


_ELEMENTS = {"fail": "failure", "cannot tell": "skipped"}


def junit(name: str, cases: Sequence[JunitCase]) -> bytes:
    """Return the cases as a JUnit file with one suite called `name`."""
    outcomes = [case.outcome for case in cases]
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=one_line(name),
        tests=str(len(cases)),
        failures=str(outcomes.count("fail")),
        skipped=str(outcomes.count("cannot tell")),
    )
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=one_line(case.group), name=one_line(case.name)
        )
        if case.outcome in _ELEMENTS:
            kind = _ELEMENTS[case.outcome]
            ElementTree.SubElement(element, kind, message=case.message).text = case.message
        elif case.message:
            ElementTree.SubElement(element, "system-out").text = case.message
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def write_junit(found: Sequence[Check], path: Path, *, name: str) -> Path:
    """Write the checks as a JUnit file; what is inconclusive is skipped, with the reason."""
    cases = []
    for check in found:
        message = check.text
        if check.outcome == "cannot tell":
            message = f"{check.text}; what would decide it: {check.decide}"
        cases.append(JunitCase(name, check.name, check.outcome, message))
    return write_atomically(path, junit("hardcase gate", cases))


_LEVELS = {"pass": "notice", "fail": "error", "cannot tell": "warning"}


def github(found: Sequence[Check]) -> list[str]:
    """Workflow commands that GitHub shows beside a change."""
    escapes = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
    return [
        f"::{_LEVELS[check.outcome]} title=hardcase gate::{check.text.translate(escapes)}"
        for check in found
    ]
