"""The pages of an evidence folder, each from the records of runs, and whether each shows what it is
for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hardcase.cache import write_atomically
from hardcase.environment import one_line
from hardcase.evidence.profiles import Topic
from hardcase.runs.directory import LARGE, read_plain
from hardcase.runs.results import Run
from hardcase.statistics import interval
from hardcase.tensors import remade

Status = Literal["shown", "not shown", "not applicable"]
Named = tuple[str, Run]
STORED = (".parquet", ".toml", ".csv", ".safetensors")
RATES = ("failing", "witnessed", "valid", "label_kept", "confirmed")


@dataclass(frozen=True, slots=True)
class Page:
    """What is written for people and for programs, whether it shows what it is for, and why
    (not)."""

    text: str
    values: Any
    status: Status
    why: str


def outside(topics: Sequence[Topic], why: str) -> Page:
    """What a profile asks for and no run can show."""
    values = [{"topic": topic.id, "asked": topic.text} for topic in topics]
    lines = [f"- {topic.id}: {topic.text}" for topic in topics] or ["None."]
    text = "\n".join(["# Not shown by any run", "", f"These lie {why}.", "", *lines, ""])
    return Page(text, values, "not shown", why)


def plan(runs: Sequence[Named]) -> Page:
    """Model, data, method and budget of each run."""
    keys = (
        "model",
        "data",
        "split",
        "method",
        "seeds",
        "seed",
        "budget",
        "keep",
        "argv",
        "created",
        "hashes",
    )
    values: list[dict[str, Any]] = []
    for name, run in runs:
        file = run.folder / "config.toml"
        config = sha256(file) if file.is_file() else None
        values.append(
            {"run": name, **{key: run.record.get(key) for key in keys}, "config sha256": config}
        )
    text = bullets("Test plan", "As each run wrote it down when it started.", values)
    missing = [row["run"] for row in values if not (row["hashes"] or {}).get("subject")]
    if missing:
        return Page(text, values, "not shown", f"no hash of the model in {', '.join(missing)}")
    return Page(text, values, "shown", f"{len(values)} runs with model, data, method and budget")


def log(runs: Sequence[Named]) -> Page:
    """When each run ran, on what, and the hashes of its files."""
    keys = (
        "hardcase",
        "versions",
        "device",
        "bitwise",
        "deterministic",
        "created",
        "finished",
        "complete",
        "elapsed",
        "totals",
        "notes",
    )
    values = []
    for name, run in runs:
        files = sorted(
            path for path in run.folder.rglob("*") if path.suffix in STORED and path.is_file()
        )
        listed = {str(path.relative_to(run.folder)): sha256(path) for path in files}
        data = (run.record.get("hashes") or {}).get("data")
        values.append(
            {
                "run": name,
                **{key: run.record.get(key) for key in keys},
                "data": data,
                "files": listed,
            }
        )
    text = bullets("Test execution log", "Files by SHA-256.", values)
    unfinished = [str(row["run"]) for row in values if not row["complete"]]
    if unfinished:
        return Page(text, values, "not shown", f"{', '.join(unfinished)} did not end")
    return Page(text, values, "shown", f"{len(values)} runs ended")


def incidents(runs: Sequence[Named], out: Path) -> Page:
    """One report for each group of confirmed findings, with the images of its nearest one under
    `out`."""
    values: list[dict[str, Any]] = []
    unjudged = [name for name, run in runs if run.verdicts is None]
    for name, run in runs:
        for group, rows in sorted(_groups(run).items()):
            values.append(_incident(name, run, group, rows, out))
    intro = "One for each distinct group of confirmed failing tests." if values else "None."
    text = bullets("Incidents", intro, values)
    if unjudged:
        return Page(text, values, "not shown", f"nobody judged the tests of {', '.join(unjudged)}")
    return Page(text, values, "shown", f"{len(values)} groups of confirmed tests")


def _groups(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Confirmed findings by group, each with its place among all of them."""
    said = run.verdicts or {}
    groups: dict[str, list[dict[str, Any]]] = {}
    for place, row in enumerate(run.findings.to_pylist()):
        verdict = said.get(row["id"], {})
        if row["kind"] == "label" and verdict.get("valid") and verdict.get("label_kept"):
            groups.setdefault(str(verdict.get("group")), []).append({**row, "place": place})
    return groups


def _incident(
    name: str,
    run: Run,
    group: str,
    rows: Sequence[dict[str, Any]],
    out: Path,
) -> dict[str, Any]:
    nearest = min(rows, key=lambda row: (float(row["l2"]), str(row["id"])))
    folder = Path("incidents") / f"{_safe(name)}-{_safe(group)}"
    files = {
        "test.png": run.stored_images([nearest["place"]]),
        "seed.png": run.stored_seed_images([run.seed_rows[nearest["seed"]]]),
    }
    for file, images in files.items():
        write_atomically(out / folder / file, remade(images[0]))
    names = dict(enumerate(run.classes))
    return {
        "run": f"{name}, group {group}",
        **{
            key: names.get(int(nearest[key]), str(nearest[key]))
            for key in ("expected", "predicted")
        },
        "tests": len(rows),
        "seeds": len({row["seed"] for row in rows}),
        "confidence": round(float(nearest["confidence"]), 4),
        "l2": round(float(nearest["l2"]), 4),
        "finding": nearest["id"],
        "pictures": {str(folder / file): sha256(out / folder / file) for file in files},
        "reproduce": f"hardcase replay {run.folder} --model {run.record.get('model')}",
    }


