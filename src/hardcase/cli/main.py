"""The command line: the table of verbs, and the messages of commands that fail."""

from __future__ import annotations

import errno
import io
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

from hardcase.cli.options import begin, silence
from hardcase.companions import companion_verbs, load_verb
from hardcase.environment import ADDRESS_SPACE, keep_freed, redact, sanitize
from hardcase.errors import (
    INTERNAL,
    INTERRUPTED,
    UNREAD,
    USAGE,
    HardcaseError,
    count_interrupt,
    end_lost_calls,
)

RENAMED = {
    "--accept": "is now --known",
    "--max-confirmed-rate": "is now --max-accepted-rate",
    "--max-silent-rate": "is now --max-high-confidence-rate",
    "--max-class-rate": "is now --max-class-risk, the failure rate of every class",
    "--max-distinct": "is gone: a number of failure clusters has no interval",
    "--min-usable": "is gone: few images have wide intervals, which pass nothing",
    "--upper": "is gone: every limit is held by its interval",
}
"""Flags by the names that they had, and what became of them."""


def usage(error: BaseException) -> int | None:
    """Tell of an option or a verb that was used wrongly and return the code; None if this error is
    of another kind."""
    explain = getattr(error, "format_message", None)
    if explain is None:
        return None
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2
    text = explain().strip()
    now = RENAMED.get(str(getattr(error, "option_name", "")))
    if now is not None:
        text = f"{getattr(error, 'option_name', '')} {now}."
    typer.echo(f"error: {sanitize(redact(text))}", err=True)
    if context is not None:
        typer.echo(f"  try: {context.command_path} --help", err=True)
    return int(getattr(error, "exit_code", 2))


def internal(error: BaseException, *, verbose: bool) -> int:
    """A line about an internal error, and where its traceback is."""
    text = redact("".join(traceback.format_exception(error)))
    summary = _first_line(error, "no message")
    typer.echo(f"error: internal error: {type(error).__name__}: {summary}", err=True)
    if not verbose:
        where_it_is = f"  The traceback is in {_keep(text)}; -v prints it."
        text = f"{where_it_is} Failures that were stored are safe."
    typer.echo(text, err=True)
    return INTERNAL


def _first_line(error: BaseException, otherwise: str) -> str:
    return (sanitize(redact(str(error))).strip().splitlines() or [otherwise])[0]


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
    """`where` is ``module:function`` in this folder; `line` says on the first screen what it does,
    `group` where that names a verb without a line."""

    name: str
    where: str
    line: str = ""
    group: str = ""


