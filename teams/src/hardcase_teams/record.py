"""The release record: one file per version of a model, signed by its own hash and that of the
record before, with a page that says the same.

The hashes show that a record was changed or left out, not who wrote it: for that sign the file, as
with `sigstore` or git.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from hardcase.cache import write_atomically
from hardcase.environment import VERSION
from hardcase.errors import FAILED, HardcaseError
from hardcase.runs.files import read_json, storable
from hardcase_teams.card import PICTURE, CardContent, escaped, markdown_table

SIGNATURE = "sha256"
FIGURES = ("accuracy", "risk", "worst_case", "least_scale")
SINGLE = (
    *("value", "low", "high", "images_like_these", "images", "samples"),
    *("seeds", "quantiles", "bound"),
)
"""What a record keeps of a figure."""
COMPARED = ("model", "data", "conditions", "figures", "outcome", "tool")
"""What is said to have changed since the record before."""


def write_record(content: CardContent, folder: Path, *, version: str = "") -> Path:
    """Write ``VERSION.json`` and ``VERSION.md`` about a model into a folder of records.

    The record holds the hash of the newest record of that folder, so that none can be changed or
    left out unnoticed."""
    record = content.run.record
    hashes = record.get("hashes") or {}
    name = version or content.weights
    if not name.replace(".", "").replace("-", "").replace("_", "").replace("+", "").isalnum():
        raise HardcaseError(f"version {name!r} cannot be a file's name.", fix="--version 1.2.0")
    path = folder / f"{name}.json"
    if path.exists():
        raise HardcaseError(f"{path} exists: a version has one record.", fix="--version NEXT")
    before = latest_record(folder)
    said, found = content.outcome()
    body = {
        "schema": 1,
        "kind": "release record",
        "version": name,
        "number": before["number"] + 1 if before else 1,
        "date": record.get("finished") or record.get("created"),
        "model": {
            "name": record.get("model"),
            "weights": content.weights,
            "hash": hashes.get("model"),
        },
        "data": {
            "name": record.get("data"),
            "split": record.get("split"),
            "hash": hashes.get("data"),
            "images": record["risk"]["images"],
        },
        "conditions": record["conditions"],
        "figures": {key: _figure(record[key]) for key in FIGURES if record.get(key)},
        "outcome": said,
        "checks": [asdict(check) for check in found],
        "not_said": list(content.statements()),
        "tool": {"hardcase": record.get("hardcase"), "written by": VERSION},
        "run": (record.get("identity") or {}).get("digest"),
        "before": {"version": before["version"], SIGNATURE: before[SIGNATURE]} if before else None,
    }
    body = storable(body)
    body["changes"] = list(_changes(before, body)) if before else []
    image = content.picture()
    picture = f"{name}-{PICTURE}" if image else ""
    body["picture"] = sha256(image).hexdigest() if image else None
    if image:
        write_atomically(folder / picture, image)
    signed = {**body, SIGNATURE: _signature(body)}
    write_atomically(path, json.dumps(signed, indent=1, ensure_ascii=False).encode())
    write_atomically(folder / f"{name}.md", _page(signed, content, picture).encode())
    return path


def read_record(path: Path) -> dict[str, Any]:
    """Return a record whose signature is that of its content."""
    try:
        said = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise HardcaseError(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict) or said.get("kind") != "release record":
        raise HardcaseError(
            f"{path} is no release record.", fix="hardcase card RUN --record --to DIR"
        )
    signature = said.pop(SIGNATURE, None)
    if signature != _signature(said):
        raise HardcaseError(f"{path} is not as it was written: its hash is another.", code=FAILED)
    return {**said, SIGNATURE: signature}


def latest_record(folder: Path) -> dict[str, Any] | None:
    """Return the newest record of a folder after checking the chain of all; None without any."""
    found = sorted(map(read_record, folder.glob("*.json")), key=lambda one: int(one["number"]))
    for number, (one, before) in enumerate(zip(found, [None, *found]), start=1):
        expected = before and {"version": before["version"], SIGNATURE: before[SIGNATURE]}
        if one["number"] != number or one["before"] != expected:
            raise HardcaseError(
                f"the records of {folder} are no chain: before {one['version']} one is missing.",
                code=FAILED,
            )
    return found[-1] if found else None


def _signature(body: Mapping[str, Any]) -> str:
    whole = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(whole.encode()).hexdigest()


def _figure(value: Mapping[str, Any]) -> dict[str, Any]:
    """A figure without its tables."""
    return {name: value[name] for name in SINGLE if name in value}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every value that differs from the record before."""
    for part in COMPARED:
        old, new = dict(_flat(before.get(part), part)), dict(_flat(now.get(part), part))
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) != new.get(name):
                yield {"what": name, "before": old.get(name), "now": new.get(name)}


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    else:
        yield name, value


def _short(value: Any) -> str:
    """A value of a record as a cell, with as many digits as one reads."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return "none" if value is None else str(value)


def _page(record: Mapping[str, Any], content: CardContent, picture: str) -> str:
    heading = f"# {escaped(record['model']['name'])} {escaped(record['version'])}"
    lines = [content.section(heading=heading, picture=picture)]
    rows = {
        "weights": record["model"]["weights"],
        "data": f"{record['data']['name']}, {record['data']['split']}, {record['data']['hash']}",
        "run": record["run"],
        "tool": f"hardcase {record['tool']['hardcase']}",
        "this record": record[SIGNATURE],
        "record before": record["before"][SIGNATURE] if record["before"] else "none",
    }
    lines += ["## What was measured", "", *markdown_table(["", ""], list(rows.items()))]
    if record["before"]:
        names = ["what", "before", "now"]
        changes = [[_short(row[name]) for name in names] for row in record["changes"]]
        lines += ["", f"## Changed since {escaped(record['before']['version'])}", ""]
        lines += markdown_table(names, changes)
    return "\n".join(lines) + "\n"
