"""What the verbs that come after a run share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.results import Run


def config_of(run: Run, **flags: Any) -> Config:
    """The configuration of a run with some of it changed."""
    from hardcase.config import assign, parse, read

    values = read(run.folder / "config.toml")
    if not values:
        raise Problem(
            f"{run.folder} was started from Python, so its model and data cannot be found by name.",
            fix="hc.replay or hc.shrink in Python",
        )
    values |= {key: value for key, value in flags.items() if value and key != "settings"}
    return parse(assign(values, flags.get("settings") or []))


def rate(value: dict[str, Any]) -> str:
    """A share with its counts and its interval."""
    if not value["total"]:
        return "0 of 0"
    share, low, high = (f"{100 * value[name]:.1f} %" for name in ("share", "low", "high"))
    return f"{value['hits']} of {value['total']} = {share} (95 % interval {low} to {high})"
