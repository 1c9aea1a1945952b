import re

import pytest

from hardcase.data.public import public_sets
from hardcase.data.sources import describe, load
from hardcase.errors import USAGE


def test_the_digits_that_come_with_the_installation():
    train, test = load("mnist5k", split="train"), load("mnist5k")
    assert train.y.bincount().tolist() == [400] * 10
    assert test.y.bincount().tolist() == [100] * 10
    assert train.x.shape == (4000, 1, 28, 28)
    assert test.id[42] == "mnist5k/test/00042"
    assert test.classes == tuple("0123456789")
    pixels = [{image.numpy().tobytes() for image in part.x} for part in (train, test)]
    assert len(pixels[0]) == 4000
    assert not pixels[0] & pixels[1]
    assert {train.hash, test.hash} == set(public_sets()["mnist5k"].hashes.values())


def test_own_data_is_divided_once_and_for_all(class_folder):
    root = class_folder({"a": 20, "b": 10})
    train, test = load(f"folder:{root}", split="train"), load(f"folder:{root}", split="test")
    assert (train.split, test.split) == ("train", "test")
    assert test.y.bincount().tolist() == [4, 2]
    assert not set(train.id) & set(test.id)
    everything = load(f"folder:{root}?split=all", split="train")
    assert set(everything.id) == set(train.id) | set(test.id)
    assert everything.hash == load(f"folder:{root}?split=all", split="test").hash
    moved = root.rename(root.parent / "moved")
    assert load(f"folder:{moved}").hash == test.hash


def test_one_image_a_class_is_for_testing(class_folder, refusal):
    root = class_folder({"a": 1, "b": 1})
    assert len(load(f"folder:{root}")) == 2
    problem = refusal(f"folder:{root}", r"the train part of .* is empty", split="train")
    assert f"folder:{root}?split=all" in problem.fix


@pytest.mark.parametrize(
    ("spec", "word", "fix"),
    [
        ("cifar", "no data set 'cifar'", "cifar10"),
        ("foldr:x", "no data set 'foldr:x'", "folder:PATH"),
        ("folder:", "names no path", "folder:PATH"),
        ("folder:x?label=prefix", "no option of folder: 'label'", "labels"),
        ("folder:x?labels=name", "no value of ?labels= 'name'", ""),
        ("npz:x?labels=prefix", "no option of npz: 'labels'", ""),
        ("npz:x?split=train", "no value of ?split= 'train'", ""),
        ("run:x?split=all", "no option of run: 'split'", ""),
    ],
)
def test_words_that_name_nothing(refusal, spec, word, fix):
    problem = refusal(spec, re.escape(word))
    assert (problem.fix, problem.code) == (fix, USAGE)


def test_a_bare_path_and_an_unknown_split_are_told(tmp_path, refusal):
    assert refusal(str(tmp_path), "say what kind").fix == f"--data folder:{tmp_path}"
    refusal("mnist5k", "no split 'valid'", split="valid")


def test_describe_counts_and_warns(class_folder):
    both = describe(load(f"folder:{class_folder({'cat': 3, 'dog': 2})}?split=all"))
    assert both["per_class"] == {"cat": 3, "dog": 2}
    assert both["shape"] == [1, 4, 5]
    assert both["notes"] == []
    single = describe(load(f"folder:{class_folder({'cat': 3, 'dog': 0}, name='cats')}?split=all"))
    (note,) = single["notes"]
    assert note == "all 3 images belong to one class, 'cat': accuracy and confusions say little."
    gap = describe(load(f"folder:{class_folder({'a': 1, 'b': 1, 'c': 0}, name='gap')}?split=all"))
    assert gap["notes"] == ["1 of 3 classes have no images: c."]


OWN = """
import torch
from hardcase import Images

def _bars(count, first):
    x = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    x[:, 0, 0, 0] = torch.arange(first, first + count)
    return Images(x, torch.arange(count) % 2, tuple(f"bar{first + i}" for i in range(count)), ("a", "b"))

def whole():
    return _bars(20, 0)

def pair():
    return _bars(12, 0), _bars(4, 100)

def wrong():
    return 7

def quits():
    raise SystemExit(0)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_functions_that_return_images_or_a_pair_are_data_sets(own):
    train, test = (load(f"{own}:whole", split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert not set(train.id) & set(test.id)
    assert (train.name, train.split, train.classes) == (f"{own}:whole", "train", ("a", "b"))
    assert len(load(f"{own}:whole?split=all")) == 20
    train, test = (load(f"{own}:pair", split=split) for split in ("train", "test"))
    assert train.id[0] == "bar0"
    assert test.id == ("bar100", "bar101", "bar102", "bar103")
    assert len(load(f"{own}:pair?split=all")) == 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", "returned int; it must return hardcase.Images"),
        ("quits", r"called sys.exit\(0\)"),
        ("none", "no function 'none'"),
        ("whole?split=most", "no value of \\?split="),
    ],
)
def test_a_function_that_is_no_data_set(own, refusal, name, message):
    refusal(f"{own}:{name}", message)
