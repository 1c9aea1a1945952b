"""The command line. A verb is a function in a file of this folder and one row of `VERBS`; nothing here imports torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer

from hardcase.cli.failing import internal, usage
from hardcase.cli.spreading import Spreading
from hardcase.errors import INTERRUPTED, Problem
from hardcase.memory import keep_freed


class Verb(NamedTuple):
    """`name` may be two words (``train vae``); `where` is ``module:function`` in this folder; `panel` groups the help."""

    name: str
    where: str
    panel: str


_START, _PREPARE, _SEARCH, _RESULTS, _SCIENCE = "Start here", "Prepare", "Search", "Results", "Science"
VERBS = (
    Verb("demo", "demo:demo", _START),
    Verb("doctor", "doctor:doctor", _START),
    Verb("list", "listing:listing", _START),
    Verb("data", "data:data", _PREPARE),
    Verb("train classifier", "train:classifier", _PREPARE),
    Verb("train vae", "train:vae", _PREPARE),
    Verb("train vqvae", "train:vqvae", _PREPARE),
    Verb("train gan", "train:gan", _PREPARE),
    Verb("train judge", "judge:train", _PREPARE),
    Verb("layers", "layers:layers", _PREPARE),
    Verb("run", "run:run", _SEARCH),
    Verb("resume", "run:resume", _SEARCH),
    Verb("status", "status:status", _SEARCH),
    Verb("escape", "escape:escape", _SEARCH),
    Verb("coverage", "coverage:coverage", _RESULTS),
    Verb("judge", "judge:judge", _RESULTS),
    Verb("report", "report:report", _RESULTS),
    Verb("compare", "compare:compare", _RESULTS),
    Verb("replay", "replay:replay", _RESULTS),
    Verb("gate", "gate:gate", _RESULTS),
    Verb("shrink", "shrink:shrink", _RESULTS),
    Verb("export", "report:export", _RESULTS),
    Verb("cite", "report:cite", _RESULTS),
    Verb("retrain", "retrain:retrain", _SCIENCE),
    Verb("faults", "faults:faults", _SCIENCE),
    Verb("reproduce", "reproduce:reproduce", _SCIENCE),
)
_HELP = "Find realistic inputs on which an image classifier fails, and say how far each can be trusted."
_GROUPS = {"train": "Train the networks that methods need; they are kept and reused."}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed()
    try:
        code = build(words)(args=words, prog_name="hardcase", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Problem as problem:
        typer.echo(f"error: {problem}", err=True)
        return problem.code
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        told = usage(error)
        return internal(error, verbose=bool({"-v", "--verbose"} & {*words})) if told is None else told


def build(words: Sequence[str] = ()) -> typer.Typer:
    """The command with the verb that `words` begin with; with all of them if it is not known, for help and hints."""
    app = typer.Typer(
        cls=Spreading, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    app.callback(help=_HELP)(_top)
    groups: dict[str, typer.Typer] = {}
    named = [verb for verb in VERBS if words and verb.name.split()[0] == words[0]]
    for verb in named or VERBS:
        group, _, name = verb.name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, help=_GROUPS[group])
            app.add_typer(groups[group], name=group, rich_help_panel=verb.panel)
        (groups[group] if group else app).command(name, rich_help_panel=None if group else verb.panel)(_function(verb))
    return app


def _function(verb: Verb) -> Any:
    module, _, function = verb.where.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), function)


def _version(asked: bool) -> bool:
    if asked:
        from hardcase import __version__

        typer.echo(f"hardcase {__version__}")
        raise typer.Exit
    return asked


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """What stands before any verb."""
