"""The report: everything it says as one value, which is report.json, and one page that is made from
nothing else; and its sections about what stands behind the numbers.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from hardcase.cache import sweep, write_atomically
from hardcase.catalogue import bibtex, citations
from hardcase.environment import for_people
from hardcase.errors import Problem
from hardcase.judges.controls import controls_in_words
from hardcase.judges.judge import WEAK
from hardcase.plain import read_plain
from hardcase.registry import rows as listed
from hardcase.report import pictures, words
from hardcase.report.decision import decision, together
from hardcase.report.where import (
    MEANINGS,
    claims_section,
    differences,
    failure_map,
    severities,
    weakness,
    where,
)
from hardcase.report.words import Sheet, number, plural, rate
from hardcase.runs.files import refuse_links
from hardcase.runs.results import (
    Run,
    accepted_between,
    against_people_in_words,
    people_said,
)
from hardcase.statistics import kinds_in_words, settings_in_words
from hardcase.suite.gate import GateLimits
from hardcase.suite.replay import stored_excess
from hardcase.tensors import flat, from_bytes
from hardcase.types import ClassNames

HERE = Path(__file__).parent
FILTERS = ("share", "percent", "number", "decimal", "duration", "plural", "lines", "moment")
"""How the page writes numbers: functions of `words`."""
FIGURES = ("conditions", "risk", "least_scale", "worst_case", "rare")
"""What run.json says of the declared conditions, and report.json too."""
SCHEMA = 1
TRIPLES = 12
GALLERY = 200
"""Findings of a run that are shown large, and thumbnails of a page, shared by its runs."""

_MEANINGS = {
    "generated": "samples of the generator",
    "verified": "the model and most independent networks see the class that was asked for",
    "images": "images given",
    "correctly_classified": "the model reads them as labelled",
    "searched": "searched from",
    "failing": "a finding leaves the seed’s label",
    "witnessed": "a failing input on which every witness keeps the label",
    "accepted": "a failing input keeps its label, say networks that took no part in the search",
    "unsure": "no failing input is accepted, and of one the networks are unsure",
    "confirmed": "a failing input keeps its label, says a person",
    "clusters": "groups of accepted findings",
}
_WHOLE: Mapping[str, str | None] = {
    **dict.fromkeys(("generated", "images", "clusters")),
    **{
        "verified": "generated",
        "correctly_classified": "images",
        "searched": "correctly_classified",
    },
}
"""What a step is a share of; every other one is a share of the attempted seeds."""


def write(runs: Sequence[Run], folder: Path, *, limits: GateLimits | None = None) -> Path:
    """Write ``index.html`` and ``report.json`` about one run or several into `folder`; returns the
    page."""
    if not runs:
        raise Problem("there is no run to report on.", fix="hardcase report RUN")
    if folder.parent in [run.folder for run in runs]:  # what others left there may lead elsewhere
        refuse_links(folder.parent, (folder.name,))
    sweep(folder)
    report = report_content(runs, limits)
    drawn = {
        "large": pictures.triples(runs, report["runs"]),
        "small": pictures.thumbnails(runs, report["runs"]),
        "mapped": pictures.map_cells(runs, report["runs"]),
        "drawn": pictures.condition_draws(runs, report["runs"]),
    }
    report["reduced_to"] = {"triples": drawn["large"].width, "gallery": drawn["small"].width}
    report = for_people(plain(report))
    named = [{**run, "classes": ClassNames(run["classes"])} for run in report["runs"]]
    page = render(
        HERE / "page.html",
        {name: getattr(words, name) for name in FILTERS},
        report={**report, "runs": named},
        **{name: found.uris for name, found in drawn.items()},
        charts=pictures,
    )
    write_atomically(folder / "report.json", json.dumps(report, indent=1, allow_nan=False).encode())
    return write_atomically(folder / "index.html", page.encode())


def render(template: Path, filters: Mapping[str, Callable[..., str]], **values: Any) -> str:
    """The page of a template: everything escaped, a name that is not there an error, and `style`
    and `script` those of the report."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    style, script = (
        Markup((HERE / name).read_text(encoding="utf-8"))  # ours, not input
        for name in ("style.css", "page.js")
    )
    return environment.get_template(template.name).render(style=style, script=script, **values)


