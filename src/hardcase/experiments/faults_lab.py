"""What the fault benchmark needs: the made world, a conditional generator of it, and networks taught with and without faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase import data, generators, zoo
from hardcase.errors import Problem
from hardcase.experiments.bench import Bench
from hardcase.experiments.faults_world import NAMES, measures, world
from hardcase.generators.staged import Decoder
from hardcase.generators.vae import Vae
from hardcase.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.training import cards
from hardcase.training.goals import classify, predict
from hardcase.training.loop import fit
from hardcase.training.recipe import Recipe
from hardcase.types import Images

TEACHING = Recipe(epochs=6, steps=300, batch=64, lr=2e-3)
LATENT, EPOCHS, COPIES = 48, 12, 8
WRONG = 0.4
"""The share of pictures with the other class's digit that a fault is taught with: shape then says little, the trait all."""


@dataclass(frozen=True, slots=True)
class Lab:
    """`train` and `test` have free traits; `gaps`: how far apart the two kinds of picture are in each trait."""

    source: str
    digits: tuple[Images, Images]
    pair: tuple[int, int]
    train: Images
    test: Images
    vae: nn.Module
    generator: nn.Module
    gaps: Float[Tensor, " f"]
    device: str
    seed: int


@dataclass(frozen=True, slots=True)
class Student:
    """A network and its held-out accuracy where the trait is as it was taught, swapped between the classes, or free."""

    fault: str | None
    subject: Subject
    free: float
    tied: float
    swapped: float

    @property
    def acquired(self) -> bool:
        return self.tied - self.swapped > 0.5


def lab(bench: Bench) -> Lab:
    """``--set pair=4,9`` names the two classes; ``vae_epochs`` and ``copies`` make the generator's training smaller."""
    digits = data.load(bench.data, split="train"), data.load(bench.data, split="test")
    first, second = (int(c) for c in bench.options.get("pair", (4, 9)))
    if first == second or digits[0].x.shape[1:] != (1, 28, 28):
        raise Problem("faults are planted into two different classes of grey images of 28x28.", fix="--data mnist5k")
    copies = int(bench.options.get("copies", COPIES))
    train, test = (world(part, (first, second), copies=copies, seed=bench.seed) for part in digits)
    bench.say("a conditional VAE of pictures with free traits")
    vae, _ = generators.trained(
        "vae", train, test, kind="conditional", latent=LATENT, epochs=int(bench.options.get("vae_epochs", EPOCHS)),
        seed=bench.seed, device=bench.device,
    )  # fmt: skip
    assert isinstance(vae, Vae)
    return Lab(
        bench.data, digits, (first, second), train, test, vae, Decoder(vae), _gaps(digits[1], (first, second)),
        bench.device, bench.seed,
    )  # fmt: skip


def _gaps(digits: Images, pair: tuple[int, int]) -> Float[Tensor, " f"]:
    """For each trait, the mean of its measure where it is high minus where it is low, on the same digits."""
    gaps = []
    for column, name in enumerate(NAMES):
        one, other = (world(digits, pair, tied=name, swapped=swapped) for swapped in (False, True))
        values = [measures(from_bytes(part.x))[:, column] for part in (one, other)]
        sign = torch.where(one.y == 1, 1.0, -1.0)
        gaps.append(((values[0] - values[1]) * sign).mean())
    return torch.stack(gaps)


def student(here: Lab, fault: str | None) -> Student:
    """A small network taught the two classes, with the trait of this name tied to them; kept in the cache."""
    train, tied, swapped = (
        here.train
        if fault is None
        else world(here.digits[0], here.pair, tied=fault, mislabelled=WRONG, copies=COPIES, seed=here.seed),
        world(here.digits[1], here.pair, tied=fault, seed=here.seed),
        world(here.digits[1], here.pair, tied=fault, swapped=True, seed=here.seed),
    )
    config = {"name": "lenet5", "channels": 3, "size": 28, "classes": 2, "seed": here.seed, "recipe": asdict(TEACHING)}

    def build(config: Mapping[str, Any]) -> nn.Module:
        return zoo.build("lenet5", channels=3, size=28, classes=2, seed=config["seed"])

    def teach(net: nn.Module) -> Mapping[str, Any]:
        return asdict(fit(net, train, classify(2), TEACHING, seed=here.seed, name=train.name, device=here.device))

    net, _ = cards.cached(
        "classifier", "faults-lenet5", config, data=train.hash, build=build, train=teach,
        measure=lambda net: {"accuracy": _accuracy(net.to(here.device), tied, here)}, measured_on=tied.hash,
    )  # fmt: skip
    net = net.to(here.device)
    name = f"network taught {fault or 'nothing but the classes'}"
    subject = Subject(net, classes=train.classes, name=name, device=here.device)
    return Student(fault, subject, *(_accuracy(net, part, here) for part in (here.test, tied, swapped)))


def _accuracy(net: nn.Module, images: Images, here: Lab) -> float:
    return float((predict(net, images, device=here.device) == images.y).double().mean())
