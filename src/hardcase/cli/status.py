"""``hardcase status``: where runs stand, from their small files alone."""

from __future__ import annotations

import json
from pathlib import Path
from time import time
from typing import Any

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, duration, facts, shown, tell
from hardcase.errors import Problem

SILENT = 600
"""Seconds without a finished shard after which a searching run may have died."""


def status(folders: o.Runs, format: o.AsFormat = o.Format.text) -> None:
    """Show where runs stand; also while they are going on."""
    if format == "json":
        as_json([{"folder": str(folder), **_small(folder)} for folder in folders])
    else:
        tell("\n\n".join(shown_run(folder) for folder in folders))


def _small(folder: Path) -> dict[str, Any]:
    """What run.json and status.json say."""
    record, now = read_json(folder / "run.json"), read_json(folder / "status.json", needed=False)
    kept = ("method", "model", "data", "seeds", "created", "complete", "budget", "funnel", "findings")
    return {**{name: record.get(name) for name in kept}, "status": now, "quiet": _age(folder / "status.json")}


def shown_run(folder: Path) -> str:
    """The screen of one run."""
    said = _small(folder)
    try:
        return _screen(folder, said)
    except Exception as error:  # anything can stand in files that others wrote
        raise Problem(
            f"run.json or status.json in {folder} is damaged: {type(error).__name__}.", fix=f"hardcase resume {folder}"
        ) from error


def _screen(folder: Path, said: dict[str, Any]) -> str:
    now, funnel = said["status"], said["funnel"] or {}
    failing = funnel.get("failing", now.get("failing", 0))
    lines = {
        shown(folder): f"{said['method']} on {said['model']}, {said['data']}",
        "phase": _phase(said),
        "shards": f"{now.get('shards_done', 0):,} of {now.get('shards', 0):,} done",
        "failing": f"{failing:,} seeds" + (f" of {funnel['attempted']:,} attempted" if funnel else " so far"),
        "confirmed": "not judged" if funnel.get("confirmed") is None else f"{funnel['confirmed']:,} seeds",
        "queries": f"{now.get('queries', 0):,}, {now.get('speed', 0):,.0f} a second",
    }
    if now.get("eta") and now.get("phase") == "searching":
        lines["left"] = f"about {duration(now['eta'])}"
    return facts(lines | _go_on(folder, said))


def _phase(said: dict[str, Any]) -> str:
    now = said["status"]
    phase = f"{now.get('phase', 'not begun')}, {duration(now.get('elapsed', 0))} spent"
    quiet = said["quiet"]
    if now.get("phase") == "searching" and quiet is not None and quiet > SILENT:
        return f"{phase}; no shard finished for {duration(quiet)}: it may have been killed"
    return phase


def _go_on(folder: Path, said: dict[str, Any]) -> dict[str, str]:
    if said["complete"]:
        return {"report": f"hardcase report {shown(folder)}"}
    return {} if said["status"].get("phase") == "searching" else {"go on": f"hardcase resume {shown(folder)}"}


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return {}
        raise Problem(
            f"{path.parent} is not a run folder: it has no {path.name}.", fix="the folder given to --out"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise Problem(f"{path} cannot be read: it is not an object")
    return said


def _age(path: Path) -> float | None:
    return time() - path.stat().st_mtime if path.exists() else None