def completion(runs: Sequence[Named]) -> Page:
    """The funnel of each run with denominators and intervals, and what was left out."""
    values: list[dict[str, Any]] = []
    lacking = []
    lines = [
        "# Test completion report",
        "",
        "Counts are of seeds (distinct: of groups); rates are of attempted seeds.",
    ]
    for name, run in runs:
        counts = run.counts()
        values.append({"run": name, "accuracy": run.record.get("accuracy"), **counts})
        lines += [
            "",
            f"## {cell(name)}",
            "",
            "| step | count | share of attempted | 95 % interval |",
            "|---|---|---|---|",
        ]
        lines += [_step(step, counts["funnel"]) for step in counts["funnel"]]
        lines += [
            "",
            "Left out:",
            "",
            *(f"- {key}: {cell(value)}" for key, value in counts["skipped"].items()),
        ]
        lacking += [f"{name} is unfinished"] if not run.record.get("complete") else []
        lacking += [f"{name} is not judged"] if run.verdicts is None else []
    text = "\n".join(lines) + "\n"
    if lacking:
        return Page(text, values, "not shown", "; ".join(lacking))
    return Page(text, values, "shown", f"{len(values)} runs, complete and judged")


def _step(step: str, counts: Mapping[str, int | None]) -> str:
    count = counts[step]
    attempted = counts["attempted"]
    told = "not judged" if count is None else str(count)
    if step not in RATES or count is None or not attempted:
        return f"| {step.replace('_', ' ')} | {told} | | |"
    low, high = interval(count, attempted)
    return (
        f"| {step.replace('_', ' ')} | {told} | {count / attempted:.1%} | {low:.1%} to {high:.1%} |"
    )


def independence(runs: Sequence[Named]) -> Page:
    """Networks of search and judge by content hash, and whether any is in both."""
    values: list[dict[str, Any]] = []
    lacking = []
    for name, run in runs:
        hashes = run.record.get("hashes") or {}
        judge = run.record.get("judge") or {}
        used = set(_strings({role: value for role, value in hashes.items() if role != "data"}))
        own = set(_strings({key: judge.get(key) for key in ("weights", "members")}))
        shared = sorted(used & own)
        values.append(
            {
                "run": name,
                "networks of the search": sorted(used),
                "networks of the judge": sorted(own),
                "in both": shared,
            }
        )
        if not own:
            lacking.append(f"no hash of a judge in {name}")
        elif shared:
            lacking.append(f"{len(shared)} networks of {name} are in both")
    intro = "Networks by content hash. A judge may have learnt from data of the subject's source."
    text = bullets("Independence", intro, values)
    if lacking:
        return Page(text, values, "not shown", "; ".join(lacking))
    return Page(text, values, "shown", "no network of a judge took part in the search it judges")


def tool_confidence(runs: Sequence[Named], tool: Mapping[str, Any]) -> Page:
    """What the tool is known to miss and to report wrongly."""
    judges = {name: (run.record.get("judge") or {}).get("calibration") for name, run in runs}
    values = {
        "planted defects": tool.get("planted_defects"),
        "faults": tool.get("faults"),
        "judge's errors": judges,
    }
    intro = "What the tool is known to miss and to report wrongly."
    text = bullets(
        "Confidence in the tool",
        intro,
        [{key: value or "not measured" for key, value in values.items()}],
    )
    lacking = [key for key in ("planted defects", "faults") if not values[key]]
    lacking += [f"judge's errors in {name}" for name, value in judges.items() if not value]
    if lacking:
        return Page(text, values, "not shown", f"not measured: {', '.join(lacking)}")
    return Page(
        text,
        values,
        "shown",
        "planted defects, injected faults, and the judge's errors against people",
    )


def bullets(title: str, intro: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A page with a section a row, named by its `run`, and a line for each value."""
    lines = [f"# {title}", "", intro, ""]
    for row in rows:
        lines += [f"## {cell(row['run'])}", ""] if "run" in row else []
        for key, value in row.items():
            if isinstance(value, dict) and key != "run":
                lines += [
                    f"- {key}:",
                    *(f"  - {cell(inner)}: {cell(what)}" for inner, what in value.items()),
                ]
            elif key != "run":
                lines.append(f"- {key}: {cell(value)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def cell(value: Any) -> str:
    """A value inside a Markdown table or list."""
    text = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    return re.sub(r"([\\|`*_\[\]<>])", r"\\\1", one_line(text))


def sha256(path: Path) -> str:
    """Of a file of a run or of the evidence; one that is vast or no plain file has none."""
    try:
        return hashlib.sha256(read_plain(path, most=LARGE)).hexdigest()
    except OSError as error:
        return f"none: {error.strerror or error}"


def _safe(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in text)


def _strings(value: Any) -> Iterable[str]:
    """Every string inside nested mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
