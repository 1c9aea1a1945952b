"""The field's images may be anything: each mistake is named, and nothing is read without end."""

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase.conditions.fitting.field_images import LEAST, read_field
from hardcase.errors import HardcaseError
from hardcase.types import Images


def labelled(channels=1, side=12, count=4):
    x = torch.randint(0, 256, (count, channels, side, side), generator=chance()).byte()
    names = tuple(f"{i}" for i in range(count))
    return Images(x, torch.zeros(count).long(), names, ("a",), "labelled")


def chance():
    return torch.Generator().manual_seed(0)


def folder(path, count=60, size=(12, 12), mode="L"):
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for i in range(count):
        shape = size[::-1] if mode == "L" else (*size[::-1], 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path / f"{i:03d}.png")
    return f"folder:{path}"


def test_images_at_any_depth_are_read(tmp_path):
    folder(tmp_path / "a" / "b")
    found = read_field(f"folder:{tmp_path}", labelled())
    assert len(found) == 60
    assert found.notes == ()


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_too_few_images_are_refused(tmp_path, count):
    with pytest.raises(HardcaseError, match="no images" if count == 0 else f"{count} images"):
        read_field(folder(tmp_path / "few", count), labelled())


def test_another_size_is_refused_with_what_to_type(tmp_path):
    spec = folder(tmp_path / "large", size=(20, 16))
    with pytest.raises(HardcaseError, match="20×16") as raised:
        read_field(spec, labelled())
    assert "?resize=12&crop=center" in raised.value.fix
    assert len(read_field(f"{spec}?resize=12&crop=center", labelled())) == 60


def test_channels_become_those_of_the_labelled_images(tmp_path):
    coloured = read_field(folder(tmp_path / "rgb", mode="RGB"), labelled())
    assert coloured.x.shape[1] == 1
    assert "grey" in coloured.notes[0]
    grey = read_field(folder(tmp_path / "grey"), labelled(channels=3))
    assert grey.x.shape[1] == 3


def test_labelled_images_themselves_say_nothing(tmp_path):
    images = labelled(count=80)
    with pytest.raises(HardcaseError, match="0 images that can be used") as raised:
        read_field(images.x, images)
    assert any("labelled images themselves" in line for line in raised.value.why)


def test_repeated_images_count_once():
    one = torch.arange(60 * 144).reshape(60, 1, 12, 12).remainder(251).byte()
    found = read_field(torch.cat([one, one]), labelled())
    assert len(found) == len(torch.unique(one.flatten(1), dim=0))


def test_a_few_unreadable_files_are_left_out_and_many_are_refused(tmp_path):
    spec = folder(tmp_path / "some")
    (tmp_path / "some" / "broken.png").write_bytes(b"no image")
    found = read_field(spec, labelled())
    assert len(found) == 60
    assert "1 images cannot be read" in found.notes[0]
    for i in range(20):
        (tmp_path / "some" / f"broken{i}.png").write_bytes(b"")
    with pytest.raises(HardcaseError, match="21 of 81 images"):
        read_field(spec, labelled())


def test_of_very_many_files_only_those_that_are_used_are_decoded(tmp_path, monkeypatch):
    from hardcase.conditions.fitting import field_images

    spec = folder(tmp_path / "many", count=200)
    decoded = []
    real = field_images.file_bytes
    monkeypatch.setattr(field_images, "file_bytes", lambda f: decoded.append(f) or real(f))
    found = read_field(spec, labelled(), most=70)
    assert len(found) == len(decoded) == 70
    assert "70 of 200" in found.notes[0]


def test_other_things_are_refused(tmp_path):
    for wrong in (3, "folder:/nowhere", "nothing-known", torch.full((60, 1, 12, 12), 3.0)):
        with pytest.raises(HardcaseError):
            read_field(wrong, labelled())


def test_arrays_without_labels_are_read_from_npz(tmp_path):
    path = tmp_path / "x.npz"
    x = np.random.default_rng(0).integers(0, 256, (60, 12, 12), dtype=np.uint8)
    np.savez(path, images=x)
    assert len(read_field(f"npz:{path}", labelled())) == 60
