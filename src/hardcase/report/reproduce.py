"""How to get the same again, and what was not tested."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardcase.citations import ENTRIES, bibtex
from hardcase.methods.catalogue import METHODS
from hardcase.report.sheet import Sheet
from hardcase.report.words import number, plural
from hardcase.results import Run

_SKIPPED = {
    "misclassified": "the model already gets {them} wrong",
    "non_finite": "the model’s answer to {them} is not a number",
    "reconstruction": "the model gets {them} wrong once the method’s generator has redrawn {them}",
    "out_of_time": "the time ran out before the search from {them} ended",
    "waiting": "the search never reached {them}",
}
_SETTINGS = ("seed", "device", "threads", "keep", "bitwise", "deterministic", "created", "finished")


def reproduce(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> dict[str, Any]:
    record = run.record
    keys = list(record.get("citations") or [])
    config = run.folder / "config.toml"
    return {
        "command": _command(record.get("argv") or []),
        "again": f"hardcase run {shlex.quote(str(Path(run.folder.name) / 'config.toml'))} --out ANOTHER",
        "config": config.read_text(encoding="utf-8") if config.is_file() else None,
        "hashes": _flat(record.get("hashes") or {}),
        "versions": {"hardcase": record.get("hardcase"), **(record.get("versions") or {})},
        "settings": {name: record[name] for name in _SETTINGS if record.get(name) is not None},
        "not_tested": _not_tested(run, skipped, sheet),
        "citations": bibtex(key for key in keys if key in ENTRIES),
        "citations_unknown": [key for key in keys if key not in ENTRIES],
    }


def _command(argv: list[str]) -> str | None:
    """What was typed; the path of the program does not matter."""
    if not argv:
        return None
    program = "hardcase" if Path(argv[0]).name in ("hardcase", "__main__.py") else argv[0]
    return shlex.join([program, *argv[1:]])


def _flat(hashes: Mapping[str, Any]) -> dict[str, str]:
    """Every network and the data with its hash, in one level."""
    named: dict[str, str] = {}
    for name, value in hashes.items():
        inner = value.items() if isinstance(value, Mapping) else enumerate(value, 1) if isinstance(value, list) else ()
        named |= {f"{name.removesuffix('s')} {key}": str(one) for key, one in inner}
        if isinstance(value, str):
            named[name] = value
    return named


def _not_tested(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> list[str]:
    lines = []
    for reason, why in _SKIPPED.items():
        count = skipped.get(reason) or 0
        if count:
            lines.append(
                f"{plural(count, 'seed')} of {number(len(sheet.seeds))}: {why.format(them='it' if count == 1 else 'them')}."
            )
    lines += _classes(run, sheet)
    method = str(run.record.get("method"))
    others = [name for name in METHODS if name != method.partition("@")[0]]
    lines.append(f"Other methods: {', '.join(others)}. A model that withstands {method} may not withstand them.")
    lines.append(f"Other data than the {run.record.get('split')} split of {run.record.get('data')}.")
    return lines


def _classes(run: Run, sheet: Sheet) -> list[str]:
    seen = {row["label"] for row in sheet.seeds.values() if row["status"] in ("done", "out of time")}
    missing = [name for label, name in enumerate(run.classes) if label not in seen]
    if not missing:
        return []
    named = ", ".join(missing[:10]) + (", …" if len(missing) > 10 else "")
    return [
        f"{number(len(missing))} of {number(len(run.classes))} classes, no seed of which was searched from: {named}."
    ]