def report_content(runs: Sequence[Run], limits: GateLimits | None = None) -> dict[str, Any]:
    """The numbers and words of a report on `runs`."""
    sections = [_section(run, max(TRIPLES, GALLERY // len(runs)), limits) for run in runs]
    return {
        "schema": SCHEMA,
        "runs": sections,
        "comparison": _comparison(runs, sections) if len(runs) > 1 else None,
        "decision": together(sections) if len(runs) > 1 else None,
    }


def _section(run: Run, gallery: int, limits: GateLimits | None) -> dict[str, Any]:
    sheet = Sheet(run)
    counts = run.counts()
    record = run.record
    told = words.rates_of(run)
    steps = counts["search_results"]
    accuracy = record.get("accuracy") or {}
    images = accuracy.get("images")
    value = accuracy.get("value")
    shown = words.gallery(sheet, gallery)
    triples = [sheet.facts(row) for row in words.triples(sheet, TRIPLES)]
    weak = weakness(sheet, run.classes, told)
    place = where(run, counts)
    regression = stored_excess(run) if record.get("baseline") else None
    return {
        "name": run.folder.resolve().name,
        **{
            name: record.get(name)
            for name in ("method", "model", "data", "split", "seed", "created", "finished", "image")
        },
        "complete": bool(record.get("complete")),
        "classes": list(run.classes),
        "notes": [*(record.get("notes") or []), *_how_to_read(run, regression)],
        "regression": regression,
        "believed": {"state": run.verification.state, "notes": list(run.verification.notes)},
        "accuracy": told(round(value * images), images) if images and value is not None else None,
        **{name: record.get(name) for name in FIGURES},
        "summary": _summary(record, steps, Counter(sheet.kind), sheet.small, told),
        "search_results": _funnel(steps, told, MEANINGS if record.get("claims") else {}),
        "findings": counts["findings"],
        "decision": decision(run, limits, triples, held=place["held"], pairs=weak["pairs"]),
        "triples": triples,
        "claims": claims_section(run, sheet, told),
        "weakness": {
            **weak,
            "differences": differences(run, sheet, run.classes),
        },
        "where": place,
        "map": failure_map(run),
        "curves": severities(run),
        "trust": trust(run, sheet, counts),
        "cost": cost(run, sheet, steps["failing"] or 0),
        "gallery": {
            "total": len(sheet),
            "left_out": len(sheet) - len(shown),
            "tests": [sheet.facts(r) for r in shown],
        },
        "reproduce": reproduce(run, counts["skipped"], sheet),
    }


def _how_to_read(run: Run, regression: Mapping[str, Any] | None) -> list[str]:
    """How to read a search for regressions, and what it shows beyond its nulls."""
    was = run.record.get("baseline")
    if was is None:
        return []
    beyond = f"hardcase resume {run.folder.name} runs them."
    if regression:
        beyond = f"Here: {regression['sentence']}."
    return [
        f"A search for regressions: findings are inputs that {was}, the version before, gets right "
        f"and {run.record.get('model')} gets wrong. Two trainings of one recipe differ on such "
        "inputs too; only what exceeds the same search with the roles swapped, and with a "
        f"retraining of the old version, is a regression. {beyond}"
    ]


def _summary(
    record: Mapping[str, Any],
    steps: Mapping[str, int | None],
    kinds: Mapping[str, int],
    small: int,
    told: words.Told,
) -> dict[str, Any]:
    """The first sentence, and what is known beyond it."""
    failing, accepted = (told(steps[name], steps["searched"]) for name in ("failing", "accepted"))
    limits = words.budget(record.get("budget") or {})
    people = record.get("people") or {}
    assert failing is not None
    key = f"{words.number(failing['hits'])} of {words.number(failing['total'])}"
    rest = words.share(failing).removeprefix(key)
    return {
        "budget": limits or None,
        "failing": failing,
        "accepted": accepted,
        "sentence": (
            f"{f'Within {limits}, ' if limits else ''}{record.get('method')} found a failing input"
            f" for {key} attempted seeds{rest}."
        ),
        "settings": settings_in_words(record.get("options") or {}) or None,
        "kinds": kinds_in_words(kinds),
        "key": key,
        "by_norm": small,
        "people": {name: value for name, value in people.items() if name != "findings"} or None,
        "status": _standing(failing, steps, small, people),
    }


def _standing(
    failing: words.Rate,
    steps: Mapping[str, int | None],
    small: int,
    people: Mapping[str, Any],
) -> str:
    """How far the count can be trusted."""
    if not failing["hits"]:
        return (
            "There is nothing to check. That is no proof that the model has no fault: it"
            " withstood this method within this budget."
        )
    checked = "Nobody has checked any by eye."
    if people:
        checked = f"People looked: {people_said(people)}."
    between = accepted_between(steps)
    if between is None:
        return (
            f"Nothing is accepted: no judge has looked at these findings. {checked} A failing"
            " input may be a fault of the model, or an image that no longer shows what its seed"
            " showed."
        )
    sentences = [f"By the label check, {between} still show what their seed showed"]
    if steps["clusters"] is not None:
        sentences[0] += f"; the accepted ones form {words.plural(steps['clusters'], 'group')}"
    if small:
        counted = words.plural(small, "finding")
        sentences.append(
            f"{counted} changed by at most 8/255 and so show what their seeds show: no judge"
            " decided that"
        )
    return f"{'. '.join(sentences)}. {checked}"


def _funnel(
    steps: Mapping[str, int | None], told: words.Told, meanings: Mapping[str, str]
) -> list[dict[str, Any]]:
    rows = []
    for step, meaning in {**_MEANINGS, **meanings}.items():
        if step not in steps or (step == "witnessed" and steps[step] is None):
            continue
        whole = _WHOLE.get(step, "searched")
        share = told(steps[step], steps[whole]) if whole else None
        rows.append(
            {"step": step, "meaning": meaning, "count": steps[step], "of": whole, "rate": share}
        )
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
    alike = [f"the {name}" for name in same if same[name]]
    other = [f"the {name}" for name in same if not same[name]]
    sentences = []
    if alike:
        sentences.append(f"All runs share {words.listed(alike)}.")
    if other:
        sentences.append(f"They differ in {words.listed(other)}: compare them with care.")
    return {"same": same, "sentence": " ".join(sentences)}


def plain(value: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# What stands behind the numbers: how far findings lie from their seeds beside how far real images
# lie from each other, what the search cost, and how to repeat it.

SEEDS = 1_000
VALUES = 60_000_000
"""At most so many seeds, and so many pixel values, are compared with each other."""
LONGEST = 1_000_000
"""Bytes of a configuration that is shown."""
POINTS = 160
"""A curve is drawn through at most so many points."""
_QUANTILES = (5, 25, 50, 75, 95)


def trust(run: Run, sheet: Sheet, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Distances, the generator's quality and the judge's error rates; `counts` is what the funnel
    counted."""
    judge = run.record.get("judge") or {}
    accuracy = judge.get("accuracy")
    lost = counts["skipped"]["reconstruction"]
    tests = sheet.l2[sheet.label]
    pairs = real_pairs(run)
    typical = float(np.median(pairs)) if len(pairs) else None
    nearer = None if typical is None else rate(int((tests < typical).sum()), len(tests))
    return {
        "judge": judge or None,
        "weak": accuracy if accuracy is not None and accuracy < WEAK else None,
        "errors": errors(judge),
        "controls": controls_in_words(judge.get("controls")),
        "against_people": against_people_in_words(run.record) if judge else None,
        "tests": quantiles(tests),
        "pairs": quantiles(pairs),
        "nearer": nearer,
        "own_space": quantiles(sheet.distance[sheet.label]),
        "largest_change": quantiles(sheet.linf[sheet.label]),
        "generator": _generator(run.record.get("generator")),
        "reconstruction": rate(lost, lost + counts["search_results"]["searched"]),
    }


def errors(judge: Mapping[str, Any]) -> dict[str, Any] | None:
    """How often the judge is wrong about images of this data that people rated and that it was not
    fitted to; None where there are none.
    """
    measured = judge.get("calibration")
    if not measured:
        return None
    rows = [
        {"method": name, **found}
        for name, found in [("all", measured["label_kept"]), *measured["methods"].items()]
    ]
    return {"rows": rows, "images": measured["images"]}


def real_pairs(run: Run) -> Float[np.ndarray, " p"]:
    """L2 distances of seeds to the nearest other seed of their class; of an even sample if there
    are many."""
    table = run.seeds.select(["label"])
    if not len(table):
        return np.zeros(0)
    size = int(np.prod(run.record.get("shape") or [1]))
    count = min(len(table), SEEDS, max(2, VALUES // size))
    rows = np.linspace(0, len(table) - 1, count).round().astype(np.int64)
    x = flat(from_bytes(run.seed_images(rows.tolist())))
    y = torch.from_numpy(table.take(rows)["label"].to_numpy().copy())
    found = [np.zeros(0)]
    for label in torch.unique(y):
        own = x[y == label]
        if len(own) > 1:
            gaps = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist")
            found.append(gaps.fill_diagonal_(torch.inf).amin(1).numpy())
    return np.concatenate(found)


def quantiles(values: Float[np.ndarray, " v"]) -> dict[str, Any] | None:
    """Count and quantiles of what is finite; None if nothing is."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    named = {f"q{q}": float(np.quantile(finite, q / 100)) for q in _QUANTILES}
    return {"count": len(finite), **named, "largest": float(finite.max())}


def _generator(card: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a generator's card says of how well it gives back what it is shown."""
    if card is None:
        return None
    count = card.get("measured_images")
    accuracy = card.get("reconstruction_accuracy")
    return {
        "kind": card.get("kind", ""),
        "name": card.get("name", ""),
        "reconstruction": rate(accuracy and round(accuracy * (count or 0)), count),
        "reconstruction_accuracy": accuracy,
        "measured_images": count,
        "ssim": card.get("ssim"),
    }


def cost(run: Run, sheet: Sheet, failing: int) -> dict[str, Any]:
    totals = run.record.get("totals") or {}
    queries = totals.get("queries")
    elapsed = run.record.get("elapsed")
    history = read_history(run.folder / "history.csv")
    nothing = {"seconds": 0.0, "findings": 0.0}
    grown = [
        now["seconds"]
        for before, now in pairwise([nothing, *history])
        if now["findings"] > before["findings"]
    ]
    return {
        "totals": totals,
        "elapsed": elapsed,
        "queries_per_failing": queries / failing if queries and failing else None,
        "queries_per_second": queries / elapsed if queries and elapsed else None,
        "by_queries": _by_queries(sheet),
        "over_time": _thin(history),
        "last_new": grown[-1] if grown else None,
        "coverage": run.record.get("coverage"),
    }


def _by_queries(sheet: Sheet) -> list[dict[str, int]]:
    """Failing seeds so far, at the queries that the earliest kept finding of each had cost."""
    first: dict[str, int] = {}
    for row in np.flatnonzero(sheet.label).tolist():
        spent = int(sheet.queries[row])
        first[sheet.seed[row]] = min(spent, first.get(sheet.seed[row], spent))
    costs, count = np.unique(np.array(list(first.values()), dtype=np.int64), return_counts=True)
    steps = zip(costs.tolist(), count.cumsum().tolist())
    return _thin([{"queries": at, "seeds": seeds} for at, seeds in steps])


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of history.csv; a line that is cut off or is not a number is left out."""
    names = ("seconds", "queries", "findings", "failing_seeds")
    rows = []
    try:
        text = read_plain(path).decode(errors="replace")
        for row in csv.DictReader(io.StringIO(text, newline="")):
            with suppress(KeyError, ValueError, TypeError):
                values = {name: float(row[name] or "nan") for name in names}
                if all(map(math.isfinite, values.values())):
                    whole = {name: int(values[name]) for name in names[1:]}
                    rows.append({"seconds": values["seconds"], **whole})
    except (OSError, csv.Error):
        return []
    return rows


def _thin(rows: list[Any]) -> list[Any]:
    if len(rows) <= POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, POINTS).round().astype(int).tolist()]


_SKIPPED = {
    "misclassified": "the model already gets {them} wrong",
    "non_finite": "the model’s answer to {them} is not a number",
    "target": "{they} already of the class that the search must reach",
    "reconstruction": "the model gets {them} wrong once the method’s generator has redrawn {them}",
    "out_of_time": "the time ran out before the search from {them} ended",
    "waiting": "the search never reached {them}",
}
_SETTINGS = ("seed", "device", "threads", "keep", "bitwise", "deterministic", "created", "finished")


def reproduce(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> dict[str, Any]:
    record = run.record
    keys = list(record.get("citations") or [])
    known = citations()
    argv = list(record.get("argv") or [])
    if argv and Path(argv[0]).name in ("hardcase", "__main__.py"):
        argv[0] = "hardcase"  # the path of the program does not matter
    config = None
    with suppress(OSError, ValueError):
        config = read_plain(run.folder / "config.toml", most=LONGEST).decode()
    return {
        "command": shlex.join(argv) or None,
        "again": (
            f"hardcase run {shlex.quote(str(Path(run.folder.name) / 'config.toml'))} --out ANOTHER"
        ),
        "config": config,
        "hashes": _flat(record.get("hashes") or {}),
        "versions": {"hardcase": record.get("hardcase"), **(record.get("versions") or {})},
        "settings": {name: record[name] for name in _SETTINGS if record.get(name) is not None},
        "not_tested": _not_tested(run, skipped, sheet),
        "citations": bibtex(key for key in keys if key in known),
        "citations_unknown": [key for key in keys if key not in known],
    }


def _flat(hashes: Mapping[str, Any]) -> dict[str, str]:
    """Every network and the data with its hash, in one level."""
    named: dict[str, str] = {}
    for name, value in hashes.items():
        if isinstance(value, str):
            named[name] = value
        elif isinstance(value, Mapping | list):
            inner = value if isinstance(value, Mapping) else dict(enumerate(value, 1))
            single = "witness" if name == "witnesses" else name.removesuffix("s")
            named |= {f"{single} {key}": str(one) for key, one in inner.items()}
    return named


def _not_tested(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> list[str]:
    lines = []
    for reason, why in _SKIPPED.items():
        count = skipped.get(reason) or 0
        them, they = ("it", "it is") if count == 1 else ("them", "they are")
        if count:
            given = f"{plural(count, 'seed')} of {number(len(sheet.seeds))}"
            lines.append(f"{given}: {why.format(them=them, they=they)}.")
    rows = [row for row in sheet.seeds.values() if row["status"] in ("done", "out of time")]
    searched = {row["label"] for row in rows}
    missing = [name for label, name in enumerate(run.classes) if label not in searched]
    if missing:
        named = ", ".join([*missing[:10], *["…"] * (len(missing) > 10)])
        counts = f"{number(len(missing))} of {number(len(run.classes))} classes"
        lines.append(f"{counts}, no seed of which was searched from: {named}.")
    method = str(run.record.get("method"))
    names = [row["name"] for row in listed("methods")]
    others = ", ".join(name for name in names if name != method.partition("@")[0])
    split = f"the {run.record.get('split')} split of {run.record.get('data')}"
    return [
        *lines,
        f"Other methods: {others}. A model that withstands {method} may not withstand them.",
        f"Other data than {split}.",
    ]
