"""The findings of a run as text that spreadsheets, code scanning and CI read: CSV, SARIF, JUnit."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal
from xml.etree import ElementTree

from hardcase.environment import VERSION, inert, one_line
from hardcase.runs.results import Run
from hardcase.statistics import standing
from hardcase.types import ClassNames

Rows = Sequence[Mapping[str, Any]]
"""What is known of each finding, without its image."""
Standing = Literal["confirmed", "refused", "open", "unjudged"]
_RULES: dict[Standing, tuple[str, str]] = {
    "confirmed": ("error", "The model fails on an image that is valid and keeps its label."),
    "open": ("warning", "The model fails; the judge can neither confirm nor refuse it."),
    "unjudged": ("warning", "The model fails; no judge has seen the image."),
    "refused": ("note", "The model fails on an image that is not valid or has lost its label."),
}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def table_text(rows: Rows, classes: ClassNames) -> str:
    """The rows as CSV with class names; no cell can be taken for a formula by a spreadsheet.

    Args:
        rows: The findings.
        classes: Names of the data's classes.

    Example:
        >>> from hardcase.types import ClassNames
        >>> row = {"id": "=1+1", "expected": 0, "predicted": 1, "l2": -0.5}
        >>> print(table_text([row], ClassNames(["cat", "dog"])), end="")
        label,id,predicted,l2
        cat,'=1+1,dog,-0.5
    """
    text = io.StringIO()
    columns = [name for name in rows[0] if name not in ("file_name", "expected")]
    first = ["file_name", "label"] if "file_name" in rows[0] else ["label"]
    writer = csv.DictWriter(text, [*first, *columns], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        named = {"label": classes[row["expected"]], "predicted": classes[row["predicted"]]}
        writer.writerow({name: _cell(value) for name, value in {**row, **named}.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a cell: text on one line, with an apostrophe where it begins like a formula."""
    return inert(one_line(value).strip()) if isinstance(value, str) else value


def _csv(run: Run, rows: Rows) -> str:
    return table_text(rows, run.classes)


def _standing(run: Run, row: Mapping[str, Any]) -> Standing:
    if run.verdicts is None:
        return "unjudged"
    return standing(run.verdicts.get(row["id"]))


def _told(run: Run, row: Mapping[str, Any]) -> str:
    pair = run.classes.pair(row["expected"], row["predicted"])
    sure = f"confidence {row['confidence']:.2f}, L2 {row['l2']:.2f} from its seed {row['seed']}"
    return one_line(f"{pair} ({sure}), found by {row['method']}")


def _sarif(run: Run, rows: Rows) -> str:
    """SARIF 2.1.0: a result per finding that fails, placed on the file that makes the model."""
    rules = [
        {
            "id": f"hardcase/{name}",
            "shortDescription": {"text": text},
            "defaultConfiguration": {"level": level},
        }
        for name, (level, text) in _RULES.items()
    ]
    failing = [row for row in rows if row["kind"] == "label"]
    results = [_result(run, row) for row in failing]
    tool = {"name": "hardcase", "version": VERSION, "rules": rules}
    log = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": tool}, "results": results}],
    }
    return json.dumps(log, indent=1)


def _result(run: Run, row: Mapping[str, Any]) -> dict[str, Any]:
    name = _standing(run, row)
    place = {"artifactLocation": {"uri": _source(run)}, "region": {"startLine": 1}}
    return {
        "ruleId": f"hardcase/{name}",
        "ruleIndex": list(_RULES).index(name),
        "level": _RULES[name][0],
        "message": {"text": _told(run, row)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"hardcase/finding": row["id"]},
    }


def _source(run: Run) -> str:
    """The file that makes the model, as a relative address; the run's record where there is none.

    A model is ``net.py:make`` or ``weights.safetensors@net.py:make``.
    """
    named = re.search(r"(?:^|@)([^@:]+\.py):", str(run.record.get("model", "")))
    path = named[1] if named else (run.folder / "run.json").as_posix()
    return path.removeprefix("./").lstrip("/").replace(" ", "%20")


def _junit(run: Run, rows: Rows) -> str:
    """A test case per attempted seed: failed where a failure is confirmed, skipped where nobody
    can tell, passed where nothing was found or everything found was refused.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "label":
            found.setdefault(row["seed"], []).append(row)
    name = one_line(f"hardcase {run.record.get('method', '')}")
    suite = ElementTree.Element("testsuite", name=name)
    counts = {"tests": 0, "failures": 0, "skipped": 0}
    for seed in _attempted(run):
        case = ElementTree.SubElement(
            suite, "testcase", classname=run.classes[seed["label"]], name=one_line(seed["id"])
        )
        counts["tests"] += 1
        said = {name: one for one in found.get(seed["id"], ()) for name in [_standing(run, one)]}
        if "confirmed" in said:
            text = _told(run, said["confirmed"])
            ElementTree.SubElement(case, "failure", message=text).text = text
            counts["failures"] += 1
        elif said and set(said) != {"refused"}:
            name = next(name for name in said if name != "refused")
            text = f"{_RULES[name][1]} {_told(run, said[name])}"
            ElementTree.SubElement(case, "skipped", message=text)
            counts["skipped"] += 1
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _attempted(run: Run) -> Iterable[dict[str, Any]]:
    """Seeds from which at least one candidate was tried."""
    rows: list[dict[str, Any]] = run.seeds.to_pylist()
    return (row for row in rows if row["status"] in ("done", "out of time") and row["looked"])


TEXTS: dict[str, tuple[str, Callable[[Run, Rows], str]]] = {
    "csv": (".csv", _csv),
    "sarif": (".sarif", _sarif),
    "junit": (".xml", _junit),
}
"""Forms of text: how their files end, and what writes them."""
CHECKS = ("sarif", "junit")
"""Forms that say something of a run without findings too: that nothing is wrong."""
