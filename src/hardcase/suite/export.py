"""The findings as a data set of their own, or as an entry of a tracking store."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardcase.cache import make_folder, write_atomically
from hardcase.config import loads
from hardcase.data.own import natural
from hardcase.errors import Problem, choice
from hardcase.report.content import read_history
from hardcase.runs.directory import read_plain
from hardcase.runs.results import Run
from hardcase.runs.tables import read_images, to_parquet
from hardcase.tensors import encode_all
from hardcase.types import ClassNames

_FACTS = (
    "id",
    "seed",
    "kind",
    "predicted",
    "confidence",
    "queries",
    "distance",
    "l2",
    "linf",
    "method",
)
_VERDICTS = ("valid", "label_kept")
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: test
    path: data/test-*.parquet
---
Findings of hardcase. `label` is the class of the seed a finding was made from, `predicted`
what the model said.
{standing}
"""


def export(run: Run, to: str, out: Path) -> Path:
    """Write every finding of `run` as a data set and return it: a folder, or for ``npz`` a file.

    ``imagefolder``: a folder per class, and a `metadata.csv`. ``hf``: a folder that
    `datasets.load_dataset` opens. ``npz``: `images`, `labels`, `predicted`, `classes`, `id`,
    `seed`; `out` is the file, or a folder to put it in.
    """
    forms: dict[str, Callable[[Run, Path], Path]] = {
        "imagefolder": _imagefolder,
        "hf": _hf,
        "npz": _npz,
    }
    if to not in forms:
        raise choice("form of export", to, list(forms))
    if not len(run):
        raise Problem(f"{run.folder} holds no findings, so there is nothing to export.")
    labels = run.findings.column("expected").to_pylist()
    if not all(0 <= label < len(run.classes) for label in labels):
        raise Problem(f"{run.folder} is damaged: it has labels of classes that its data lacks.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Problem(
            f"{out} exists and is not empty.",
            "An export never writes over anything.",
            fix="another --out",
        )
    return forms[to](run, out)


def pictures(run: Run) -> list[bytes]:
    """Every finding's image as a PNG made here: what is exported is a picture, whatever bytes were
    stored.
    """
    return list(encode_all(read_images(run.findings.column("image"))))


def class_folders(classes: tuple[str, ...]) -> list[str]:
    """A folder name for each class: its own name where file systems take it and the order is kept,
    else with its number.
    """
    tame = [re.sub(r"[^\w .()+-]", "_", name).strip(" .")[:80] for name in classes]
    plain = tame == list(classes) and len({name.casefold() for name in tame}) == len(tame)
    visible = all(tame) and not any(name.startswith("__") for name in tame)
    if plain and visible and tame == sorted(tame) == sorted(tame, key=natural):
        return tame
    width = len(str(len(classes) - 1))
    return [f"{number:0{width}d} {name}".strip() for number, name in enumerate(tame)]


def _imagefolder(run: Run, out: Path) -> Path:
    """Every class has a folder, also an empty one, so that the numbers of the classes stay what
    they are.
    """
    folders = class_folders(run.classes)
    rows = _rows(run)
    images = pictures(run)

    def fill(folder: Path) -> None:
        for name in folders:
            make_folder(folder / name)
        for row, data in zip(rows, images):
            row["file_name"] = f"{folders[row['expected']]}/{row['id']}.png"
            (folder / row["file_name"]).write_bytes(data)
        (folder / "metadata.csv").write_text(_csv(rows, run.classes), encoding="utf-8", newline="")

    return _whole(out, fill)


def _csv(rows: list[dict[str, Any]], classes: ClassNames) -> str:
    text = io.StringIO()
    columns = [
        "file_name",
        "label",
        *(name for name in rows[0] if name not in ("file_name", "expected")),
    ]
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        named = {"label": classes[row["expected"]], "predicted": classes[row["predicted"]]}
        writer.writerow({**row, **named})
    return text.getvalue()


def _hf(run: Run, out: Path) -> Path:
    kind = run.findings.schema.field("image").type
    stored = [{"bytes": picture, "path": None} for picture in pictures(run)]
    columns: dict[str, Any] = {"image": pa.array(stored, kind)}
    columns["label"] = run.findings.column("expected").cast(pa.int64())
    for name in (*_FACTS, *(_VERDICTS if run.verdicts is not None else ())):
        columns[name] = (
            pa.array([row[name] for row in _rows(run)])
            if name in _VERDICTS
            else run.findings.column(name)
        )
    columns["predicted"] = columns["predicted"].cast(pa.int64())
    table = pa.table(columns)
    features = {field.name: _value(field.type) for field in table.schema}
    features |= {"image": {"_type": "Image"}}
    features |= {
        name: _labels(run.classes, columns[name].to_pylist()) for name in ("label", "predicted")
    }
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    standing = (
        "No judge has looked at them."
        if run.verdicts is None
        else "`valid` and `label_kept` are a judge's answers."
    )

    def fill(folder: Path) -> None:
        make_folder(folder / "data")
        (folder / "data/test-00000-of-00001.parquet").write_bytes(to_parquet(table))
        (folder / "README.md").write_text(_CARD.format(standing=standing), encoding="utf-8")

    return _whole(out, fill)


def _labels(classes: ClassNames, values: list[int]) -> dict[str, Any]:
    """The kind of a column of labels: named ones, further outputs of the network by their
    number.
    """
    names = [classes[number] for number in range(max(len(classes), max(values) + 1))]
    if len(set(names)) < len(names) or min(values) < 0:
        return _value(pa.int64())
    return {"_type": "ClassLabel", "names": names}


