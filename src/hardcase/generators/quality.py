"""How good a generator is: label-keeping reconstructions, likeness, samples, contact sheets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from hardcase import tensors
from hardcase.cache import write_atomically
from hardcase.errors import NO_SEEDS, HardcaseError
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.training.cards import History, TrainingRecipe
from hardcase.training.loop import predict
from hardcase.types import Images, Model

_log = logging.getLogger(__name__)

Settings = Mapping[str, Any]
LAWS = ("images in [0, 1]", "deterministic", "global random state untouched", "rows independent")
"""What every autoencoder keeps to; rows of a GAN share its batches' statistics while it learns."""


class Family(NamedTuple):
    """How generators of a family are trained and measured; the row of every kind carries it.

    Args:
        kind: The kind that the family's name alone stands for.
        train: (network, images, recipe, options, arguments of the training loop) to its history.
        measure: (network, images, judge, device) to entries of its card.
        options: What may be set, with defaults; one that is None is not part of a configuration.
    """

    kind: str
    train: Callable[[Any, Images, TrainingRecipe, Settings, Settings], History]
    measure: Callable[..., Settings]
    options: Settings


# How well a generator gives back what it is shown.


def measure(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str = "cpu",
) -> Mapping[str, Any]:
    """Card entries of 8-bit reconstructions of `images`; a judge's are null without one."""
    decoded = reconstructions(net, images, device=device)
    before = from_bytes(images.x)
    after = from_bytes(decoded.x)
    entries: dict[str, Any] = {
        "ssim": float(similarity(after, before).mean()),
        "mse": float((after - before).square().mean()),
        "measured_images": len(images),
        "judge_accuracy": None,
        "reconstruction_accuracy": None,
        "reconstruction_agreement": None,
    }
    if judge is not None:
        predicted, predicted_decoded = (
            predict(judge, part, device=device) for part in (images, decoded)
        )
        entries["judge_accuracy"] = _share(predicted == images.y)
        entries["reconstruction_accuracy"] = _share(predicted_decoded == images.y)
        entries["reconstruction_agreement"] = _share(predicted_decoded == predicted)
    return entries


@torch.no_grad()
def measure_samples(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str = "cpu",
    per_class: int = 100,
) -> Mapping[str, Any]:
    """Card entries of a conditional generator: accuracy of its samples, and how they vary."""
    k = len(images.classes)
    label = torch.arange(k, device=device).repeat(per_class)
    noise = stream(0, "samples", device=torch.device(device))
    sample: Any = net.sample  # a family's own method
    varied = torch.cat(
        [to_bytes(sample(label[rows], noise)[1]).cpu() for rows in chunks(len(label), 250)]
    )
    groups = [images.x[images.y == c] for c in range(k)]
    real = torch.stack([from_bytes(group).std(0).mean() for group in groups if len(group) > 1])
    spread = from_bytes(varied).reshape(per_class, k, -1).std(0).mean()
    samples = Images(varied, label.cpu(), tuple(map(str, range(len(label)))), images.classes)
    entries: dict[str, Any] = {
        "diversity": float(spread / real.mean()),
        "measured_images": len(label),
        "sample_accuracy": None,
    }
    if judge is not None:
        entries["sample_accuracy"] = _share(predict(judge, samples, device=device) == samples.y)
    return entries


@torch.no_grad()
def reconstructions(
    net: nn.Module, images: Images, *, device: torch.device | str = "cpu"
) -> Images:
    """`images` encoded, decoded and stored again as 8-bit images."""
    parts = (
        net(from_bytes(images.x[rows].to(device)), images.y[rows].to(device))
        for rows in chunks(len(images), 256)
    )
    return replace(images, x=torch.cat([to_bytes(part).cpu() for part in parts]))


