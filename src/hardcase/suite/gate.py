"""Pass, fail or cannot tell, for continuous integration: the undecided counts both ways."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unittest import SkipTest

from hardcase import statistics
from hardcase.analysis.conditions import against, beside_references, needed_to_tell
from hardcase.analysis.insight import having, tagged_seeds
from hardcase.cache import write_atomically
from hardcase.conditions.risk import RiskComparison
from hardcase.config import limits_in
from hardcase.errors import Problem, choice
from hardcase.judges.judge import WEAK
from hardcase.runs.results import Run
from hardcase.statistics import Rate
from hardcase.suite.junit import JunitCase, junit

USABLE = 20
"""Usable seeds below which a rate says too little to pass anything."""
Outcome = Literal["pass", "fail", "cannot tell"]
RATES = ("confirmed_rate", "class_rate", "silent_rate", "witnessed_rate", "risk")
SHARES = ("accuracy", "risk_margin", "least_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """What a run may at most show; None: no limit.

    Args:
        confirmed_rate: Attempted seeds with a confirmed failure.
        class_rate: The same for every class alone.
        classes: The same for single classes by name; goes before `class_rate`.
        slices: The same for seeds with certain tags, by their names: ``dark and thin strokes``.
        silent_rate: The same for confirmed failures made with high confidence.
        distinct: Distinct groups of confirmed findings.
        witnessed_rate: Attempted seeds with a failure on which all witnesses keep the label.
        accuracy: Share of unchanged images that the model gets right, at least.
        risk: Share of (image, declared condition) pairs that fail.
        risk_margin: By how much the risk may exceed that of the baseline, or of the reference.
        least_scale: Scale of the declared conditions below which at most a tenth of images fail.
        usable: Fewer usable seeds than this never pass.
        upper: A run passes only if the upper end of the 95 % interval holds too.
        accepted: Ids of findings, or of seeds, whose failures are known and accepted.
    """

    confirmed_rate: float | None = None
    class_rate: float | None = None
    classes: Mapping[str, float] = field(default_factory=dict)
    slices: Mapping[str, float] = field(default_factory=dict)
    silent_rate: float | None = None
    distinct: int | None = None
    witnessed_rate: float | None = None
    accuracy: float | None = None
    risk: float | None = None
    risk_margin: float = 0.01
    least_scale: float | None = None
    usable: int = USABLE
    upper: bool = False
    accepted: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        named = {f"--max-{name.replace('_', '-')}": getattr(self, name) for name in RATES}
        named |= {f"limits.{name}": getattr(self, name) for name in SHARES}
        named |= {f"limits.classes.{name}": value for name, value in self.classes.items()}
        named |= {f"limits.slices.{name}": value for name, value in self.slices.items()}
        for name, value in named.items():
            if value is not None and not 0 <= value <= 1:
                raise Problem(f"{name} is {value}; a rate lies between 0 and 1.")

    @staticmethod
    def of(values: Mapping[str, Any], **given: Any) -> GateLimits:
        """Those of the section ``[limits]`` of a file; what is given besides goes before."""
        section = limits_in(values).model_dump()
        return GateLimits(
            **{**section, **{key: one for key, one in given.items() if one is not None}}
        )

    @property
    def judged(self) -> bool:
        """Whether a limit needs a judge."""
        known = (self.confirmed_rate, self.class_rate, self.silent_rate, self.distinct)
        return bool(self.classes or self.slices) or any(limit is not None for limit in known)

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


def gate(run: Run, limits: GateLimits, baseline: Run | None = None) -> list[Check]:
    """Hold a complete run against `limits`, or, where none is given, against its reference.

    Args:
        run: A complete run.
        limits: What it may at most show.
        baseline: The run of the version before, which then is the reference.

    Raises:
        Problem: If the run is incomplete, or unjudged where a limit needs a judge.
    """
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
    steps = run.counts()["funnel"]
    usable = steps["usable"] or 0
    found = [_at_least("usable seeds", usable, limits.usable)]
    bounds = _Bounds(tally, limits.upper)
    if limits.confirmed_rate is not None:
        found.append(bounds.rate("confirmed", None, limits.confirmed_rate))
    found += [
        bounds.rate(f"confirmed, class {run.classes[label]}", label, limit)
        for label, limit in _class_limits(run, limits).items()
        if tally.attempted(label)
    ]
    if limits.slices:
        tags, seeds = tagged_seeds(run)
        found += [
            bounds.inside(f"confirmed, slice {name}", having(tags, seeds, name), limit)
            for name, limit in limits.slices.items()
        ]
    if limits.silent_rate is not None:
        found.append(bounds.silent("confirmed and confident", limits.silent_rate))
    if limits.distinct is not None:
        found.append(bounds.distinct("distinct", limits.distinct))
    if limits.witnessed_rate is not None:
        found.append(bounds.witnessed("witnessed", limits.witnessed_rate))
    if limits.accuracy is not None:
        found.append(_accuracy(run, limits.accuracy))
    if limits.risk is not None:
        found.append(_risk(run, limits.risk))
    if limits.least_scale is not None:
        found.append(_least_scale(run, limits.least_scale))
    return found


def _accuracy(run: Run, least: float) -> Check:
    """The accuracy on unchanged images: its interval decides."""
    known = run.record.get("accuracy") or {}
    images = known.get("images") or 0
    seen = Rate(round((known.get("value") or 0) * images), images)
    found = _between(seen.high < least, seen.low >= least and images > 0)
    text = f"accuracy {seen}; at least {100 * least:.1f} %"
    decide = _MORE if found == "cannot tell" else ""
    return Check("accuracy", found, text, decide, limit=least)


def _risk(run: Run, limit: float) -> Check:
    """The risk under the declared conditions: its interval for images like these decides."""
    risk = run.record.get("risk")
    if not risk:
        decide = "a run with declared conditions: hardcase run ... --conditions NAME"
        return Check("risk", "cannot tell", "the risk was not measured", decide, limit=limit)
    low, high = risk["images_like_these"]
    found = _between(low > limit, high <= limit)
    decide = _MORE if found == "cannot tell" else ""
    text = (
        f"risk {risk['value']:.1%} (images like these {low:.1%} to {high:.1%}), limit {limit:.1%}"
    )
    draws = risk["draws"] * risk["seeds"]
    hits = risk["failing"]
    return Check("risk", found, text, decide, hits, hits, draws, limit)


def _least_scale(run: Run, least: float) -> Check:
    """The scale of the conditions within which a tenth of the images was made to fail.

    What a search finds is an upper bound, so that it may break the limit; it holds as far as the
    search could see, and not at all where gradients are masked.
    """
    seen = run.record.get("least_scale")
    name = "least scale"
    if not seen:
        return Check(
            name,
            "cannot tell",
            "the least scale was not measured",
            "hardcase curve RUN",
            limit=least,
        )
    scale = seen["quantiles"].get("0.1")
    broken = scale is not None and scale < least
    comparable = (run.record.get("worst_case") or {}).get("comparable", True)
    told = f"less than a tenth of {seen['seeds']:,} images fail within the whole box"
    if scale is not None:
        told = f"a tenth of {seen['seeds']:,} images fail within {scale:.2f} of the declared ranges"
    text = f"{told}; at least {least:.2f} wanted"
    decide = (
        "" if broken or comparable else "another search: the gradients of this model are masked"
    )
    return Check(name, _between(broken, comparable), text, decide, limit=least)


def _compare_reference(run: Run, margin: float) -> Check:
    """The risk beside that of the first reference that it was measured with, seed by seed."""
    for name, seen in beside_references(run.record, margin=margin).items():
        needed = run.record["risk"].get("needed") or {}
        return _compared(name, seen, needed.get("seeds"))
    text = "risk: no limit was declared, and there is no reference to compare with"
    decide = "--max-risk SHARE, --baseline OLD, or a run with --set references=MODEL"
    return Check("risk", "cannot tell", text, decide, limit=margin)


def compare_baseline(run: Run, baseline: Run, margin: float) -> Check:
    """The risk beside that of the version before, seed by seed, under the same conditions.

    Args:
        run: The run of the new version.
        baseline: The run of the version before.
        margin: By how much the new version may be worse.
    """
    seen = against(run, baseline, margin=margin)
    needed = None
    if seen.verdict == "cannot tell" and seen.seeds > 1 and margin:
        needed = needed_to_tell(run, baseline, margin)
    return _compared("the baseline", seen, needed)


def _compared(name: str, seen: RiskComparison, needed: int | None) -> Check:
    low, high = seen.bounds
    text = (
        f"risk minus that of {name}: {100 * seen.difference:+.1f} points "
        f"({100 * low:+.1f} to {100 * high:+.1f}) over {seen.seeds:,} common seeds, "
        f"at most {100 * seen.margin:+.1f}"
    )
    decide = ""
    if seen.verdict == "cannot tell":
        decide = "more seeds: --seeds N"
        if needed is not None and needed > seen.seeds:
            decide = f"more seeds: --seeds {needed:,}".replace(",", "")
    return Check(f"risk against {name}", seen.verdict, text, decide, limit=seen.margin)


def outcome(found: Sequence[Check]) -> Outcome:
    """Of all checks together: one that fails decides, then one that cannot tell."""
    outcomes = {check.outcome for check in found}
    decisive: tuple[Outcome, ...] = ("fail", "cannot tell")
    return next((one for one in decisive if one in outcomes), "pass")


def passed(found: Sequence[Check]) -> bool:
    return outcome(found) == "pass"


def assert_confirmed_rate(
    run: Run | str | Path,
    limit: float,
    *,
    usable: int = USABLE,
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
    found = gate(stored, GateLimits(confirmed_rate=limit, usable=usable, upper=upper))
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
    """The seeds of a run by what is known of their failures, without accepted ones.

    Args:
        run: A stored run.
        accepted: Ids of findings or seeds that do not count.
    """

    def __init__(self, run: Run, accepted: Collection[str] = ()) -> None:
        wanted = ["id", "seed", "kind", "expected", "witnessed"]
        rows = [row for row in run.findings.select(wanted).to_pylist() if row["kind"] == "label"]
        self.run = run
        self.accepted = [r for r in rows if r["id"] in accepted or r["seed"] in accepted]
        gone = {row["id"] for row in self.accepted}
        self.rows = [row for row in rows if row["id"] not in gone]
        self.verdicts: Mapping[str, Mapping[str, Any]] = run.verdicts or {}
        self.unused = sorted({*accepted} - gone - {row["seed"] for row in self.accepted})

    @cached_property
    def confirmed(self) -> set[str]:
        """Seeds with a confirmed finding."""
        return {row["seed"] for row in self.rows if self._said(row) == "confirmed"}

    @cached_property
    def undecided(self) -> set[str]:
        """Seeds that may or may not have one: nothing is confirmed, and not everything refused."""
        return {row["seed"] for row in self.rows if self._said(row) == "open"} - self.confirmed

    @cached_property
    def silent(self) -> set[str]:
        """Seeds with a confirmed finding on which the subject was sure."""
        rows = [row for row in self.rows if self._said(row) == "confirmed"]
        return {row["seed"] for row in rows if self.verdicts[row["id"]].get("silent")}

    @cached_property
    def witnessed(self) -> set[str] | None:
        """Seeds with a finding on which every witness keeps the label; None without witnesses."""
        if not self.run.record.get("witnesses") and all(r["witnessed"] is None for r in self.rows):
            return None
        return {row["seed"] for row in self.rows if row["witnessed"]}

    @cached_property
    def labels(self) -> dict[str, int]:
        """The class of every attempted seed."""
        rows = self.run.seeds.select(["id", "label", "status", "looked"]).to_pylist()
        tried = [row for row in rows if row["status"] in ("done", "out of time") and row["looked"]]
        return {row["id"]: row["label"] for row in tried}

    def attempted(self, label: int | None = None) -> int:
        """Attempted seeds, of one class or of all."""
        return self.within(set(self.labels), label)

    def within(self, seeds: set[str], label: int | None) -> int:
        """How many of these are attempted seeds of the class."""
        return sum(1 for seed in seeds if label is None or self.labels.get(seed) == label)

    def groups(self) -> int:
        """Distinct groups of confirmed findings."""
        rows = [row for row in self.rows if self._said(row) == "confirmed"]
        return len({self.verdicts[row["id"]].get("group") for row in rows} - {None})

    def open_findings(self) -> int:
        return sum(self._said(row) == "open" for row in self.rows)

    def _said(self, row: Mapping[str, Any]) -> Literal["confirmed", "refused", "open"]:
        return statistics.verdict_status(self.verdicts.get(row["id"]))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Limits on counts of which only a lower and an upper bound is known."""

    tally: GateTally
    upper: bool

    def rate(self, name: str, label: int | None, limit: float) -> Check:
        tally = self.tally
        least = tally.within(tally.confirmed, label)
        undecided = tally.within(tally.undecided, label)
        return self._judged(self._rate(name, least, undecided, tally.attempted(label), limit))

    def inside(self, name: str, seeds: set[str], limit: float) -> Check:
        """Of these attempted seeds alone."""
        least = len(self.tally.confirmed & seeds)
        undecided = len(self.tally.undecided & seeds)
        return self._judged(self._rate(name, least, undecided, len(seeds), limit))

    def silent(self, name: str, limit: float) -> Check:
        tally = self.tally
        return self._judged(
            self._rate(name, len(tally.silent), len(tally.undecided), tally.attempted(), limit)
        )

    def witnessed(self, name: str, limit: float) -> Check:
        seeds = self.tally.witnessed
        if seeds is None:
            wanted = "hardcase run ... --witness default"
            return Check(name, "cannot tell", "no witness was asked", wanted, limit=limit)
        return self._rate(name, len(seeds), 0, self.tally.attempted(), limit)

    def distinct(self, name: str, limit: int) -> Check:
        least = self.tally.groups()
        most = least + self.tally.open_findings()
        text = (
            f"{least} distinct groups of confirmed findings, {most - least} findings undecided; "
            f"at most {limit} allowed"
        )
        said = _between(least > limit, most <= limit)
        return self._judged(
            Check(name, said, text, _OPEN, least=least, most=most, limit=float(limit))
        )

    def _rate(self, name: str, least: int, undecided: int, of: int, limit: float) -> Check:
        most = least + undecided
        low, high = (self.tally.run.rate(hits, of) or Rate(hits, of) for hits in (least, most))
        held, rule = high.share or 0.0, "the rate"
        if self.upper:
            held, rule = high.high, "the upper end of the interval"
        said = _between((low.share or 0.0) > limit, held <= limit)
        more = ""
        if undecided:
            more = f", {undecided} undecided (with them {100 * (high.share or 0):.1f} %)"
        text = (
            f"{name}: {least} of {of} attempted seeds = {100 * (low.share or 0):.1f} %, "
            f"95 % interval {low.bounds}{more}; {rule} at most {100 * limit:.1f} %"
        )
        decide = "more seeds: the interval is too wide"
        if undecided:
            decide = _OPEN
        if not of:
            said = "cannot tell"
            decide = "a longer run: no seed was attempted"
        if said != "cannot tell":
            decide = ""
        return Check(name, said, text, decide, least, most, of, limit)

    def _judged(self, check: Check) -> Check:
        """A weak or uncalibrated judge may fail a run, but passes none that has failures."""
        if not self.tally.rows or check.outcome == "fail":
            return check
        why = weakness_of(self.tally.run)
        if not why:
            return check
        if check.outcome == "pass":
            text = f"{check.text}; {why}"
            return replace(check, outcome="cannot tell", text=text, decide=_CALIBRATE)
        return replace(check, decide=f"{check.decide}; {_CALIBRATE}")


