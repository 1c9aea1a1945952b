"""Found tests as data sets: what is written is what was found, readable by others, and never over anything."""

import csv
import io
import json
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from hardcase.cli.main import main
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from hardcase.suite.export import class_folders, export, table_text
from hardcase.types import ClassNames
from tiny import put_verdicts, stored_run

ANIMALS = ("ant", "bee", "cat")


def made(folder, *, classes=ANIMALS, channels=1, count=7):
    rng = torch.Generator().manual_seed(5)
    y = torch.arange(count) % 2  # the last class has no failure
    x = torch.randint(0, 256, (count, channels, 8, 6), generator=rng, dtype=torch.uint8)
    rows = torch.arange(count)
    given = {"confidence": torch.full((count,), 0.6), "queries": torch.full((count,), 3)}
    names = {"id": [f"s/{i}" for i in range(count)]}
    about = {"classes": list(classes), "method": "pgd"}
    return stored_run(folder, x, y, rows, 255 - x, seeds=names, findings=given, record=about)


def test_image_folders_hold_the_same_pixels_under_the_expected_class(tmp_path):
    run = made(tmp_path / "run")
    out = export(run, "imagefolder", tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == ["ant", "bee", "cat", "metadata.csv"]
    rows = list(csv.DictReader(io.StringIO((out / "metadata.csv").read_text())))
    pictures = run.images()
    assert len(rows) == len(run) == 7
    for row, finding, picture in zip(rows, run.findings.to_pylist(), pictures):
        assert row["file_name"] == f"{ANIMALS[finding['expected']]}/{finding['id']}.png"
        assert row["label"] == ANIMALS[finding["expected"]]
        assert row["predicted"] == ANIMALS[finding["predicted"]]
        assert np.array_equal(np.array(Image.open(out / row["file_name"])), picture[0].numpy())


def test_image_folders_are_read_back_as_a_data_set_with_the_same_class_numbers(tmp_path):
    run = made(tmp_path / "run", classes=("zebra", "T-shirt/top", "../../etc"), channels=3)
    out = export(run, "imagefolder", tmp_path / "out")
    again = load(f"folder:{out}?split=all")
    assert again.classes == ("0 zebra", "1 T-shirt_top", "2 _.._etc")
    assert again.y.bincount(minlength=3).tolist() == [4, 3, 0]
    assert {path.resolve().parent.parent for path in tmp_path.rglob("*.png")} == {out.resolve()}


@pytest.mark.parametrize(
    ("classes", "folders"),
    [
        (("a", "b"), ["a", "b"]),
        (("b", "a"), ["0 b", "1 a"]),
        (("A", "a"), ["0 A", "1 a"]),
        (("x", ".", ""), ["0 x", "1", "2"]),
        (tuple(map(str, range(11))), [f"{i:02d} {i}" for i in range(11)]),
    ],
)
def test_class_folders_keep_names_where_order_and_file_system_allow(classes, folders):
    assert class_folders(classes) == folders


def test_the_hugging_face_form_opens_as_pictures_with_class_names(tmp_path):
    datasets = pytest.importorskip("datasets")
    run = made(tmp_path / "run")
    out = export(run, "hf", tmp_path / "out")
    cache = {"cache_dir": str(tmp_path / "cache")}
    data = datasets.load_dataset(str(out), **cache)["test"]
    assert data.features["label"].names == list(ANIMALS)
    assert data["label"][:] == run.findings.column("expected").to_pylist()
    assert np.array_equal(np.array(data[2]["image"]), run.images()[2, 0].numpy())
    folder = export(run, "imagefolder", tmp_path / "folder")
    data = datasets.load_dataset("imagefolder", data_dir=str(folder), **cache)["train"]
    assert set(data["label"]) == {"ant", "bee"}
    assert data[0]["image"].size == (6, 8)


@pytest.mark.parametrize("channels", [1, 3])
def test_hugging_face_and_npz_are_data_sets_for_hardcase_too(tmp_path, channels):
    run = made(tmp_path / "run", channels=channels)
    out = export(run, "npz", tmp_path / "found.npz")
    assert out == tmp_path / "found.npz"
    columns = {"labels": "expected", "predicted": "predicted", "id": "id"}
    for name, column in columns.items():
        assert np.load(out)[name].tolist() == run.findings.column(column).to_pylist()
    for form in (f"npz:{out}", f"parquet:{export(run, 'hf', tmp_path / 'out')}"):
        again = load(f"{form}?split=all")
        assert again.classes == ANIMALS
        assert torch.equal(again.x, run.images())


def judged(folder):
    """Seven failures of seven images: two refused, one undecided, four accepted."""
    run = made(folder)
    words = ["lost", "foreign", "kept", "unsure", "kept", "kept", "kept"]
    names = run.findings.column("id").to_pylist()
    rows = [{"verdict": word, "by": "judge", "group": 0} for word in words]
    return put_verdicts(run, [{"id": name, **row} for name, row in zip(names, rows)])


def test_verdicts_travel_with_the_tests(tmp_path):
    run = judged(tmp_path / "run")
    folder = export(run, "imagefolder", tmp_path / "folders")
    for path in (folder / "metadata.csv", export(run, "csv", tmp_path / "found.csv")):
        rows = list(csv.DictReader(path.open()))
        assert [row["id"] for row in rows] == run.findings.column("id").to_pylist()
        assert (rows[0]["label"], rows[0]["predicted"]) == ANIMALS[:2]
        words = ["lost", "foreign", "kept", "unsure", "kept", "kept", "kept"]
        assert [row["verdict"] for row in rows] == words
        assert rows[3]["by"] == "judge"
    out = export(run, "hf", tmp_path / "hf")
    table = pa.parquet.read_table(out / "data/test-00000-of-00001.parquet")
    assert table.column("verdict").to_pylist()[3] == "unsure"
    suite = ElementTree.parse(export(run, "junit", tmp_path / "found.xml")).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "4", "1")
    told = [case[0].tag if len(case) else "passed" for case in suite]
    assert told == ["passed", "passed", "failure", "skipped", "failure", "failure", "failure"]


