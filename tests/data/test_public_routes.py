from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hardcase.data import public
from hardcase.errors import Problem

NAMES = frozenset({"a.bin", "a.bin.gz", "b.bin", "b.bin.gz"})


def tar_of(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
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


def zip_of(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "folder").mkdir(parents=True)
    return tmp_path / "deep" / "folder"


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_only_the_wanted_files_come_out(
    tmp_path: Path, folder: Path, make: Callable[..., Path]
) -> None:
    public.unpack(
        make(tmp_path / "archive", {"p/a.bin": b"1", "p/b.bin.gz": b"2", "p/run.sh": b"3"}),
        folder,
        NAMES,
    )
    assert content(folder) == {"a.bin": b"1", "b.bin.gz": b"2"}


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_no_name_leads_out_of_the_folder(
    tmp_path: Path, folder: Path, make: Callable[..., Path]
) -> None:
    outside = tmp_path / "outside" / "a.bin"
    archive = make(
        tmp_path / "archive",
        {"../../a.bin": b"1", str(outside): b"2", "../b.bin": b"3", "..": b"4"},
    )
    public.unpack(archive, folder, NAMES)
    assert sorted(tmp_path.rglob("*.bin")) == sorted(folder.rglob("*.bin"))
    assert len(list(folder.rglob("a.bin"))) == 2


def test_links_are_not_followed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    public.unpack(
        tar_of(tmp_path / "archive", {"b.bin": b"1"}, {"a.bin": str(tmp_path / "secret")}),
        folder,
        NAMES,
    )
    assert content(folder) == {"b.bin": b"1"}


def test_what_is_no_archive_or_a_damaged_one_is_said(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(Problem, match="neither a folder nor a tar or zip"):
        public.unpack(tmp_path / "text", folder, NAMES)
    whole = tar_of(tmp_path / "archive", {"a.bin": os.urandom(5000)}).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:3000])
    with pytest.raises(Problem, match="is damaged"):
        public.unpack(tmp_path / "cut", folder, NAMES)


def test_a_mirror_gives_files_and_archives(
    tmp_path: Path, folder: Path, serve: Callable[[Path], str]
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.bin").write_bytes(b"first")
    tar_of(tmp_path / "web" / "rest.tar.gz", {"x/b.bin": b"second"})
    base = serve(tmp_path / "web")
    sums = {
        file.name: hashlib.md5(file.read_bytes()).hexdigest()
        for file in (tmp_path / "web").iterdir()
    }
    public.mirror(*((f"{base}/{name}", md5) for name, md5 in sums.items())).fill(folder, NAMES)
    assert {name: data for name, data in content(folder).items() if name in NAMES} == {
        "a.bin": b"first",
        "b.bin": b"second",
    }


def test_a_mirror_with_another_content_is_refused(
    tmp_path: Path, folder: Path, serve: Callable[[Path], str]
) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.bin").write_bytes(b"changed")
    base = serve(tmp_path / "web")
    with pytest.raises(Problem, match=r"a.bin has changed: MD5 .* expected 0123"):
        public.mirror((f"{base}/a.bin", "0123")).fill(folder, NAMES)
    with pytest.raises(Problem, match=r"b.bin cannot be fetched .*404"):
        public.mirror((f"{base}/b.bin", "0123")).fill(folder, NAMES)
    with pytest.raises(Problem, match="cannot be fetched"):
        public.mirror(("http://127.0.0.1:9/a.bin", "0123")).fill(folder, NAMES)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script of that name first in the path."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'clients'}:/bin:/usr/bin")
    (tmp_path / "clients").mkdir()

    def make(name: str, script: str) -> None:
        path = tmp_path / "clients" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_npm_packs_are_unpacked(
    tmp_path: Path, folder: Path, client: Callable[[str, str], None]
) -> None:
    archive = tar_of(tmp_path / "pack.tgz", {"package/a.bin": b"1", "package/index.js": b"2"})
    client("npm", f'echo "$@" > {tmp_path}/said; cp {archive} name-1.0.tgz')
    route = public.npm("name@1.0")
    route.fill(folder, NAMES)
    assert content(folder / "from-0") == {"a.bin": b"1"}
    assert route.name == "npm package name@1.0"
    assert (tmp_path / "said").read_text().split() == [
        "pack",
        "--silent",
        "--ignore-scripts",
        "name@1.0",
    ]


def test_debian_packages_are_unpacked_not_installed(
    tmp_path: Path, folder: Path, client: Callable[[str, str], None]
) -> None:
    client("apt-get", '[ "$1 $2" = "download name" ] && touch name_1_all.deb')
    client("dpkg-deb", '[ "$1" = -x ] && mkdir -p "$3/usr" && echo 1 > "$3/usr/a.bin"')
    public.debian("name").fill(folder, NAMES)
    assert (folder / "unpacked" / "usr" / "a.bin").exists()


def test_a_client_that_fails_gives_its_last_words(
    folder: Path, client: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    client("npm", "echo first >&2; echo no such package >&2; exit 3")
    with pytest.raises(Problem, match="npm pack failed: no such package"):
        public.npm("name").fill(folder, NAMES)
    client("npm", "exit 3")
    with pytest.raises(Problem, match="exit code 3"):
        public.npm("name").fill(folder, NAMES)
    monkeypatch.setattr(public, "CLIENT_PATIENCE", 0.2)
    client("npm", "exec sleep 20")
    start = time.monotonic()
    with pytest.raises(Problem, match="did not finish"):
        public.npm("name").fill(folder, NAMES)
    assert time.monotonic() - start < 10


def test_a_client_that_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Problem, match="npm is not installed"):
        public.npm("name").fill(folder, NAMES)
