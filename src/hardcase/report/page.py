"""The report: everything it says as one value, which is report.json, and one page that is made from
nothing else.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hardcase.analysis.conditions import field_shown
from hardcase.cache import sweep, write_atomically
from hardcase.catalogue import bibtex, citations
from hardcase.environment import for_people
from hardcase.errors import HardcaseError
from hardcase.judges.held_out import held_out_in_words, independence_in_words
from hardcase.plain import read_plain
from hardcase.report import pictures, words
from hardcase.report.decision import decision, folder_as_typed
from hardcase.report.failures import failing_samples, gallery, large_pairs, matrix
from hardcase.report.measured import class_rates, shown_effects
from hardcase.report.where import claims_section, differences, failure_map, severities, where
from hardcase.report.words import Sheet, number, plural, rate
from hardcase.runs.files import refuse_links
from hardcase.runs.results import Run
from hardcase.suite.gate import GateLimits, weakness_of
from hardcase.suite.replay import stored_excess
from hardcase.types import ClassNames
from hardcase.wording.checks import against_people_in_words, lost_in_words, people_said
from hardcase.wording.search import kinds_in_words, settings_in_words
from hardcase.wording.summary import check_sentences, generated_sentences, search_sentence

HERE = Path(__file__).parent
FILTERS = ("share", "percent", "number", "decimal", "duration", "plural", "lines", "moment")
"""How the page writes numbers: functions of `words`."""
FIGURES = ("conditions", "risk", "least_scale", "worst_case", "rare", "phases")
"""What run.json says of the measurement, and report.json too."""
SCHEMA = 2
GALLERY = 200
"""Failures in the gallery of a page, shared by its runs."""
LEAST_GALLERY = 12
"""Failures in the gallery of a run, however many runs there are."""


def write(runs: Sequence[Run], folder: Path, *, limits: GateLimits | None = None) -> Path:
    """Write ``index.html`` and ``report.json`` about one run or several into `folder`; returns the
    page."""
    if not runs:
        raise HardcaseError("there is no run to report on.", fix="hardcase report RUN")
    if folder.parent in [run.folder for run in runs]:  # what others left there may lead elsewhere
        refuse_links(folder.parent, (folder.name,))
    sweep(folder)
    report = report_content(runs, limits)
    drawn = {
        "large": pictures.pairs(runs, report["runs"]),
        "small": pictures.thumbnails(runs, report["runs"]),
        "mapped": pictures.map_cells(runs, report["runs"]),
    }
    report["reduced_to"] = {"pairs": drawn["large"].width, "gallery": drawn["small"].width}
    report = for_people(plain(report))
    named = [{**run, "classes": ClassNames(run["classes"])} for run in report["runs"]]
    page = render(
        HERE / "page.html",
        {name: getattr(words, name) for name in FILTERS},
        report={**report, "runs": named},
        **{name: drawings.uris for name, drawings in drawn.items()},
        sheets=[_sheet(run) for run in runs],
        charts=pictures,
    )
    write_atomically(folder / "report.json", json.dumps(report, indent=1, allow_nan=False).encode())
    return write_atomically(folder / "index.html", page.encode())


def _sheet(run: Run) -> str | None:
    """The images of the field whose conditions were fitted, beside fitted ones, as a data URI."""
    field = field_shown(run)
    return None if field is None or field["sheet"] is None else pictures.uri(field["sheet"])


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
    count = max(LEAST_GALLERY, GALLERY // len(runs))
    sections = [_section(run, count, limits) for run in runs]
    _measured_once(runs, sections)
    comparison = _comparison(runs, sections) if len(runs) > 1 else None
    return {"schema": SCHEMA, "runs": sections, "comparison": comparison}


def _section(run: Run, count: int, limits: GateLimits | None) -> dict[str, Any]:
    record = run.record
    sheet = Sheet(run)
    samples = failing_samples(run)
    counts = run.counts()
    rates = words.rates_of(run)
    searched = run.store.searching
    field = field_shown(run)
    weak = {
        **matrix(sheet, samples, run.classes),
        "classes": class_rates(run),
        "effects": shown_effects(record.get("risk")),
        "where": where(run, counts) if searched else None,
        "differences": differences(run, sheet, run.classes) if len(run) else None,
    }
    return {
        "name": run.folder.resolve().name,
        **{
            name: record.get(name)
            for name in ("method", "model", "data", "split", "seed", "created", "finished", "shape")
        },
        "complete": bool(record.get("complete")),
        "classes": list(run.classes),
        "notes": [*(record.get("notes") or []), *_how_to_read(run)],
        "believed": {"state": run.verification.state, "notes": list(run.verification.notes)},
        "accuracy": record.get("accuracy"),
        **{name: record.get(name) for name in FIGURES},
        "measured_in": None,
        "decision": decision(run, limits),
        "pairs": large_pairs(sheet, samples),
        "field": None if field is None else field["sentences"],
        "weak": weak,
        "claims": claims_section(run, sheet, rates) if searched else None,
        "search": search(run, sheet, counts) if searched else None,
        "check": label_check(run, counts["search_results"]),
        "map": failure_map(run) if searched else None,
        "curves": severities(run),
        "gallery": gallery(sheet, samples, count),
        "reproduce": reproduce(run, counts["skipped"], sheet),
    }


def _how_to_read(run: Run) -> list[str]:
    """How to read a search for regressions, and what it shows beyond its nulls."""
    was = run.record.get("baseline")
    if was is None:
        return []
    regression = stored_excess(run)
    beyond = f"hardcase resume {run.folder.name} runs them."
    if regression:
        beyond = f"Here: {regression['sentence']}."
    return [
        f"A search for regressions: failures are inputs that {was}, the baseline, gets right "
        f"and {run.record.get('model')} gets wrong. Two trainings of one recipe differ on such "
        "inputs too; only what exceeds the same search with the roles swapped, and with a "
        f"retraining of the old version, is a regression. {beyond}"
    ]


def _measured_once(runs: Sequence[Run], sections: Sequence[dict[str, Any]]) -> None:
    """Name in every section the first run with the same measurement, whose page shows it."""
    for place, section in enumerate(sections):
        for before in range(place):
            if section["risk"] and _measurement(runs[place]) == _measurement(runs[before]):
                section["measured_in"] = before
                break


def _measurement(run: Run) -> list[Any]:
    hashes = run.record.get("hashes") or {}
    about = [run.record.get(name) for name in ("conditions_digest", "risk")]
    return [hashes.get("model"), hashes.get("data"), *about]


def _comparison(runs: Sequence[Run], sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The runs side by side, and whether they can be compared at all."""
    hashes = [run.record.get("hashes") or {} for run in runs]
    tried: dict[str, list[Any]] = {
        "model": [hashes_of_run.get("model") for hashes_of_run in hashes],
        "data": [hashes_of_run.get("data") for hashes_of_run in hashes],
        "images": [frozenset(run.seeds.column("id").to_pylist()) for run in runs],
        "conditions": [run.record.get("conditions_digest") for run in runs],
        "budget": [words.budget(run.record.get("budget") or {}) for run in runs],
    }
    same = {name: len(set(values)) == 1 for name, values in tried.items()}
    alike = [f"the {name}" for name in same if same[name]]
    other = [f"the {name}" for name in same if not same[name]]
    sentences = []
    if alike:
        sentences.append(f"All runs share {words.listed(alike)}.")
    if other:
        sentences.append(f"They differ in {words.listed(other)}: compare them with care.")
    rows = [_compared(run, section) for run, section in zip(runs, sections)]
    return {"same": same, "sentence": " ".join(sentences), "rows": rows}


