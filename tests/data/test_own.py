import numpy as np
import pytest

from hardcase.data.sources import load

X = np.random.default_rng(0).integers(0, 256, (10, 6, 7, 3), dtype=np.uint8)
Y = np.arange(10) % 3
ALL = "?split=all"


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "set.npz", **arrays)  # type: ignore[arg-type]  # any array
    return f"npz:{tmp_path / 'set.npz'}"


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y")])
def test_both_pairs_of_names(tmp_path, keys):
    images = load(saved(tmp_path, **dict(zip(keys, (X, Y)))) + ALL)
    assert np.array_equal(images.x.numpy(), X.transpose(0, 3, 1, 2))
    assert images.y.tolist() == Y.tolist()
    assert images.id[9] == "set/00009"
    assert images.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        (X, X.transpose(0, 3, 1, 2)),
        (X.transpose(0, 3, 1, 2), X.transpose(0, 3, 1, 2)),
        (X[..., 0], X[:, None, :, :, 0]),
        (X[..., :1], X[:, None, :, :, 0]),
        (X[:, None, :, :, 0], X[:, None, :, :, 0]),
    ],
)
def test_layouts_are_told_apart(tmp_path, stored, meant):
    assert np.array_equal(load(saved(tmp_path, images=stored, labels=Y) + ALL).x.numpy(), meant)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_give_the_8_bit_image_back(tmp_path, dtype):
    images = load(saved(tmp_path, images=(X / 255).astype(dtype), labels=Y) + ALL)
    assert np.array_equal(images.x.numpy(), X.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("images", "word"),
    [
        (X.astype(np.float32), "range over 0..255"),
        (X / 255 - 0.5, "range over -0.5"),
        (np.full((10, 4, 4), np.nan), "nan"),
        (X.astype(np.int32), "images are int32"),
        (X > 9, "images are bool"),
        (X[0], "10 labels"),
        (X[0, 0], "3 axes"),
        (np.concatenate([X, X[..., :1]], -1), "neither axis 1 nor axis 3"),
        (X[:, :3], "either axis 1 or axis 3"),
        (X[:9], "9 images, but 10 labels"),
        (X[:0], "0 images, but 10 labels"),
    ],
)
def test_images_that_are_not_8_bit_images_are_refused(tmp_path, refusal, images, word):
    refusal(saved(tmp_path, images=images, labels=Y), word)


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (Y - 1, "label -1"),
        (Y + 1, "label 3"),
        (Y.astype(float), "float64"),
        (np.eye(3, dtype=int)[Y], "one-hot"),
        (Y.astype(str), "whole number"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, refusal, labels, word):
    refusal(saved(tmp_path, images=X, labels=labels, classes=["a", "b", "c"]), word)


def test_class_names_a_column_of_labels_and_an_own_split_are_kept(tmp_path):
    images = load(saved(tmp_path, x=X, y=Y[:, None], classes=["a", "b", "c", "d"]) + ALL)
    assert images.classes == ("a", "b", "c", "d")
    assert images.y.tolist() == Y.tolist()
    spec = saved(tmp_path, x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4] * 0)
    test, train = load(spec), load(spec, split="train")
    assert (len(test), len(train)) == (4, 10)
    assert test.classes == train.classes == ("0", "1", "2")
    assert test.id[0] == "set/test/00000"
    assert load(spec + ALL).id == train.id + test.id


def test_files_that_cannot_be_read(tmp_path, refusal):
    refusal(saved(tmp_path, pictures=X, y=Y), "it has pictures, y")
    refusal(saved(tmp_path, images=X), "it has images")
    refusal(saved(tmp_path, images=X[:0], labels=Y[:0]), "holds no images")
    objects = np.array([{}] * 10, dtype=object)
    refusal(saved(tmp_path, images=X, labels=objects), "need unpickling")
    path = tmp_path / "set.npz"
    saved(tmp_path, images=X, labels=Y)
    path.write_bytes(path.read_bytes()[:500])
    refusal(f"npz:{path}", r"cannot read .*set.npz as npz")
    np.save(tmp_path / "bare.npy", X)
    refusal(f"npz:{tmp_path / 'bare.npy'}", "one bare array")
    refusal(f"npz:{tmp_path / 'nowhere.npz'}", "does not exist")
