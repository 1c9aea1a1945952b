"""The flags that several verbs share, and how file, flags and ``--set`` become one
configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

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


def _option(help: str, *names: str, metavar: str | None = None, panel: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel)


_CAMPAIGN = "Campaign"
_BUDGET = "Budget"
_MACHINE = "Where it computes"
_OUTPUT = "What it says"

AsFormat = Annotated[
    Format,
    _option("json: the result alone on standard output.", "--format", panel=_OUTPUT),
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
        _option(
            "zoo:NAME, file.py:factory, weights.safetensors@file.py:factory, torchvision:NAME ..."
        ),
    ] = None
    data: Annotated[
        str | None,
        _option("mnist5k, mnist, fashion, cifar10, folder:PATH, npz:PATH, parquet:PATH ..."),
    ] = None
    method: Annotated[
        str | None,
        _option(
            "See: hardcase list methods. Without it: natural, or natural-blackbox; none: no search,"
            " the risk alone."
        ),
    ] = None

    task: Annotated[
        str | None,
        _option(
            "What the model answers: classes, tags, boxes or masks; by default as the data says.",
            metavar="TASK",
            panel=_CAMPAIGN,
        ),
    ] = None
    claims: Annotated[
        str | None,
        _option(
            "absent: also claim of each image that the class nearest to a false alarm is not in"
            " it.",
            metavar="WHICH",
            panel=_CAMPAIGN,
        ),
    ] = None
    seeds: Annotated[
        int | None,
        _option("Number of seed images to start from.", metavar="N", panel=_CAMPAIGN),
    ] = None
    split: Annotated[
        Split | None, _option("Which split the seeds come from.", "--split", panel=_CAMPAIGN)
    ] = None
    seed: Annotated[int | None, _option("Random seed.", metavar="N", panel=_CAMPAIGN)] = None
    peer: Annotated[
        list[str] | None,
        _option("Another model to compare with; repeatable.", metavar="MODEL", panel=_CAMPAIGN),
    ] = None
    judge_features: Annotated[
        list[str] | None,
        _option(
            "Network whose features judge the findings, as zoo:resnet50-imagenet; repeatable.",
            "--judge-features",
            metavar="MODEL",
            panel=_CAMPAIGN,
        ),
    ] = None
    witness: Annotated[
        list[str] | None,
        _option(
            "A network that must keep the label; repeatable. natural* have default ones.",
            metavar="MODEL|default|none",
            panel=_CAMPAIGN,
        ),
    ] = None
    baseline: Annotated[
        str | None,
        _option(
            "The version before: search for inputs that it gets right and --model gets wrong.",
            metavar="MODEL",
            panel=_CAMPAIGN,
        ),
    ] = None
    map: Annotated[
        str | None,
        _option(
            "Fill a map of two or three features with failures, as brightness,tilt:12.",
            metavar="A,B[:CELLS]",
            panel=_CAMPAIGN,
        ),
    ] = None
    generator: Annotated[
        str | None,
        _option(
            "Generator whose latent space is searched; by default the method's, trained if"
            " missing.",
            metavar="KIND[:NAME|PATH]",
            panel=_CAMPAIGN,
        ),
    ] = None
    target: Annotated[
        str | None,
        _option(
            "Targeted search: only this predicted class counts as a failure.",
            metavar="CLASS",
            panel=_CAMPAIGN,
        ),
    ] = None
    criterion: Annotated[
        str | None,
        _option(
            "Coverage criterion that guides the search or is measured.",
            metavar="NAME[:k=v]",
            panel=_CAMPAIGN,
        ),
    ] = None
    criteria: Annotated[
        str | None,
        _option(
            "Report coverage of the seeds alone and of seeds plus findings.",
            metavar="A,B:k=v",
            panel=_CAMPAIGN,
        ),
    ] = None
    conditions: Annotated[
        str | None,
        _option(
            "Conditions under which the risk is measured: a profile or a file. By default what"
            " suits the images.",
            metavar="NAME|FILE|none",
            panel=_CAMPAIGN,
        ),
    ] = None
    oracle: Annotated[
        str | None,
        _option(
            "label, disagreement, non-finite, any, regression.",
            metavar="KIND",
            panel=_CAMPAIGN,
        ),
    ] = None
    keep: Annotated[
        str | None,
        _option(
            "first, best, best-per-label, all, or a number of findings per seed.",
            metavar="WHICH",
            panel=_CAMPAIGN,
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        _option(
            "Any setting, e.g. method.population=30 subject.mean=0.13",
            "--set",
            metavar="KEY=VALUE",
            panel=_CAMPAIGN,
        ),
    ] = None
    allow_low_accuracy: Annotated[
        bool,
        _option(
            "Accept a model near chance level, or a generator that loses labels.",
            "--allow-low-accuracy",
            panel=_CAMPAIGN,
        ),
    ] = False
    trust_pickle: Annotated[
        bool,
        _option(
            "Load weights that need unpickling, which can run code.",
            "--trust-pickle",
            panel=_CAMPAIGN,
        ),
    ] = False

    queries: Annotated[
        int | None, _option("Query budget per seed.", metavar="N", panel=_BUDGET)
    ] = None
    gradients: Annotated[
        int | None, _option("Gradient budget per seed.", metavar="N", panel=_BUDGET)
    ] = None
    total_queries: Annotated[
        int | None,
        _option("Total query budget, divided over the seeds.", metavar="N", panel=_BUDGET),
    ] = None
    total_gradients: Annotated[
        int | None,
        _option("Total gradient budget, divided over the seeds.", metavar="N", panel=_BUDGET),
    ] = None
    findings: Annotated[
        int | None,
        _option(
            "Stop at the end of the round that reaches this many findings.",
            "--findings",
            metavar="N",
            panel=_BUDGET,
        ),
    ] = None
    time: Annotated[
        str | None,
        _option("Stop after the step in which the time is up.", metavar="10m", panel=_BUDGET),
    ] = None

    device: Annotated[
        str | None,
        _option("auto (a GPU where there is one), cpu, cuda, cuda:1, mps.", panel=_MACHINE),
    ] = None
    precision: Annotated[
        str | None,
        _option(
            "Arithmetic of a search on a GPU: strict, tf32 or bf16; findings are always "
            "confirmed in the network's own.",
            metavar="KIND",
            panel=_MACHINE,
        ),
    ] = None
    batch_size: Annotated[
        str | None,
        _option("Images per forward pass; changes no result.", metavar="N|auto", panel=_MACHINE),
    ] = None
    workers: Annotated[
        int | None,
        _option("Worker processes; changes no result.", metavar="N", panel=_MACHINE),
    ] = None
    cluster: Annotated[
        str | None, _option("auto, ray://... or local:2.", metavar="WHERE", panel=_MACHINE)
    ] = None
    offline: Annotated[bool, _option("Use no network.", "--offline", panel=_MACHINE)] = False


@dataclass(frozen=True, kw_only=True)
class Flags(CampaignFlags):
    """The flags that several verbs share, each written once; a verb names its own in `takes`.

    A flag that the verb does not have keeps its default.
    """

    trust: Annotated[
        bool,
        _option(
            "Allow what the run folder names: code, pickles, paths, addresses.",
            "--trust",
            panel=_CAMPAIGN,
        ),
    ] = False
    dry_run: Annotated[
        bool,
        _option(
            "Check everything, estimate time and memory, search nothing.",
            "--dry-run",
            panel=_CAMPAIGN,
        ),
    ] = False
    allow_changes: Annotated[
        bool,
        _option(
            "Go on although ingredients have changed: into a new folder, with the same seeds.",
            "--allow-changes",
            panel=_CAMPAIGN,
        ),
    ] = False

    out: Annotated[
        Path | None, _option("Where to write.", "--out", metavar="DIR", panel=_OUTPUT)
    ] = None
    show: Annotated[bool, _option("Open the page in the browser.", "--open", panel=_OUTPUT)] = False
    progress: Annotated[
        ProgressStyle,
        _option("live needs a terminal; plain is a line every 30 s.", "--progress", panel=_OUTPUT),
    ] = ProgressStyle.auto
    format: AsFormat = Format.text
    quiet: Annotated[bool, _option("Print only the result.", "-q", "--quiet", panel=_OUTPUT)] = (
        False
    )
    verbose: Annotated[
        bool,
        _option("Print more; tracebacks of internal errors.", "-v", "--verbose", panel=_OUTPUT),
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
        parameters = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
        for name in names:
            hint = hints[name]
            if first and name not in first:
                hint = _hidden(hint)
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


def _hidden(hint: Any) -> Any:
    """The flag's type with its option left out of ``--help``."""
    kind, option = get_args(hint)
    option = copy(option)
    option.hidden = True
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
