"""A run as an entry of an MLflow tracking store: settings, funnel, growth curves, report. MLflow is an extra."""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from hardcase.errors import Problem
from hardcase.report.cost import read_history
from hardcase.results import Run

BATCH = 500
"""Numbers sent at a time; MLflow takes a thousand."""
LONGEST = 500
"""Characters of a setting that are kept."""
CURVES = ("queries", "gradients", "seeds_done", "failing_seeds", "findings")


def track(run: Run, *, uri: str | None = None, experiment: str = "hardcase") -> str:
    """Enter `run` into the store at `uri` (else the one in ``MLFLOW_TRACKING_URI``); returns the id it has there."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing goes anywhere else than where it was sent
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise Problem("tracking needs MLflow, which is not installed.", fix="pip install 'hardcase[mlflow]'") from error
    try:
        return _enter(MlflowClient(tracking_uri=uri), run, experiment)
    except (MlflowException, OSError) as error:
        place = uri or os.environ.get("MLFLOW_TRACKING_URI", "the default place")
        raise Problem(
            f"the tracking store at {place} cannot be written: {(str(error).splitlines() or [''])[0]}",
            fix="--uri sqlite:///mlflow.db, or the address of a tracking server",
        ) from error


def _enter(client: Any, run: Run, experiment: str) -> str:
    from mlflow.entities import Metric, Param

    begun = _milliseconds(run.record.get("created"))
    known = client.get_experiment_by_name(experiment)
    place = known.experiment_id if known else client.create_experiment(experiment)
    tags = {"hardcase.folder": str(run.folder), "hardcase.complete": str(bool(run.record.get("complete")))}
    number = str(client.create_run(place, start_time=begun, run_name=run.folder.name, tags=tags).info.run_id)
    settings = [Param(name, text[:LONGEST]) for name, text in parameters(run).items()]
    client.log_batch(number, params=settings)
    points = [Metric(name, value, begun + int(1000 * at), step) for name, value, at, step in metrics(run)]
    for start in range(0, len(points), BATCH):
        client.log_batch(number, metrics=points[start : start + BATCH])
    _artefacts(client, number, run)
    end = begun + int(1000 * float(run.record.get("elapsed", 0)))
    client.set_terminated(number, "FINISHED" if run.record.get("complete") else "KILLED", end)
    return number


def parameters(run: Run) -> dict[str, str]:
    """The settings of a run and the hashes of what it used, by their full names."""
    try:
        settings = tomllib.loads((run.folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the record says what matters most
        settings = {}
    record: dict[str, Any] = {
        name: run.record[name] for name in ("method", "model", "data", "seed", "seeds", "split") if name in run.record
    }
    return dict(_flat({**record, **settings, "hashes": run.record.get("hashes", {})}))


def metrics(run: Run) -> Iterator[tuple[str, float, float, int]]:
    """Name, value, seconds since the start, step: the growth curves by finished shards, then the counts at the end."""
    for step, row in enumerate(read_history(run.folder / "history.csv")):
        yield from ((f"history.{name}", row[name], row["seconds"], step) for name in CURVES if name in row)
    end, counts = float(run.record.get("elapsed", 0)), run.counts()
    parts = {name: counts[name] for name in ("funnel", "skipped", "findings")} | {
        "totals": run.record.get("totals", {})
    }
    for part, values in parts.items():
        yield from ((f"{part}.{name}", float(value), end, 0) for name, value in values.items() if value is not None)
    yield "elapsed", end, end, 0


def _artefacts(client: Any, number: str, run: Run) -> None:
    for name in ("run.json", "config.toml", "history.csv"):
        if (run.folder / name).is_file():
            client.log_artifact(number, str(run.folder / name))
    with tempfile.TemporaryDirectory() as folder:
        page = run.folder / "report" / "index.html"
        where = page.parent if page.is_file() else run.report(folder).parent
        client.log_artifacts(number, str(where), "report")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            yield f"{prefix}{name}", str(value)


def _milliseconds(created: str | None) -> int:
    return int(1000 * datetime.fromisoformat(created).timestamp()) if created else 0


__all__ = ["metrics", "parameters", "track"]
