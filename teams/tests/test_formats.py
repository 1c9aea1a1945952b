"""Readers: the same scenes from every format, and files that are not as they should be."""

import json

import pytest
from PIL import Image

from claims.files import (
    CLASSES,
    SCENES,
    write_coco,
    write_masks,
    write_tags,
    write_voc,
    write_yolo,
)
from hardcase.claims.annotations import load_annotations
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase_teams.formats import names_in_yaml

WRITERS = {
    "coco": write_coco,
    "yolo": write_yolo,
    "yolo outlines": lambda root: write_yolo(root, outline=True),
    "voc": write_voc,
}


def scenes_of(annotated):
    """Objects by the name of their image, in the order of the file."""
    found = {}
    for name, known in zip(annotated.images.id, annotated.annotations):
        words = [annotated.images.classes[label] for label in known.labels.tolist()]
        boxes = [tuple(round(value) for value in box) for box in known.boxes.tolist()]
        found[name.rpartition("/")[2]] = list(zip(words, boxes))
    return found


@pytest.mark.parametrize("form", WRITERS)
def test_boxes_come_back_in_pixels_of_the_sized_images(form, tmp_path):
    annotated = load_annotations(f"{WRITERS[form](tmp_path)}&resize=80")
    wanted = {}
    for name, (width, height), objects in SCENES:
        wanted[name] = [
            (
                CLASSES[label],
                tuple(round(v * 80 / side) for v, side in zip(box, (width, height) * 2)),
            )
            for label, box in objects
        ]
    assert scenes_of(annotated) == wanted
    assert annotated.images.x.shape == (4, 3, 80, 80)
    assert any("1 of 4 images" in note for note in annotated.notes)


@pytest.mark.parametrize("columns", [True, False])
def test_tags(columns, tmp_path):
    annotated = load_annotations(f"{write_tags(tmp_path, columns=columns)}&resize=32", task="tags")
    found = {
        name.rpartition("/")[2]: {annotated.images.classes[i] for i in known.labels.tolist()}
        for name, known in zip(annotated.images.id, annotated.annotations)
    }
    assert found == {name: {CLASSES[i] for i, _ in objects} for name, _, objects in SCENES}


@pytest.mark.parametrize("beside", [True, False])
def test_masks_follow_the_images(beside, tmp_path):
    spec = write_masks(tmp_path, beside=beside)
    annotated = load_annotations(f"{spec}&resize=60", task="masks")
    assert len(annotated) == 4
    for x, known in zip(annotated.images.x, annotated.annotations):
        objects = x[0] > 200  # the edges are blurred by the resizing
        assert bool((known.mask[objects] != 255).all())
        assert float((known.mask != 255).float().mean()) == pytest.approx(
            float((x[0] > 127).float().mean()), abs=0.03
        )


def test_images_without_a_mask_are_left_out_and_counted(tmp_path):
    spec = write_masks(tmp_path)
    (tmp_path / "masks" / "one.png").unlink()
    annotated = load_annotations(f"{spec}&resize=60", task="masks")
    assert len(annotated) == 3
    assert any(note.startswith("1 of 4 images have no mask") for note in annotated.notes)
    for mask in (tmp_path / "masks").iterdir():
        mask.unlink()
    with pytest.raises(HardcaseError, match="none of the 4 images"):
        load_annotations(f"{spec}&resize=60", task="masks")


def test_masks_of_another_size_or_in_colour_are_problems(tmp_path):
    for number, mask in enumerate([Image.new("L", (9, 9)), Image.new("RGB", (40, 30))]):
        root = tmp_path / str(number)
        spec = write_masks(root)
        mask.save(root / "masks" / "one.png")
        with pytest.raises(HardcaseError, match=r"mask of .*one"):
            load_annotations(f"{spec}&resize=60", task="masks")


def test_folders_of_yolo_may_be_a_split(tmp_path):
    write_yolo(tmp_path)
    for kind in ("images", "labels"):
        for part in ("train", "val"):
            (tmp_path / kind / part).mkdir()
        for file in [one for one in (tmp_path / kind).iterdir() if one.is_file()]:
            part = "val" if file.name.startswith("one") else "train"
            file.rename(tmp_path / kind / part / file.name)
    test = load_annotations(f"yolo:{tmp_path}?resize=40", "test")
    train = load_annotations(f"yolo:{tmp_path}?resize=40", "train")
    assert list(scenes_of(test)) == ["one.png"]
    assert len(train) == 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("names: [a, 'b c', \"d\"]  # three", ("a", "b c", "d")),
        ("names:\n- a\n- b\nnc: 2", ("a", "b")),
        ("nc: 2\nnames:\n  # comment\n  1: b\n  0: a\nother: 1", ("a", "b")),
        ("names: {0: a, 2: c}", ("a", "1", "c")),
        ("words:\n - a", ()),
    ],
)
def test_names_in_yaml(text, wanted):
    assert names_in_yaml(text, "names") == wanted


def text(name, content):
    """Write a file anew."""
    return lambda root: (root / name).write_text(content)


def coco(part, key, value):
    """Change the first row of a part of COCO's JSON."""

    def spoil(root):
        stated = json.loads((root / "labels.json").read_text())
        stated[part][0][key] = value
        (root / "labels.json").write_text(json.dumps(stated))

    return spoil


def break_table(root):
    table = (root / "tags.csv").read_text().replace("1,0,0", "1,maybe,0")
    (root / "tags.csv").write_text(table)


def lose_image(root):
    next(root.rglob("one.png")).unlink()


@pytest.mark.parametrize(
    ("write", "spoil", "words"),
    [
        (write_coco, text("labels.json", "{"), "cannot read"),
        (write_coco, coco("annotations", "category_id", 55), "category 55"),
        (write_coco, coco("annotations", "bbox", [1, 2, 3]), "four numbers"),
        (write_coco, coco("categories", "id", ["a"]), "cannot read"),
        (write_coco, lose_image, "1 of 4 images"),
        (write_yolo, text("labels/one.txt", "7 0.5 0.5 0.1 0.1\n"), "class 7"),
        (write_yolo, text("labels/one.txt", "0 0.5 0.5\n"), "line 1"),
        (write_voc, text("Annotations/0.xml", "<annotation><object>"), "Pascal VOC"),
        (
            write_voc,
            text("Annotations/0.xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
            "entities",
        ),
        (write_voc, lose_image, "1 of 4 images"),
        (lambda root: write_tags(root, columns=True), break_table, "maybe"),
    ],
)
def test_files_that_cannot_be_meant_are_problems(write, spoil, words, tmp_path):
    spec = write(tmp_path)
    spoil(tmp_path)
    task = "tags" if spec.startswith("tags") else "boxes"
    with pytest.raises(HardcaseError, match=words):
        load_annotations(f"{spec}&resize=40", task=task)


def test_a_classifier_is_told_that_the_data_is_annotated(tmp_path):
    with pytest.raises(HardcaseError) as caught:
        load(write_coco(tmp_path))
    assert caught.value.fix == "--task boxes"
    with pytest.raises(HardcaseError) as caught:
        load("canvas5k")
    assert caught.value.fix == "--task boxes"


def test_words_that_name_nothing(tmp_path):
    for spec in ("cocoa:x", f"coco:{tmp_path}/none.json", f"yolo:{tmp_path}?size=3", "yolo:"):
        with pytest.raises(HardcaseError):
            load_annotations(spec)
