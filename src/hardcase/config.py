"""Configuration: a TOML file and flags, checked key by key; here names become objects."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from hardcase.cache import named_path
from hardcase.errors import HardcaseError, choice, likely_factory, names_in
from hardcase.registry import Part, refuse_bare_file, rows

if TYPE_CHECKING:
    from hardcase.claims.subjects import Task

__all__ = [
    *("BudgetConfig", "Config", "MethodConfig", "assign", "check_names", "chosen_method"),
    *("annotated_as", "limits_in", "loads", "parse", "read", "task_of", "typed_options"),
]

LONGEST = 200_000
"""Characters of a configuration."""
MOST = 4_000
"""Dots, equals signs and brackets in it: reading takes time that grows with their square."""
NO_SEARCH = "none"
"""The method of a run without a search: it is measured alone."""
DEEPEST = 20
"""Sections inside sections that a setting's name may go through."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(_Section):
    """The model: its name, the preprocessing of its images, and the settings of its calls."""

    name: str
    """zoo:NAME, file.py:factory, weights@file.py:factory, timm:NAME ..."""
    mean: tuple[float, ...] = (0.0,)
    """Mean per channel that is subtracted, in units of [0, 1]."""
    std: tuple[float, ...] = (1.0,)
    """Standard deviation per channel that is divided by."""
    outputs: Literal[
        "auto",
        "logits",
        "probabilities",
        "sigmoid",
        "binary",
        "binary-sigmoid",
        "binary-first",
        "binary-sigmoid-first",
    ] = "auto"
    """What the model returns. The binary kinds have one output for two classes."""
    channels: Literal["rgb", "bgr", "grey", "colour", "last"] = "rgb"
    """What it wants of the channels."""
    classes: tuple[str, ...] = ()
    """Names of its outputs, where it does not say them itself."""
    concurrency: int = Field(4, ge=1)
    """Requests at a time."""
    rate: float | None = Field(None, gt=0)
    """Requests per second, at most, of all workers together."""
    timeout: float | None = Field(None, gt=0)
    """Seconds per call: 30 for servers, no limit for others."""
    label_only: bool = False
    """Use nothing but the predicted label."""
    threshold: float = Field(0.5, gt=0, lt=1)
    """Of taggers, detectors and segmenters: least probability of a claim."""

    def with_name(self, name: str) -> ModelConfig:
        """Return the same settings for another model."""
        return self.model_copy(update={"name": name})

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        return (value,) if isinstance(value, int | float) else value

    @field_validator("classes", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(map(str, value if isinstance(value, list | tuple) else (value,)))


class BudgetConfig(_Section):
    """The budget of a search, by default that of the method."""

    queries: int | None = Field(None, ge=1)
    gradients: int | None = Field(None, ge=1)
    total_queries: int | None = Field(None, ge=1)
    total_gradients: int | None = Field(None, ge=1)
    findings: int | None = Field(None, ge=1)
    time: str | float | None = None


class CampaignConfig(_Section):
    """Sizes that are chosen by the device and the method, and the witnesses' margin."""

    shard: int | None = Field(None, ge=1)
    """Images that are searched at once."""
    round: int | None = Field(None, ge=1)
    """Shards that start from the same state of the guides."""
    tile: int | None = Field(None, ge=1)
    """Rows of every network call on a device."""
    margin: float = Field(2.0, ge=0)
    """Logits by which each witness must keep the label."""


Share = Annotated[float, Field(ge=0, le=1)]
"""A part of all, from 0 to 1."""


class LimitsConfig(_Section):
    """What the model may at most show: read by ``gate`` and shown by the report."""

    risk: Share | None = None
    """Failure rate under the declared conditions, at most."""
    margin: Share = 0.01
    """Allowed excess of the failure rate over the baseline's."""
    class_risk: Share | None = None
    """Failure rate of every class, at most."""
    classes: dict[str, Share] = {}
    """Failure rate of a class, at most, by its name."""
    accuracy: Share | None = None
    """Share of unmodified images that the model gets right, at least."""
    accepted_rate: Share | None = None
    """Searched images with an accepted failure, at most."""
    high_confidence_rate: Share | None = None
    """Searched images with an accepted high-confidence failure, at most."""
    witnessed_rate: Share | None = None
    """Searched images with a witnessed failure, at most."""
    slices: dict[str, Share] = {}
    """Searched images of a slice with an accepted failure, at most, by the name of the slice."""
    conditions: str | None = None
    """A profile or a file: the failure rate must have been measured under these conditions."""


class MethodConfig(BaseModel):
    """`name`, and any option of that method."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def searches(self) -> bool:
        """Whether anything is searched: a run without a method measures alone."""
        return self.name != NO_SEARCH


class Config(_Section):
    """One campaign. Fully resolved, it is written into the run and re-runs it."""

    model: ModelConfig
    data: str
    method: MethodConfig
    task: Literal["auto", "classes", "tags", "boxes", "masks"] = "auto"
    """What the model answers. By default as the data says."""
    claims: Literal["present", "absent"] = "present"
    """Claims on images: present: of classes in them. absent: also of classes that are not."""
    budget: BudgetConfig = BudgetConfig()
    campaign: CampaignConfig = CampaignConfig()
    limits: LimitsConfig = LimitsConfig()
    peers: tuple[str, ...] = ()
    judge_features: tuple[str, ...] = ()
    witnesses: tuple[str, ...] | None = None
    baseline: tuple[str, ...] = ()
    """Models, or folders of runs, with which the model is compared on the same samples."""
    map: str | None = None
    generator: str | None = None
    target: int | str | None = None
    criteria: str | None = None
    conditions: str | dict[str, Any] | None = None
    """Declared conditions under which the failure rate is measured: a profile, a file, a table or
    none."""
    samples: int = Field(4, ge=1, le=64)
    """Random samples of the conditions per image."""
    measure: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    """Images that are measured; by default all of the split, as far as a minute is enough. Effects
    of conditions are measured if time is left for them.
    """
    oracle: (
        Literal["label", "disagreement", "non-finite", "surprise", "any", "regression"] | None
    ) = None
    keep: str | None = None
    images: int | None = Field(None, ge=1)
    """Images to search from."""
    split: Literal["train", "test"] = "test"
    seed: int = 0
    device: str = "auto"
    precision: Literal["strict", "tf32", "bf16"] = "strict"
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Images per call of a network, or per request to a server. Changes no result."""
    workers: int = Field(1, ge=1)
    cluster: str | None = None
    offline: bool = False
    allow_low_accuracy: bool = False
    judge: bool = True
    """Judge the failures when the search is over."""
    trust_pickle: bool = False
    _given: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("peers", "witnesses", "judge_features", "baseline", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("target", "measure", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("model", "method", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def given(self) -> Mapping[str, str]:
        """The source of each setting that is no default of the program; runs store it."""
        return self._given

    def given_by(self, givers: Mapping[str, str]) -> Config:
        """Return the same settings, and who gave them."""
        config = self.model_copy()
        config._given = dict(givers)
        return config

    def to_toml(self) -> str:
        values = self.model_dump()
        if self.limits == LimitsConfig():
            del values["limits"]
        for name in ("task", "claims"):
            if values[name] == Config.model_fields[name].default:
                del values[name]
        for name in ("classes", "threshold"):
            if values["model"][name] == ModelConfig.model_fields[name].default:
                del values["model"][name]
        if self.given:
            values["given"] = dict(self.given)
        return tomli_w.dumps(_without_none(values))


def refuse_renamed(values: Mapping[str, Any]) -> None:
    """Refuse a section by the name that it had."""
    if "subject" in values:
        fix = "[model] with name = ... and the same keys, or --set model.KEY=VALUE"
        raise HardcaseError("the section [subject] is now [model].", fix=fix)


def parse(values: Mapping[str, Any]) -> Config:
    """A checked configuration; an unknown key is an error that names the nearest key."""
    refuse_renamed(values)
    settings = {name: value for name, value in values.items() if name != "given"}
    try:
        return Config.model_validate(settings).given_by(values.get("given", {}))
    except ValidationError as error:
        raise _problem(error) from error


RENAMED_LIMITS = {
    "confirmed_rate": "accepted_rate",
    "silent_rate": "high_confidence_rate",
    "class_rate": "class_risk, the failure rate of every class",
    "risk_margin": "margin",
}
"""Former names of limits, and their present names."""
DROPPED_LIMITS = {
    "clusters": "a number of failure clusters has no interval, so it decides nothing",
    "least_scale": "what a search finds is only a bound, so it decides nothing",
    "correctly_classified": "few images have wide intervals, which pass nothing",
    "upper": "every limit is held by its interval",
}
"""Limits that are gone, and why."""


def limits_in(values: Mapping[str, Any]) -> LimitsConfig:
    """The section ``[limits]`` of a file's values, checked; the rest of the file may be anything.

    >>> limits_in({"limits": {"accepted_rate": 0.05}}).accepted_rate
    0.05
    """
    section = values.get("limits", {})
    for name in section if isinstance(section, Mapping) else ():
        if name in RENAMED_LIMITS:
            raise HardcaseError(f"limits.{name} is now {RENAMED_LIMITS[name]}.")
        if name in DROPPED_LIMITS:
            raise HardcaseError(f"limits.{name} is no limit any more: {DROPPED_LIMITS[name]}.")
    try:
        return LimitsConfig.model_validate(section)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["limits", *map(str, first["loc"])])
        if first["type"] == "extra_forbidden":
            names = [f"limits.{name}" for name in LimitsConfig.model_fields]
            raise choice("setting", place, names) from error
        raise wrong_value(place, error) from error


def task_of(wanted: str, data: str, model: str = "") -> Task:
    """What networks answer: as wanted, else as the model's name says, or the data's.

    Example:
        >>> task_of("auto", "coco:labels.json"), task_of("auto", "mnist", "zoo:lenet5")
        ('boxes', 'classes')
    """
    if wanted == "auto":
        code = model.rpartition("@")[2].partition("?")[0]
        models = {f"zoo:{row['name']}": row for row in rows("models")}
        wanted = models.get(code, {}).get("task") or annotated_as(data) or "classes"
    return cast("Task", wanted)


def annotated_as(data: str) -> str | None:
    """The usual task of networks for annotated data of this name; None for any other data."""
    named = data.partition("?")[0].partition(":")
    for row in rows("data"):
        if row.get("task") and row["name"].partition(":")[:2] == named[:2]:
            return str(row["task"])
    return None


def chosen_method(values: Mapping[str, Any], offers: str | None = None) -> tuple[str, str]:
    """Choose the method of a run that names none, by what its model offers; with the reason in a
    line.

    Args:
        values: The configuration so far, with its ``model``.
        offers: What the model offers, where it is an object already.

    Example:
        >>> chosen_method({"model": "zoo:lenet5"})[0], chosen_method({"model": "onnx:net.onnx"})[0]
        ('natural', 'natural-blackbox')
    """
    named = values["model"]
    section = named if isinstance(named, Mapping) else {"name": named}
    model = str(section["name"]) if offers is None else "the model"
    label_only = bool(section.get("label_only", offers == "label"))
    elsewhere = {"onnx", "tflite", "http", "https", *entry_points(group="hardcase.loader").names}
    closed = model.partition(":")[0] in elsewhere or offers not in (None, "gradients")
    for row in rows("models") if model.startswith("zoo:") else ():
        # networks of other tasks that were fetched can only be asked
        other = row.get("task") and not row.get("training")
        closed |= bool(other) and model.partition("?")[0] == f"zoo:{row['name']}"
    if closed or label_only:
        what = "labels only" if label_only else "answers, not gradients"
        return "natural-blackbox", f"method natural-blackbox: {model} is asked for {what}"
    return "natural", f"method natural: {model} is asked for gradients"


def check_names(config: Config) -> None:
    """Tell of names, files and options that are wrong before anything is loaded: needs no torch.

    What it does not know (entry points of others, code of the user's) is left to whoever loads it.

    Raises:
        HardcaseError: With the first that is wrong.
    """
    _known_method(config.method)
    _exchanged(config)
    _known_data(config.data)
    others = [*config.peers, *(config.witnesses or ()), *config.baseline]
    words = ("none", "default")
    models = [
        model_name
        for model_name in others
        if model_name.partition(":")[0] not in words and not is_run(model_name)
    ]
    for spec in (config.model.name, *models):
        _known_model(spec)


def _exchanged(config: Config) -> None:
    """Raise if a model is named as data, or data as the model."""
    forms = {row["name"].partition(":")[0] for row in rows("data") if ":" in row["name"]}
    kind, colon, _ = config.model.name.partition(":")
    names = [row["name"] for row in rows("data")]
    if (colon and kind in forms) or config.model.name.partition("?")[0] in names:
        fix = f"--model {config.data} --data {config.model.name}"
        raise HardcaseError(f"{config.model.name} is data, and it is named as the model.", fix=fix)


def is_run(name: Any) -> bool:
    """Whether a baseline is the folder of a run rather than a model."""
    return isinstance(name, str) and (named_path(name) / "run.json").is_file()


def previous(config: Config) -> str | None:
    """Return the baseline of a search for regressions; None without a baseline."""
    first = next(iter(config.baseline), None)
    return None if first is None or is_run(first) else first


def _known_method(method: MethodConfig) -> None:
    if ":" in method.name:
        return _present(method.name.rpartition(":")[0])
    refuse_bare_file("method", method.name)
    methods = {row["name"]: row for row in rows("methods")}
    others = [NO_SEARCH, *(point.name for point in entry_points(group="hardcase.method"))]
    if method.name not in methods and method.name not in others:
        raise choice("method", method.name, [*methods, *others])
    if method.name in methods:
        options = list(methods[method.name]["options"])
        wrong = [key for key in method.options() if key not in options]
        if wrong:
            raise choice(f"option of {method.name}", wrong[0], options)
    return None


def _known_data(spec: str) -> None:
    names = [row["name"] for row in rows("data")]
    kind, colon, rest = spec.partition(":")
    path = named_path(rest.partition("?")[0])
    if colon and f"{kind}:" in {name.partition(":")[0] + ":" for name in names if ":" in name}:
        if rest and not path.exists():
            siblings = [each.name for each in path.parent.glob("*")] if path.parent.is_dir() else []
            near = get_close_matches(path.name, siblings, n=1)
            fix = f"--data {kind}:{path.parent / near[0]}" if near else f"{kind}:PATH of data"
            raise HardcaseError(f"{path} does not exist.", f"Looked from {Path.cwd()}.", fix=fix)
        return
    others = [point.name for point in entry_points(group="hardcase.data")]
    name = spec.partition("?")[0]
    if name not in (*names, *others) and ".py:" not in spec and not named_path(spec).exists():
        raise choice("data set", spec, (*names, *others, "file.py:name"))


def _known_model(spec: str) -> None:
    weights, _, code = spec.rpartition("@")
    kind, _, name = code.partition(":")
    if kind == "zoo":
        names = [row["name"] for row in rows("models")]
        others = [point.name for point in entry_points(group="hardcase.model")]
        if name.partition("?")[0] not in (*names, *others):
            raise choice("model", name, [*names, *others])
    elif kind == "onnx":
        _present(name.partition("?")[0])
    elif code.endswith(".py"):
        _present(code)
        raise HardcaseError(
            f"{code} is a file; which function of it makes the network?",
            fix=f"--model {spec}:{likely_factory(named_path(code))}",
        )
    elif code.rpartition(":")[0].endswith(".py"):
        _in_file(code)
    elif kind == "hf":
        _folder_or_hub(name.partition("?")[0])
    elif ":" not in code and not named_path(code).exists():
        raise _unknown_form(code)
    if weights:
        _present(weights)


def _in_file(spec: str) -> None:
    """Tell that a file is not there, or that its text has no such function."""
    file, _, name = spec.rpartition(":")
    _present(file)
    names = names_in(named_path(file))
    if names is not None and name not in names:
        near = get_close_matches(name, names, n=1)
        fix = f"{file}:{near[0] if near else likely_factory(named_path(file))}"
        raise HardcaseError(f"{file} has no function {name!r}.", fix=fix)


def _folder_or_hub(name: str) -> None:
    """Raise if there is no such folder, before a hub is searched for a network of that name."""
    path = named_path(name)
    if path.is_dir():
        return
    configs = path.parent.glob("*/config.json") if path.parent.is_dir() else ()
    near = get_close_matches(path.name, [config_file.parent.name for config_file in configs], n=1)
    if near or name.startswith((".", "/", "~")):
        fix = f"--model hf:{path.parent / near[0]}" if near else "hf:PATH of a folder that exists"
        raise HardcaseError(f"there is no folder {name}.", f"Looked from {Path.cwd()}.", fix=fix)
    logging.getLogger(__name__).warning("there is no folder %s; the hub is asked for it", name)


def _unknown_form(name: str) -> HardcaseError:
    """The error for a model whose name says neither where it is nor what kind it is."""
    if "." in name or "/" in name:
        return HardcaseError(
            f"there is no file {name}.", f"Looked from {Path.cwd()}.", fix="hardcase list models"
        )
    names = [str(row["name"]) for row in rows("models")]
    fix = f"zoo:{name}" if name in names else f"torchvision:{name}, timm:{name} or hf:{name}"
    forms = "zoo:NAME, file.py:factory, weights@file.py:factory, onnx:FILE, http://..., timm:NAME"
    what = f"{name!r} does not say where the model is from."
    return HardcaseError(what, f"known forms: {forms} ...", fix=f"--model {fix}")


def _present(path: str) -> None:
    if not named_path(path).is_file():
        raise HardcaseError(
            f"there is no file {path}.",
            f"Looked from {Path.cwd()}.",
            fix="another path, or zoo:NAME; hardcase list models",
        )


def loads(text: str) -> dict[str, Any]:
    """The raw values of TOML; a text that is too long or too rich for a configuration is a
    `ValueError`.
    """
    if len(text) > LONGEST:
        raise ValueError(
            f"it has {len(text):,} characters; a configuration has at most {LONGEST:,}"
        )
    if text.count(".") + text.count("=") + text.count("[") > MOST:
        raise ValueError(f"it has more than {MOST:,} keys and values")
    return tomllib.loads(text)


def read(path: Path) -> dict[str, Any]:
    """The raw values of a TOML file."""
    if path.exists() and not path.is_file():
        raise HardcaseError(f"{path} cannot be read: it is not a plain file.")
    try:
        if path.stat().st_size > 4 * LONGEST:
            raise ValueError(f"it is larger than any configuration ({LONGEST:,} characters)")
        return loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HardcaseError(f"there is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HardcaseError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise HardcaseError(f"{path} is not valid TOML: {error}") from error


def assign(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`values` with ``key.path=value`` settings on top; values are read as TOML,
    else as plain text.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise HardcaseError(
                f"--set {setting!r} has no value.",
                fix="--set key=value, e.g. --set method.population=30",
            )
        if path.count(".") > DEEPEST:
            raise HardcaseError(
                f"--set {path[:40]}... names a setting inside more than {DEEPEST} others."
            )
        values = _put(values, path.strip().split("."), _value(text.strip()))
    return values


def _put(values: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    inner = values.get(head, {})
    inner = {"name": inner} if isinstance(inner, str) and rest else inner
    if rest:
        value = _put(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**values, head: value}


def quotient(text: str) -> float | None:
    """The number that ``8/255`` means (grey levels, as papers write them); None for other texts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)/(\d+)", text)
    return float(match[1]) / int(match[2]) if match and int(match[2]) else None


def _value(text: str) -> Any:
    number = quotient(text)
    if number is not None:
        return number
    try:
        read = tomllib.loads(f"value = {text}")
        return read["value"] if len(read) == 1 else text
    except (ValueError, RecursionError):
        pieces = [piece.strip() for piece in text.split(",")]
        return [_value(piece) for piece in pieces] if len(pieces) > 1 else text


def wrong_value(place: str, error: ValidationError) -> HardcaseError:
    """The first thing that is wrong with the value at `place`, in words."""
    first = error.errors()[0]
    value = first["input"]
    rules = [_rule(entry) for entry in error.errors() if entry["loc"][:1] == first["loc"][:1]]
    is_share = first["type"] == "less_than_equal" and first["ctx"]["le"] == 1
    fix = ""
    if is_share and 1 < value <= 100:
        fix = f"{value / 100:g}, the share that {value:g} % is"
    return HardcaseError(
        f"{place} is {value!r}; it must be {' or '.join(dict.fromkeys(rules))}.", fix=fix
    )


def typed_options(part: Part, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a method, checked, as its annotations want them."""
    hints = get_type_hints(part.make)
    typed = {}
    for key, value in settings.items():
        if key not in part.options:
            raise choice(f"option of {part.name}", key, list(part.options))
        number = quotient(value) if isinstance(value, str) else None
        try:
            kind = TypeAdapter(hints[key], config={"arbitrary_types_allowed": True})
            typed[key] = kind.validate_python(value if number is None else number)
        except ValidationError as error:
            raise wrong_value(f"method.{key}", error) from error
    return typed


def _problem(error: ValidationError) -> HardcaseError:
    """The first error; a misspelt key comes before a missing key, as both may be the same."""
    first = min(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
    section, place = _place(first["loc"])
    if first["type"] == "extra_forbidden":
        return choice(
            "setting", place, [".".join([*place.split(".")[:-1], name]) for name in section]
        )
    if first["type"] == "missing":
        return _missing(
            [_place(entry["loc"])[1] for entry in error.errors() if entry["type"] == "missing"]
        )
    return wrong_value(place, error)


def _missing(places: Sequence[str]) -> HardcaseError:
    """Raise one error that names all missing keys."""
    flags = [place.removesuffix(".name") for place in places]
    if "model" in flags and "method" in flags:  # the method follows from the model
        flags.remove("method")
    if len(flags) == 1:
        return HardcaseError(
            f"{flags[0]} is not given.",
            fix=f"--{flags[0]} ..., or {flags[0]} = ... in the configuration file",
        )
    text = f"{', '.join(flags[:-1])} and {flags[-1]} are not given."
    return HardcaseError(
        text,
        fix=f"{' '.join(f'--{flag} ...' for flag in flags)}, or the same in the configuration file",
    )


def _place(path: Sequence[Any]) -> tuple[list[str], str]:
    """The settings of the section that an error is in, and the setting's full name (without
    branches of a union).
    """
    model = Config
    names = []
    for part in path:
        names.append(str(part))
        inner: Any = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner  # type: ignore[assignment]  # a section stands in for the whole
    return list(model.model_fields), ".".join(names)


_RULES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
}


def _rule(error: Any) -> str:
    if error["type"] == "greater_than_equal":
        return f"at least {error['ctx']['ge']}"
    if error["type"] == "less_than_equal":
        return f"at most {error['ctx']['le']}"
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"])
    sort = error["type"].partition("_")[0]
    return _RULES.get(
        sort, "a section with settings of its own" if sort == "model" else error["msg"].lower()
    )


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