_OPEN = "a verdict on the undecided findings: people (hardcase study new RUN) or a better judge"
_CALIBRATE = (
    "hardcase judge RUN --calibrate FILE.npz, or --max-witnessed-rate in a run with witnesses"
)


_MORE = "more seeds: hardcase run ... --seeds N"


def _between(broken: bool, holds: bool) -> Outcome:
    if broken:
        return "fail"
    if holds:
        return "pass"
    return "cannot tell"


def _at_least(name: str, seen: int, least: int) -> Check:
    text = f"{seen} {name}; at least {least} needed"
    if seen >= least:
        return Check(name, "pass", text, "", seen, seen, None, least)
    return Check(name, "cannot tell", text, "more seeds: --seeds N", seen, seen, None, least)


def _class_limits(run: Run, limits: GateLimits) -> dict[int, float]:
    """The limit of every class that has one."""
    unknown = [name for name in limits.classes if name not in tuple(run.classes)]
    if unknown:
        raise choice("class", unknown[0], list(run.classes))
    known: dict[int, float] = {}
    for label, name in enumerate(run.classes):
        limit = limits.classes.get(name, limits.class_rate)
        if limit is not None:
            known[label] = limit
    return known


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


_OUTCOMES: Mapping[str, Literal["passed", "failure", "skipped"]] = {
    "pass": "passed",
    "fail": "failure",
    "cannot tell": "skipped",
}


def write_junit(found: Sequence[Check], path: Path, *, name: str) -> Path:
    """Write the checks as a JUnit file; what is inconclusive is skipped, with the reason."""
    cases = []
    for check in found:
        message = check.text
        if check.outcome == "cannot tell":
            message = f"{check.text}; what would decide it: {check.decide}"
        cases.append(JunitCase(name, check.name, _OUTCOMES[check.outcome], message))
    return write_atomically(path, junit("hardcase gate", cases))


_LEVELS = {"pass": "notice", "fail": "error", "cannot tell": "warning"}


def github(found: Sequence[Check]) -> list[str]:
    """Workflow commands that GitHub shows beside a change."""
    return [
        f"::{_LEVELS[check.outcome]} title=hardcase gate::{_escaped(check.text)}" for check in found
    ]


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
