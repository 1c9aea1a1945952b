"""Stored results: written by programs alone, with the commit that made them and a checksum.

A result that someone has edited no longer has its checksum, and one from code that was changed since
its commit says so. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardcase.cache import make_folder, write_atomically

KEYS = ("name", "command", "commit", "seeds", "data", "device", "versions", "notes", "columns",
        "rows")  # fmt: skip
CHANGED = "-changed"
"""After a commit whose code was changed since."""
JOINED = Path(__file__).parents[3] / "results" / "joined-commits.toml"
"""Commits that were joined into one before they were published, with the one that has their code."""
OLD_WORDS = (
    ("valid and label kept by", "taken for an image of the data, and its label kept, by"),
    ("by the valid ones", "by these"),
    ("valid by 5 neighbours", "label kept by 5 neighbours"),
    ("valid: most of the 5", "label kept by neighbours: most of the 5"),
    ("a confirmed", "an accepted"),
    ("confirms", "accepts"),
    ("confirmed", "accepted"),
    ("Confirmed", "Accepted"),
)
"""What some stored results say of verdicts of networks, and what they mean: only people confirm. No
stored result has a word of people in these places."""


def write(path: Path, record: Mapping[str, Any]) -> Path:
    """Write a result with the commit of this code and its checksum."""
    whole = {**record, "commit": commit()}
    whole["checksum"] = checksum(whole)
    make_folder(path.parent)
    return write_atomically(path, (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode())


def checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of everything in a result but its checksum."""
    rest = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def commit() -> str | None:
    """The commit of this code's checkout; elsewhere that of GIT_COMMIT, as build servers say it."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return os.environ.get("GIT_COMMIT") or None
    head = _git("rev-parse", "HEAD") or ""
    code = [f":/{folder}" for folder in ("src", "studies", "study", "benchmarks")]
    return head + (CHANGED if _git("status", "--porcelain", "--", *code) else "")


def in_todays_words(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with `OLD_WORDS` replaced wherever it is shown; its file stays as it was written."""
    shown = dict(record)
    for part in ("notes", "columns", "rows"):
        shown[part] = _renamed(record[part])
    return shown


def _renamed(value: Any) -> Any:
    if isinstance(value, str):
        for old, new in OLD_WORDS:
            value = value.replace(old, new)
        return value
    if isinstance(value, Mapping):
        return {_renamed(key): _renamed(each) for key, each in value.items()}
    return [_renamed(each) for each in value] if isinstance(value, list) else value


def faults(record: Mapping[str, Any]) -> list[str]:
    """What a stored result lacks, in words; nothing where it is whole and untouched."""
    found = [f"no {key}" for key in KEYS if key != "commit" and record.get(key) in (None, "")]
    if record.get("checksum") != checksum(record):
        found.append("edited since it was written")
    rows = [row["commit"] for row in record.get("rows", ()) if "commit" in row]
    for known in dict.fromkeys([record.get("commit"), *rows]):
        found += _commit_faults(known)
    return found


def _commit_faults(known: str | None) -> list[str]:
    if not known:
        return ["no commit"]
    if known.endswith(CHANGED):
        return [f"made by code that was changed since {known.removesuffix(CHANGED)}"]
    if _whole_history() and not _is_ancestor(known):
        return [f"commit {known} is no ancestor"]
    return []


def _whole_history() -> bool:
    return _git("rev-parse", "--is-shallow-repository") == "false"


def _is_ancestor(known: str) -> bool:
    now = known
    if JOINED.is_file():
        now = tomllib.loads(JOINED.read_text(encoding="utf-8")).get(known, known)
    return _git("merge-base", "--is-ancestor", now, "HEAD") is not None


def _git(*words: str) -> str | None:
    """What git says of the checkout this file is in; None where there is none or it refuses."""
    try:
        asked = ["git", "-C", str(Path(__file__).parent), *words]
        told = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return told.stdout.strip() if told.returncode == 0 else None
