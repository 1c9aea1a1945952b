"""Everything that the page says, as one value: this is report.json, and the page is made from nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hardcase.report import choosing, words
from hardcase.report.cost import cost
from hardcase.report.differences import differences
from hardcase.report.paths import ways
from hardcase.report.reproduce import reproduce
from hardcase.report.sheet import Sheet
from hardcase.report.trust import trust
from hardcase.report.weakness import weakness
from hardcase.report.words import rate
from hardcase.results import Run

SCHEMA = 1
TRIPLES, GALLERY = 12, 200
"""Tests of a run that are shown large, and thumbnails of a page, shared by its runs."""

_MEANINGS = {
    "seeds": "images given",
    "usable": "classified rightly",
    "attempted": "searched from",
    "failing": "a test leaves the seed’s label",
    "valid": "a failing test looks like the data",
    "label_kept": "a failing test still is what the seed was",
    "confirmed": "one test is all three",
    "distinct": "groups of confirmed tests",
}
_WHOLE = {"usable": "seeds", "attempted": "usable"}
"""What a step is a share of; every later one is a share of the attempted seeds."""


def content(runs: Sequence[Run]) -> dict[str, Any]:
    """The numbers and words of a report on `runs`."""
    sections = [_section(run, max(TRIPLES, GALLERY // len(runs))) for run in runs]
    return {"schema": SCHEMA, "runs": sections, "comparison": _comparison(runs, sections) if len(runs) > 1 else None}


def _section(run: Run, gallery: int) -> dict[str, Any]:
    sheet, counts, record = Sheet.of(run), run.counts(), run.record
    steps = counts["funnel"]
    accuracy = record.get("accuracy") or {}
    images, value = accuracy.get("images"), accuracy.get("value")
    shown = choosing.gallery(sheet, gallery)
    return {
        "name": run.folder.resolve().name,
        **{name: record.get(name) for name in ("method", "model", "data", "split", "seed", "created", "finished", "image")},
        "complete": bool(record.get("complete")),
        "classes": list(run.classes),
        "notes": list(record.get("notes") or []),
        "accuracy": rate(round(value * images), images) if images and value is not None else None,
        "summary": _summary(record, steps),
        "funnel": _funnel(steps),
        "findings": counts["findings"],
        "triples": _triples(run, sheet),
        "weakness": {**weakness(sheet, run.classes), "differences": differences(run, sheet, run.classes)},
        "trust": trust(run, sheet, counts),
        "cost": cost(run, sheet, steps["failing"] or 0),
        "gallery": {"total": len(sheet), "left_out": len(sheet) - len(shown), "tests": [sheet.facts(r) for r in shown]},
        "reproduce": reproduce(run, counts["skipped"], sheet),
    }  # fmt: skip


def _triples(run: Run, sheet: Sheet) -> list[dict[str, Any]]:
    """The tests that are shown large; `path`: at which shares of the way to them there are pictures."""
    rows = choosing.triples(sheet, TRIPLES)
    known = ways(run, {sheet.id[row] for row in rows})
    return [{**sheet.facts(row), "path": list(known.get(sheet.id[row], ()))} for row in rows]


def _summary(record: Mapping[str, Any], steps: Mapping[str, int | None]) -> dict[str, Any]:
    """The first sentence, and what is known beyond it."""
    failing, confirmed = (rate(steps[name], steps["attempted"]) for name in ("failing", "confirmed"))
    limits = words.budget(record.get("budget") or {})
    assert failing is not None
    key = f"{words.number(failing['hits'])} of {words.number(failing['total'])}"
    rest = words.share(failing).removeprefix(key)
    return {
        "budget": limits or None,
        "failing": failing,
        "confirmed": confirmed,
        "sentence": f"{f'Within {limits}, ' if limits else ''}{record.get('method')} found a failing test for {key} "
        f"attempted seeds{rest}.",
        "key": key,
        "standing": _standing(failing, confirmed, steps["distinct"]),
    }


def _standing(failing: words.Rate, confirmed: words.Rate | None, distinct: int | None) -> str:
    """How far the count can be trusted."""
    if not failing["hits"]:
        return "There is nothing to confirm. That is no proof that the model has no fault: it withstood this method within this budget."
    if confirmed is None:
        return (
            "Nothing is confirmed: no judge has looked at these tests, and nobody has checked any by eye. "
            "A failing test may be a fault of the model, or an image that no longer shows what its seed showed."
        )
    groups = "" if distinct is None else f", in {words.plural(distinct, 'distinct group')}"
    return (
        f"Confirmed by the judge as valid and still of the seed’s class: {words.share(confirmed)}{groups}. "
        "Nobody has checked any by eye."
    )


def _funnel(steps: Mapping[str, int | None]) -> list[dict[str, Any]]:
    rows = []
    for step, meaning in _MEANINGS.items():
        whole = None if step in ("seeds", "distinct") else _WHOLE.get(step, "attempted")
        share = rate(steps[step], steps[whole]) if whole else None
        rows.append({"step": step, "meaning": meaning, "count": steps[step], "of": whole, "rate": share})
    return rows


def _comparison(runs: Sequence[Run], sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the runs can be compared at all."""
    hashes = [run.record.get("hashes") or {} for run in runs]
    tried: dict[str, list[Any]] = {
        "model": [known.get("subject") for known in hashes],
        "data": [known.get("data") for known in hashes],
        "seeds": [frozenset(run.seeds.column("id").to_pylist()) for run in runs],
        "budget": [section["summary"]["budget"] for section in sections],
    }
    same = {name: len(set(values)) == 1 for name, values in tried.items()}
    alike, other = ([name for name, equal in same.items() if equal is wanted] for wanted in (True, False))
    shared = f"All runs share the {_listed(alike)}. " if alike else ""
    warning = f"They differ in the {_listed(other)}: compare them with care." if other else ""
    return {"same": same, "sentence": f"{shared}{warning}".strip()}


def _listed(names: Sequence[str]) -> str:
    return " and the ".join([", the ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def plain(value: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
