"""What an experiment about latent search needs: data, a network under test, a generator, and codes of training images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.data.sources import load
from hardcase.experiments.bench import Bench
from hardcase.generators.build import trained_generator
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.spaces.latent import Labelled, Latent, Library, collect
from hardcase.spaces.latent import latent as latent_space
from hardcase.types import Images

LOST = 0.1
"""Share of labels that reconstruction may lose before a generator is called unfit."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything on the bench's device; the cards say how the networks were made and how good they are."""

    train: Images
    test: Images
    subject: Subject
    subject_card: dict[str, Any]
    vae: nn.Module
    vae_card: dict[str, Any]
    space: Latent | Labelled
    codes: Library

    @property
    def notes(self) -> list[str]:
        """What a table must say about the networks it was made with."""
        vae, said = self.vae_card["configuration"], self.vae_card["reconstruction_accuracy"]
        return [
            f"network {self.subject.name}, {self.subject_card['accuracy']:.1%} of {len(self.test)} test images right",
            f"VAE {vae['kind']}, latent {vae['latent']}, reconstructions {said:.1%} right, SSIM {self.vae_card['ssim']:.2f}",
            f"data {self.train.name}, {len(self.train)} training images",
        ]


def world(
    bench: Bench, *, model: str | None = None, kind: str | None = None, latent: int | None = None
) -> World:
    """The data of the bench with a network and a VAE trained on it; ``--set model=… kind=… latent=… epochs=…
    vae_epochs=…`` choose others."""
    train, test = both_splits(bench)
    subject, card = network(bench, train, test, model=model)
    vae, vae_card = trained_generator(
        "vae",
        train,
        test,
        kind=str(
            kind or bench.options.get("kind", "hierarchical" if train.x.shape[1] > 1 else "linear")
        ),
        latent=latent or bench.options.get("latent"),
        epochs=bench.options.get("vae_epochs"),
        judge=lambda x: subject(x).logits,
        device=bench.device,
    )
    lost = vae_card["judge_accuracy"] - vae_card["reconstruction_accuracy"]
    if lost > LOST:
        bench.say(
            f"warning: reconstructions lose {lost:.1%} of the labels; what is found says more of the VAE"
        )
    space = latent_space(vae)
    return World(
        train, test, subject, card, vae, vae_card, space, library(space, train, bench.device)
    )


def both_splits(bench: Bench) -> tuple[Images, Images]:
    train, test = (load(bench.data, split=split) for split in ("train", "test"))
    return train, test


def network(
    bench: Bench, train: Images, test: Images, *, model: str | None = None, seed: int | None = None
) -> tuple[Subject, dict[str, Any]]:
    """A zoo network trained on `train`: the paper's with ``--full``, LeNet-5 otherwise, an AlexNet for colour."""
    usual = "alexnet" if train.x.shape[1] > 1 else "sinvad-cnn" if bench.full else "lenet5"
    name = str(model or bench.options.get("model", usual)).removeprefix("zoo:")
    net, card = trained_classifier(
        name,
        train,
        test,
        seed=bench.seed if seed is None else seed,
        epochs=bench.options.get("epochs"),
        device=bench.device,
    )
    return Subject(net, classes=test.classes, name=f"zoo:{name}", device=bench.device), card


def library(space: Latent | Labelled, train: Images, device: str) -> Library:
    """Codes of training images in `space`."""

    def encode(x: Tensor) -> Tensor:
        return space.encode(
            x, torch.zeros(len(x), dtype=torch.int64, device=x.device), torch.Generator(x.device)
        )[0]

    return collect(train, encode, device=torch.device(device), limit=10_000)
