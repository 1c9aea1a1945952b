"""What is said, and which code is returned, when a command fails in a way that is not a `Problem`."""

from __future__ import annotations

import tempfile
import traceback
from datetime import datetime
from pathlib import Path

import typer

from hardcase.errors import INTERNAL


def usage(error: Exception) -> int | None:
    """Tell of an option or a verb that was used wrongly and return the code; None if this error is of another kind."""
    explain = getattr(error, "format_message", None)
    if explain is None:
        return None
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2
    typer.echo(f"error: {explain().strip()}", err=True)
    if context is not None:
        typer.echo(f"  try: {context.command_path} --help", err=True)
    return int(getattr(error, "exit_code", 2))


def internal(error: Exception, *, verbose: bool) -> int:
    """One line about an error nobody foresaw, and where its traceback is."""
    text = "".join(traceback.format_exception(error))
    summary = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    typer.echo(f"error: something unforeseen: {type(error).__name__}: {summary}", err=True)
    if verbose:
        typer.echo(text, err=True)
    else:
        typer.echo(f"  The traceback is in {_keep(text)}; -v prints it. Findings that were stored are safe.", err=True)
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
