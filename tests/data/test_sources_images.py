"""Labelled images from whatever a user has them in; and streams, which keep them where they are."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hardcase.data import files as streams, own
from hardcase.data.files import Stream
from hardcase.data.own import read_csv
from hardcase.data.sources import images_of, large, load
from hardcase.errors import HardcaseError
from hardcase.types import Images

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = [0, 1, 2, 0, 1, 2]
EXPECTED = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
PICTURES = [Image.fromarray(each) for each in PIXELS]


NORMALISE = SimpleNamespace(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Pairs(Dataset):
    """As torchvision's data sets look."""

    classes = ("cat", "dog", "hen")

    def __init__(self, *, normalised=False):
        self.transform = SimpleNamespace(transforms=(NORMALISE,)) if normalised else None
        self.normalised = normalised

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, row):
        x = EXPECTED[row].float() / 255
        return ((x - 0.5) / 0.25 if self.normalised else x), LABELS[row]


class Dicts(Pairs):
    def __getitem__(self, row):
        return {"image": PICTURES[row], "label": LABELS[row]}


class Walk(IterableDataset):
    def __iter__(self):
        return iter(zip(EXPECTED, LABELS))


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS, np.array(LABELS)),
        (EXPECTED, torch.tensor(LABELS)),
        (EXPECTED.float() / 255, LABELS),
        (PICTURES, LABELS),
        list(zip(PICTURES, LABELS)),
        list(zip(PIXELS, LABELS)),
        Pairs(),
        Pairs(normalised=True),
        Dicts(),
        TensorDataset(EXPECTED, torch.tensor(LABELS)),
        DataLoader(Pairs(), batch_size=4),
        DataLoader(Pairs(normalised=True), batch_size=4),
        Walk(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_kind_gives_the_same_images(data):
    images = images_of(data)
    assert torch.equal(images.x, EXPECTED)
    assert images.y.tolist() == LABELS
    assert len(set(images.id)) == len(images)


def test_class_names_come_from_the_data_or_the_user_and_images_of_ours_stay():
    assert images_of(Pairs()).classes == ("cat", "dog", "hen")
    assert images_of(DataLoader(Pairs())).classes == ("cat", "dog", "hen")
    assert images_of(PIXELS, LABELS, classes=("a", "b", "c")).classes == ("a", "b", "c")
    named = images_of(PICTURES, ["dog", "cat", "dog", "cat", "dog", "cat"])
    assert (named.classes, named.y.tolist()) == (("cat", "dog"), [1, 0, 1, 0, 1, 0])
    images = images_of(PIXELS, LABELS)
    assert images_of(images) is images


def test_a_hugging_face_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    kinds = {"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["a", "b", "c"])}
    features = datasets.Features(kinds)
    data = datasets.Dataset.from_dict({"img": PICTURES, "fine_label": LABELS}, features=features)
    images = images_of(data)
    assert torch.equal(images.x, EXPECTED)
    assert images.classes == ("a", "b", "c")


def photo_folder(root):
    """Two classes, three sizes, one grey picture, one that the camera turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    shapes = {"cat/a.png": (20, 30, 3), "cat/b.jpg": (40, 20, 3), "dog/c.png": (16, 16)}
    for name, shape in shapes.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8))
        picture.save(root / name, **({"exif": exif} if name.endswith("jpg") else {}))
    return root


def test_a_folder_of_mixed_sizes_is_resized_and_recorded(tmp_path):
    spec = f"folder:{photo_folder(tmp_path / 'photos')}?resize=16&crop=center"
    images = images_of(spec)
    assert images.x.shape == (3, 3, 16, 16)
    assert images.classes == ("cat", "dog")
    assert images.name == spec
    assert images.id == ("photos/cat/a.png", "photos/cat/b.jpg", "photos/dog/c.png")
    assert torch.equal(images.x[2, 0], images.x[2, 1])


def table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_csv_of_paths_and_labels(tmp_path):
    photo_folder(tmp_path)
    rows = [{"path": "cat/a.png", "label": "cat"}, {"path": "dog/c.png", "label": "dog"}]
    images = images_of(table(tmp_path / "photos.csv", rows), resize=8, crop=8)
    assert images.x.shape == (2, 3, 8, 8)
    assert images.classes == ("cat", "dog")
    parts = {"cat/a.png": "train", "dog/c.png": "test", "cat/b.jpg": "test"}
    numbered = [{"file": f, "class": str(int("dog" in f)), "split": s} for f, s in parts.items()]
    path = str(table(tmp_path / "more.csv", numbered))
    assert images_of(path, resize=8).y.tolist() == [1, 0]
    sizes = {split: len(read_csv(Path(path), split).images) for split in ("train", "test", "all")}
    assert sizes == {"train": 1, "test": 2, "all": 3}


@pytest.mark.parametrize(
    ("data", "labels", "why"),
    [
        (PIXELS, None, "needs labels"),
        (PIXELS, [1] * 5, "6 images, but 5 labels"),
        (PIXELS, np.eye(6), "one for each image"),
        (PIXELS.astype(np.float32), LABELS, "0..1 is needed"),
        (PIXELS, [0.5] * 6, "whole numbers or names"),
        (PIXELS, [-1] * 6, "Labels count from 0"),
        ([3, 4], [0, 1], "is a int|is an int"),
        (42, None, "no kind of labelled images"),
        ([], [], "no images"),
    ],
)
def test_mistakes_are_told(data, labels, why):
    with pytest.raises(HardcaseError, match=why):
        images_of(data, labels)


def counted():
    read = []

    def picture(row):
        read.append(row)
        return PIXELS[row % len(PIXELS)]

    rows, name = torch.arange(1000), "s/{:04d}".format
    return Stream(picture, rows, rows % 4, ("a", "b", "c", "d"), 3, name), read


def test_a_stream_decodes_what_is_asked_for_in_shards_and_holds_few(monkeypatch):
    stream, read = counted()
    some = stream.sample(count=8, seed=1).take(torch.tensor([3, 0]))
    assert read == []
    images = some.images()
    assert sorted(read) == sorted(some.rows.tolist())
    assert images.id == some.id
    stream, read = counted()
    shards = stream.shards(64)
    first = next(shards)
    assert (len(first), len(read)) == (64, 64)
    assert sum(len(shard) for shard in shards) == 936
    assert isinstance(stream.first(3).held(), Images)
    monkeypatch.setattr(streams, "HELD", 8 * 8 * 3 * 3)
    read.clear()
    assert isinstance(stream.first(4).held(), Stream)
    assert len(read) == 1


def test_a_streams_hash_and_sample_are_those_of_the_images(monkeypatch):
    monkeypatch.setattr(streams, "SHARD", 7)
    stream, _ = counted()
    images = stream.first(100).images()
    assert stream.first(100).hash == images.hash
    assert isinstance(images, Images)
    assert stream.first(100).sample(count=9, seed=3).id == images.sample(count=9, seed=3).id


def test_a_stream_whose_images_change_says_so():
    shown = [np.zeros((4, 4), np.uint8)]
    stream = Stream(shown.__getitem__, torch.arange(1), torch.zeros(1).long(), ("a",), 1)
    assert stream.images().x.sum() == 0
    shown[0] = np.ones((4, 4), np.uint8)
    with pytest.raises(HardcaseError, match="has changed since it was first read"):
        stream.take(torch.tensor([0])).images()


def test_grey_pictures_in_a_colour_stream_are_given_three_channels():
    pictures = [PIXELS[0], PIXELS[1][:, :, 0]]
    stream = Stream(pictures.__getitem__, torch.arange(2), torch.tensor([0, 1]), ("a", "b"), 3)
    assert stream.take(torch.tensor([1])).images().x.shape == (1, 3, 8, 8)


@pytest.fixture
def spec(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return f"folder:{tmp_path / 'photos'}"


@pytest.mark.parametrize("split", ["train", "test"])
def test_many_files_are_divided_as_few_are(spec, split):
    assert large(spec, split) is None
    found = large(spec, split, most=5)
    whole = load(spec, split=split)
    assert found.id == whole.id
    assert found.hash == whole.hash
    assert found.sample(count=3, seed=1).id == whole.sample(count=3, seed=1).id


def test_only_the_sample_is_decoded(spec, monkeypatch):
    found = large(spec, "test", most=5)
    decoded = []
    before = own.decoded
    monkeypatch.setattr(own, "decoded", lambda *given: decoded.append(1) or before(*given))
    few = found.first(2).images()
    assert len(decoded) == 2
    assert torch.equal(few.x, load(spec, split="test").x[:2])