@pytest.mark.parametrize("to", ["imagefolder", "hf", "fiftyone", "npz", "csv", "junit"])
def test_nothing_is_written_over(tmp_path, to):
    run = made(tmp_path / "run")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(HardcaseError, match="not empty"):
        export(run, to, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    run = made(tmp_path / "run")
    (tmp_path / "filled").mkdir()
    export(run, "hf", tmp_path / "filled")

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hardcase.suite.export.os.replace", full)
    with pytest.raises(HardcaseError, match="No space left"):
        export(run, "imagefolder", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["filled", "run"]

    monkeypatch.undo()
    with pytest.raises(HardcaseError, match="imagefolder, hf, fiftyone, npz, csv"):
        export(run, "word", tmp_path / "out")


def test_fiftyone_finds_images_labels_and_what_else_is_known(tmp_path):
    run = made(tmp_path / "run")
    out = export(run, "fiftyone", tmp_path / "out")
    told = json.loads((out / "labels.json").read_text())
    assert told["classes"] == list(ANIMALS)
    first = run.findings.to_pylist()[0]
    label = told["labels"][first["id"]]
    assert label["label"] == "ant"
    assert label["attributes"]["predicted"] == "bee"
    assert label["attributes"]["predicted_confidence"] == pytest.approx(0.6)
    assert {path.stem for path in (out / "data").iterdir()} == set(told["labels"])


def test_fiftyone_reads_it_itself(tmp_path):
    """With its own importer; the whole library also wants a database."""
    needed = "needs pip install fiftyone and its database"
    importers = pytest.importorskip("fiftyone.utils.data.importers", reason=needed)
    out = export(made(tmp_path / "run"), "fiftyone", tmp_path / "out")
    reader = importers.FiftyOneImageClassificationDatasetImporter(dataset_dir=str(out))
    reader.setup()
    rows = list(reader)
    assert len(rows) == 7
    assert {label.label for _, _, label in rows} == {"ant", "bee"}
    assert rows[0][2]["method"] == "pgd"


@pytest.mark.parametrize("evil", ["=cmd()", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(evil):
    row = {"id": evil, "expected": 0, "predicted": 1, "l2": -0.25}
    (read,) = csv.DictReader(io.StringIO(table_text([row], ClassNames([evil, "b"])), newline=""))
    assert read["id"] == read["label"] == f"'{evil.strip()}"
    assert float(read["l2"]) == -0.25, "numbers stay numbers"


def test_the_command_writes_each_form_and_a_run_without_findings_is_all_well(tmp_path, capsys):
    run = made(tmp_path / "run")
    for form in ("csv", "junit", "fiftyone", "npz"):
        words = ["export", str(run.folder), "--to", form, "--out", str(tmp_path / form)]
        assert main(words) == 0
        assert str(tmp_path / form) in capsys.readouterr().out
    suite = ElementTree.parse(tmp_path / "junit" / "findings.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "7"), "unjudged: fails nobody"
    (run.folder / "findings/part-00000.parquet").unlink()
    empty = Run(run.folder)
    suite = ElementTree.parse(export(empty, "junit", tmp_path / "a.xml")).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "0", "0")
    with pytest.raises(HardcaseError, match="no failures"):
        export(empty, "npz", tmp_path / "out")
