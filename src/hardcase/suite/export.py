"""The findings of a run in the forms that other programs open."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardcase.analysis.slices import attempted_labels
from hardcase.cache import make_folder, write_atomically
from hardcase.data.own import natural
from hardcase.environment import VERSION, escape_csv, one_line
from hardcase.errors import HardcaseError, choice
from hardcase.runs.results import Run
from hardcase.runs.tables import FINDINGS, write_parquet
from hardcase.runs.verify import require_intact
from hardcase.statistics import verdict_status
from hardcase.suite.junit import JunitCase, junit
from hardcase.tensors import chunks, encode_all
from hardcase.types import ClassNames

_FACTS = (
    *("id", "original", "kind", "predicted", "confidence"),
    *("queries", "distance", "l2", "linf", "method"),
)

_VERDICTS = ("verdict", "by", "p_kept", "noise")
AT_ONCE = 256
"""Findings whose images are in memory at once."""
_CARD = """---
pretty_name: Failures found by hardcase
task_categories:
- image-classification
tags:
- hardcase
- robustness
size_categories:
- {size}
configs:
- config_name: default
  data_files:
  - split: test
    path: data/test-*.parquet
---
# Inputs on which {model} fails

{count} failures, found by hardcase {version} with `{method}`
in a search from {originals} images of `{data}`. `label` is the class of the original image,
`predicted` the class that the model answered, `confidence` its probability, `l2` and `linf` the
distance to the original, with pixels in [0, 1].

{judged}

{search_results}

The images are derived from `{data}` and stay under its licence. They were chosen because one model
fails on them: they measure no other model's accuracy, and training on them says nothing about
data that was not searched.
"""


def export(run: Run, to: str, out: str | Path, *, allow_damaged: bool = False) -> Path:
    """Write every failure of `run` in another program's format and return its path.

    Folders: ``imagefolder`` (a folder per class, and a `metadata.csv`), ``hf`` (Hugging Face:
    Parquet and a data-set card), ``fiftyone`` (`FiftyOneImageClassificationDataset`). Files, or a
    folder to put them in: ``npz``, ``csv``, ``junit``.

    Args:
        run: A stored run.
        to: The form.
        out: Where it goes; nothing is written over.
        allow_damaged: Go on with what is left of a damaged run.

    Raises:
        HardcaseError: If the run is damaged, holds no findings, or something is at `out`.
    """
    forms: dict[str, Callable[[Run, Path], Path]] = {
        "imagefolder": _imagefolder,
        "hf": _hf,
        "fiftyone": _fiftyone,
        "npz": _npz,
        "csv": lambda run, out: _file(
            out, "findings.csv", table_text(_rows(run), run.classes).encode()
        ),
        "junit": _junit,
    }
    if to not in forms:
        raise choice("form of export", to, list(forms))
    require_intact(run.folder, run.verification, allow_damaged=allow_damaged)
    if not len(run) and to != "junit":  # where no finding means that all is well
        raise HardcaseError(f"{run.folder} holds no failures, so there is nothing to export.")
    where = Path(out)
    refuse_occupied(where)
    return forms[to](run, where)


def refuse_occupied(out: Path) -> None:
    """Raise if there is anything at `out`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HardcaseError(
            f"{out} exists and is not empty.",
            "An export never writes over anything.",
            fix="another --out",
        )


def exported(run: Run) -> Iterator[bytes]:
    """Every finding's image as a newly encoded PNG: the export is an image, whatever bytes were
    stored."""
    for rows in chunks(len(run), AT_ONCE):
        yield from encode_all(run.images(range(len(run))[rows]))


def class_folders(classes: tuple[str, ...]) -> list[str]:
    """A folder name for each class: its name where file systems take it and the order stays, else
    with its number."""
    tame = [re.sub(r"[^\w .()+-]", "_", name).strip(" .")[:80] for name in classes]
    plain = tame == list(classes) and len({name.casefold() for name in tame}) == len(tame)
    visible = all(tame) and not any(name.startswith("__") for name in tame)
    if plain and visible and tame == sorted(tame) == sorted(tame, key=natural):
        return tame
    width = len(str(len(classes) - 1))
    return [f"{number:0{width}d} {name}".strip() for number, name in enumerate(tame)]