def _compared(run: Run, section: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the comparison."""
    search = section["search"] or {}
    plot = section["decision"]["plot"] or {"rows": []}
    rates = [row for row in plot["rows"][:2] if run.record.get("conditions")] or plot["rows"][:1]
    return {
        "name": section["name"],
        "model": section["model"],
        "method": section["method"],
        "word": section["decision"]["word"],
        "rate": rates[-1]["text"] if rates else None,
        **{name: search.get(name) for name in ("searched", "broken", "clusters", "accepted")},
    }


def plain(value: Any) -> Any:
    """The same without numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- the search, and the check of its findings

POINTS = 160
"""A curve is drawn through at most so many points."""


def search(run: Run, sheet: Sheet, counts: Mapping[str, Any]) -> dict[str, Any]:
    """What the search did: how many images it searched and broke, and what that cost."""
    record = run.record
    steps = counts["search_results"]
    totals = record.get("totals") or {}
    lost = counts["skipped"]["reconstruction"]
    return {
        "generated": generated_sentences(record),
        "sentence": search_sentence(record, steps),
        "searched": steps["searched"] or 0,
        "broken": steps["failing"] or 0,
        "witnessed": steps["witnessed"],
        "clusters": steps["clusters"],
        "accepted": steps["accepted"],
        "findings": counts["findings"],
        "kinds": kinds_in_words(Counter(sheet.kind)) if set(sheet.kind) - {"label"} else None,
        "budget": words.budget(record.get("budget") or {}) or None,
        "settings": settings_in_words(record.get("options") or {}) or None,
        "totals": {name: value for name, value in totals.items() if value},
        "elapsed": record.get("elapsed"),
        "by_queries": _by_queries(sheet),
        "coverage": record.get("coverage"),
        "generator": _generator(record.get("generator")),
        "reconstruction": rate(lost, lost + (steps["searched"] or 0)),
    }


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


def _by_queries(sheet: Sheet) -> list[dict[str, int]]:
    """Failing seeds so far, at the queries that the earliest kept finding of each had cost."""
    first: dict[str, int] = {}
    for row in np.flatnonzero(sheet.label).tolist():
        spent = int(sheet.queries[row])
        first[sheet.seed[row]] = min(spent, first.get(sheet.seed[row], spent))
    costs, count = np.unique(np.array(list(first.values()), dtype=np.int64), return_counts=True)
    steps = zip(costs.tolist(), count.cumsum().tolist())
    return _thin([{"queries": at, "seeds": seeds} for at, seeds in steps])


def _thin(rows: list[Any]) -> list[Any]:
    if len(rows) <= POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, POINTS).round().astype(int).tolist()]