_LOOK = "look closer"
_PASS = "pass on"
_PREPARE = "prepare, look after"
VERBS = (
    Verb(
        "demo", "start:demo", "Test a digit classifier: how often and where it fails, one report."
    ),
    Verb("init", "start:init", "Look at a folder and write a hardcase.toml for it."),
    Verb("doctor", "inspect:doctor", "Check environment, model, data, normalisation."),
    Verb("list", "inspect:listing", "Show methods, criteria, data sets, models and more."),
    Verb("train", "train:train", "Train a network that methods or judges need."),
    Verb("run", "run:run", "Measure how often a model fails, and search for where it does."),
    Verb("resume", "run:resume", "Go on with a run that was stopped."),
    Verb("status", "run:status", "Show where runs stand."),
    Verb("judge", "train:judge", "Judge failures: is the label kept, lost or unsure?"),
    Verb("report", "results:report", "Write the HTML report of runs."),
    Verb("open", "start:open_run", "Write the report of a run and open it."),
    Verb("compare", "results:compare", "Compare runs with statistics."),
    Verb("gate", "results:gate", "Pass or fail a run by limits, for CI."),
    Verb("export", "results:export", "Write the failures in another program's format."),
    Verb("coverage", "inspect:coverage", group=_LOOK),
    Verb("curve", "insight:curve", group=_LOOK),
    Verb("layers", "inspect:layers", group=_LOOK),
    Verb("replay", "results:replay", group=_LOOK),
    Verb("shrink", "results:shrink", group=_LOOK),
    Verb("repair", "repair:repair", group=_PASS),
    Verb("cite", "results:cite", group=_PASS),
    Verb("conditions", "conditions:conditions", group=_PREPARE),
    Verb("data", "inspect:data", group=_PREPARE),
    Verb("cache", "start:cache", group=_PREPARE),
)
_LIGHT = ("list", "status", "cite", "cache")
"""Verbs that import neither PyTorch nor what comes with it."""
_HELP = (
    "hardcase measures how often your image classifier fails under conditions you choose, and"
    " shows you the images."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = spread(sys.argv[1:] if arguments is None else arguments)
    keep_freed()
    end_lost_calls(True)
    begin(words)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: what is told goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it stays
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without our signs gets others
            stream.reconfigure(errors="replace")
    if "_HARDCASE_COMPLETE" in os.environ:  # a shell asks what could come next
        build()(args=words, prog_name="hardcase")
    try:
        _check_memory(words)
        with _counting_interrupts(), silence.ended(_computing(words)):
            outcome = build(words)(args=words, prog_name="hardcase", standalone_mode=False)
            code = outcome() if callable(outcome) else outcome
        sys.stdout.flush()  # a result that nobody can read is no success
        return code if isinstance(code, int) else 0
    except HardcaseError as problem:
        typer.echo(f"error: {problem}", err=True)
        return problem.code
    except typer.Exit as leave:
        return leave.exit_code
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    except (ImportError, MemoryError) as error:
        return _not_loaded(error)
    except (SystemExit, Exception) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return _not_loaded(error)
        # a command ends by returning: whoever calls sys.exit has left its work undone
        if isinstance(error.__context__ or error, BrokenPipeError):  # as in `... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered
            return UNREAD
        if isinstance(error, OSError) and (why := _unwritable()):
            typer.echo(f"error: the standard output cannot be written: {why}", err=True)
            return USAGE
        if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            start = sanitize(redact(str(error.filename)))[:40]
            typer.echo(f"error: {start}…: {error.strerror}", err=True)
            return USAGE
        code_of_usage = usage(error)
        if code_of_usage is not None:
            return code_of_usage
        return internal(error, verbose=bool({"-v", "--verbose"} & {*words}))
    finally:
        end_lost_calls(False)
        begin(())


def _computing(words: Sequence[str]) -> str:
    """The verb of a command that may compute for long without a line; empty for all others, and
    where a person answers questions or wants no words.
    """
    verbs = {verb.name for verb in VERBS} - {*_LIGHT, "init"}
    if not words or words[0] not in verbs or {"-q", "--quiet", "-h", "--help", "--ask"} & {*words}:
        return ""
    return words[0]


def _unwritable() -> str:
    """Why the standard output takes nothing, which is then thrown away; empty where it does."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except io.UnsupportedOperation:  # no file, as in a notebook: it takes everything
        return ""
    except (OSError, ValueError) as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays
        return str(getattr(error, "strerror", None) or error)
    return ""


def _check_memory(words: Sequence[str]) -> None:
    """Refuse verbs that compute where fewer bytes may be mapped than their libraries take."""
    if not words or words[0] in _LIGHT or sys.platform == "win32":
        return
    if words[0].startswith("-") or {"-h", "--help"} & {*words}:
        return
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most == resource.RLIM_INFINITY or most >= ADDRESS_SPACE:
        return
    raise HardcaseError(
        f"this process may use {most / 1e9:.2g} GB of memory addresses; PyTorch and the other "
        f"libraries take {ADDRESS_SPACE / 1e9:.2g} GB.",
        "With less they hang or crash at any moment.",
        fix="ulimit -v unlimited, or a larger limit",
    )


def _not_loaded(error: ImportError | MemoryError | OSError) -> int:
    """A line about a library that cannot be loaded, or missing memory."""
    summary = _first_line(error, "no memory is left")
    typer.echo(f"error: a library cannot be loaded, or memory is short: {summary}", err=True)
    typer.echo("  try: more memory (ulimit -v), or hardcase doctor", err=True)
    return USAGE


@contextmanager
def _counting_interrupts() -> Iterator[None]:
    """Tell the guard around user code of every Ctrl-C, so that it knows those a model raises
    itself."""
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
    """The command with the verb that `words` begin with; with all of them if the verb is unknown,
    for help and hints."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=not words or words[0].startswith("-"),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    named = [verb for verb in VERBS if words and verb.name == words[0]]
    epilog = None
    if not named:
        epilog = "\n\n".join(f"{group}: {', '.join(names)}" for group, names in _more().items())
    app.callback(help=_HELP, epilog=epilog)(_top)
    if not named:
        companions = companion_verbs()
        if words and words[0] in companions:
            _add_companion(app, words[0])
            return app
        for name, line in companions.items():  # for help alone: none of them is imported
            app.command(name, help=line, hidden=True)(lambda: None)
    for verb in named or VERBS:
        short = verb.line or None
        app.command(verb.name, short_help=short, hidden=bool(verb.group))(_function(verb))
    return app


def _more() -> dict[str, list[str]]:
    """The verbs that the first screen names without a separate line."""
    groups: dict[str, list[str]] = {}
    for verb in VERBS:
        if verb.group:
            groups.setdefault(verb.group, []).append(verb.name)
    return {
        **groups,
        "people, papers, other programs": [*companion_verbs()],
    }


def _add_companion(app: typer.Typer, name: str) -> None:
    """Add a verb of another distribution: a command or a group of commands."""
    loaded = load_verb(name)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name)(loaded)


def _function(verb: Verb) -> Any:
    module, _, function = verb.where.partition(":")
    return getattr(import_module(f"hardcase.cli.{module}"), function)


def _version(requested: bool) -> bool:
    if requested:
        from hardcase import __version__

        typer.echo(f"hardcase {__version__}")
        raise typer.Exit
    return requested


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """What stands before any verb."""
