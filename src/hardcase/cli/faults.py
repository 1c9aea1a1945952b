"""``hardcase faults``: which method detects which planted fault."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import note, shown, tell


def faults(
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Which methods; see hardcase list methods.")
    ] = "feature-perturbation,pgd,sinvad",
    tests: Annotated[
        int | None, typer.Option(metavar="N", min=10, help="Seeds a direction and fault (25; 100 with --full).")
    ] = None,
    only: Annotated[str | None, typer.Option("--faults", metavar="A,B", help="Which faults; all by default.")] = None,
    data: Annotated[str, typer.Option(help="Grey digits to plant them into.")] = "mnist5k",
    full: Annotated[bool, typer.Option("--full", help="100 tests a direction.")] = False,
    seed: o.Seed = None,
    device: o.Device = None,
    settings: o.Settings = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Plant eight faults into small networks and see which methods detect them; networks are trained if missing."""
    from hardcase.cli.closing import logging_to
    from hardcase.cli.reproduce import show
    from hardcase.cli.settings import free
    from hardcase.config import assign
    from hardcase.experiments.bench import Bench
    from hardcase.experiments.faults import run
    from hardcase.planning import device as existing

    logging_to(verbose=verbose, quiet=quiet)
    chosen: dict[str, object] = {"methods": methods.split(",")}
    chosen |= {"tests": tests} if tests else {}
    chosen |= {"faults": only.split(",")} if only else {}
    bench = Bench(
        out=out or free(Path("runs") / "faults"), data=data, full=full, seed=seed or 0, device=existing(device or "cpu"),
        options=assign(chosen, settings or []), say=(lambda text: None) if quiet else note,
    )  # fmt: skip
    outcome = run(bench)
    page = outcome.write(bench.out)
    if format == "json":
        tell((bench.out / "results.json").read_text(encoding="utf-8").rstrip())
        return
    show(outcome)
    tell(f"written to {shown(page)}")
