"""The command line: the table of verbs, and what is said when a command fails."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from hardcase.cli.output import begin
from hardcase.companions import companion_verbs, load_verb
from hardcase.environment import keep_freed, legible, redact
from hardcase.errors import INTERNAL, INTERRUPTED, UNREAD, Problem
from hardcase.usercode import count_interrupt


def usage(error: BaseException) -> int | None:
    """Tell of an option or a verb that was used wrongly and return the code;
    None if this error is of another kind.
    """
    explain = getattr(error, "format_message", None)
    if explain is None:
        return None
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2
    typer.echo(f"error: {legible(redact(explain().strip()))}", err=True)
    if context is not None:
        typer.echo(f"  try: {context.command_path} --help", err=True)
    return int(getattr(error, "exit_code", 2))


def internal(error: BaseException, *, verbose: bool) -> int:
    """One line about an error nobody foresaw, and where its traceback is."""
    text = redact("".join(traceback.format_exception(error)))
    summary = (legible(redact(str(error))).strip().splitlines() or ["no message"])[0]
    typer.echo(f"error: something unforeseen: {type(error).__name__}: {summary}", err=True)
    if verbose:
        typer.echo(text, err=True)
    else:
        typer.echo(
            f"  The traceback is in {_keep(text)}; -v prints it. Findings that were stored are"
            " safe.",
            err=True,
        )
    return INTERNAL


def _keep(text: str) -> Path | str:
    from hardcase.cache import cache_folder

    name = f"hardcase-{datetime.now():%Y%m%d-%H%M%S-%f}.txt"
    for folder in (cache_folder() / "tracebacks", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            return folder / name
        except OSError:
            continue
    return "no file (nothing could be written)"


_PAIR = re.compile(r"[A-Za-z_][\w.]*=")


class Spreading(TyperGroup):
    """The top command: it spreads settings before any verb sees them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(words: Iterable[str]) -> list[str]:
    """`words` with the flag repeated before every further pair that follows ``--set``."""
    result: list[str] = []
    setting = False
    for word in words:
        if setting and result[-1] != "--set" and _PAIR.match(word):
            result.append("--set")
        setting = word == "--set" or (
            setting and (result[-1] == "--set" or bool(_PAIR.match(word)))
        )
        result.append(word)
    return result


class Verb(NamedTuple):
    """`name` may be two words (``train vae``); `where` is ``module:function`` in this folder;
    `panel` groups the help.
    """

    name: str
    where: str
    panel: str


_START = "Start here"
_SEARCH = "Find failures"
_DECIDE = "Decide which count, and whether it ships"
_RESULTS = "Look at them, repair, pass them on"
_PREPARE = "Prepare by hand, and look after what is kept"
_COMPANIONS = "Beside it: hardcase[study] and hardcase[studies]"
VERBS = (
    Verb("demo", "demo:demo", _START),
    Verb("init", "start:init", _START),
    Verb("doctor", "inspect:doctor", _START),
    Verb("run", "run:run", _START),
    Verb("open", "start:open_run", _START),
    Verb("list", "listing:listing", _START),
    Verb("resume", "run:resume", _SEARCH),
    Verb("status", "run:status", _SEARCH),
    Verb("curve", "insight:curve", _SEARCH),
    Verb("coverage", "inspect:coverage", _SEARCH),
    Verb("judge", "train:judge", _DECIDE),
    Verb("gate", "results:gate", _DECIDE),
    Verb("compare", "results:compare", _DECIDE),
    Verb("replay", "results:replay", _DECIDE),
    Verb("report", "results:report", _RESULTS),
    Verb("shrink", "results:shrink", _RESULTS),
    Verb("retrain", "science:retrain", _RESULTS),
    Verb("export", "results:export", _RESULTS),
    Verb("cite", "results:cite", _RESULTS),
    Verb("data", "inspect:data", _PREPARE),
    Verb("fetch model", "fetch:model", _PREPARE),
    Verb("train classifier", "train:classifier", _PREPARE),
    Verb("train vae", "train:vae", _PREPARE),
    Verb("train vqvae", "train:vqvae", _PREPARE),
    Verb("train gan", "train:gan", _PREPARE),
    Verb("train diffusion", "train:diffusion", _PREPARE),
    Verb("train judge", "train:judging", _PREPARE),
    Verb("train witness", "train:witness", _PREPARE),
    Verb("layers", "inspect:layers", _PREPARE),
    Verb("cache", "start:cache", _PREPARE),
    Verb("licences", "licences:licences", _PREPARE),
)
_HELP = (
    "Find realistic inputs on which an image classifier fails, and say how far each can be trusted."
)
_GROUPS = {
    "fetch": "Fetch networks that others have trained, by name.",
    "train": "Train the networks that methods need; they are kept and reused.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    keep_freed()
    begin(words)
    if "_HARDCASE_COMPLETE" in os.environ:  # a shell asks what could come next
        build()(args=words, prog_name="hardcase")
    try:
        with _counting_interrupts():
            code = build(words)(args=words, prog_name="hardcase", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except Problem as problem:
        typer.echo(f"error: {problem}", err=True)
        return problem.code
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    except (SystemExit, Exception) as error:
        # a command ends by returning: whoever calls sys.exit has left its work undone
        if isinstance(error.__context__ or error, BrokenPipeError):
            return _nobody_reads()
        told = usage(error)
        if told is not None:
            return told
        return internal(error, verbose=bool({"-v", "--verbose"} & {*words}))
    finally:
        begin(())


def _nobody_reads() -> int:
    """The exit code where the reader of a pipe has gone, as in ``hardcase list methods | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
    return UNREAD


@contextmanager
def _counting_interrupts() -> Iterator[None]:
    """Tell the guard around user code of every Ctrl-C, so that it knows those a model raises
    itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else decides what Ctrl-C means
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    count_interrupt()
    raise KeyboardInterrupt


def build(words: Sequence[str] = ()) -> typer.Typer:
    """The command with the verb that `words` begin with; with all of them if it is not known,
    for help and hints.
    """
    app = typer.Typer(
        cls=Spreading,
        no_args_is_help=True,
        add_completion=not words or words[0].startswith("-"),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP)(_top)
    groups: dict[str, typer.Typer] = {}
    named = [verb for verb in VERBS if words and verb.name.split()[0] == words[0]]
    if not named:
        companions = companion_verbs()
        if words and words[0] in companions:
            _add_companion(app, words[0])
            return app
        for name, line in companions.items():  # for help alone: none of them is imported
            app.command(name, help=line, rich_help_panel=_COMPANIONS)(lambda: None)
    for verb in named or VERBS:
        group, _, name = verb.name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(no_args_is_help=True, help=_GROUPS[group])
            app.add_typer(groups[group], name=group, rich_help_panel=verb.panel)
        if group:
            groups[group].command(name)(_function(verb))
        else:
            app.command(name, rich_help_panel=verb.panel)(_function(verb))
    return app


def _add_companion(app: typer.Typer, name: str) -> None:
    """Add a verb of another distribution, which is one command or a group of them."""
    loaded = load_verb(name)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name)(loaded)


def _function(verb: Verb) -> Any:
    module, _, function = verb.where.partition(":")
    return getattr(import_module(f"hardcase.cli.{module}"), function)


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
