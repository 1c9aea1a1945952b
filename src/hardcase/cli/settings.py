"""From a file, flags and ``--set`` to one checked configuration, and the folder a run goes to."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.config import Config

PROJECT = Path("hardcase.toml")
_PLAIN = (
    "model", "data", "generator", "criterion", "criteria", "oracle", "keep", "seeds", "split", "seed", "device", "workers",
    "cluster",
)  # fmt: skip
_EITHER = ("target", "batch_size")
_SWITCHES = ("offline", "allow_low_accuracy", "trust_pickle")
_BUDGET = ("queries", "gradients", "total_queries", "total_gradients", "findings", "time")


def resolve(flags: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Config:
    """The configuration that these flags (a command's parameters by name) ask for, above `defaults` and the named file."""
    from hardcase.config import assign, parse

    values = {**(defaults or {}), **_file(flags.get("config"))}
    values |= {key: flags[key] for key in _PLAIN if flags.get(key) is not None}
    values |= {key: True for key in _SWITCHES if flags.get(key)}
    if flags.get("peer"):
        values["peers"] = list(flags["peer"])
    if flags.get("method") is not None and _method(values) != flags["method"]:
        values["method"] = {"name": flags["method"]}
    limits = {key: flags[key] for key in _BUDGET if flags.get(key) is not None}
    if limits:
        values["budget"] = {**values.get("budget", {}), **limits}
    pairs = [f"{key}={flags[key]}" for key in _EITHER if flags.get(key) is not None]
    return parse(assign(values, [*pairs, *(flags.get("settings") or [])]))


def folder_for(config: Config, given: Path | None) -> Path:
    """The folder that was named, if nothing is in it; else the first free one of ``runs/METHOD-DATA-SEED``, ``...-2``, ..."""
    from hardcase.store import refuse_used

    if given is not None:
        refuse_used(given)
        return given
    return free(
        Path("runs") / f"{_word(config.method.name)}-{_word(Path(config.data.split('?')[0]).stem)}-{config.seed}"
    )


def free(base: Path) -> Path:
    """`base`, or the first of ``base-2``, ``base-3`` ... that does not exist."""
    if not base.exists():
        return base
    return next(path for i in count(2) if not (path := base.with_name(f"{base.name}-{i}")).exists())


def _file(named: Path | None) -> dict[str, Any]:
    from hardcase.config import read

    if named is None and PROJECT.is_file():
        logging.getLogger(__name__).warning("settings come from %s", PROJECT)
        return read(PROJECT)
    if named is None:
        return {}
    return read(named / "config.toml" if named.is_dir() else named)


def _method(values: Mapping[str, Any]) -> Any:
    method = values.get("method")
    return method.get("name") if isinstance(method, Mapping) else method


def _word(text: str) -> str:
    return re.sub(r"[^\w@.-]+", "-", text.rpartition(":")[2]).strip("-.") or "run"
