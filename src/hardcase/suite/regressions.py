"""What a search for regressions shows beyond its nulls: the same search with the roles swapped, and
between the old version and a retraining of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hardcase.analysis.insight import attempted_labels
from hardcase.analysis.regression import Excess, excess
from hardcase.config import parse, read
from hardcase.context import Context
from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.runs.results import Run
from hardcase.runs.start import plan_of, start
from hardcase.runs.verify import REGRESSION, keep_beside, read_beside

NULLS = {"swapped": "the roles swapped", "retrained": "a retraining of the old version"}
"""The nulls, and what they are called."""
RETRAINED = "?seed=1"
"""What makes another training of a zoo network of its name."""


def against_nulls(
    run: Run | str | Path,
    *,
    retrained: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Excess:
    """Run the nulls of a complete search for regressions beside it, and keep what exceeds them.

    The nulls are runs of their own, ``RUN-swapped`` and ``RUN-retrained``; those that are there
    already are read, or finished.

    Args:
        run: A run that was started with ``--baseline``.
        retrained: A retraining of the old version; of a zoo network another training is made.
            Without one, the roles swapped are the only null.
        say: Told what is done.
    """
    done = run if isinstance(run, Run) else Run(run)
    config = parse(read(done.folder / "config.toml"))
    if config.baseline is None:
        raise Problem(
            f"{done.folder} did not search for regressions.", fix="hardcase run --baseline OLD"
        )
    retraining = retrained or _another_training(config.baseline)
    models = {"swapped": (config.baseline, config.model)}
    if retraining is not None:
        models["retrained"] = (retraining, config.baseline)
    else:
        say("no retraining of the old version is known (--retrained MODEL): one null only")
    nulls = {}
    for name, (model, was) in models.items():
        say(f"null: {model} in place of {config.model}, {was} in place of {config.baseline}")
        changed = config.model_copy(update={"model": model, "baseline": was})
        folder = done.folder.with_name(f"{done.folder.name}-{name}")
        again = (folder / "run.json").is_file()
        nulls[NULLS[name]] = nearest(start(plan_of(Context(changed)), folder, again=again))
    found = excess(nearest(done), nulls, rng=stream(config.seed, "excess"))
    keep_beside(done.store, REGRESSION, {**found.to_json(), "retraining": retraining})
    return found


def nearest(run: Run) -> dict[str, float]:
    """For each attempted seed the severity of the nearest input that the search found, in the
    distance of its space; with witnesses, of one that they all keep."""
    asked = bool(run.record.get("witnesses"))
    near = dict.fromkeys(attempted_labels(run), math.inf)
    for row in run.findings.select(["seed", "kind", "witnessed", "distance"]).to_pylist():
        if row["seed"] in near and row["kind"] == "label" and (row["witnessed"] or not asked):
            near[row["seed"]] = min(near[row["seed"]], row["distance"])
    return near


def _another_training(was: str) -> str | None:
    """The name of a retraining of a zoo network; None for what only its owner can retrain."""
    if not was.startswith("zoo:") or "?" in was:
        return None
    from hardcase.registry import rows

    trained = {str(row["name"]) for row in rows("models") if row.get("recipe")}
    return f"{was}{RETRAINED}" if was.removeprefix("zoo:") in trained else None


def stored(run: Run) -> Mapping[str, Any] | None:
    """What a run folder keeps of the comparison; None if nothing, or nothing that can be read."""
    said = read_beside(run.store, REGRESSION)
    if said is None:
        return None
    try:
        numbers = {name: float(said[name]) for name in ("found", "excess", "low", "high")}
        counts = {"seeds": int(said["seeds"]), "shown": bool(said["shown"])}
        return {**numbers, **counts, "sentence": str(said["sentence"])}
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
