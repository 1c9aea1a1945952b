"""Writes the tables of RESULTS.md and docs from the stored results, between their marks. It measures nothing.

A stored result is ``results/NAME.json``: name, command, commit, seeds, data (its hash), device, versions, notes, columns and rows (a
mapping from column to value). ``<!-- results: NAME -->`` begins its table in a page, ``<!-- end of results -->`` ends it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

KEYS = ("name", "command", "commit", "seeds", "data", "device", "versions", "notes", "columns", "rows")
CELLS = ["table", "row", "column", "value"]
"""Columns of a result that keeps several tables cell by cell, as ``hardcase reproduce --keep`` does."""
MARKS = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def stored(path: Path) -> dict[str, Any]:
    """One result; what its schema lacks is an error that names it."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if key not in record]
    wrong = [row for row in record.get("rows", []) if set(row) != set(record.get("columns", []))]
    if missing or wrong or record["name"] != path.stem:
        raise SystemExit(f"{path}: missing {missing}, {len(wrong)} rows with other columns, named {record.get('name')}")
    cells = [tuple(row[key] for key in CELLS[:3]) for row in record["rows"]] if record["columns"] == CELLS else []
    if len(set(cells)) < len(cells):
        raise SystemExit(f"{path}: {len(cells) - len(set(cells))} cells would hide others of the same place")
    return record


def reached(row: dict[str, Any]) -> str:
    """Whether a figure lies where its goal (``goal at least 0.8``, ``goal at most 8``) wants it."""
    found = re.fullmatch(r"goal (?:at (least|most) )?([\d.e+]+)", str(row["against"]))
    if found is None:
        return "no goal"
    below = found[1] == "most"
    met = row["value"] <= float(found[2]) if below else row["value"] >= float(found[2])
    return "reached" if met else "not reached"


def table(record: dict[str, Any]) -> str:
    """The rows as a table, the notes below it; figures that all have goals say whether each was reached, and tables that were kept
    cell by cell stand as they were."""
    columns = record["columns"]
    rows = record["rows"]
    if columns == CELLS:
        return _tables(record)
    if rows and all(str(row.get("against", "")).startswith("goal ") for row in rows):
        columns = [*(name for name in columns if name != "command"), "outcome"]
        rows = [{**row, "outcome": reached(row)} for row in rows]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = (_cell(row[column]).replace("|", "\\|") for column in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"\n{note}" for note in record["notes"])]) + "\n"


def _tables(record: dict[str, Any]) -> str:
    """Every table of a result that keeps cells, each under its title."""
    lines = []
    for title in dict.fromkeys(row["table"] for row in record["rows"]):
        own = [row for row in record["rows"] if row["table"] == title]
        columns = list(dict.fromkeys(row["column"] for row in own))
        cells = {(row["row"], row["column"]): str(row["value"]).replace("|", "\\|") for row in own}
        lines += ["", f"*{title}*", "", f"| | {' | '.join(columns)} |", "|" + "---|" * (len(columns) + 1)]
        for name in dict.fromkeys(row["row"] for row in own):
            lines.append(f"| {name} | {' | '.join(cells.get((name, column), '') for column in columns)} |")
    return "\n".join([*lines, *(f"\n{note}" for note in record["notes"])]) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def rendered(text: str, results: Path) -> str:
    """`text` with every marked table as its stored result says."""
    return MARKS.sub(lambda found: found[1] + table(stored(results / f"{found[2]}.json")) + found[3], text)


NUMBER = r"([+-]?\d*\.?\d+(?:e[+-]?\d+)?)"
INTERVAL = re.compile(rf"{NUMBER}(?: ?%| points?)? ?[\[(]{NUMBER} ?%?(?:,| to) {NUMBER} ?%?[\])]")
"""An estimate and the interval behind it, as pages write them."""
BY_HAND = ("questions", "open-items")
"""Pages of words that are kept beside the results; their numbers are those of others."""


def unbacked(text: str, results: Path) -> list[str]:
    """Estimates with intervals in `text`, outside marked tables, that no stored result has, rounded as there."""
    known = [
        found
        for path in results.glob("*.json")
        if path.stem not in BY_HAND
        for found in INTERVAL.findall(path.read_text(encoding="utf-8"))
    ]
    said = INTERVAL.finditer(MARKS.sub("", text))
    return [one[0] for one in said if not any(all(map(_alike, one.groups(), other)) for other in known)]


def _alike(said: str, kept: str) -> bool:
    """Whether `said` is the number that was kept, or as a percentage of it, rounded."""
    half = 0.5001 * 10.0 ** -len(said.partition(".")[2])
    return any(abs(float(said) - scale * float(kept)) <= half for scale in (1, 100))


def pages(root: Path) -> list[Path]:
    return [root / "RESULTS.md", *sorted((root / "docs").glob("*.md"))]


def main() -> None:
    root = Path(__file__).parent.parent
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        page.write_text(rendered(text, root / "results"), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
