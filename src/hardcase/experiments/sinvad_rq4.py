"""SINVAD's RQ4: what size and kind of VAE keeps the label of an image (Figures 16, 17 and 18).

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Outcome, Table
from hardcase.experiments.searching import probabilities
from hardcase.experiments.world import both_splits, network
from hardcase.generators.build import trained_generator
from hardcase.generators.catalogue import GENERATORS
from hardcase.models.subject import Subject
from hardcase.tensors import from_bytes
from hardcase.types import Images

QUICK, FULL = (2, 10, 50, 400), (1, 2, 5, 10, 20, 50, 100, 200, 400, 800, 1600)
PAPER = (
    "paper: accuracy rises with the latent size and levels off; it falls again where the code is larger than the image; "
    "linear slightly better than convolutional on 28x28; ten ImageNet-32 classes 67.4 % originals, 59.5 % VDVAE, 32.6 % linear"
)


@dataclass(frozen=True, slots=True)
class Tried:
    """One generator: what its card says, and its reconstructions of the images that are shown."""

    kind: str
    latent: int
    accuracy: float
    agreement: float
    ssim: float
    shown: Float[Tensor, "n c h w"]


def run(bench: Bench) -> Outcome:
    """Train a VAE of every kind and size; see how often the network still sees the label, and show some."""
    train, test = both_splits(bench)
    subject, card = network(bench, train, test)
    typical, odd = examples(subject, test)
    seen = torch.cat([typical, odd])
    tried = []
    for kind in bench.options.get("kinds", _kinds(train)):
        for latent in bench.options.get("latents", FULL if bench.full else QUICK):
            bench.say(f"{kind} VAE, latent {latent}")
            tried.append(_tried(bench, train, test, subject, kind, int(latent), seen))
    lines = {
        kind: [one for one in tried if one.kind == kind]
        for kind in dict.fromkeys(one.kind for one in tried)
    }
    curve = {
        kind: ([o.latent for o in some], [o.accuracy for o in some]) for kind, some in lines.items()
    }
    curve["originals"] = (
        [min(o.latent for o in tried), max(o.latent for o in tried)],
        [card["accuracy"]] * 2,
    )
    shown = [
        figures.curves(
            bench.out / "accuracy.png", {test.name: curve}, x="latent size", y="accuracy", log=True
        ),
        figures.images(
            bench.out / "typical.png", _pictures(typical, tried, slice(0, len(typical)))
        ),
        figures.images(bench.out / "odd.png", _pictures(odd, tried, slice(len(typical), None))),
    ]
    rows: list[list[Cell]] = [[o.kind, o.latent, o.accuracy, o.agreement, o.ssim] for o in tried]
    notes = [
        f"{subject.name} is right on {card['accuracy']:.1%} of the {len(test)} originals of {test.name}",
        PAPER,
        "typical: rightly classified with the highest confidence of its class; odd: with the lowest",
    ]
    columns = [
        "kind",
        "latent size",
        "accuracy on reconstructions",
        "same answer as on the original",
        "SSIM",
    ]
    return Outcome(
        "sinvad-rq4",
        [Table(f"Figure 17: reconstructions of {test.name}", columns, rows, notes)],
        shown,
    )


def _kinds(train: Images) -> list[str]:
    deep = ["hierarchical"] if "vae-hierarchical" in GENERATORS and train.x.shape[1] > 1 else []
    return ["linear", "conv", *deep]


def _tried(
    bench: Bench,
    train: Images,
    test: Images,
    subject: Subject,
    kind: str,
    latent: int,
    seen: Tensor,
) -> Tried:
    epochs = bench.options.get("epochs", None if bench.full else {"linear": 8, "conv": 3}.get(kind))
    net, card = trained_generator(
        "vae",
        train,
        test,
        kind=kind,
        latent=latent,
        epochs=epochs,
        judge=lambda x: subject(x).logits,
        device=bench.device,
    )
    with torch.no_grad():
        painted = net(from_bytes(seen).to(bench.device)).cpu()
    return Tried(
        kind,
        latent,
        card["reconstruction_accuracy"],
        card["reconstruction_agreement"],
        card["ssim"],
        painted,
    )


def examples(subject: Subject, test: Images, *, most: int = 8) -> tuple[Tensor, Tensor]:
    """Of up to `most` classes one image each that the subject is surest of, and one it is least sure of; all rightly seen."""
    said = probabilities(subject, test.x)
    right, sure = said.argmax(1) == test.y, said.amax(1)
    typical, odd = [], []
    for c in range(min(most, len(test.classes))):
        own = (right & (test.y == c)).nonzero().squeeze(1)
        if len(own):
            typical.append(own[sure[own].argmax()])
            odd.append(own[sure[own].argmin()])
    return test.x[torch.stack(typical)], test.x[torch.stack(odd)]


def _pictures(originals: Tensor, tried: list[Tried], part: slice) -> dict[str, Tensor]:
    return {"original": originals, **{f"{one.kind} {one.latent}": one.shown[part] for one in tried}}
