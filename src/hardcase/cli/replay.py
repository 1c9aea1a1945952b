"""``hardcase replay``: stored tests and another version of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.afterwards import config_of, rate
from hardcase.cli.speaking import as_json, facts, tell


def replay(
    folder: o.OneRun,
    model: Annotated[str, typer.Option(help="The other version; zoo:NAME, file.py:factory ...")],
    settings: o.Settings = None,
    trust_pickle: o.TrustPickle = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Every test with what is answered now.")] = None,
    device: o.Device = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Show the stored tests of a run to another version of the model: fixed, still failing, newly failing."""
    from hardcase.cache import write_atomically
    from hardcase.cli.closing import logging_to
    from hardcase.planning import subject
    from hardcase.results import Run
    from hardcase.suite.replay import replay as again

    logging_to(verbose=verbose, quiet=quiet)
    run = Run(folder)
    config = config_of(run, model=model, settings=settings, trust_pickle=trust_pickle, device=device, offline=offline)
    found = again(run, subject(config, model))
    if out is not None:
        import json

        write_atomically(out, json.dumps({**found.summary(), "rows": found.rows()}, indent=1).encode())
    as_json(found.summary()) if format == "json" else _tell(found.summary())


def _tell(said: dict[str, Any]) -> None:
    seeds = said["seeds"]
    lines = {
        "model": said["model"],
        "fixed": rate(said["fixed"]),
        "still failing": rate(said["still_failing"]),
    }
    if said["confirmed"] is not None:
        lines |= {"fixed, confirmed tests": rate(said["confirmed"]["fixed"])}
    lines |= {
        "newly failing seeds": f"{rate(seeds['newly_failing'])} that were right before",
        "newly right seeds": f"{rate(seeds['newly_right'])} that were wrong before",
        "seeds, McNemar": f"p = {seeds['mcnemar_p']:.3g}",
        "seeds and tests, McNemar": f"p = {said['mcnemar_p']:.3g}",
    }
    tell(facts(lines))