def label_check(run: Run, steps: Mapping[str, int | None]) -> dict[str, Any] | None:
    """What the label check says of findings and failing samples, its controls, and what people
    said; None where there was nothing to check.
    """
    record = run.record
    risk = record.get("risk") or {}
    sampled = bool({"lost_labels", "lost_labels_people"} & risk.keys())
    if not len(run) and not sampled:
        return None
    judge = record.get("judge") or {}
    judged = run.verdicts is not None
    people = record.get("people")
    independent = independence_in_words(judge.get("independence"))
    if judge.get("held_out_check"):
        independent.append(held_out_in_words(judge["held_out_check"]))
    about: dict[str, Any] = {"findings": len(run), "judged": judged}
    doubts = [weakness_of(run), against_people_in_words(record)] if judged else []
    return {
        "done": judged or bool(people) or sampled,
        "sentences": check_sentences(record, steps, folder=folder_as_typed(run), **about),
        "doubts": [text for text in doubts if text],
        "controls": [
            {"kind": kind, **control}
            for kind, control in ((judge.get("controls") or {}).get("kinds") or {}).items()
        ],
        "people": people_said(people) if people else None,
        "samples": lost_in_words(risk) if sampled else None,
        "independence": independent,
        "errors": errors(judge),
        "card": judge or None,
    }


def errors(judge: Mapping[str, Any]) -> dict[str, Any] | None:
    """How often the judge is wrong about images of this data that people rated and that it was not
    fitted to; None where there are none.
    """
    measured = judge.get("calibration")
    if not measured:
        return None
    rows = [
        {"method": name, **measurement}
        for name, measurement in [("all", measured["label_kept"]), *measured["methods"].items()]
    ]
    return {"rows": rows, "images": measured["images"]}


# --- how to repeat it

LONGEST = 1_000_000
"""Bytes of a configuration that is shown."""

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
    entries = citations()
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
        "citations": bibtex(key for key in keys if key in entries),
        "citations_unknown": [key for key in keys if key not in entries],
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
    """What this run says nothing about, in sentences."""
    record = run.record
    given = len(sheet.seeds)
    lines = []
    for reason, why in _SKIPPED.items():
        count = skipped.get(reason) or 0
        them, they = ("it", "it is") if count == 1 else ("them", "they are")
        if count:
            verb = "was" if count == 1 else "were"
            text = f"{number(count)} of {plural(given, 'image')} {verb} not searched"
            lines.append(f"{text}: {why.format(them=them, they=they)}.")
    if run.store.searching:
        lines += _unsearched_classes(run, sheet)
        method = record.get("method")
        lines.append(f"Other searches: a model that withstands {method} may not withstand them.")
    risk = record.get("risk")
    if risk:
        wider = "" if risk.get("wider") else ", and wider ranges of those that were"
        lines.append(f"Conditions that were not declared{wider}.")
    lines.append(f"Other data than the {record.get('split')} split of {record.get('data')}.")
    return lines


def _unsearched_classes(run: Run, sheet: Sheet) -> list[str]:
    rows = [row for row in sheet.seeds.values() if row["status"] in ("done", "out of time")]
    searched = {row["label"] for row in rows}
    missing = [name for label, name in enumerate(run.classes) if label not in searched]
    if not missing:
        return []
    names = ", ".join([*missing[:10], *["…"] * (len(missing) > 10)])
    counts = f"{number(len(missing))} of {number(len(run.classes))} classes"
    return [f"{counts}, of which no image was searched: {names}."]
