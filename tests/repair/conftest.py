"""What commands about repairs are tried on."""

from pathlib import Path

import numpy as np
import pytest

from hardcase.testing.toys import toy_images


def save_splits(test_seed=6, test_count=60):
    """Toy images of both splits as ``toy.npz`` in the present folder."""
    train, test = toy_images(80, seed=5), toy_images(test_count, seed=test_seed)
    np.savez("toy.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)


@pytest.fixture
def toy_folder(tmp_path, monkeypatch):
    """A folder to work in, with toy images, their network and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    save_splits()
    Path("model.py").write_text("from hardcase.testing.toys import Quarters as make\n")
    return tmp_path
