import json

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from hardcase.data.sources import load

ALL = "?split=all"


def written(path, pictures, names=None, **columns):
    """A Parquet file as `datasets` writes it."""
    image = [None if each is None else {"bytes": each, "path": None} for each in pictures]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(image, kind), **columns})
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)
    return path


def test_a_hugging_face_file(tmp_path, png):
    names, pictures = ["cat", "dog", "hen"], [png(i) for i in range(3)]
    path = written(tmp_path / "set.parquet", pictures, names, label=[1, 0, 1])
    images = load(f"parquet:{path}{ALL}")
    assert images.x.shape == (3, 1, 4, 5)
    assert images.y.tolist() == [1, 0, 1]
    assert images.classes == ("cat", "dog", "hen")
    assert images.id == ("set/00000", "set/00001", "set/00002")
    (tmp_path / "1.png").write_bytes(png(1))
    assert np.array_equal(images.x[1, 0].numpy(), np.asarray(Image.open(tmp_path / "1.png")))


def test_plain_bytes_and_the_name_img(tmp_path, png):
    table = pa.table({"img": [png(0), png(1)], "labels": [0, 1]})
    parquet.write_table(table, tmp_path / "set.parquet")
    assert load(f"parquet:{tmp_path / 'set.parquet'}{ALL}").y.tolist() == [0, 1]


def test_a_folder_of_files_with_its_own_split(tmp_path, png):
    parts = {"train-00000-of-2": [0, 1], "train-00001-of-2": [2, 5], "test-00000-of-1": [1, 1]}
    for name, label in parts.items():
        written(tmp_path / "set" / "data" / f"{name}.parquet", [png(0), png(1)], label=label)
    train, test = (load(f"parquet:{tmp_path / 'set'}", split=part) for part in ("train", "test"))
    assert train.y.tolist() == [0, 1, 2, 5]
    assert test.y.tolist() == [1, 1]
    assert test.id == ("set/test/00000", "set/test/00001")
    assert train.classes == test.classes == tuple("012345")
    assert len(load(f"parquet:{tmp_path / 'set'}{ALL}")) == 6


def findings(run, png, *, classes):
    for number in (0, 10, 2):
        path = run / "findings" / f"part-{number:05d}.parquet"
        pictures = [png(number), png(number + 100)] if number else []  # the first is empty
        ids = pa.array([f"a{number}", f"b{number}"][: len(pictures)], pa.string())
        expected = pa.array([number % 3, 0][: len(pictures)], pa.int32())
        written(path, pictures, id=ids, expected=expected)
    (run / "findings" / ".part-00011-tmp.parquet").write_bytes(b"half")
    if classes is not None:
        (run / "run.json").write_text(json.dumps({"classes": classes}))


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_findings_of_a_run_are_never_divided(tmp_path, png, split):
    findings(tmp_path / "night", png, classes=["a", "b", "c", "d"])
    images = load(f"run:{tmp_path / 'night'}", split=split)
    assert images.id == ("night/a2", "night/b2", "night/a10", "night/b10")
    assert images.y.tolist() == [2, 0, 1, 0]
    assert images.classes == ("a", "b", "c", "d")
    assert (images.name, images.split) == (f"run:{tmp_path / 'night'}", "all")


def test_findings_as_parquet_know_the_classes_of_their_run(tmp_path, png):
    findings(tmp_path / "night", png, classes=["a", "b", "c", "d"])
    assert load(f"parquet:{tmp_path / 'night' / 'findings'}{ALL}").classes == ("a", "b", "c", "d")
    (tmp_path / "night" / "run.json").unlink()
    assert load(f"parquet:{tmp_path / 'night' / 'findings'}{ALL}").classes == ("0", "1", "2")


def test_runs_without_findings(tmp_path, refusal):
    refusal(f"run:{tmp_path}", "is not a run")
    (tmp_path / "run.json").write_text("{}")
    refusal(f"run:{tmp_path}", "no failures yet")
    written(tmp_path / "findings" / "part-00000.parquet", [], expected=pa.array([], pa.int32()))
    refusal(f"run:{tmp_path}", "holds no images")


@pytest.mark.parametrize(
    ("second", "names", "label", "why"),
    [
        (None, None, [0, 0], "1 images have no content, the first is set/00001"),
        (1, None, [0, None], "1 of 2 labels are missing"),
        (1, None, ["cat", "dog"], "one whole number per image"),
        (1, ["cat"], [0, 1], r"outside the 1 classes; set/00001 has label 1"),
        (b"rubbish", None, [0, 1], "cannot read the image set/00001 in"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, png, refusal, second, names, label, why):
    image = png(second) if second == 1 else second
    path = written(tmp_path / "set.parquet", [png(0), image], names, label=label)
    refusal(f"parquet:{path}", why)


def test_files_that_cannot_be_read(tmp_path, png, refusal):
    path = tmp_path / "set.parquet"
    parquet.write_table(pa.table({"picture": [1]}), path)
    refusal(f"parquet:{path}", "it has picture")
    parquet.write_table(pa.table({"image": [1, 2], "label": [0, 0]}), path)
    refusal(f"parquet:{path}", "images are stored as int64")
    path.write_bytes(b"PAR1 rubbish")
    refusal(f"parquet:{path}", r"cannot read .*set.parquet as Parquet")
    (tmp_path / "empty").mkdir()
    refusal(f"parquet:{tmp_path / 'empty'}", "there are no Parquet files")
    written(tmp_path / "mixed" / "a.parquet", [png(0)], label=[0])
    written(tmp_path / "mixed" / "b.parquet", [png(0)], other=[0])
    refusal(f"parquet:{tmp_path / 'mixed'}", r"b.parquet lacks column label")
