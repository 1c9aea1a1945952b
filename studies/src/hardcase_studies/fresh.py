"""Whether a stored result is still what its code puts out: digests of what the small form of its study prints.

A change of sources says little: a renaming changes no number, and one line elsewhere may change all. So each study has a small
form (`benchmarks.settle.SMALL`), and the digest of all cells that it prints, without those that depend on the clock, is kept in
``results/digests.toml``: ``[now]`` by study, as last computed, and ``[then]`` by result, as it was when the result was stored. A
result whose two digests differ was made by code that puts out something else today; its verdict is marked until it is run again.
Digests are of one kind of processor. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardcase.cache import write_atomically

DIGESTS = "digests.toml"
CLOCK = re.compile(r"\b(ms|seconds?|minutes?|delta of ms)\b")
"""Columns and rows that are measured by the clock."""
ALIASES = {"faults": "features-rq1"}
"""Studies that had another name when their result was stored."""
HEAD = """# Written by `python -m benchmarks.fresh`: what the small form of each study puts out (now), and what it put out when a result
# was stored (then). A result whose two digests differ is marked in RESULTS.md.
"""


def digest_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The digest of all cells but those of the clock."""
    kept = [
        [str(row[key]) for key in ("table", "row", "column", "value")]
        for row in rows
        if not CLOCK.search(f"{row['column']} {row['row']}")
    ]
    return hashlib.sha256(json.dumps(sorted(kept)).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Digests:
    """The file of digests of a folder of results."""

    folder: Path
    now: dict[str, str] = field(default_factory=dict)
    then: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(folder: Path) -> Digests:
        path = folder / DIGESTS
        told = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return Digests(folder, dict(told.get("now", {})), dict(told.get("then", {})))

    def computed(self, study: str, digest: str, results: Iterable[str]) -> None:
        """Note what a study puts out now; results that have no digest yet were stored with this one."""
        self.now[study] = digest
        for name in results:
            self.then.setdefault(name, digest)

    def stored(self, study: str, name: str) -> None:
        """Note that a result was stored by today's code."""
        if study in self.now:
            self.then[name] = self.now[study]

    def is_stale(self, study: str, name: str) -> bool:
        """Whether the code put out something else when the result was stored."""
        return name in self.then and self.now.get(study, self.then[name]) != self.then[name]

    def write(self) -> Path:
        lines = [HEAD]
        for title, values in (("now", self.now), ("then", self.then)):
            lines += [f"[{title}]", *(f'{key} = "{values[key]}"' for key in sorted(values)), ""]
        return write_atomically(self.folder / DIGESTS, "\n".join(lines).encode())


def study_of(command: str) -> str:
    """The study that a stored command line runs, by its name of today; empty where it is none."""
    words = command.split()
    return ALIASES.get(words[2], words[2]) if words[:2] == ["hardcase", "reproduce"] else ""
