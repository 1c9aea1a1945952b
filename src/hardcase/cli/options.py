"""The flags that several verbs share, and how file, flags and ``--set`` become one configuration."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

# --- The flags that several verbs share, each written once.


class Progress(StrEnum):
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


_CAMPAIGN, _BUDGET, _MACHINE, _OUTPUT = "Campaign", "Budget", "Where it computes", "What it says"

ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG",
        help="A TOML file; hardcase.toml of this folder if there is one. Flags override it.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="zoo:NAME, file.py:factory, weights.safetensors@file.py:factory, torchvision:NAME ..."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="mnist5k, mnist, fashion, cifar10, folder:PATH, npz:PATH, parquet:PATH ..."),
]
Method = Annotated[str | None, typer.Option(help="See: hardcase list methods.")]
Peer = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="MODEL",
        help="Another model to compare with; repeatable.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Generator = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[:NAME|PATH]",
        help="Whose latent space to search; by default the method's, trained if missing.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="CLASS", help="Only count reaching this class.", rich_help_panel=_CAMPAIGN
    ),
]
Criterion = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:k=v]",
        help="The coverage criterion that guides or is measured.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Criteria = Annotated[
    str | None,
    typer.Option(
        metavar="A,B:k=v",
        help="Coverage of the seeds, and with the tests, for the report.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Oracle = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="label, disagreement, non-finite or surprise.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="WHICH",
        help="first, best, best-per-label, all or a number of findings a seed.",
        rich_help_panel=_CAMPAIGN,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many images to start from.", rich_help_panel=_CAMPAIGN),
]
FromSplit = Annotated[
    Split | None,
    typer.Option("--split", help="Where the seeds come from.", rich_help_panel=_CAMPAIGN),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="The random seed.", rich_help_panel=_CAMPAIGN)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, e.g. method.population=30 subject.mean=0.13",
        rich_help_panel=_CAMPAIGN,
    ),
]
AllowLow = Annotated[
    bool,
    typer.Option(
        "--allow-low-accuracy", help="Go on with a model near chance.", rich_help_panel=_CAMPAIGN
    ),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Load weights that need unpickling, which can run code.",
        rich_help_panel=_CAMPAIGN,
    ),
]

Queries = Annotated[
    int | None, typer.Option(metavar="N", help="Looks a seed.", rich_help_panel=_BUDGET)
]
Gradients = Annotated[
    int | None, typer.Option(metavar="N", help="Gradients a seed.", rich_help_panel=_BUDGET)
]
TotalQueries = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Looks in all, divided over the seeds.", rich_help_panel=_BUDGET
    ),
]
TotalGradients = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Gradients in all, divided over the seeds.", rich_help_panel=_BUDGET
    ),
]
FindingsLimit = Annotated[
    int | None,
    typer.Option(
        "--findings",
        metavar="N",
        help="Stop at the end of the round that reaches it.",
        rich_help_panel=_BUDGET,
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        metavar="10m", help="Stop after the step in which the time is up.", rich_help_panel=_BUDGET
    ),
]

Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, auto.", rich_help_panel=_MACHINE)
]
BatchSize = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Rows a network is given in one call; changes no result.",
        rich_help_panel=_MACHINE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes; changes no result.", rich_help_panel=_MACHINE),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="auto, ray://... or local:2.", rich_help_panel=_MACHINE),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Touch no network.", rich_help_panel=_MACHINE)
]

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Where to write.", rich_help_panel=_OUTPUT),
]
ShowProgress = Annotated[
    Progress,
    typer.Option(
        "--progress",
        help="live needs a terminal; plain is a line every 30 s.",
        rich_help_panel=_OUTPUT,
    ),
]
AsFormat = Annotated[
    Format,
    typer.Option(
        "--format", help="json: the result alone on standard output.", rich_help_panel=_OUTPUT
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="Say only what was asked for.", rich_help_panel=_OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Say more; tracebacks of internal errors.", rich_help_panel=_OUTPUT
    ),
]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
OneRun = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


# --- From a file, flags and ``--set`` to one checked configuration, and the folder a run goes to.

if TYPE_CHECKING:
    from hardcase.config import Config

PROJECT = Path("hardcase.toml")
_PLAIN = (
    "model", "data", "generator", "criterion", "criteria", "oracle", "keep", "seeds", "split", "seed", "device", "workers",
    "cluster",
)  # fmt: skip
_EITHER = ("target", "batch_size")
_SWITCHES = ("offline", "allow_low_accuracy", "trust_pickle")
_BUDGET_FLAGS = ("queries", "gradients", "total_queries", "total_gradients", "findings", "time")


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
    limits = {key: flags[key] for key in _BUDGET_FLAGS if flags.get(key) is not None}
    if limits:
        values["budget"] = {**values.get("budget", {}), **limits}
    pairs = [f"{key}={flags[key]}" for key in _EITHER if flags.get(key) is not None]
    return parse(assign(values, [*pairs, *(flags.get("settings") or [])]))


def folder_for(config: Config, given: Path | None) -> Path:
    """The folder that was named, if nothing is in it; else the first free one of ``runs/METHOD-DATA-SEED``, ``...-2``, ..."""
    from hardcase.runs.folder import refuse_used

    if given is not None:
        refuse_used(given)
        return given
    return free(
        Path("runs")
        / f"{_word(config.method.name)}-{_word(Path(config.data.split('?')[0]).stem)}-{config.seed}"
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