def _imagefolder(run: Run, out: Path) -> Path:
    """Every class has a folder, also an empty one, so that the numbers of the classes stay what
    they are."""
    folders = class_folders(run.classes)
    rows = _rows(run)
    for row in rows:
        row["file_name"] = f"{folders[row['expected']]}/{row['id']}.png"
    files = {"metadata.csv": table_text(rows, run.classes)}
    return _images_folder(run, out, folders, [row["file_name"] for row in rows], files)


def _fiftyone(run: Run, out: Path) -> Path:
    """`labels.json` and the images under `data`; further columns are attributes of the label."""
    rows = _rows(run)
    labels = {}
    for row in rows:
        attributes = {key: row[key] for key in row if key not in ("id", "expected")}
        attributes["predicted"] = run.classes[row["predicted"]]
        attributes["predicted_confidence"] = attributes.pop("confidence")
        labels[row["id"]] = {"label": run.classes[row["expected"]], "attributes": attributes}
    text = json.dumps({"classes": list(run.classes), "labels": labels}, indent=1)
    names = [f"data/{row['id']}.png" for row in rows]
    return _images_folder(run, out, ["data"], names, {"labels.json": text})


def _images_folder(
    run: Run, out: Path, folders: Sequence[str], names: Sequence[str], files: Mapping[str, str]
) -> Path:
    """The findings as files of these names, and files of text beside them."""

    def fill(folder: Path) -> None:
        for name in folders:
            make_folder(folder / name)
        for name, data in zip(names, exported(run)):
            (folder / name).write_bytes(data)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")

    return whole_folder(out, fill)


def _file(out: Path, name: str, data: bytes) -> Path:
    """Write a file at `out` if that ends as such files do, else under its name inside `out`."""
    same = out.suffix == Path(name).suffix and not out.is_dir()
    return write_atomically(out if same else out / name, data)


