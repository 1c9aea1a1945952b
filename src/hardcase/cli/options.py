"""The flags that several verbs share, and how file, flags and ``--set`` become one
configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from hardcase.cli.output import note
from hardcase.environment import Redacting

if TYPE_CHECKING:
    from hardcase.config import Config


class ProgressStyle(StrEnum):
    auto = "auto"
    live = "live"
    plain = "plain"
    none = "none"


class Format(StrEnum):
    text = "text"
    json = "json"


class Split(StrEnum):
    train = "train"
    test = "test"


def option(
    help: str,
    metavar: str | None = None,
    *,
    names: Sequence[str] = (),
    panel: str | None = None,
    **limits: Any,
) -> Any:
    """A flag; `takes` calls it as its field or parameter is called, unless it has `names`."""
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **limits)


_campaign = partial(option, panel="Campaign")
_budget = partial(option, panel="Budget")
_machine = partial(option, panel="Where it computes")
_output = partial(option, panel="What it says")

AsFormat = Annotated[
    Format, _output("json: the result alone on standard output.", names=("--format",))
]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


@dataclass(frozen=True, kw_only=True)
class CampaignFlags:
    """The flags of a campaign; each sets the key of the configuration that is called as it is."""

    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A TOML file; hardcase.toml of this folder if there is one. Flags override it.",
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "zoo:NAME, file.py:factory, weights.safetensors@file.py:factory, torchvision:NAME ..."
        ),
    ] = None
    data: Annotated[
        str | None,
        option("mnist5k, mnist, fashion, cifar10, folder:PATH, npz:PATH, parquet:PATH ..."),
    ] = None
    method: Annotated[
        str | None,
        option(
            "See: hardcase list methods. By default natural, or natural-blackbox; none: risk alone."
        ),
    ] = None

    task: Annotated[
        str | None,
        _campaign(
            "What the model answers: classes, tags, boxes or masks; by default as the data says.",
            "TASK",
        ),
    ] = None
    claims: Annotated[
        str | None,
        _campaign(
            "absent: also claim of each image that the class nearest to a false alarm is not in"
            " it.",
            "WHICH",
        ),
    ] = None
    seeds: Annotated[int | None, _campaign("Number of seed images to start from.", "N")] = None
    split: Annotated[Split | None, _campaign("Which split the seeds come from.")] = None
    seed: Annotated[int | None, _campaign("Random seed.", "N")] = None
    peer: Annotated[
        list[str] | None, _campaign("Another model to compare with; repeatable.", "MODEL")
    ] = None
    judge_features: Annotated[
        list[str] | None,
        _campaign(
            "Network whose features judge the findings, as zoo:resnet50-imagenet; repeatable.",
            "MODEL",
        ),
    ] = None
    witness: Annotated[
        list[str] | None,
        _campaign(
            "A network that must keep the label; repeatable. natural* have default ones.",
            "MODEL|default|none",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        _campaign(
            "The version before: search for inputs that it gets right and --model gets wrong.",
            "MODEL",
        ),
    ] = None
    map: Annotated[
        str | None,
        _campaign(
            "Fill a map of two or three features with failures, as brightness,tilt:12.",
            "A,B[:CELLS]",
        ),
    ] = None
    generator: Annotated[
        str | None,
        _campaign(
            "Generator whose latent space is searched; by default the method's own.",
            "KIND[:NAME|PATH]",
        ),
    ] = None
    target: Annotated[
        str | None,
        _campaign("Targeted search: only this predicted class counts as a failure.", "CLASS"),
    ] = None
    criterion: Annotated[
        str | None,
        _campaign("Coverage criterion that guides the search or is measured.", "NAME[:k=v]"),
    ] = None
    criteria: Annotated[
        str | None,
        _campaign("Report coverage of the seeds alone and of seeds plus findings.", "A,B:k=v"),
    ] = None
    conditions: Annotated[
        str | None,
        _campaign(
            "Under which the risk is measured: a profile or a file; by default what suits.",
            "NAME|FILE|none",
        ),
    ] = None
    rare: Annotated[
        bool,
        _campaign(
            "Also estimate how rarely images without a failing draw fail: a volume of the declared"
            " conditions.",
            names=("--rare",),
        ),
    ] = False
    oracle: Annotated[
        str | None, _campaign("label, disagreement, non-finite, any, regression.", "KIND")
    ] = None
    keep: Annotated[
        str | None,
        _campaign("first, best, best-per-label, all, or a number of findings per seed.", "WHICH"),
    ] = None
    settings: Annotated[
        list[str] | None,
        _campaign(
            "Any setting, e.g. method.population=30 subject.mean=0.13",
            "KEY=VALUE",
            names=("--set",),
        ),
    ] = None
    allow_low_accuracy: Annotated[
        bool, _campaign("Accept a model near chance level, or a generator that loses labels.")
    ] = False
    trust_pickle: Annotated[
        bool, _campaign("Load weights that need unpickling, which can run code.")
    ] = False

    queries: Annotated[int | None, _budget("Query budget per seed.", "N")] = None
    gradients: Annotated[int | None, _budget("Gradient budget per seed.", "N")] = None
    total_queries: Annotated[
        int | None, _budget("Total query budget, divided over the seeds.", "N")
    ] = None
    total_gradients: Annotated[
        int | None, _budget("Total gradient budget, divided over the seeds.", "N")
    ] = None
    findings: Annotated[
        int | None, _budget("Stop at the end of the round that reaches this many findings.", "N")
    ] = None
    time: Annotated[str | None, _budget("Stop after the step in which the time is up.", "10m")] = (
        None
    )

    device: Annotated[
        str | None, _machine("auto (a GPU where there is one), cpu, cuda, cuda:1, mps.")
    ] = None
    precision: Annotated[
        str | None,
        _machine(
            "Arithmetic on a GPU: strict, tf32 or bf16; findings are always confirmed strictly.",
            "KIND",
        ),
    ] = None
    batch_size: Annotated[
        str | None, _machine("Images per forward pass; changes no result.", "N|auto")
    ] = None
    workers: Annotated[int | None, _machine("Worker processes; changes no result.", "N")] = None
    cluster: Annotated[str | None, _machine("auto, ray://... or local:2.", "WHERE")] = None
    offline: Annotated[bool, _machine("Use no network.")] = False


@dataclass(frozen=True, kw_only=True)
class Flags(CampaignFlags):
    """The flags that several verbs share, each written once; a verb names its own in `takes`.

    A flag that the verb does not have keeps its default.
    """

    trust: Annotated[
        bool, _campaign("Allow what the run folder names: code, pickles, paths, addresses.")
    ] = False
    dry_run: Annotated[
        bool, _campaign("Check everything, estimate time and memory, search nothing.")
    ] = False
    allow_changes: Annotated[
        bool,
        _campaign(
            "Go on although ingredients have changed: into a new folder, with the same seeds."
        ),
    ] = False

    out: Annotated[Path | None, _output("Where to write.", "DIR")] = None
    show: Annotated[bool, _output("Open the page in the browser.", names=("--open",))] = False
    progress: Annotated[
        ProgressStyle, _output("live needs a terminal; plain is a line every 30 s.")
    ] = ProgressStyle.auto
    format: AsFormat = Format.text
    quiet: Annotated[bool, _output("Print only the result.", names=("-q", "--quiet"))] = False
    verbose: Annotated[
        bool, _output("Print more; tracebacks of internal errors.", names=("-v", "--verbose"))
    ] = False

    @property
    def json(self) -> bool:
        """Whether the result is asked for as JSON."""
        return self.format == Format.json

    @property
    def place(self) -> str:
        """The device that was asked for, if it exists; by default a GPU where there is one."""
        from hardcase.tensors import usable_device

        return usable_device(self.device or "auto")

    @property
    def say(self) -> Callable[[str], None]:
        """Where notes about the result go: to standard error, or nowhere with ``-q``."""
        return _nowhere if self.quiet else note


SAYS = ("format", "quiet", "verbose")
FOREIGN = ("trust", "allow_changes")
WATCHED = ("progress", *SAYS)
CAMPAIGN = tuple(field.name for field in fields(CampaignFlags))
"""Groups of flags for `takes`."""

Verb = Callable[..., None]


def takes(*names: str, first: Sequence[str] = ()) -> Callable[[Verb], Verb]:
    """Give a verb the shared flags called `names`; they reach it as one value, its parameter
    `flags`.

    What the library logs is shown as ``-v`` and ``-q`` say, where the verb has them.

    Args:
        names: Fields of `Flags`.
        first: Those that ``--help`` shows; the others are shown by ``--help-all``. Empty: all.
    """

    def decorate(verb: Verb) -> Verb:
        own = [p for p in signature(verb, eval_str=True).parameters.values() if p.name != "flags"]
        hints = get_type_hints(Flags, include_extras=True)
        parameters = [
            p.replace(kind=Parameter.KEYWORD_ONLY, annotation=_flag(p.name, p.annotation))
            for p in own
        ]
        for name in names:
            hint = _flag(name, hints[name], hidden=bool(first) and name not in first)
            default = getattr(Flags, name)
            parameters.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            )
        if first:
            parameters.append(_HELP_ALL)

        @wraps(verb)
        def called(**given: Any) -> None:
            given.pop(_HELP_ALL.name, None)
            flags = Flags(**{name: given.pop(name) for name in names})
            if "verbose" in names:
                logging_to(verbose=flags.verbose, quiet=flags.quiet)
            verb(**given, flags=flags)

        # typer reads the two below, not the function
        # an attribute that typer reads and functions do not declare
        called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        return called

    return decorate


def _flag(name: str, hint: Any, *, hidden: bool = False) -> Any:
    """A type with its option, called as the field or parameter is; `hidden` from ``--help``."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, option = get_args(hint)
    option = copy(option)
    option.hidden = option.hidden or hidden
    # typer keeps the first name of an option as its default
    if isinstance(option, typer.models.OptionInfo) and not isinstance(option.default, str):
        option.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[kind, option]


