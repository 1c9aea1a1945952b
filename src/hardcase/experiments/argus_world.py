"""What the ARGUS experiments need: networks, generators, partners, originals, and pictures of mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.experiments.bench import Bench
from hardcase.experiments.searching import usable
from hardcase.experiments.world import both_splits
from hardcase.generators.build import trained_generator
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.randomness import stream
from hardcase.spaces.latent import Grid, Latent, Library, collect
from hardcase.statistics import Interval, mean, mse, ssim
from hardcase.tensors import chunks, from_bytes, to_grid
from hardcase.types import Images, Seeds, Space

LIMIT = 30_000
"""Partners at most."""


@dataclass(frozen=True, slots=True)
class Painter:
    """A trained generator as a space, with the codes of training images."""

    space: Space
    codes: Library
    card: dict[str, Any]

    @property
    def note(self) -> str:
        c = self.card["configuration"]
        joint = f", with discriminators at {c['mix']}" if c.get("mix") else ""
        return (
            f"{c['family']} {c['kind']}{joint}: SSIM {self.card['ssim']:.3f}, MSE {self.card['mse']:.4f}, "
            f"{100 * self.card['reconstruction_accuracy']:.1f} % of reconstructions right "
            f"({100 * self.card['judge_accuracy']:.1f} % of the images)"
        )


def networks(
    bench: Bench, names: Sequence[str] = (), *, most: int | None = None
) -> tuple[Images, Images, dict[str, Subject], list[str]]:
    """The data, the networks under test (if none is named, the first `most` of the paper's for such images), and what a table
    must say of them.

    ``--set model_epochs=N`` trains networks for so long: the paper's own are weaker than ours (ResNet18 at 85 %).
    """
    train, test = both_splits(bench)
    made, notes = {}, [f"data {train.name}, {len(train)} training images, device {bench.device}"]
    for name in names or _usual(train, full=bench.full)[:most]:
        bench.say(f"network {name}")
        net, card = trained_classifier(
            name, train, test, epochs=bench.options.get("model_epochs"), device=bench.device
        )
        made[name] = Subject(net, classes=test.classes, name=f"zoo:{name}", device=bench.device)
        notes.append(f"{name}: {100 * card['accuracy']:.2f} % of {len(test)} test images right")
    return train, test, made, notes


def _usual(train: Images, *, full: bool) -> Sequence[str]:
    if train.x.shape[1] == 1:
        return ("lenet5", "lenet4") if full else ("lenet5",)
    return ("resnet18", "vgg16") if full else ("resnet18-small",)


def painter(
    bench: Bench, train: Images, test: Images, judge: Subject, family: str = "vqvae", **options: Any
) -> Painter:
    """A generator trained with these options; ``--set epochs=N joint_epochs=N batch=N`` shorten its training."""
    bench.say(f"generator {family} {options or ''}")
    if options.get("mix") and "joint_epochs" in bench.options:
        options = {"joint_epochs": int(bench.options["joint_epochs"]), **options}
    net, card = trained_generator(
        family, train, test, judge=lambda x: judge(x).logits, device=bench.device,
        epochs=bench.options.get("epochs"), batch=bench.options.get("batch"), **options,
    )  # fmt: skip
    space: Space = Grid(net) if family == "vqvae" else Latent(net)  # type: ignore[arg-type]  # the family says which it is

    def encode(x: Tensor) -> Tensor:
        unknown = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return space.encode(x, unknown, stream(0, "partners", device=x.device))[0]

    return Painter(
        space, collect(train, encode, device=torch.device(bench.device), limit=LIMIT), card
    )


def originals(bench: Bench, subject: Subject, test: Images) -> list[Images]:
    """For each repeat, originals that the network gets right: one or more of every class."""
    right = usable(subject, test)
    count = int(bench.options.get("originals", len(test.classes)))
    return [right.sample(count=count, seed=bench.seed + i) for i in range(bench.repeats or 3)]


@torch.no_grad()
def reconstruction_errors(painter: Painter, subject: Subject, images: Images) -> Bool[Tensor, " n"]:
    """ER at mix 0: which of the rightly classified `images` are given another label once they are encoded and decoded."""
    return mixed(painter, subject, images, images.x.new_zeros(len(images), 1).long(), 0.0)[
        2
    ].squeeze(1)


@torch.no_grad()
def mixed(
    painter: Painter, subject: Subject, images: Images, partner: Int[Tensor, "n p"], mix: float
) -> tuple[Float[Tensor, "n p"], Float[Tensor, "n p"], Bool[Tensor, "n p"]]:
    """MSE, SSIM and failure of every image mixed with each of its partners (rows of the codes)."""
    parts = []
    for rows in chunks(len(images), max(1024 // partner.shape[1], 1)):
        x, y = from_bytes(images.x[rows].to(subject.device)), images.y[rows].to(subject.device)
        painted = to_grid(paint(painter, x, y, partner[rows].to(subject.device), mix))
        repeated = x.repeat_interleave(partner.shape[1], 0)
        wrong = subject(painted).logits.argmax(1) != y.repeat_interleave(partner.shape[1])
        parts.append([mse(painted, repeated).cpu(), ssim(painted, repeated).cpu(), wrong.cpu()])
    one, two, three = (torch.cat(column).reshape(len(images), -1) for column in zip(*parts))
    return one, two, three


def paint(painter: Painter, x: Tensor, y: Tensor, partner: Tensor, mix: float) -> Tensor:
    """Pictures of `x` mixed with partners, image by image."""
    z, context = painter.space.encode(x, y, stream(0, "mixed", device=x.device))
    own = torch.arange(len(x), device=x.device).repeat_interleave(partner.shape[1])
    seeds = Seeds(z, x, y, torch.arange(len(x), device=x.device), context).take(own)
    code = (1 - mix) * seeds.z + mix * painter.codes.take(partner.reshape(-1))
    return painter.space.decode(code, seeds)


def interval(values: Tensor, seed: int = 0) -> Interval:
    """Mean and 95 % bootstrap interval of what is a number."""
    known = values[values.isfinite()].double()
    if len(known) < 2:
        only = float(known.mean()) if len(known) else float("nan")
        return Interval(only, float("nan"), float("nan"))
    return mean(known, rng=stream(seed, "interval"))
