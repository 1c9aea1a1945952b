"""A run as an entry of a tracking store: MLflow, Weights & Biases or TensorBoard.

Each store is a small class that takes settings, numbers and files; what they are is said once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from hardcase.errors import Problem, choice
from hardcase.report.content import read_history
from hardcase.runs.files import read_plain
from hardcase.runs.results import Run

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


@runtime_checkable
class Tracker(Protocol):
    """What a store has to take. It is made from the run, ``--uri`` and ``--experiment``."""

    def settings(self, values: Mapping[str, str]) -> None: ...

    def points(self, values: Sequence[Point]) -> None: ...

    def file(self, path: Path, folder: str) -> None: ...

    def close(self) -> str:
        """End the entry and return where it is."""
        ...


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
    try:
        tracker = TRACKERS[to](run, uri, experiment)
        tracker.settings(parameters(run))
        tracker.points(list(metrics(run)))
        _files(run, tracker)
        return tracker.close()
    except ImportError as error:
        raise Problem(
            f"tracking with {to} needs a library that is not installed ({error}).",
            fix=f"pip install 'hardcase[{to}]'",
        ) from error
    except Problem:
        raise
    except Exception as error:  # every store has errors of its own kind
        place = uri or os.environ.get("MLFLOW_TRACKING_URI", "the default place")
        raise Problem(
            f"the tracking store at {place} cannot be written:"
            f" {(str(error).splitlines() or [''])[0]}",
            fix="--uri sqlite:///mlflow.db, or the address of a tracking server"
            if to == "mlflow"
            else "--uri FOLDER that can be written",
        ) from error


def _files(run: Run, tracker: Tracker) -> None:
    """The papers of a run, and its report, which is written for that: what lies in a folder of
    others is not passed on unread.
    """
    with tempfile.TemporaryDirectory() as place:
        for name in ("run.json", "config.toml", "history.csv"):
            with suppress(OSError):
                copy = Path(place) / name
                copy.write_bytes(read_plain(run.folder / name))
                tracker.file(copy, "")
        for path in sorted(run.report(Path(place) / "report").parent.iterdir()):
            tracker.file(path, "report")


def parameters(run: Run) -> dict[str, str]:
    """The settings of a run and the hashes of what it used, by their full names."""
    try:
        settings = run.store.settings()
    except Problem:  # the record says what matters most
        settings = {}
    record: dict[str, Any] = {
        name: run.record[name]
        for name in ("method", "model", "data", "seed", "seeds", "split")
        if name in run.record
    }
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


class _Mlflow:
    def __init__(self, run: Run, uri: str | None, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it tells nobody else
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        self.begun = 1000 * _begun(run)
        self.seconds = float(run.record.get("elapsed", 0))
        self.complete = bool(run.record.get("complete"))
        known = self.client.get_experiment_by_name(experiment)
        place = known.experiment_id if known else self.client.create_experiment(experiment)
        tags = {"hardcase.folder": str(run.folder), "hardcase.complete": str(self.complete)}
        made = self.client.create_run(
            place, start_time=int(self.begun), run_name=run.folder.name, tags=tags
        )
        self.id = str(made.info.run_id)

    def settings(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = [Param(name, text[:LONGEST]) for name, text in values.items()]
        self.client.log_batch(self.id, params=params)

    def points(self, values: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        every = [
            Metric(one.name, one.value, int(self.begun + 1000 * one.seconds), one.step)
            for one in values
        ]
        for start in range(0, len(every), BATCH):
            self.client.log_batch(self.id, metrics=every[start : start + BATCH])

    def file(self, path: Path, folder: str) -> None:
        self.client.log_artifact(self.id, str(path), folder or None)

    def close(self) -> str:
        status = "FINISHED" if self.complete else "KILLED"
        self.client.set_terminated(self.id, status, int(self.begun + 1000 * self.seconds))
        return self.id


class _Wandb:
    """Offline unless ``WANDB_MODE`` says otherwise: nothing leaves the machine unasked."""

    def __init__(self, run: Run, uri: str | None, experiment: str) -> None:
        self.library: Any = import_module("wandb")
        mode = os.environ.get("WANDB_MODE", "offline")
        folder = Path(uri or ".")
        folder.mkdir(parents=True, exist_ok=True)
        self.entry = self.library.init(
            project=experiment, name=run.folder.name, dir=str(folder), mode=mode
        )

    def settings(self, values: Mapping[str, str]) -> None:
        self.entry.config.update(dict(values))

    def points(self, values: Sequence[Point]) -> None:
        curves: dict[int, dict[str, float]] = {}
        for one in values:
            if one.name.startswith("history."):
                curves.setdefault(one.step, {})[one.name] = one.value
            else:
                self.entry.summary[one.name] = one.value
        for step, row in sorted(curves.items()):
            self.entry.log(row, step=step)

    def file(self, path: Path, folder: str) -> None:
        kept = Path(self.entry.dir) / folder / path.name  # the original may be a temporary one
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(path.read_bytes())
        self.entry.save(str(kept), base_path=self.entry.dir, policy="now")

    def close(self) -> str:
        where = self.entry.url or str(Path(self.entry.dir).parent)
        self.entry.finish()
        self.library.teardown()  # waits until everything is in the file
        return str(where)


class _TensorBoard:
    """Event files in a folder; of the files, those of text."""

    def __init__(self, run: Run, uri: str | None, experiment: str) -> None:
        library: Any = import_module("torch.utils.tensorboard")
        self.folder = Path(uri or experiment) / run.folder.name
        self.begun = _begun(run)
        self.writer = library.SummaryWriter(str(self.folder))

    def settings(self, values: Mapping[str, str]) -> None:
        rows = [f"| {name} | `{text}` |" for name, text in values.items()]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))

    def points(self, values: Sequence[Point]) -> None:
        for one in values:
            place = one.name.replace(".", "/")
            self.writer.add_scalar(place, one.value, one.step, self.begun + one.seconds)

    def file(self, path: Path, folder: str) -> None:
        if path.suffix == ".toml":
            text = path.read_text(encoding="utf-8", errors="replace")
            self.writer.add_text(path.name, f"```toml\n{text}\n```")

    def close(self) -> str:
        self.writer.close()
        return str(self.folder)


def _begun(run: Run) -> float:
    """When the run began, in seconds since 1970; 0 if it does not say."""
    created = run.record.get("created")
    return datetime.fromisoformat(created).timestamp() if created else 0.0


TRACKERS: dict[str, Callable[[Run, str | None, str], Tracker]] = {
    "mlflow": _Mlflow,
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
}
"""The stores by name."""
