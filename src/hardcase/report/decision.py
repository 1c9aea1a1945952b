"""The first screen: can this model ship? GateLimits, a verdict with its uncertainty, what next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from hardcase.errors import Problem
from hardcase.report.words import number, percent, plural, rate
from hardcase.runs.results import Run
from hardcase.suite.gate import Check, GateLimits, GateTally, checks, outcome, weakness_of
from hardcase.types import ClassNames

PICTURES = 3
"""Findings on the first screen."""
VERDICTS = {
    "pass": "Within its limits",
    "fail": "Not within its limits",
    "cannot tell": "Cannot tell yet",
    "no limits": "No limits were declared",
}
WORST = ("fail", "cannot tell", "no limits", "pass")
_NAMES = {
    "usable seeds": "seeds to decide on",
    "confirmed": "confirmed failures",
    "confirmed and confident": "confirmed failures made with high confidence",
    "distinct": "distinct groups of confirmed failures",
    "witnessed": "failures on which all witnesses keep the label",
    "risk": "risk under the declared conditions",
}


def decision(
    run: Run,
    limits: GateLimits | None,
    triples: Sequence[Mapping[str, Any]],
    *,
    held: Sequence[Mapping[str, Any]] = (),
    pairs: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What the first screen says of a run.

    Args:
        run: A stored run, judged or not.
        limits: What the model may at most show; None: those that the run was started with.
        triples: The findings that are shown large; the first of them are shown here.
        held: Conditions under which the model fails more often, the clearest first.
        pairs: Which class is taken for which, the commonest first.
    """
    declared, source = (limits, "given") if limits is not None else (_recorded(run), "run")
    tally = GateTally(run, declared.accepted)
    found = checks(run, declared) if declared.any else []
    said = outcome(found) if found else "no limits"
    if said == "pass" and not run.record.get("complete"):
        said = "cannot tell"
    least = len(tally.confirmed)
    most = least + len(tally.undecided)
    judged = run.verdicts is not None
    return {
        "question": f"Can {run.record.get('model')} ship?",
        "verdict": said,
        "word": VERDICTS[said],
        "sentence": _sentence(run, tally, judged),
        "where": where_in_one_sentence(held, pairs, run.classes, len(tally.rows)),
        "confirmed": rate(least, tally.attempted()),
        "undecided": len(tally.undecided),
        "with_undecided": rate(most, tally.attempted()),
        "judged": judged,
        "weak_judge": (weakness_of(run) if judged and tally.rows else "") or None,
        "limits_from": source if declared.any else None,
        "limits": [_limit(check) for check in found],
        "accepted": [row["id"] for row in tally.accepted],
        "pictures": [fact["id"] for fact in triples[:PICTURES]],
        "next": _next(run, said, found, tally, judged),
    }


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
    told = [
        f"{classes[one['expected']]} is taken for {classes[one['predicted']]} ({count})"
        for one, count in zip(pairs, counts)
    ]
    most = f"{'most often' if pairs[0]['tests'] > 1 else 'for example,'} {_listed(told)}"
    if len({one["expected"] for one in pairs}) == len(classes) > 1:
        most = f"in all {len(classes)} classes, {most}"
    if not held:
        return f"Where it fails: {most}."
    first = held[0]
    inside, outside = (percent(first[side]["share"]) for side in ("inside", "outside"))
    more = f"more often on seeds that are {first['name']} ({inside}, elsewhere {outside})"
    return f"Where it fails: {more}; {most}."