def similarity(a: Float[Tensor, "n c h w"], b: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
    """SSIM of each pair of images."""
    from torchmetrics.functional.image import structural_similarity_index_measure as ssim

    parts = [
        ssim(a[rows], b[rows], data_range=1.0, reduction="none") for rows in chunks(len(a), 256)
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def _share(rows: Bool[Tensor, " n"]) -> float:
    return int(rows.sum()) / len(rows)


# Contact sheets: what a generator makes, to look at.

GAP = 2
PAPER = 64
"""Pixels between images, and their grey."""


def sheet(rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> UInt8[Tensor, "c y x"]:
    """Rows of images below one another, each pixel `zoom` wide; missing ones are grey."""
    longest = max(map(len, rows))
    grey = [torch.full((longest, *row.shape[1:]), PAPER, dtype=torch.uint8) for row in rows]
    full = torch.stack([torch.cat([row.cpu(), rest[len(row) :]]) for row, rest in zip(rows, grey)])
    spaced = pad(full, (0, GAP, 0, GAP), value=PAPER)  # rows, images, c, h, w
    joined = spaced.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    return joined.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)


def write(path: Path, rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> Path:
    return write_atomically(path, tensors.encode(sheet(rows, zoom=zoom)))


def draw_reconstructions(folder: Path, net: nn.Module, images: Images, *, count: int = 20) -> Path:
    """``reconstructions.png``: images above, what the generator gives back below."""
    sample = images.sample(count=count, seed=0)
    decoded = reconstructions(net, sample, device=next(net.parameters()).device)
    return write(folder / "reconstructions.png", [sample.x, decoded.x])


@torch.no_grad()
def draw_samples(folder: Path, net: nn.Module, classes: int, *, each: int = 10) -> Path:
    """``samples.png``: a row of fresh samples for each of the first twenty classes."""
    device = next(net.parameters()).device
    label = torch.arange(min(classes, 20), device=device).repeat_interleave(each)
    draw: Any = net.sample  # a family's own method
    samples = to_bytes(draw(label, stream(0, "picture", device=device))[1])
    return write(folder / "samples.png", list(samples.reshape(-1, each, *samples.shape[1:])))


# Fresh labelled images from a conditional generator.


@runtime_checkable
class Sampler(Protocol):
    """A conditional generator: fresh codes of given classes, and their images."""

    @property
    def latent(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def sample(self, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]: ...


Accept = Callable[[Tensor, Tensor], Bool[Tensor, " m"]]
"""Which images, with their labels, are good seeds."""

READABLE = 0.5
"""Of what independent networks recognise of real images, the share that they must recognise of a
generator's samples; and the least share of real images with which they are asked at all.
"""


def majority(verifiers: Sequence[Model]) -> Accept:
    """Which images more than half of the networks classify as their label."""

    def accept(x: Tensor, y: Tensor) -> Bool[Tensor, " m"]:
        right = [model(x).logits.argmax(1).to(y.device) == y for model in verifiers]
        return 2 * torch.stack(right).sum(0) > len(right)

    return accept


@torch.no_grad()
def check_samples(
    generator: Sampler,
    labels: Int[Tensor, " k"],
    verifiers: Sequence[Model],
    real: Images,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    count: int = 200,
) -> bool:
    """Whether most of `verifiers` know the images well enough to be asked about samples."""
    accept = majority(verifiers)
    sample = real.sample(count=min(count, len(real)), seed=seed)
    readable = float(accept(from_bytes(sample.x.to(device)), sample.y.to(device)).double().mean())
    if readable < READABLE:
        return False
    wanted = labels.repeat(-(-count // len(labels)))[:count].to(device)
    x = generator.sample(wanted, stream(seed, "readable", device=device))[1]
    share = float(accept(from_bytes(to_bytes(x)), wanted).double().mean())
    if share < READABLE * readable:
        raise HardcaseError(
            f"most of {len(verifiers)} independent networks recognise only {share:.0%} of the"
            f" generator's samples, and {readable:.0%} of real images.",
            "Generated images would not show the class of their label.",
            fix="a generator trained longer, or another --generator; --witness none checks nothing",
        )
    return True


def generated_seeds(
    net: Sampler,
    real: Images,
    count: int,
    *,
    subject: Model,
    verifiers: Sequence[Model],
    target: int | None = None,
    seed: int = 0,
) -> tuple[Images, dict[str, Any]]:
    """Fresh samples to start from, none of the class that a targeted search must reach, and the
    counts of `verified_seeds`; verifiers that do not know the data are left out.
    """
    labels = torch.tensor([c for c in range(len(real.classes)) if c != target])
    how: dict[str, Any] = {"seed": seed, "device": subject.device}
    if verifiers and not check_samples(net, labels, verifiers, real, **how):
        _log.warning("networks that would check generated images do not know the data")
        verifiers = ()
    return verified_seeds(
        net, real.classes, count, subject=subject, verifiers=verifiers, labels=labels, **how
    )


def verified_seeds(
    net: Sampler,
    classes: tuple[str, ...],
    count: int,
    *,
    subject: Model,
    verifiers: Sequence[Model],
    **how: Any,
) -> tuple[Images, dict[str, Any]]:
    """Fresh samples that the model and most of `verifiers` classify as asked, and counts."""
    tally = {"generated": 0, "correctly_classified": 0, "verified": 0}
    others = majority(verifiers)

    def accept(x: Tensor, y: Tensor) -> Bool[Tensor, " m"]:
        predicted = subject(x).logits.argmax(1).to(y.device) == y
        both = predicted
        if verifiers:
            both = predicted & others(x, y)
        tally["generated"] += len(y)
        tally["correctly_classified"] += int(predicted.sum())
        tally["verified"] += int(both.sum())
        return both

    seeds = fresh(net, classes, count, accept=accept, **how)
    counts: dict[str, Any] = {**tally, "by": {model.name: model.hash for model in verifiers}}
    if not verifiers:
        counts["verified"] = None
    return seeds, counts


def fresh(
    net: Sampler,
    classes: tuple[str, ...],
    count: int,
    *,
    accept: Accept,
    labels: Int[Tensor, " l"] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Images:
    """`count` samples, classes taking turns, each with its latent code as context.

    A sample that is refused is replaced by another of its class; what is still refused after twenty
    rounds is left out, which is said.

    Args:
        net: A conditional generator.
        classes: Names of its classes.
        count: How many images.
        accept: Which 8-bit images in [0, 1], with their labels, are good seeds.
        labels: Classes to sample from; by default all.
        seed: Everything random follows from it.
        device: Where it samples.

    Example:
        >>> import hardcase as hc
        >>> net = hc.generators.Gan(1, 28, 2, latent=4, widths=(8, 8, 8, 8)).eval()
        >>> seeds = hc.generators.fresh(net, ("a", "b"), 4, accept=lambda x, y: y >= 0)
        >>> seeds.y.tolist()
        [0, 1, 0, 1]
    """
    device = torch.device(device)
    if labels is None:
        labels = torch.arange(len(classes))
    wanted = labels[torch.arange(count) % len(labels)].to(device)
    rng = stream(seed, "fresh seeds", device=device)
    x = torch.zeros(count, *net.shape, dtype=torch.uint8, device=device)
    z = torch.zeros(count, net.latent, device=device)
    refused = torch.arange(count, device=device)
    with torch.no_grad():
        for _ in range(20):
            z[refused], image = net.sample(wanted[refused], rng)
            x[refused] = to_bytes(image)
            refused = refused[~accept(from_bytes(x[refused]), wanted[refused])]
            if not len(refused):
                break
    good = torch.ones(count, dtype=torch.bool, device=device)
    good[refused] = False
    if len(refused):
        names = ", ".join(sorted({classes[c] for c in wanted[refused].tolist()}))
        if not bool(good.any()):
            raise HardcaseError(
                f"all of the generator's samples of {names} are refused twenty times over.",
                "A search needs images that the model, and who else checks them, gets right.",
                fix="a better generator (more --epochs), or another model",
                code=NO_SEEDS,
            )
        _log.warning(
            "%d of %d images are left out: samples of %s were refused twenty times over by the"
            " model or who else checks them",
            *(len(refused), count, names),
        )
    rows = good.nonzero().squeeze(1)
    ids = tuple(f"generated/{seed}/{i:05d}" for i in rows.tolist())
    y = wanted[rows].cpu()
    context = {"latent": z[rows].cpu()}
    return Images(x[rows].cpu(), y, ids, classes, name="generated", context=context)
