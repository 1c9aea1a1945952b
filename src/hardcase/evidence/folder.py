"""The folder itself: pages, images, and an index of rows with files and hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hardcase.cache import write_atomically
from hardcase.environment import VERSION
from hardcase.errors import Problem, choice
from hardcase.evidence import pages
from hardcase.evidence.pages import Page, Status, cell, sha256
from hardcase.evidence.profiles import PROFILES, Topic
from hardcase.evidence.requirements import Requirement, held, requirements_page
from hardcase.runs.results import Run

NOTE = (
    "Rows name topics in our words. 'Shown' means that the file holds the evidence described, "
    "and nothing more. Whether a standard, a regulation or a contract is satisfied is for an "
    "assessor to say."
)
OUTSIDE = "outside what a search for failing inputs can show"


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """One row of the index."""

    id: str
    text: str
    status: Status
    why: str
    file: str | None = None
    sha256: str | None = None


def write_evidence(
    runs: Sequence[Run],
    out: Path,
    *,
    profile: str,
    requirements: Sequence[Requirement] = (),
    tool: Mapping[str, Any] | None = None,
    when: datetime | None = None,
) -> list[EvidenceRow]:
    """Fill a folder with evidence from runs, and return its index.

    Args:
        runs: Stored runs, judged or not; what is missing is told.
        out: A new or empty folder.
        profile: One of `PROFILES`.
        requirements: What the results are held against.
        tool: What is known of the tool itself: ``planted_defects`` and ``faults``, each with
            counts.
        when: The time to write down; now, if None.
    """
    if profile not in PROFILES:
        raise choice("profile", profile, tuple(PROFILES))
    if not runs:
        raise Problem(
            "evidence needs at least one run.", fix="hardcase evidence RUN --profile ai-act"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Problem(f"{out} is not an empty folder.", fix="--out another one")
    named = list(zip(_names(runs), runs))
    answers = [held(one, named) for one in requirements]
    parts = {
        "plan": pages.plan(named),
        "log": pages.log(named),
        "incidents": pages.incidents(named, out),
        "completion": pages.completion(named),
        "independence": pages.independence(named),
        "tool": pages.tool_confidence(named, tool or {}),
        "requirements": requirements_page(requirements, answers),
    }
    title, topics = PROFILES[profile]
    parts["outside"] = pages.outside([topic for topic in topics if not topic.part], OUTSIDE)
    for name, page in parts.items():
        write_atomically(out / f"{name}.md", page.text.encode())
        write_atomically(
            out / f"{name}.json", json.dumps(page.values, indent=1, default=str).encode()
        )
    rows = [_topic(topic, parts, out) for topic in topics]
    rows += [
        _row(f"requirement {one.id}", one.text, page, out / "requirements.md")
        for one, page in zip(requirements, answers)
    ]
    stamp = (when or datetime.now(UTC)).isoformat(timespec="seconds")
    _index(out, title, rows, stamp)
    return rows


def _topic(topic: Topic, parts: Mapping[str, Page], out: Path) -> EvidenceRow:
    name = topic.part or "outside"
    return _row(topic.id, topic.text, parts[name], out / f"{name}.md")


def _row(name: str, text: str, page: Page, file: Path) -> EvidenceRow:
    return EvidenceRow(name, text, page.status, page.why, file.name, sha256(file))


def _index(out: Path, title: str, rows: Sequence[EvidenceRow], stamp: str) -> None:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    values = {
        "profile": title,
        "created": stamp,
        "hardcase": VERSION,
        "note": NOTE,
        "rows": [asdict(row) for row in rows],
        "files": {str(path.relative_to(out)): sha256(path) for path in files},
    }
    lines = [f"# Evidence: {title}", "", NOTE, "", f"Written {stamp} by hardcase {VERSION}.", ""]
    lines += ["| topic | asked | status | why | file | sha256 |", "|---|---|---|---|---|---|"]
    for row in rows:
        words = (row.id, row.text, f"**{row.status}**", row.why, row.file or "", row.sha256 or "")
        lines.append(f"| {' | '.join(map(cell, words))} |")
    write_atomically(out / "index.json", json.dumps(values, indent=1, default=str).encode())
    write_atomically(out / "index.md", ("\n".join(lines) + "\n").encode())


def _names(runs: Sequence[Run]) -> list[str]:
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{i} {name}" for i, name in enumerate(names, 1)]
