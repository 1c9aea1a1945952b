"""From raw annotations to images of one size: boxes follow, odd ones are counted, classes aligned."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from claims.files import CLASSES, SCENES, picture, write_coco, write_yolo
from hardcase.claims.annotations import Tally, _framed, load_annotations
from hardcase.data.files import Sizing
from hardcase.errors import HardcaseError


def test_numbers_that_fit_as_corners_only_are_read_as_corners(tmp_path):
    right = load_annotations(f"{write_coco(tmp_path / 'a')}&resize=40")
    swapped = load_annotations(f"{write_coco(tmp_path / 'b', form='xyxy')}&resize=40")
    assert not any("XYXY" in note for note in right.notes)
    assert any("two corners (XYXY)" in note for note in swapped.notes)
    for one, two in zip(right.annotations, swapped.annotations):
        assert torch.equal(one.boxes, two.boxes)


ODD = [
    ("zero.png", (40, 40), [(0, (5, 5, 5, 9)), (1, (10, 10, 20, 20))]),
    ("beyond.png", (40, 40), [(0, (30, 30, 60, 60)), (1, (50, 50, 60, 60))]),
    ("plain.png", (40, 40), [(2, (3, 3, 30, 30)), (2, (5, 5, 10, 10)), (2, (5, 5, 10, 20))]),
]


def test_boxes_that_cannot_be_meant_are_counted(tmp_path):
    annotated = load_annotations(write_coco(tmp_path, scenes=ODD))
    assert [len(one.labels) for one in annotated.annotations] == [1, 1, 3]
    assert annotated.annotations[1].boxes.tolist() == [[30, 30, 40, 40]]
    counts = [note.split(" boxes ")[0] for note in annotated.notes]
    assert counts == ["1 of 7", "1 of 7", "1 of 7"]


sides = st.integers(20, 90)


@given(sides, sides, st.sampled_from([(0, 0), (32, 0), (32, 32), (24, 16)]), st.data())
def test_boxes_move_as_their_pixels_do(width, height, sizes, data):
    sizing = Sizing(resize=sizes[0], crop=sizes[1])
    x0 = data.draw(st.integers(0, width - 9))
    y0 = data.draw(st.integers(0, height - 9))
    box = (x0, y0, data.draw(st.integers(x0 + 8, width)), data.draw(st.integers(y0 + 8, height)))
    shown = np.asarray(sizing.apply(picture((width, height), [(0, box)])))[..., 0]
    tally = Tally()
    rows, moved = _framed(np.array([box], dtype=float), (width, height), sizing, tally)
    assert len(rows) + tally.counts["cropped"] == 1
    if len(rows):
        down, across = np.nonzero(shown > 127)
        found = [across.min(), down.min(), across.max() + 1, down.max() + 1]
        assert np.abs(moved[0] - found).max() <= 1.01


def test_what_a_crop_hides_is_left_out(tmp_path):
    objects = [(0, (0, 0, 20, 20)), (1, (40, 10, 60, 30)), (2, (25, 0, 45, 20))]
    spec = write_coco(tmp_path, scenes=[("wide.png", (100, 40), objects)])
    annotated = load_annotations(f"{spec}&resize=40&crop=center")
    # ids of files are sorted: dog, cat, kite
    assert annotated.annotations[0].labels.tolist() == [0, 2]
    assert annotated.images.classes == ("dog", "cat", "red kite")
    assert annotated.annotations[0].boxes.tolist() == [[10, 10, 30, 30], [0, 0, 15, 20]]
    assert any("crop" in note for note in annotated.notes)


def test_images_turned_by_their_camera_stand_upright(tmp_path):
    write_yolo(tmp_path, scenes=[("a.png", (40, 20), [(0, (0, 0, 10, 20))])])
    turned = Image.open(tmp_path / "images" / "a.png").transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    (tmp_path / "images" / "a.png").unlink()
    turned.save(tmp_path / "images" / "a.jpg", exif=exif)
    annotated = load_annotations(f"yolo:{tmp_path}?split=all")
    assert annotated.images.x.shape == (1, 3, 20, 40)
    assert annotated.annotations[0].boxes.tolist() == [[0, 0, 10, 20]]
    assert float(annotated.images.x[0, 0, :, :8].float().mean()) > 200


def test_data_without_a_split_is_divided_once(tmp_path):
    scenes = [(f"{i}.png", (30, 30), [(0, (i, i, i + 10, i + 10))]) for i in range(10)]
    spec = write_coco(tmp_path, scenes=scenes).partition("?")[0]
    train, test = (load_annotations(spec, split) for split in ("train", "test"))
    assert (len(train), len(test)) == (8, 2)
    assert not set(train.images.id) & set(test.images.id)
    for part in (train, test):
        for name, known in zip(part.images.id, part.annotations):
            number = int(name.rpartition("/")[2].removesuffix(".png"))
            assert known.boxes.tolist() == [[number, number, number + 10, number + 10]]
    chosen = load_annotations(f"{spec}?split=all", count=3, seed=1)
    assert len(chosen) == len(chosen.annotations) == 3


class Pairs:
    """A map-style data set, as torchvision's are."""

    def __init__(self, targets, classes=()):
        self.targets_of, self.classes = targets, classes

    def __len__(self):
        return len(self.targets_of)

    def __getitem__(self, row):
        return picture((40, 30), []), self.targets_of[row]


