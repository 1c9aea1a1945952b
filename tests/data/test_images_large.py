"""Folders of many files: the same split as when they are loaded whole, decoded only where asked."""

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase.data import own
from hardcase.data.sources import large, load


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
