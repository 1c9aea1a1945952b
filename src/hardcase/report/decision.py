"""The first screen: can this model ship? GateLimits, a verdict with its uncertainty, what next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from hardcase.analysis.slices import attempted_labels
from hardcase.errors import Problem
from hardcase.report.words import listed, number, percent, plural, rate, rates_of
from hardcase.runs.results import Run
from hardcase.suite.gate import Check, GateLimits, GateTally, checks, outcome, weakness_of
from hardcase.types import WAYS, ClassNames
from hardcase.wording import numbers as number_words
from hardcase.wording.summary import decide

PICTURES = 3
"""Findings on the first screen of a run without risk."""
VERDICTS = {
    "pass": "Within its limits",
    "fail": "Not within its limits",
    "inconclusive": "Inconclusive",
    "no limits": "No limits were declared",
}
BESIDE = {**VERDICTS, "pass": "Not worse than its reference", "fail": "Worse than its reference"}
"""The same where no limit was declared, but there is a model to compare with."""
WORST = ("fail", "inconclusive", "pass", "no limits")
"""Which verdict stands for several runs."""
RISK_HELP = (
    "Risk says how the model fares under the declared conditions. Of 56 networks it predicted,"
    " beyond accuracy, the errors on digits of other writers, but not those under other kinds of"
    " corruption: declare the conditions of the field."
)


def verdict(run: Run, limits: GateLimits | None) -> tuple[str, list[Check], str | None]:
    """Return what the limits come to, in one word and one by one, and whose limits they are."""
    declared, source = (limits, "given") if limits is not None else (_recorded(run), "run")
    if not declared.any and not run.record.get("risk"):
        return "no limits", [], None
    found = checks(run, declared)
    said = outcome(found)
    if said == "pass" and not run.record.get("complete"):
        said = "inconclusive"
    return said, found, source if declared.any else None


def decision(
    run: Run,
    limits: GateLimits | None,
    triples: Sequence[Mapping[str, Any]],
    *,
    held: Sequence[Mapping[str, Any]] = (),
    pairs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What the first screen says of a run."""
    said, found, source = verdict(run, limits)
    tally = GateTally(run, (limits or _recorded(run)).known)
    judged = run.verdicts is not None
    risk = run.record.get("risk")
    least = len(tally.accepted - tally.misread)
    of = len(attempted_labels(run))
    return {
        "question": f"Can {run.record.get('model')} ship?",
        "verdict": said,
        "word": (VERDICTS if source else BESIDE)[said],
        "sentence": risk_sentence(run.record) if risk else _sentence(tally, judged),
        "figures": figures(run),
        "conditions": dearest(run),
        "risk_help": RISK_HELP if risk else None,
        "doubt": "",
        "note": None,
        "where": where_in_one_sentence(held, pairs, run.classes, len(tally.rows)),
        "confirmed": rates_of(run)(least, of),
        "undecided": len(tally.doubtful),
        "with_undecided": rates_of(run)(least + len(tally.doubtful), of),
        "judged": judged,
        "weak_judge": (weakness_of(run) if judged and tally.rows else "") or None,
        "limits_from": source,
        "limits": [_limit(check) for check in found],
        "accepted": [row["id"] for row in tally.known],
        "pictures": [] if risk else [fact["id"] for fact in triples[:PICTURES]],
        "next": _next(run, said, found, tally, judged),
    }


def figures(run: Run) -> dict[str, str]:
    """Return the figures that decide, in lines under short headings."""
    record = run.record
    lines = dict[str, str]()
    known = record.get("accuracy") or {}
    images = known.get("images")
    if images and known.get("value") is not None:
        seen = run.rate(round(known["value"] * images), images)
        what = "claims about unchanged images" if record.get("claims") else "the unchanged images"
        lines["accuracy"] = f"{seen} of {what}"
    risk = record.get("risk")
    if not risk:
        return {**lines, "failure rate": "not measured"}
    return {**lines, "failure rate": number_words.rate(risk)}


def risk_sentence(record: Mapping[str, Any]) -> str:
    """Return the figure that decides, with its interval, as one sentence."""
    return str(decide(record))


def dearest(run: Run) -> list[dict[str, Any]]:
    """Return the conditions with an effect, the largest first."""
    effects = (run.record.get("risk") or {}).get("effects") or []
    return [
        {**row, "text": f"{row['condition']}: {number_words.difference(row)}", "example": None}
        for row in effects
    ]


