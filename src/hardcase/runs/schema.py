"""The JSON Schema of run.json, written from the model that checks it when it is read.

``python -m hardcase.runs.schema`` writes ``run.schema.json``, which the package carries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hardcase.runs.files import CHECK, RUN_RECORD
from hardcase.runs.folder import SCHEMA

__all__ = ["FILE", "run_schema"]

FILE = Path(__file__).with_name("run.schema.json")
ALWAYS = (
    *("schema", "hardcase", "created", "complete", "elapsed", "device", "phases", "identity"),
    *("model", "data", "split", "classes", "shape", "seed", "totals", CHECK),
)
"""What every run says from its beginning on."""


def run_schema() -> dict[str, Any]:
    """Return the schema of run.json as this version writes it.

    Entries may hold further keys; the record itself may not.
    """
    model = RUN_RECORD.model_json_schema(by_alias=True)
    properties = _written_out(model, model.pop("$defs"))["properties"]
    properties |= {"schema": {"const": SCHEMA}, CHECK: {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:hardcase:run:{SCHEMA}",
        "title": "run.json of a run folder of hardcase",
        "type": "object",
        "required": list(ALWAYS),
        "additionalProperties": False,
        "properties": dict(sorted(properties.items())),
    }


def _written_out(part: Any, named: dict[str, Any]) -> Any:
    """A part of a schema with everything that it names in its place, and no generated titles."""
    if isinstance(part, list):
        return [_written_out(item, named) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _written_out(named[part["$ref"].rpartition("/")[2]], named)
    return {
        key: {name: _written_out(item, named) for name, item in value.items()}
        if key == "properties"
        else _written_out(value, named)
        for key, value in part.items()
        if key not in ("title", "default") and not _bounds_of_storage(key, value)
    }


def _bounds_of_storage(key: str, value: Any) -> bool:
    """Whether a bound only says that a number fits into 64 bits."""
    return key.startswith("exclusive") and abs(value) >= 2**63


def main() -> None:
    FILE.write_text(json.dumps(run_schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