def table_text(rows: Sequence[Mapping[str, Any]], classes: ClassNames) -> str:
    """The rows as CSV with class names; no spreadsheet reads a cell as a formula."""
    text = io.StringIO()
    columns = [name for name in rows[0] if name not in ("file_name", "expected")]
    first = ["file_name", "label"] if "file_name" in rows[0] else ["label"]
    writer = csv.DictWriter(text, [*first, *columns], lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        named = {"label": classes[row["expected"]], "predicted": classes[row["predicted"]]}
        writer.writerow({name: _cell(value) for name, value in {**row, **named}.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a cell: text on a single line, with an apostrophe where it begins like a
    formula."""
    return escape_csv(one_line(value).strip()) if isinstance(value, str) else value


_UNDECIDED = {
    "unsure": "The model fails; the judge is unsure whether the label is kept.",
    "unjudged": "The model fails; no judge has seen the image.",
}


def _junit(run: Run, out: Path) -> Path:
    """A case per searched seed: a failure if any finding is accepted, skipped if unsure, passed
    without findings or with refused findings only."""
    by_seed: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in _rows(run):
        if row["kind"] == "label":
            status = "unjudged"
            if run.verdicts is not None:
                status = verdict_status(run.verdicts.get(row["id"]))
            by_seed.setdefault(row["original"], {})[status] = row
    cases = []
    for seed, label in attempted_labels(run).items():
        by_status = by_seed.get(seed, {})
        case = JunitCase(run.classes[label], seed)
        undecided = [status for status in _UNDECIDED if status in by_status]
        if "accepted" in by_status:
            message = _in_words(run, by_status["accepted"])
            case = case._replace(outcome="fail", message=message)
        elif undecided:
            message = f"{_UNDECIDED[undecided[0]]} {_in_words(run, by_status[undecided[0]])}"
            case = case._replace(outcome="inconclusive", message=message)
        cases.append(case)
    return _file(out, "findings.xml", junit(f"hardcase {run.record.get('method', '')}", cases))


def _in_words(run: Run, row: Mapping[str, Any]) -> str:
    pair = run.classes.pair(row["expected"], row["predicted"])
    size = f"confidence {row['confidence']:.2f}, L2 {row['l2']:.2f} from {row['original']}"
    return one_line(f"{pair} ({size}), found by {row['method']}")


def _hf(run: Run, out: Path) -> Path:
    columns: dict[str, Any] = {"label": run.findings.column("expected").cast(pa.int64())}
    columns |= {name: run.findings.column(name) for name in _FACTS}
    columns["predicted"] = columns["predicted"].cast(pa.int64())
    if run.verdicts is not None:
        columns |= {name: pa.array([row[name] for row in _rows(run)]) for name in _VERDICTS}
    facts = pa.table(columns)
    features = {field.name: _value(field.type) for field in facts.schema}
    features = {"image": {"_type": "Image"}, **features}
    features |= {
        name: _labels(run.classes, columns[name].to_pylist()) for name in ("label", "predicted")
    }
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    card = _card(run)

    def groups() -> Iterator[pa.Table]:
        images = exported(run)
        for rows in chunks(len(facts), AT_ONCE):
            part = facts.slice(rows.start, rows.stop - rows.start)
            stored = [{"bytes": next(images), "path": None} for _ in range(len(part))]
            table = part.add_column(0, "image", pa.array(stored, FINDINGS["image"]))
            yield table.replace_schema_metadata(about)

    def fill(folder: Path) -> None:
        make_folder(folder / "data")
        with open(folder / "data/test-00000-of-00001.parquet", "wb") as file:
            write_parquet(file, groups())
        (folder / "README.md").write_text(card, encoding="utf-8")

    return whole_folder(out, fill)


_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def _card(run: Run) -> str:
    """The data-set card: where the images come from, and how far they can be trusted."""
    judged = "`verdict` says whether the label is kept, `by` who says so (networks or a person)."
    facts = {key: _tame(run.record.get(key)) for key in ("method", "model", "data")}
    return _CARD.format(
        size=next((name for most, name in _SIZES.items() if len(run) < most), "n>1M"),
        count=f"{len(run):,}",
        version=VERSION,
        originals=run.counts()["search_results"]["images"],
        judged="No judge has seen them." if run.verdicts is None else judged,
        search_results=f"```text\n{run.summary()}\n```",
        **facts,
    )


def _tame(name: object) -> str:
    """A name from a run's record as plain text on a single line."""
    return re.sub(r"[^\w ./:@?=&+-]", "_", str(name or "unknown"))[:200]


def _labels(classes: ClassNames, values: list[int]) -> dict[str, Any]:
    """The kind of a column of labels: named ones, further outputs by their number."""
    names = [classes[number] for number in range(max(len(classes), max(values) + 1))]
    if len(set(names)) < len(names) or min(values) < 0:
        return _value(pa.int64())
    return {"_type": "ClassLabel", "names": names}


def _npz(run: Run, out: Path) -> Path:
    table = run.findings
    images = run.images().permute(0, 2, 3, 1).numpy()
    arrays: dict[str, Any] = {
        "images": images[..., 0] if images.shape[-1] == 1 else images,
        "labels": table.column("expected").to_numpy().astype(np.int64),
        "predicted": table.column("predicted").to_numpy().astype(np.int64),
        "classes": np.array(run.classes),
        **{name: np.array(table.column(name).to_pylist()) for name in ("id", "original")},
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return _file(out, "tests.npz", buffer.getvalue())


def _rows(run: Run) -> list[dict[str, Any]]:
    """The columns of each finding, without its image; with the judge's answers if there is a
    judge."""
    rows: list[dict[str, Any]] = run.findings.select(["expected", *_FACTS]).to_pylist()
    if run.verdicts is not None:
        for row in rows:
            verdict = run.verdicts.get(row["id"], {})
            row |= {name: verdict.get(name) for name in _VERDICTS}
    return rows


def _value(kind: pa.DataType) -> dict[str, Any]:
    return {
        "_type": "Value",
        "dtype": {"float": "float32", "double": "float64"}.get(str(kind), str(kind)),
    }


def whole_folder(out: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a temporary folder next to `out`, then rename it: `out` appears complete or not at
    all."""
    temporary = make_folder(out.parent / f".{out.name}-{secrets.token_hex(6)}")
    try:
        fill(temporary)
        os.replace(temporary, out)
    except OSError as error:
        raise HardcaseError(
            f"cannot write {out}: {error.strerror or error}.",
            fix="free some space, or another --out",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out
