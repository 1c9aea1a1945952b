"""``hardcase doctor``: is everything in order, and if not, what is to be done."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from hardcase.cli import options as o
from hardcase.cli.examining import Finding, environment, job
from hardcase.cli.speaking import as_json, tell
from hardcase.errors import USAGE


def doctor(
    config: o.ConfigFile = None,
    model: o.Model = None,
    data: o.Data = None,
    method: o.Method = None,
    settings: o.Settings = None,
    device: o.Device = None,
    offline: o.Offline = False,
    allow_low_accuracy: o.AllowLow = False,
    trust_pickle: o.TrustPickle = False,
    format: o.AsFormat = o.Format.text,
    verbose: o.Verbose = False,
) -> None:
    """Check the environment, the model, the data and their normalisation, and make a ten-second smoke run."""
    flags = dict(locals())
    from hardcase.cli.closing import logging_to
    from hardcase.cli.settings import resolve
    from hardcase.cli.watching import front

    logging_to(verbose=verbose, quiet=not verbose)
    wanted = resolve(flags, {"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"})
    seen = list(_told(environment(), show=format == "text"))
    with front("plain") as screen:
        seen += _told(job(wanted, screen.train), show=format == "text")
    if format == "json":
        as_json([{"what": one.what, "state": one.state, "detail": one.detail, "remedy": one.remedy} for one in seen])
    bad = sum(one.state == "problem" for one in seen)
    if format == "text":
        tell(f"\n{bad} problem{'s' if bad != 1 else ''}" if bad else "\neverything is in order")
    if bad:
        raise typer.Exit(USAGE)


def _told(findings: Iterator[Finding], *, show: bool) -> Iterator[Finding]:
    for one in findings:
        if show:
            tell(f"{one.state:<8} {one.what:<14} {one.detail}" + (f"\n{'':24}try: {one.remedy}" if one.remedy else ""))
        yield one
