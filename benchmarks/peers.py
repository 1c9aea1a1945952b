"""What libraries of others say of hardcase: ``python -m benchmarks peers`` prints the stored tables; it measures nothing.

``make peers`` measures them: each library is installed into an environment of its own, and every table is stored as a result
(``results/peers-*.json``) with its command and commit. Speeds are ratios in one table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.figures import RESULTS

STORED = ("peers-attacks", "peers-corruptions", "peers-probability", "peers-accuracy")


def show() -> None:
    missing = []
    for name in STORED:
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            missing.append(name)
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        print(f"\n{name} ({record['device']}, {(record['commit'] or '')[:8]}): {record['command']}")
        for line in lines(record):
            print(line)
    if missing:
        print(f"\nnot stored: {', '.join(missing)}; make peers", file=sys.stderr)


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Every table of a stored result, its columns aligned, then its notes."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for row in record["rows"]:
        cells = tables.setdefault(row["table"], {}).setdefault(row["row"], {})
        cells[row["column"]] = str(row["value"])
    for title, rows in tables.items():
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        grid = [
            ["", *columns],
            *(
                [name, *(cells.get(column, "") for column in columns)]
                for name, cells in rows.items()
            ),
        ]
        widths = [max(len(line[place]) for line in grid) for place in range(len(grid[0]))]
        yield f"\n{title}"
        for line in grid:
            yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
    for note in record["notes"]:
        yield f"  {note}"