def together(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the first screen says of several runs: the limits hold if they hold in every run."""
    said = {section["name"]: section["decision"]["verdict"] for section in sections}
    worst = next(word for word in WORST if word in said.values())
    which = [name for name, verdict in said.items() if verdict == worst]
    place = next(i for i, one in enumerate(sections) if one["decision"]["verdict"] == worst)
    first = sections[place]["decision"]
    others = f" The verdict of {_listed(which[1:])} is the same." if which[1:] else ""
    models = list(dict.fromkeys(str(section["model"]) for section in sections))
    return {
        "question": f"Can {_listed(models)} ship?",
        "verdict": worst,
        "word": VERDICTS[worst],
        "sentence": f"Run {which[0]}: {first['sentence']}",
        "where": " ".join(filter(None, [first["where"], others.strip()])) or None,
        "run": place,
    }


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _recorded(run: Run) -> GateLimits:
    """The limits that the run was started with; none if they cannot be read."""
    try:
        return GateLimits.of(run.store.settings())
    except Problem:
        return GateLimits()


def _limit(check: Check) -> dict[str, Any]:
    least, most = (rate(hits, check.of) for hits in (check.least, check.most))
    spelt = check.name.replace("confirmed, class", "confirmed failures, class")
    spelt = spelt.replace("confirmed, slice", "confirmed failures, seeds:")
    return {
        "name": _NAMES.get(check.name, spelt),
        "outcome": check.outcome,
        "limit": check.limit,
        "least": least if check.of is not None else check.least,
        "most": most if check.of is not None else check.most,
        "share": check.of is not None,
        "quiet": ", class " in check.name and check.outcome == "pass",
        "text": check.text,
        "decide": check.decide or None,
    }  # fmt: skip


def _sentence(run: Run, tally: GateTally, judged: bool) -> str:
    """The number that decides, with what is open."""
    of = tally.attempted()
    failing = len({row["seed"] for row in tally.rows})
    if not of:
        return "No seed was attempted, so nothing is known of this model."
    if not failing:
        none = f"No failure was found from {plural(of, 'seed')} within this budget."
        return f"{none} That is no proof that there is none."
    if not judged:
        return (
            f"{number(failing)} of {number(of)} attempted seeds fail, and nobody has judged "
            f"whether the inputs are fair: anything from 0 to {number(failing)} may be confirmed."
        )
    least = len(tally.confirmed)
    seen = rate(least, of) or {}
    span = f"95\u00a0% interval {percent(seen['low'])} to {percent(seen['high'])}"
    share = f"{percent(seen['share'])}, {span}"
    verb = "has" if least == 1 else "have"
    counted = (
        f"{number(least)} of {number(of)} attempted seeds ({share}) {verb} a confirmed failure"
    )
    if not tally.undecided:
        return f"{counted}; none is undecided."
    most = rate(least + len(tally.undecided), of) or {}
    open_ = f"Undecided: {number(len(tally.undecided))}"
    whole = f"{number(most['hits'])} of {number(of)} ({percent(most['share'])})"
    return f"{counted}. {open_}; with all of them it would be {whole}."


def _typed(folder: Path) -> str:
    """A folder as one types it where the page was written; elsewhere its name."""
    place = folder.resolve()
    here = Path.cwd()
    return quote(str(place.relative_to(here)) if place.is_relative_to(here) else place.name)


def _next(
    run: Run, said: str, found: Sequence[Check], tally: GateTally, judged: bool
) -> list[dict[str, str | None]]:
    """What to do, each with a command where there is one."""
    name = _typed(run.folder)
    steps: list[tuple[str, str | None]] = []
    if not run.record.get("complete"):
        steps.append(("Finish the run; it is incomplete.", f"hardcase resume {name}"))
    if not judged and tally.rows:
        steps.append(("Have the findings judged.", f"hardcase judge {name}"))
    again = f"hardcase replay {name} --model NEXT"
    if said == "no limits":
        text = "Say what the model may at most show: [limits] in hardcase.toml, or flags."
        steps.append((text, f"hardcase gate {name} --max-confirmed-rate 0.05"))
    if said == "fail":
        steps += [
            ("Look at the findings below; each group may be a fault of its own.", None),
            ("Retrain on them and see whether it helped.", f"hardcase retrain {name}"),
            ("Show the stored findings to the next version.", again),
        ]
    if said == "pass":
        steps += [
            ("Keep the findings as a suite for the next version.", again),
            ("Try another method; it may find what this one does not.", "hardcase list methods"),
        ]
    if judged and said == "cannot tell":
        wanted = dict.fromkeys(check.decide for check in found if check.decide)
        steps += [(f"To decide: {text.replace('RUN', name)}.", None) for text in wanted]
    return [{"text": text, "command": command} for text, command in steps]
