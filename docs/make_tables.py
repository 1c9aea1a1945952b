"""Writes docs/catalogue.md from the tables that ``hardcase list`` shows, so that the two never disagree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KINDS = ("methods", "criteria", "spaces", "searches", "models", "generators", "data", "experiments")
HEAD = """# What there is

Written by `make docs` from the same tables that `hardcase list` prints.
"""


def rows(kind: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "hardcase", "list", kind, "--format", "json"]
    return list(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))


def section(kind: str) -> str:
    lines = [f"## {kind.capitalize()}", "", "| name | what it is | needs | from |", "|---|---|---|---|"]
    for row in rows(kind):
        cells = (str(row.get(key, "")).replace("|", "\\|") for key in ("summary", "needs", "paper"))
        lines.append(f"| `{row['name']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    target = Path(__file__).parent / "catalogue.md"
    target.write_text("\n".join([HEAD, *(section(kind) for kind in KINDS)]), encoding="utf-8")


if __name__ == "__main__":
    main()