def test_data_sets_of_torchvision():
    boxes = [{"boxes": torch.tensor([[1.0, 2, 20, 22]]), "labels": torch.tensor([2])}] * 2
    annotated = load_annotations(Pairs(boxes, classes=CLASSES))
    assert annotated.images.classes == CLASSES
    assert annotated.annotations[1].boxes.tolist() == [[1, 2, 20, 22]]
    coco = [[{"bbox": [1, 2, 19, 20], "category_id": 1}], []]
    annotated = load_annotations(Pairs(coco))
    assert annotated.annotations[0].boxes.tolist() == [[1, 2, 20, 22]]
    place = {"xmin": "2", "ymin": "3", "xmax": "20", "ymax": "22"}
    voc = {"annotation": {"object": [{"name": "dog", "bndbox": place}]}}
    annotated = load_annotations(Pairs([voc, {"annotation": {}}]))
    assert annotated.images.classes == ("dog",)
    assert annotated.annotations[0].boxes.tolist() == [[1, 2, 20, 22]]
    masks = [np.full((30, 40), 1, dtype=np.uint8)] * 2
    annotated = load_annotations(Pairs(masks), task="masks")
    assert annotated.annotations[0].labels.tolist() == [1]
    with pytest.raises(HardcaseError, match="boxes and labels are needed"):
        load_annotations(Pairs([3, 4]))
    with pytest.raises(HardcaseError, match="no kind of annotated images"):
        load_annotations(7)


@pytest.mark.parametrize("rows", [False, True])
def test_data_sets_of_hugging_face(rows):
    datasets = pytest.importorskip("datasets")
    objects = []
    for _, _, held in SCENES:
        places = [[x0, y0, x1 - x0, y1 - y0] for _, (x0, y0, x1, y1) in held]
        columns = {"bbox": places, "category": [label for label, _ in held]}
        each = [dict(zip(columns, one)) for one in zip(*columns.values())]
        objects.append(each if rows else columns)
    number = datasets.Value("float32")
    each = {"bbox": datasets.List(number), "category": datasets.ClassLabel(names=list(CLASSES))}
    lists = {key: datasets.List(kind) for key, kind in each.items()}
    kinds = {"image": datasets.Image(), "objects": datasets.List(each) if rows else lists}
    columns = {"image": [picture(size, held) for _, size, held in SCENES], "objects": objects}
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    annotated = load_annotations(data, resize=60)
    assert annotated.images.classes == CLASSES
    for known, (_, (width, height), held) in zip(annotated.annotations, SCENES):
        assert known.labels.tolist() == [label for label, _ in held]
        scale = torch.tensor([60 / width, 60 / height] * 2)
        wanted = torch.tensor([box for _, box in held]).reshape(-1, 4) * scale
        assert torch.allclose(known.boxes, wanted)


def test_a_task_that_the_data_lacks_is_a_problem(tmp_path):
    with pytest.raises(HardcaseError) as caught:
        load_annotations(f"{write_coco(tmp_path)}&resize=40", task="masks")
    assert caught.value.fix == "--task boxes"
