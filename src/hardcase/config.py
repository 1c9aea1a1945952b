"""Configuration: a TOML file and flags, checked key by key; here names become objects."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hardcase.errors import Problem, choice


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SubjectConfig(_Section):
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    outputs: Literal["auto", "logits", "probabilities"] = "auto"

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, int | float) else value


class BudgetConfig(_Section):
    queries: int | None = Field(None, ge=1)
    gradients: int | None = Field(None, ge=1)
    total_queries: int | None = Field(None, ge=1)
    total_gradients: int | None = Field(None, ge=1)
    findings: int | None = Field(None, ge=1)
    time: str | float | None = None


class CampaignConfig(_Section):
    shard: int = Field(32, ge=1)
    round: int = Field(8, ge=1)


class MethodConfig(BaseModel):
    """`name`, and any option of that method."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Config(_Section):
    """One campaign. Fully resolved, it is written into the run and re-runs it."""

    model: str
    data: str
    method: MethodConfig
    subject: SubjectConfig = SubjectConfig()
    budget: BudgetConfig = BudgetConfig()
    campaign: CampaignConfig = CampaignConfig()
    peers: tuple[str, ...] = ()
    generator: str | None = None
    target: int | str | None = None
    criterion: str | None = None
    oracle: Literal["label", "disagreement", "non-finite", "surprise"] | None = None
    keep: str | None = None
    seeds: int = Field(100, ge=1)
    split: Literal["train", "test"] = "test"
    seed: int = 0
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"
    workers: int = Field(1, ge=1)
    cluster: str | None = None
    offline: bool = False
    allow_low_accuracy: bool = False
    trust_pickle: bool = False

    @field_validator("method", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(self.model_dump()))


def parse(values: Mapping[str, Any]) -> Config:
    """A checked configuration; an unknown key is an error that names the nearest one."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _problem(error) from error


def read(path: Path) -> dict[str, Any]:
    """The raw values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Problem(f"there is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"{path} is not valid TOML: {error}") from error


def assign(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`values` with ``key.path=value`` settings on top; values are read as TOML, else as plain text."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise Problem(f"--set {setting!r} has no value.", fix="--set key=value, e.g. --set method.population=30")
        values = _put(values, path.strip().split("."), _value(text.strip()))
    return values


def _put(values: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    inner = values.get(head, {})
    inner = {"name": inner} if isinstance(inner, str) and rest else inner
    return {**values, head: _put(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pieces = [piece.strip() for piece in text.split(",")]
        return [_value(piece) for piece in pieces] if len(pieces) > 1 else text


def _problem(error: ValidationError) -> Problem:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = _section(first["loc"][:-1])
        wrong = choice("setting", place, [".".join([*map(str, first["loc"][:-1]), name]) for name in section])
        return wrong
    if first["type"] == "missing":
        return Problem(f"{place} is not given.", fix=f"--{place} ... or {place} = ... in the configuration file")
    return Problem(f"{place} is {first['input']!r}: {first['msg'].lower()}.")


def _section(path: Sequence[Any]) -> list[str]:
    model: Any = Config
    for part in path:
        model = model.model_fields[part].annotation
    return list(model.model_fields)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
