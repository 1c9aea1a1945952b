"""Settings of the command line, of files and of Python as one configuration, with the source of
each setting.

Precedence: a flag or an argument, then ``--limits``, then ``hardcase.toml``, then the
default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

from hardcase.config import BudgetConfig, Config, assign, parse, refuse_renamed
from hardcase.errors import HardcaseError, choice

__all__ = ["GIVERS", "Request", "SearchSettings", "Settings", "settings_by_name"]

GIVERS = ("default", "hardcase.toml", "--limits", "flag", "python")
"""Sources of settings; a later source in this list overrides an earlier source."""
SECTIONS = ("model", "budget", "campaign", "limits", "method")
"""Settings that are tables: each of their keys is a setting."""
NAMED = ("model", "method")
"""Sections that may be a single name."""


class SearchSettings(TypedDict, total=False):
    """Settings of a search in memory that have no argument; docs/reference/configuration.md
    explains each.
    """

    task: str
    claims: str
    campaign: Mapping[str, Any]
    map: str
    generator: str
    target: int | str
    conditions: str | Mapping[str, Any]
    oracle: str
    keep: str
    device: str
    precision: str
    offline: bool
    allow_low_accuracy: bool
    trust_pickle: bool


class Settings(SearchSettings, total=False):
    """Settings of a run that have no argument."""

    samples: int
    measure: int | Literal["all"]
    criteria: str
    judge: bool
    judge_features: Any
    limits: Mapping[str, Any]
    split: str


class Request:
    """Requested settings, before they are checked as a configuration.

    Example:
        >>> request = Request().ask({"images": 40}, "hardcase.toml").ask({"images": 20}, "flag")
        >>> request.values["images"], request.given["images"]
        (20, 'flag')
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.given: dict[str, str] = {}
        self._labels: dict[str, str] = {}

    def ask(self, values: Mapping[str, Any], by: str, label: str = "") -> Request:
        """Add the settings of a source.

        Args:
            values: Settings by name; those of a section in a table.
            by: One of `GIVERS`.
            label: What an error calls the giver; by default its name and the setting.

        Raises:
            HardcaseError: If the same source has set another value before.
        """
        refuse_renamed(values)
        for path, value in settings_by_name(values):
            known = self.given.get(path)
            name = label or {"flag": f"--set {path}", "python": path}.get(by, by)
            if known == by and self._value(path) != value:
                raise HardcaseError(
                    f"{path} is given twice: {self._value(path)!r} by {self._labels[path]} and"
                    f" {value!r} by {name}.",
                    fix="one of the two",
                )
            if known is not None and GIVERS.index(known) > GIVERS.index(by):
                continue
            self.values = assigned(self.values, path, value)
            self.given[path] = by
            self._labels[path] = name
        return self

    def forget(self, section: str) -> None:
        """Take back all settings of a section."""
        self.values.pop(section, None)
        for path in [path for path in self.given if path.partition(".")[0] == section]:
            del self.given[path]

    def asks_for(self, path: str) -> bool:
        """Whether any source has set a setting."""
        return path in self.given

    def config(self, *, stored: Mapping[str, str] | None = None) -> Config:
        """Return the checked configuration.

        Args:
            stored: The sources of the run whose settings are in ``hardcase.toml``: they stay.
                None: those settings are of a file that somebody wrote.
        """
        sources = self.given
        if stored is not None:
            others = {path: by for path, by in sources.items() if by != "hardcase.toml"}
            sources = {**stored, **others}
        return parse({**self.values, "given": sources})

    def _value(self, path: str) -> Any:
        head, _, key = path.partition(".")
        return self.values[head][key] if key else self.values[head]


def assigned(values: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return settings with a new value for a key."""
    head, _, key = path.partition(".")
    if not key:
        return {**values, head: value}
    section = values.get(head) or {}
    return {**values, head: {**section, key: value}}


def settings_by_name(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every setting with its full name; None: not set."""
    for name, value in values.items():
        if name == "given" or value is None:
            continue
        if name in NAMED and isinstance(value, str):
            yield f"{name}.name", value
        elif name in SECTIONS and isinstance(value, Mapping):
            yield from (
                (f"{name}.{key}", entry) for key, entry in value.items() if entry is not None
            )
        else:
            yield name, value


def flag_values(flag: str, value: Any) -> dict[str, Any]:
    """Return the settings that a flag of the command line sets."""
    if flag in BudgetConfig.model_fields:
        return {"budget": {flag: value}}
    if flag == "criterion":
        return {"method": {flag: value}}
    return {flag: value} if flag in Config.model_fields else {}


def typed_settings(texts: list[str]) -> Iterator[dict[str, Any]]:
    """Return what every ``--set KEY=VALUE`` sets."""
    return (assign({}, [text]) for text in texts)


def refuse_unused(settings: Mapping[str, Any], known: Mapping[str, Any], call: str) -> None:
    """Refuse settings that a call does not use, and name the nearest setting that it does.

    Args:
        settings: The keyword arguments.
        known: The annotations of a `TypedDict`.
        call: What the error calls the call.
    """
    for name in settings:
        if name not in known:
            problem = choice(f"setting of {call}", name, sorted(known))
            raise problem
