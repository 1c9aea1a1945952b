import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase.data.sources import load

ALL = "?split=all"


def test_class_folders_in_natural_order(class_folder):
    root = class_folder({"10": 2, "9": 3, "Ape": 1, "bee": 1})
    images = load(f"folder:{root}{ALL}")
    assert images.classes == ("9", "10", "Ape", "bee")
    assert images.y.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert images.id[:2] == ("pets/9/0.png", "pets/9/1.png")
    assert images.x.shape == (7, 1, 4, 5)
    assert images.x.dtype == torch.uint8
    expected = np.asarray(Image.open(root / "10" / "1.png"))
    assert np.array_equal(images.x[4, 0].numpy(), expected)
    assert (images.name, images.split) == (f"folder:{root}{ALL}", "all")
    assert load(images.name).hash == images.hash


def test_one_colour_image_makes_all_colour(class_folder, png):
    root = class_folder({"a": 2})
    (root / "a" / "9.jpg").write_bytes(png(7, mode="RGB", kind="JPEG"))
    images = load(f"folder:{root}{ALL}")
    assert images.x.shape[1] == 3
    assert (images.x[0, 0] == images.x[0, 2]).all()
    assert (images.x[2, 0] != images.x[2, 2]).any()


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("1", 1), ("LA", 1), ("RGB", 3), ("P", 3), ("RGBA", 3)]
)
def test_how_an_image_is_stored_decides_on_its_channels(tmp_path, png, mode, channels):
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "0.png").write_bytes(png(mode=mode))
    assert load(f"folder:{tmp_path / 'set'}").x.shape == (1, channels, 4, 5)


def test_labels_from_the_start_of_the_name(tmp_path, png, refusal):
    root = tmp_path / "set"
    (root / "deeper").mkdir(parents=True)
    for i, name in enumerate(["10_n01_hen.png", "2_x.png", "deeper/0_y_3.png"]):
        (root / name).write_bytes(png(i))
    images = load(f"folder:{root}?labels=prefix&split=all")
    assert images.id == ("set/2_x.png", "set/10_n01_hen.png", "set/deeper/0_y_3.png")
    assert images.y.tolist() == [2, 10, 0]
    assert len(images.classes) == 11
    (root / "x_1.png").write_bytes(png(9))
    refusal(f"folder:{root}?labels=prefix", r"x_1.png does not start with a class number")


def test_a_folder_with_its_own_split_keeps_it_and_an_empty_one_is_named(class_folder, refusal):
    root = class_folder({"train/cat": 3, "train/dog": 2, "test/dog": 2})
    train, test = load(f"folder:{root}", split="train"), load(f"folder:{root}", split="test")
    assert train.classes == test.classes == ("cat", "dog")
    assert train.y.tolist() == [0, 0, 0, 1, 1]
    assert test.y.tolist() == [1, 1]
    assert test.id[0] == "pets/test/dog/0.png"
    everything = load(f"folder:{root}{ALL}")
    assert len(everything) == 7
    assert everything.id == train.id + test.id
    root = class_folder({"train/cat": 3, "test/cat": 0}, name="empty")
    refusal(f"folder:{root}", r"the test part of .* holds no images")


def test_empty_class_folders_count_as_classes_hidden_and_other_files_are_left_out(class_folder):
    root = class_folder({"a": 0, "b": 2, "c": 0})
    (root / "b" / "notes.txt").write_text("x")
    (root / "b" / "._0.png").write_bytes(b"rubbish")
    shutil.copytree(root / "b", root / "__MACOSX")
    images = load(f"folder:{root}{ALL}")
    assert images.classes == ("a", "b", "c")
    assert images.y.tolist() == [1, 1]


@pytest.mark.parametrize("content", [b"", b"not an image", "cut"])
def test_a_corrupt_image_is_named(class_folder, png, refusal, content):
    root = class_folder({"a": 2})
    whole = png(3, size=(60, 60))
    (root / "a" / "7.png").write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    problem = refusal(f"folder:{root}", r"cannot read the image .*a/7.png")
    assert "0x" not in str(problem)
    assert "try:" in str(problem)


def test_images_that_do_not_fit_are_named(class_folder, png, refusal):
    root = class_folder({"a": 2})
    odd = root / "a" / "5.png"
    odd.write_bytes(png(size=(8, 6)))
    refusal(f"folder:{root}", r"0.png is 5×4, .*5.png is 8×6")
    Image.fromarray(np.full((4, 5), 40_000, np.uint16)).save(odd)
    refusal(f"folder:{root}", r"5.png has more than 8 bits")
    odd.rename(root / "loose.png")
    problem = refusal(f"folder:{root}", r"1 of 3 images .*no class folder.*loose.png")
    assert "?labels=prefix" in problem.fix


def test_empty_missing_and_no_folder(tmp_path, refusal):
    refusal(f"folder:{tmp_path / 'nowhere'}", "nowhere does not exist")
    (tmp_path / "empty").mkdir()
    refusal(f"folder:{tmp_path / 'empty'}", "there are no images in")
    (tmp_path / "file").write_text("x")
    refusal(f"folder:{tmp_path / 'file'}", "file is not a folder")