def where_in_one_sentence(
    held: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    classes: ClassNames,
    findings: int,
) -> str | None:
    """Where the model fails: the clearest condition if any held, else the commonest confusions."""
    if not pairs:
        return None
    counts = [number(one["tests"]) for one in pairs[:PICTURES]]
    counts[0] += f" of {plural(findings, 'finding')}"
    told = []
    for one, count in zip(pairs, counts):
        word = classes[one["predicted"]]
        fate = f"is taken for {word}"
        if one["predicted"] < 0:  # of a claim
            fate = f"is {'a ' * (word == WAYS[-1])}{word}"
        told.append(f"{classes[one['expected']]} {fate} ({count})")
    most = f"{'most often' if pairs[0]['tests'] > 1 else 'for example,'} {listed(told)}"
    if len({one["expected"] for one in pairs}) == len(classes) > 1:
        most = f"in all {len(classes)} classes, {most}"
    if not held:
        return f"Where it fails: {most}."
    first = held[0]
    inside, outside = (percent(first[side]["share"]) for side in ("inside", "outside"))
    more = f"more often on seeds that are {first['name']} ({inside}, elsewhere {outside})"
    return f"Where it fails: {more}; {most}."


def together(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the first screen says of several runs: the limits hold if they hold in every run that
    has some."""
    verdicts = [section["decision"]["verdict"] for section in sections]
    worst = next(word for word in WORST if word in verdicts)
    which = [section["name"] for section, verdict in zip(sections, verdicts) if verdict == worst]
    place = verdicts.index(worst)
    first = sections[place]["decision"]
    others = f"The verdict of {listed(which[1:])} is the same." if which[1:] else None
    models = list(dict.fromkeys(str(section["model"]) for section in sections))
    return {
        "question": f"Can {listed(models)} ship?",
        "verdict": worst,
        "word": first["word"],
        "sentence": f"Run {which[0]}: {first['sentence']}",
        "note": others,
        "run": place,
    }


def _recorded(run: Run) -> GateLimits:
    """The limits that the run was started with; none if they cannot be read."""
    try:
        return GateLimits.of(run.store.settings())
    except Problem:
        return GateLimits()


def _limit(check: Check) -> dict[str, Any]:
    quiet = ", class " in check.name and check.outcome == "pass"
    return {**check.to_json(), "quiet": quiet, "kind": "words"}


def _sentence(tally: GateTally, judged: bool) -> str:
    """The number that decides, with what is open."""
    of = len(attempted_labels(tally.run))
    failing = len({row["seed"] for row in tally.rows})
    if not of:
        return "No seed was attempted, so nothing is known of this model."
    if not failing:
        none = f"No failure was found from {plural(of, 'seed')} within this budget."
        return f"{none} That is no proof that there is none."
    if not judged:
        return (
            f"{number(failing)} of {number(of)} attempted seeds fail, and nobody has judged "
            f"whether the inputs are fair: anything from 0 to {number(failing)} may be accepted."
        )
    least = len(tally.accepted - tally.misread)
    seen = rate(least, of) or {}
    span = f"95\u00a0% interval {percent(seen['low'])} to {percent(seen['high'])}"
    share = f"{percent(seen['share'])}, {span}"
    verb = "has" if least == 1 else "have"
    counted = (
        f"{number(least)} of {number(of)} attempted seeds ({share}) {verb} an accepted failure"
    )
    if not tally.doubtful:
        return f"{counted}; none is unsure."
    most = rate(least + len(tally.doubtful), of) or {}
    open_ = f"Unsure: {number(len(tally.doubtful))}"
    whole = f"{number(most['hits'])} of {number(of)} ({percent(most['share'])})"
    return f"{counted}. {open_}; with all of them it would be {whole}."


def _next(
    run: Run, said: str, found: Sequence[Check], tally: GateTally, judged: bool
) -> list[dict[str, str | None]]:
    """What to do, each with a command where there is one."""
    place, here = run.folder.resolve(), Path.cwd()
    name = quote(place.name)
    if place.is_relative_to(here):  # as one types it where the page was written
        name = quote(str(place.relative_to(here)))
    risk = run.record.get("risk")
    steps: list[tuple[str, str | None]] = []
    if not run.record.get("complete"):
        steps.append(("Finish the run; it is incomplete.", f"hardcase resume {name}"))
    if not judged and tally.rows and not run.record.get("claims"):
        steps.append(("Have the findings judged.", f"hardcase judge {name}"))
    again = f"hardcase replay {name} --model NEXT"
    if said == "no limits":
        text = "Measure how often it fails under declared conditions, and say how often it may."
        steps.append((text, "hardcase run ... --conditions NAME --set limits.risk=0.05"))
    if said == "fail":
        steps += [
            ("Look at the failing images below: under which conditions, and which classes.", None),
            ("Repair the network and see whether it helped.", f"hardcase repair {name}"),
        ]
    if said == "pass":
        steps += [
            ("Keep this run: the next version is held against it.", None),
            ("Show the stored findings to the next version.", again),
        ]
    if said == "inconclusive":
        wanted = dict.fromkeys(check.decide for check in found if check.decide)
        steps += [(f"To decide: {text.replace('RUN', name)}.", None) for text in wanted]
    if risk:
        held = f"hardcase gate NEXT --baseline {name}"
        if said != "inconclusive":
            steps.append(("Hold the next version against this one.", held))
    return [{"text": text, "command": command} for text, command in steps]