def _show_all(context: Any, asked: bool) -> bool:
    """Print the help with all flags, those that ``--help`` leaves out too."""
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False
        typer.echo(context.get_help())
        raise typer.Exit
    return asked


_HELP_ALL = Parameter(
    "help_all",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            is_eager=True,
            callback=_show_all,
            help="Show all flags; every key for --set is in docs/configuration.md.",
        ),
    ],
)


def _nowhere(text: str) -> None:
    """Says nothing."""


def logging_to(*, verbose: bool, quiet: bool) -> None:
    """Show what the library logs: everything with ``-v``, only errors with ``-q``."""
    level = logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(
        level=logging.INFO if verbose else level, format="note: %(message)s", force=True
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(Redacting("note: %(message)s"))
    logging.captureWarnings(True)
    if not verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)


PROJECT = Path("hardcase.toml")
_KEYS = {"peer": "peers", "witness": "witnesses"}
"""Flags that may be repeated are called in the singular; all others as the key they set."""


def resolve(
    flags: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
    *,
    choose: Callable[[str], None] | None = None,
) -> Config:
    """The configuration that these flags (a command's parameters by name) ask for.

    They override `defaults` and the named file. Where nobody names a method and `choose` is
    given, one is chosen by what the model offers, and `choose` is told which and why.
    """
    from hardcase.config import BudgetConfig, Config, assign, chosen_method, parse

    values = {**(defaults or {}), **_file(flags.get("config"))}
    for flag, value in flags.items():
        key = _KEYS.get(flag, flag)
        if value is None or value is False or value == []:  # was not given; 0 was
            continue
        if key in BudgetConfig.model_fields:
            values["budget"] = {**values.get("budget", {}), key: value}
        elif key == "method" and _method(values) != value:
            values["method"] = {"name": value}
        elif key in Config.model_fields and key != "method":
            values[key] = value
    values = assign(values, flags.get("settings") or [])
    if choose is not None and _method(values) is None and isinstance(values.get("model"), str):
        name, why = chosen_method(values)
        values["method"] = {**(values.get("method") or {}), "name": name}
        choose(why)
    return parse(values)


def _file(named: Path | None) -> dict[str, Any]:
    from hardcase.config import read

    if named is None and PROJECT.is_file():
        logging.getLogger(__name__).warning("settings come from %s", PROJECT)
        return read(PROJECT)
    if named is None:
        return {}
    if not named.is_dir():
        return read(named)
    from hardcase.runs.folder import Store
    from hardcase.runs.identity import require

    values = Store(named).settings()
    require(values, named)  # a run folder grants no rights, also where it is run anew
    return values


def _method(values: Mapping[str, Any]) -> Any:
    method = values.get("method")
    return method.get("name") if isinstance(method, Mapping) else method