def _npz(run: Run, out: Path) -> Path:
    table = run.findings
    images = read_images(table.column("image")).permute(0, 2, 3, 1).numpy()
    arrays: dict[str, Any] = {
        "images": images[..., 0] if images.shape[-1] == 1 else images,
        "labels": table.column("expected").to_numpy().astype(np.int64),
        "predicted": table.column("predicted").to_numpy().astype(np.int64),
        "classes": np.array(run.classes),
        **{name: np.array(table.column(name).to_pylist()) for name in ("id", "seed")},
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return write_atomically(
        out if out.suffix == ".npz" and not out.is_dir() else out / "tests.npz", buffer.getvalue()
    )


def _rows(run: Run) -> list[dict[str, Any]]:
    """What is known of each finding, without its image; with the judge's answers where there is a
    judge.
    """
    rows: list[dict[str, Any]] = run.findings.select(["expected", *_FACTS]).to_pylist()
    if run.verdicts is not None:
        for row in rows:
            said = run.verdicts.get(row["id"], {})
            row |= {name: said.get(name) for name in _VERDICTS}
    return rows


def _value(kind: pa.DataType) -> dict[str, Any]:
    return {
        "_type": "Value",
        "dtype": {"float": "float32", "double": "float64"}.get(str(kind), str(kind)),
    }


def _whole(out: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a folder beside `out`, then rename it: `out` appears whole or not at all."""
    temporary = make_folder(out.parent / f".{out.name}-{secrets.token_hex(6)}")
    try:
        fill(temporary)
        os.replace(temporary, out)
    except OSError as error:
        raise Problem(
            f"cannot write {out}: {error.strerror or error}.",
            fix="free some space, or another --out",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


BATCH = 500
"""Numbers sent at a time; MLflow takes a thousand."""
LONGEST = 500
"""Characters of a setting that are kept."""
CURVES = ("queries", "gradients", "seeds_done", "failing_seeds", "findings")


def track(run: Run, *, uri: str | None = None, experiment: str = "hardcase") -> str:
    """Enter `run` into the store at `uri` (else the one in ``MLFLOW_TRACKING_URI``);
    returns the id it has there.
    """
    os.environ.setdefault(
        "MLFLOW_DISABLE_TELEMETRY", "true"
    )  # nothing goes anywhere else than where it was sent
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise Problem(
            "tracking needs MLflow, which is not installed.", fix="pip install 'hardcase[mlflow]'"
        ) from error
    try:
        return _enter(MlflowClient(tracking_uri=uri), run, experiment)
    except (MlflowException, OSError) as error:
        place = uri or os.environ.get("MLFLOW_TRACKING_URI", "the default place")
        raise Problem(
            f"the tracking store at {place} cannot be written:"
            f" {(str(error).splitlines() or [''])[0]}",
            fix="--uri sqlite:///mlflow.db, or the address of a tracking server",
        ) from error


def _enter(client: Any, run: Run, experiment: str) -> str:
    from mlflow.entities import Metric, Param

    begun = _milliseconds(run.record.get("created"))
    known = client.get_experiment_by_name(experiment)
    place = known.experiment_id if known else client.create_experiment(experiment)
    tags = {
        "hardcase.folder": str(run.folder),
        "hardcase.complete": str(bool(run.record.get("complete"))),
    }
    number = str(
        client.create_run(place, start_time=begun, run_name=run.folder.name, tags=tags).info.run_id
    )
    settings = [Param(name, text[:LONGEST]) for name, text in parameters(run).items()]
    client.log_batch(number, params=settings)
    points = [
        Metric(name, value, begun + int(1000 * at), step) for name, value, at, step in metrics(run)
    ]
    for start in range(0, len(points), BATCH):
        client.log_batch(number, metrics=points[start : start + BATCH])
    _artefacts(client, number, run)
    end = begun + int(1000 * float(run.record.get("elapsed", 0)))
    client.set_terminated(number, "FINISHED" if run.record.get("complete") else "KILLED", end)
    return number


def parameters(run: Run) -> dict[str, str]:
    """The settings of a run and the hashes of what it used, by their full names."""
    try:
        settings = loads(read_plain(run.folder / "config.toml").decode())
    except (OSError, ValueError, RecursionError):  # the record says what matters most
        settings = {}
    record: dict[str, Any] = {
        name: run.record[name]
        for name in ("method", "model", "data", "seed", "seeds", "split")
        if name in run.record
    }
    return dict(_flat({**record, **settings, "hashes": run.record.get("hashes", {})}))


def metrics(run: Run) -> Iterator[tuple[str, float, float, int]]:
    """Name, value, seconds since the start, step: the growth curves by finished shards,
    then the counts at the end.
    """
    for step, row in enumerate(read_history(run.folder / "history.csv")):
        yield from (
            (f"history.{name}", row[name], row["seconds"], step) for name in CURVES if name in row
        )
    end = float(run.record.get("elapsed", 0))
    counts = run.counts()
    parts = {name: counts[name] for name in ("funnel", "skipped", "findings")} | {
        "totals": run.record.get("totals", {})
    }
    for part, values in parts.items():
        yield from (
            (f"{part}.{name}", float(value), end, 0)
            for name, value in values.items()
            if value is not None
        )
    yield "elapsed", end, end, 0


def _artefacts(client: Any, number: str, run: Run) -> None:
    for name in ("run.json", "config.toml", "history.csv"):
        if (run.folder / name).is_file() and not (run.folder / name).is_symlink():
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
