"""How good a generator is: label-keeping reconstructions, likeness, samples, contact sheets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from hardcase import tensors
from hardcase.cache import write_atomically
from hardcase.errors import NO_SEEDS, Problem
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.training.loop import predict
from hardcase.types import Images, Model

_log = logging.getLogger(__name__)

# How well a generator gives back what it is shown: does a classifier still see the label, how alike
# are the images.


def measure(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str = "cpu",
) -> Mapping[str, Any]:
    """Entries of a card, measured on 8-bit reconstructions of `images`;
    those of a judge are null without one.
    """
    painted = reconstructions(net, images, device=device)
    seen = from_bytes(images.x)
    given = from_bytes(painted.x)
    entries: dict[str, Any] = {
        "ssim": float(similarity(given, seen).mean()),
        "mse": float((given - seen).square().mean()),
        "measured_images": len(images),
        "judge_accuracy": None,
        "reconstruction_accuracy": None,
        "reconstruction_agreement": None,
    }
    if judge is not None:
        before, after = (predict(judge, part, device=device) for part in (images, painted))
        entries["judge_accuracy"] = _share(before == images.y)
        entries["reconstruction_accuracy"] = _share(after == images.y)
        entries["reconstruction_agreement"] = _share(after == before)
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
    """Entries of a conditional generator's card: is a sample taken for its class, and do samples of
    a class differ?

    `diversity` is the mean standard deviation of pixels within a class, over that of the real
    images.
    """
    k = len(images.classes)
    label = torch.arange(k, device=device).repeat(per_class)
    noise = stream(0, "samples", device=torch.device(device))
    sample: Any = net.sample  # a family's own method
    made = torch.cat(
        [to_bytes(sample(label[rows], noise)[1]).cpu() for rows in chunks(len(label), 250)]
    )
    real = torch.stack(
        [
            from_bytes(images.x[images.y == c]).std(0).mean()
            for c in range(k)
            if int((images.y == c).sum()) > 1
        ]
    )
    spread = from_bytes(made).reshape(per_class, k, -1).std(0).mean()
    painted = Images(made, label.cpu(), tuple(map(str, range(len(label)))), images.classes)
    entries: dict[str, Any] = {
        "diversity": float(spread / real.mean()),
        "measured_images": len(label),
        "sample_accuracy": None,
    }
    if judge is not None:
        entries["sample_accuracy"] = _share(predict(judge, painted, device=device) == painted.y)
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


# Contact sheets: what a generator paints, to look at.

GAP = 2
PAPER = 64
"""Pixels between pictures, and their grey."""


def sheet(rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> UInt8[Tensor, "c y x"]:
    """Rows of images of one size, one row below the other, each pixel `zoom` wide;
    missing ones are left grey.
    """
    first = rows[0]
    count = max(map(len, rows))
    channels, height, width = first.shape[1:]
    paper = torch.full(
        (channels, len(rows) * (height + GAP), count * (width + GAP)), PAPER, dtype=torch.uint8
    )
    for i, row in enumerate(rows):
        for j, image in enumerate(row.cpu()):
            top = i * (height + GAP)
            left = j * (width + GAP)
            paper[:, top : top + height, left : left + width] = image
    return paper.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)


def write(path: Path, rows: Sequence[UInt8[Tensor, "_ c h w"]], *, zoom: int = 2) -> Path:
    return write_atomically(path, tensors.encode(sheet(rows, zoom=zoom)))


def draw_reconstructions(folder: Path, net: nn.Module, images: Images, *, count: int = 20) -> Path:
    """``reconstructions.png``: images in the first row, what the generator gives back in the
    second.
    """
    some = images.sample(count=count, seed=0)
    painted = reconstructions(net, some, device=next(net.parameters()).device)
    return write(folder / "reconstructions.png", [some.x, painted.x])


@torch.no_grad()
def draw_samples(folder: Path, net: nn.Module, classes: int, *, each: int = 10) -> Path:
    """``samples.png``: a row of fresh samples for each of the first twenty classes."""
    device = next(net.parameters()).device
    label = torch.arange(min(classes, 20), device=device).repeat_interleave(each)
    draw: Any = net.sample  # a family's own method
    made = to_bytes(draw(label, stream(0, "picture", device=device))[1])
    return write(folder / "samples.png", list(made.reshape(-1, each, *made.shape[1:])))


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


READABLE = 0.5
"""Of what independent networks recognise of real images, the share that they must recognise of a
generator's samples; and the least share of real images with which they are asked at all.
"""


def recognised_by(readers: Sequence[Model]) -> Accept:
    """Which images more than half of `readers` take for their class."""

    def read(x: Tensor, y: Tensor) -> Bool[Tensor, " m"]:
        said = [one(x).logits.argmax(1).to(y.device) == y for one in readers]
        return 2 * torch.stack(said).sum(0) > len(said)

    return read


@torch.no_grad()
def refuse_unreadable(
    generator: Sampler,
    labels: Int[Tensor, " k"],
    readers: Sequence[Model],
    real: Images,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    count: int = 200,
) -> bool:
    """Whether most of `readers` know the images well enough to be asked about samples.

    Args:
        generator: What makes labelled images.
        labels: The classes that are asked for, in turns.
        readers: Networks other than the one under test.
        real: Images of the data.
        seed: Draws the samples.
        device: Where the generator is.
        count: Samples, and real images at most.

    Raises:
        Problem: If they recognise less than half as many samples as real images: seeds would not
            show what they are called.
    """
    read = recognised_by(readers)
    some = real.sample(count=min(count, len(real)), seed=seed)
    known = float(read(from_bytes(some.x.to(device)), some.y.to(device)).double().mean())
    if known < READABLE:
        return False
    wanted = labels.repeat(-(-count // len(labels)))[:count].to(device)
    x = generator.sample(wanted, stream(seed, "readable", device=device))[1]
    share = float(read(from_bytes(to_bytes(x)), wanted).double().mean())
    if share < READABLE * known:
        raise Problem(
            f"most of {len(readers)} independent networks recognise only {share:.0%} of the"
            f" generator's samples, and {known:.0%} of real images.",
            "Seeds would not show what they are called.",
            fix="a generator trained longer, or another --generator; --witness none checks nothing",
        )
    return True


def generated_seeds(
    net: Sampler,
    real: Images,
    count: int,
    *,
    subject: Model,
    readers: Sequence[Model],
    target: int | None = None,
    seed: int = 0,
) -> tuple[Images, dict[str, Any]]:
    """Fresh samples to start from, none of the target's own class, and the counts of
    `recognised_seeds`; readers that do not know the data are left out.

    Args:
        net: A conditional generator.
        real: Images of the data.
        count: How many samples.
        subject: The network under test.
        readers: Other networks.
        target: The class that a targeted search must reach.
        seed: Everything random follows from it.
    """
    labels = torch.tensor([c for c in range(len(real.classes)) if c != target])
    how: dict[str, Any] = {"seed": seed, "device": subject.device}
    if readers and not refuse_unreadable(net, labels, readers, real, **how):
        _log.warning("networks that would check generated seeds do not know the data")
        readers = ()
    return recognised_seeds(
        net, real.classes, count, subject=subject, readers=readers, labels=labels, **how
    )


def recognised_seeds(
    net: Sampler,
    classes: tuple[str, ...],
    count: int,
    *,
    subject: Model,
    readers: Sequence[Model],
    labels: Int[Tensor, " l"] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[Images, dict[str, Any]]:
    """Fresh samples that the subject and most of `readers` take for their class, and how many were
    painted, read by the subject, and recognised by `readers` too (None without any).

    Args:
        net: A conditional generator.
        classes: Names of its classes.
        count: How many images.
        subject: The network under test.
        readers: Other networks.
        labels: Classes to sample from; by default all.
        seed: Everything random follows from it.
        device: Where it samples.
    """
    tally = {"painted": 0, "read by the subject": 0, "recognised": 0}
    read = recognised_by(readers)

    def accept(x: Tensor, y: Tensor) -> Bool[Tensor, " m"]:
        own = subject(x).logits.argmax(1).to(y.device) == y
        both = own & read(x, y) if readers else own
        tally["painted"] += len(y)
        tally["read by the subject"] += int(own.sum())
        tally["recognised"] += int(both.sum())
        return both

    seeds = fresh(net, classes, count, accept=accept, labels=labels, seed=seed, device=device)
    by = {one.name: one.hash for one in readers}
    return seeds, {**tally, "recognised": tally["recognised"] if readers else None, "by": by}


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

    A sample that `accept` (8-bit image in [0, 1], label) refuses is replaced by another of its
    class; what is still refused after twenty rounds is left out, which is said. `labels` restricts
    the classes.

    Args:
        net: A conditional generator.
        classes: Names of its classes.
        count: How many images.
        accept: Which images, with their labels, are good seeds.
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
    labels = torch.arange(len(classes)) if labels is None else labels
    wanted = labels[torch.arange(count) % len(labels)].to(device)
    rng = stream(seed, "fresh seeds", device=device)
    x = torch.zeros(count, *net.shape, dtype=torch.uint8, device=device)
    z = torch.zeros(count, net.latent, device=device)
    open_ = torch.arange(count, device=device)
    with torch.no_grad():
        for _ in range(20):
            code, image = net.sample(wanted[open_], rng)
            x[open_] = to_bytes(image)
            z[open_] = code
            open_ = open_[~accept(from_bytes(x[open_]), wanted[open_])]
            if not len(open_):
                break
    good = torch.ones(count, dtype=torch.bool, device=device)
    good[open_] = False
    if len(open_):
        names = ", ".join(sorted({classes[c] for c in wanted[open_].tolist()}))
        if not bool(good.any()):
            raise Problem(
                f"all of the generator's samples of {names} are refused twenty times over.",
                "A search needs seeds that the subject, and who else checks them, gets right.",
                fix="a better generator (more --epochs), or another model",
                code=NO_SEEDS,
            )
        _log.warning(
            "%d of %d seeds are left out: samples of %s were refused twenty times over by the"
            " subject or who else checks them",
            *(len(open_), count, names),
        )
    rows = good.nonzero().squeeze(1)
    ids = tuple(f"generated/{seed}/{i:05d}" for i in rows.tolist())
    return Images(
        x[rows].cpu(),
        wanted[rows].cpu(),
        ids,
        classes,
        name="generated",
        context={"latent": z[rows].cpu()},
    )
