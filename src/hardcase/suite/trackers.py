"""A run as an entry of a tracking store: MLflow, Weights & Biases or TensorBoard."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hardcase.errors import Problem, choice
from hardcase.report.content import read_history
from hardcase.runs.files import read_plain
from hardcase.runs.results import Run

__all__ = ["TRACKERS", "Point", "TrackedRun", "metrics", "parameters", "track"]

BATCH = 500
"""Numbers sent at a time; MLflow takes a thousand."""
LONGEST = 500
"""Characters of a setting that are kept."""
CURVES = ("queries", "gradients", "seeds_done", "failing_seeds", "findings")


class Point(NamedTuple):
    """A number of a run: `seconds` since its start, `step` counts finished shards."""

    name: str
    value: float
    seconds: float
    step: int


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a store is given: the run, its settings, its numbers, and files with their folders."""

    run: Run
    settings: Mapping[str, str]
    points: Sequence[Point]
    files: Sequence[tuple[Path, str]]

    @property
    def begun(self) -> float:
        """When the run began, in seconds since 1970; 0 if it does not say."""
        created = self.run.record.get("created")
        return datetime.fromisoformat(created).timestamp() if created else 0.0


def track(run: Run, to: str, *, uri: str | None = None, experiment: str = "hardcase") -> str:
    """Enter `run` into a tracking store; returns the id, address or folder it has there.

    Args:
        run: A stored run.
        to: ``mlflow``, ``wandb`` or ``tensorboard``.
        uri: Of MLflow the tracking store, else ``MLFLOW_TRACKING_URI``; of the others the folder
            that is written into.
        experiment: The experiment (MLflow) or project (Weights & Biases) of the entry.
    """
    if to not in TRACKERS:
        raise choice("tracking store", to, list(TRACKERS))
    with tempfile.TemporaryDirectory() as place:
        files = list(_files(run, Path(place)))
        entry = TrackedRun(run, parameters(run), list(metrics(run)), files)
        try:
            return TRACKERS[to](entry, uri, experiment)
        except ImportError as error:
            raise Problem(
                f"tracking with {to} needs a library that is not installed ({error}).",
                fix=f"pip install 'hardcase[{to}]'",
            ) from error
        except Exception as error:  # every store has errors of its own kind
            where = uri or os.environ.get("MLFLOW_TRACKING_URI", "the default place")
            first = (str(error).splitlines() or [""])[0]
            raise Problem(
                f"the tracking store at {where} cannot be written: {first}",
                fix="--uri: an address of a tracking server, or a folder that can be written",
            ) from error


def _files(run: Run, place: Path) -> Iterator[tuple[Path, str]]:
    """Copies of a run's metadata, and a report that is written for this: nothing that lies in a
    foreign folder is passed on unread.
    """
    for name in ("run.json", "config.toml", "history.csv"):
        with suppress(OSError):
            (place / name).write_bytes(read_plain(run.folder / name))
            yield place / name, ""
    for path in sorted(run.report(place / "report").parent.iterdir()):
        yield path, "report"


def parameters(run: Run) -> dict[str, str]:
    """The settings of a run and the hashes of what it used, by their full names."""
    try:
        settings = run.store.settings()
    except Problem:  # the record says what matters most
        settings = {}
    known = ("method", "model", "data", "seed", "seeds", "split")
    record: dict[str, Any] = {name: run.record[name] for name in known if name in run.record}
    return dict(_flat({**record, **settings, "hashes": run.record.get("hashes", {})}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value != []:
            yield f"{prefix}{name}", str(value)


def metrics(run: Run) -> Iterator[Point]:
    """The growth curves by finished shards, then the counts at the end."""
    for step, row in enumerate(read_history(run.folder / "history.csv")):
        for name in CURVES:
            if name in row:
                yield Point(f"history.{name}", row[name], row["seconds"], step)
    end = float(run.record.get("elapsed", 0))
    counts = run.counts()
    parts = {name: counts[name] for name in ("funnel", "skipped", "findings")}
    parts["totals"] = run.record.get("totals", {})
    for part, values in parts.items():
        for name, value in values.items():
            if value is not None:
                yield Point(f"{part}.{name}", float(value), end, 0)
    yield Point("elapsed", end, end, 0)


def _mlflow(entry: TrackedRun, uri: str | None, experiment: str) -> str:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is reported elsewhere
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    record = entry.run.record
    begun = 1000 * entry.begun
    known = client.get_experiment_by_name(experiment)
    place = known.experiment_id if known else client.create_experiment(experiment)
    complete = bool(record.get("complete"))
    name = str(
        client.create_run(
            place,
            start_time=int(begun),
            run_name=entry.run.folder.name,
            tags={"hardcase.folder": str(entry.run.folder), "hardcase.complete": str(complete)},
        ).info.run_id
    )
    settings = [Param(key, text[:LONGEST]) for key, text in entry.settings.items()]
    client.log_batch(name, params=settings)
    every = [Metric(p.name, p.value, int(begun + 1000 * p.seconds), p.step) for p in entry.points]
    for start in range(0, len(every), BATCH):
        client.log_batch(name, metrics=every[start : start + BATCH])
    for path, folder in entry.files:
        client.log_artifact(name, str(path), folder or None)
    end = int(begun + 1000 * float(record.get("elapsed", 0)))
    client.set_terminated(name, {True: "FINISHED", False: "KILLED"}[complete], end)
    return name


def _wandb(entry: TrackedRun, uri: str | None, experiment: str) -> str:
    """Offline unless ``WANDB_MODE`` says otherwise: nothing leaves the machine unasked."""
    library: Any = import_module("wandb")
    folder = Path(uri or ".")
    folder.mkdir(parents=True, exist_ok=True)
    mode = os.environ.get("WANDB_MODE", "offline")
    made = library.init(project=experiment, name=entry.run.folder.name, dir=str(folder), mode=mode)
    made.config.update(dict(entry.settings))
    curves: dict[int, dict[str, float]] = {}
    for point in entry.points:
        if point.name.startswith("history."):
            curves.setdefault(point.step, {})[point.name] = point.value
        else:
            made.summary[point.name] = point.value
    for step, row in sorted(curves.items()):
        made.log(row, step=step)
    for path, inner in entry.files:
        kept = Path(made.dir) / inner / path.name  # the original is a temporary one
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
        made.save(str(kept), base_path=made.dir, policy="now")
    where = made.url or str(Path(made.dir).parent)
    made.finish()
    library.teardown()  # waits until everything is in the file
    return str(where)


def _tensorboard(entry: TrackedRun, uri: str | None, experiment: str) -> str:
    """Event files in a folder; of the files, the configuration as text."""
    library: Any = import_module("torch.utils.tensorboard")
    folder = str(Path(uri or experiment) / entry.run.folder.name)
    with library.SummaryWriter(folder) as writer:
        rows = [f"| {name} | `{text}` |" for name, text in entry.settings.items()]
        writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
        for point in entry.points:
            place = point.name.replace(".", "/")
            writer.add_scalar(place, point.value, point.step, entry.begun + point.seconds)
        for path, _ in entry.files:
            if path.suffix == ".toml":
                text = path.read_text(encoding="utf-8", errors="replace")
                writer.add_text(path.name, f"```toml\n{text}\n```")
    return folder


TRACKERS: dict[str, Callable[[TrackedRun, str | None, str], str]] = {
    "mlflow": _mlflow,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
}
"""The stores by name: each enters a run and returns where it is."""
