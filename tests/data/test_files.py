import gzip
import hashlib
import json
import struct
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from hardcase.data import files as formats
from hardcase.data.files import Sizing, decoded, read_idx
from hardcase.errors import HardcaseError


def idx(array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.tobytes()


def numbers(*shape):
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_reads_what_was_written(tmp_path, packed):
    array = numbers(3, 4, 5)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    assert np.array_equal(read_idx(path), array)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "header of an IDX"),
        (b"\0\0\x0d\x01" + b"\0" * 8, "header of an IDX"),
        (idx(numbers(3, 4))[:-1], "11 bytes follow"),
        (idx(numbers(3, 4)) + b"x", "13 bytes follow"),
        (b"\0\0\x08\x03\0\0", "header of an IDX"),
        (gzip.compress(idx(numbers(30, 4)), mtime=0)[:-30], "cannot be unpacked"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, content, word):
    (tmp_path / "t10k-images").write_bytes(content)
    with pytest.raises(HardcaseError, match="t10k-images is damaged") as caught:
        read_idx(tmp_path / "t10k-images")
    assert word in str(caught.value)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(idx(numbers(3, 4, 5)))
    (tmp_path / "y").write_bytes(idx(numbers(2)))
    with pytest.raises(HardcaseError, match="do not fit"):
        formats.read_idx_pair(tmp_path / "x", tmp_path / "y")


def test_cifar_rows_and_bytes_give_the_same(tmp_path):
    x, y = numbers(3, 3, 32, 32), np.array([6, 9, 0])
    rows = (bytes([label]) + image.tobytes() for label, image in zip(y, x))
    (tmp_path / "batch.bin").write_bytes(b"".join(rows))
    Image.fromarray(x.transpose(0, 2, 3, 1).reshape(3, 1024, 3)).save(tmp_path / "batch.png")
    (tmp_path / "labels.json").write_text(json.dumps(y.tolist()))
    named = formats.read_json_labels(tmp_path / "labels.json")
    pictures = (formats.read_cifar_rows(tmp_path / "batch.png"), named)
    for images, labels in (formats.read_cifar_binary(tmp_path / "batch.bin"), pictures):
        assert np.array_equal(images, x)
        assert labels.tolist() == [6, 9, 0]


def test_damaged_cifar_files_are_named(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(HardcaseError, match=r"test_batch.bin .*3072 bytes are not rows"):
        formats.read_cifar_binary(tmp_path / "test_batch.bin")
    Image.new("RGB", (1000, 2)).save(tmp_path / "test_batch.png")
    with pytest.raises(HardcaseError, match=r"test_batch.png .*rows of 1,024"):
        formats.read_cifar_rows(tmp_path / "test_batch.png")
    (tmp_path / "labels.json").write_text('{"a": 1}')
    with pytest.raises(HardcaseError, match=r"labels.json is damaged"):
        formats.read_json_labels(tmp_path / "labels.json")


def split_rows(x, y, split):
    return formats.split_by_content(formats.content_hashes(x), y, split)


def make(labels, contents):
    x = np.array(contents, np.uint8).reshape(-1, 1, 1, 1).repeat(4, axis=2)
    return x, np.array(labels, np.int64)


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_the_split_is_whole_disjoint_and_blind_to_order(pairs, random):
    x, y = make(*map(list, zip(*pairs)))
    train, test = split_rows(x, y, "train"), split_rows(x, y, "test")
    assert sorted([*train, *test]) == list(range(len(y)))
    content = [(int(label), int(image[0, 0, 0])) for label, image in zip(y, x)]
    assert not {content[i] for i in train} & {content[i] for i in test}
    assert {content[i][0] for i in test} == set(y.tolist())
    order = np.array(random.sample(range(len(y)), len(y)))
    assert sorted(order[split_rows(x[order], y[order], "test")]) == list(test)


def test_a_fifth_of_every_class_is_for_testing_and_the_split_never_changes():
    x, y = make([0] * 100 + [1] * 50 + [2] * 3 + [3], [*range(100), *range(50), *range(3), 7])
    assert np.bincount(y[split_rows(x, y, "test")]).tolist() == [20, 10, 1, 1]
    assert np.bincount(y[split_rows(x, y, "train")]).tolist() == [80, 40, 2]
    x, y = make([0] * 20, list(range(20)))
    by_hash = sorted(range(20), key=lambda i: hashlib.sha256(bytes([i] * 4)).digest())
    assert split_rows(x, y, "test").tolist() == sorted(by_hash[:4]) == [1, 12, 18, 19]


def ramp(width, height):
    """Brighter to the right."""
    row = np.linspace(0, 255, width).astype(np.uint8)
    return Image.fromarray(np.repeat(row[None], height, 0))


def encoded(picture, **options):
    file = BytesIO()
    picture.save(file, format="PNG" if not options else "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"resize": "32", "crop": "center"}, (32, 32)),
        ({"resize": "40", "crop": "32"}, (32, 32)),
        ({"resize": "32"}, (32, 32)),
        ({"crop": "20"}, (20, 20)),
        ({}, (60, 90)),
    ],
)
def test_sizes(words, expected):
    assert decoded(encoded(ramp(90, 60)), Sizing.of(words), "a").shape == expected


@pytest.mark.parametrize(("crop", "left", "right"), [("center", 85, 170), ("0", 2, 253)])
def test_a_centre_crop_keeps_the_middle_and_resizing_alone_keeps_all(crop, left, right):
    image = decoded(encoded(ramp(90, 30)), Sizing.of({"resize": "30", "crop": crop}), "a")
    assert abs(int(image[:, 0].mean()) - left) <= 8
    assert abs(int(image[:, -1].mean()) - right) <= 8


def test_the_cameras_orientation_is_honoured():
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter to the right to see it upright
    image = decoded(encoded(ramp(64, 32), exif=exif, quality=95), Sizing(), "a")
    assert image.shape == (64, 32)
    assert image[0].mean() < image[-1].mean()


def test_mistakes_are_told():
    mistakes = {
        "needs resize": {"crop": "center"}, "more than resize": {"resize": "20", "crop": "30"},
        "no number of pixels": {"resize": "big"}, "1 or more": {"resize": "-3"},
    }  # fmt: skip
    for why, words in mistakes.items():
        with pytest.raises(HardcaseError, match=why):
            Sizing.of(words)
    with pytest.raises(HardcaseError, match="no square of 40"):
        decoded(encoded(ramp(30, 30)), Sizing(crop=40), "a")


def test_different_sizes_name_the_remedy():
    pictures = [np.zeros((4, 4), np.uint8), np.zeros((4, 5), np.uint8)]
    with pytest.raises(HardcaseError, match="b is 5×4") as caught:
        formats.stacked(pictures, ["a", "b"])
    assert "?resize=4&crop=center" in caught.value.fix


def test_grey_images_among_coloured_ones_are_coloured_wherever_they_stand():
    grey = np.full((4, 5), 7, np.uint8)
    colour = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert formats.stacked([grey, grey], ["a", "b"]).shape == (2, 1, 4, 5)
    for place in range(3):
        pictures = [grey, grey]
        pictures.insert(place, colour)
        x = formats.stacked(iter(pictures), ["a", "b", "c"])
        assert x.shape == (3, 3, 4, 5)
        assert (x[place] == colour.transpose(2, 0, 1)).all()
        assert (np.delete(x, place, 0) == 7).all()
