"""Campaigns on a GPU as ratios to their bare networks, in one run: ``python -m benchmarks gpu``.

A bare loop asks the same networks in the same arithmetic at its best batch, with nothing around
them. Seconds of a campaign are those of its shards after the first, images and tables included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import hardcase as hc
from benchmarks.figures import Figure
from hardcase.config import parse
from hardcase.context import Context
from hardcase.environment import arithmetic
from hardcase.models.zoo import build_classifier
from hardcase.runs.start import Watcher, start
from hardcase.types import Images

COMMAND = "python -m benchmarks gpu"
RESULT = "bench-gpu"
DEVICE = "cuda"
BATCHES = (256, 512, 1024, 2048, 4096)


def figures() -> Iterator[Figure]:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    for precision, goal in (("strict", 0.80), ("tf32", 0.60)):
        yield from _pgd(precision, goal)
    yield from _sinvad()
    yield from _guided()


class Clock(Watcher):
    """When each shard came home, and what had been spent by then."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int, int]] = []

    def shard(self, progress: Any) -> None:
        self.marks.append((perf_counter(), progress.queries, progress.gradients))

    def rate(self, what: str) -> float:
        """Queries or gradients a second from the end of the first shard on."""
        place = {"queries": 1, "gradients": 2}[what]
        first, last = self.marks[1], self.marks[-1]
        return (last[place] - first[place]) / max(last[0] - first[0], 1e-9)


def coloured(count: int, seed: int) -> Images:
    """Ten kinds of 32-pixel colour images that a network learns in a moment."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 10
    base = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = nn.functional.interpolate(base, size=32, mode="bilinear")[y]
    x = (0.7 * x + 0.3 * torch.rand(count, 3, 32, 32, generator=rng)).mul(255).to(torch.uint8)
    names = tuple(f"coloured/{seed}/{i:06d}" for i in range(count))
    return Images(x, y, names, tuple(map(str, range(10))), name="coloured")


def resnet(images: Images) -> hc.Subject:
    """A ResNet-18 that gets nearly all of these images right."""
    torch.manual_seed(0)
    net = build_classifier("resnet18", channels=3, size=32, classes=10).to(DEVICE).train()
    x = (images.x.to(DEVICE).float() / 255).split(256)
    y = images.y.to(DEVICE).split(256)
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for batch, labels in zip(x, y):
            steps.zero_grad()
            nn.functional.cross_entropy(net(batch), labels).backward()
            steps.step()
    return hc.Subject(net.eval(), classes=images.classes, name="resnet18", device=DEVICE)


def best(work: Callable[[int], int], batches: Sequence[int] = BATCHES, repeats: int = 3) -> float:
    """Rows a second at the best of several batches."""
    rates = []
    for batch in batches:
        work(batch)
        torch.cuda.synchronize()
        begun = perf_counter()
        rows = sum(work(batch) for _ in range(repeats))
        torch.cuda.synchronize()
        rates.append(rows / (perf_counter() - begun))
    return max(rates)


def _pgd(precision: str, goal: float) -> Iterator[Figure]:
    images = coloured(4096, 1)
    subject = resnet(coloured(8192, 0))
    x = images.x.to(DEVICE).float() / 255
    y = images.y.to(DEVICE)

    def bare(batch: int) -> int:
        z = x[:batch].clone().requires_grad_()
        for _ in range(4):
            loss = nn.functional.cross_entropy(subject.net(z), y[:batch])
            (slope,) = torch.autograd.grad(loss, z)
            z = (z + 0.001 * slope.sign()).clamp(0, 1).detach().requires_grad_()
        return 4 * batch

    with arithmetic(precision, DEVICE):
        alone = best(bare)
    rate = _campaign_rate(
        subject, images, "pgd", "gradients", {"epsilon": 1 / 255, "gradients": 10}, precision
    )
    name = "gpu-pgd-resnet18" if precision == "strict" else f"gpu-pgd-resnet18-{precision}"
    yield _figure(
        name, rate / alone, f"of a bare loop ({rate:,.0f} of {alone:,.0f} gradients/s)", goal
    )


def _campaign_rate(
    subject: hc.Subject,
    images: Images,
    method: str,
    what: str,
    options: dict[str, Any],
    precision: str = "strict",
    shard: int = 1024,
    **more: Any,
) -> float:
    context = Context.of(
        subject,
        images,
        method,
        options=options,
        precision=precision,
        campaign={"shard": shard},
        train=images,
        **more,
    )
    plan = context.plan
    rates = []
    for _ in range(2):  # the first run warms up
        clock = Clock()
        with tempfile.TemporaryDirectory() as home:
            start(plan, Path(home) / "run", clock)
        rates.append(clock.rate(what))
    return rates[-1]


def _sinvad() -> Iterator[Figure]:
    config = parse(
        {"model": "zoo:lenet5", "data": "mnist5k", "method": "sinvad", "device": DEVICE,
         "split": "train", "seeds": 4000}
    )  # fmt: skip
    context = Context(config)
    plan = context.plan
    rates = []
    for _ in range(3):  # one shard holds all seeds, so a whole later run is timed
        with tempfile.TemporaryDirectory() as home:
            run = start(plan, Path(home) / "run", Watcher())
            entry = run.store.ledger.read()[0]
            rates.append(run.record["totals"]["queries"] / entry.summary["seconds"])
    space: Any = context.space
    subject: Any = context.subject
    codes = torch.randn(8192, *_code_shape(context), device=DEVICE)

    def bare(batch: int) -> int:
        with torch.no_grad():
            subject.net(space.vae.decode(codes[:batch]))
        return batch

    with arithmetic("strict", DEVICE):
        alone = best(bare, (context.tile or 256,), repeats=50)
    said = f"of bare decode and forward at tile {context.tile} ({rates[-1]:,.0f} of {alone:,.0f} queries/s)"
    yield _figure("gpu-sinvad-lenet5", rates[-1] / alone, said, 0.5)
    yield _figure("gpu-sinvad-lenet5-rate", rates[-1], "queries/s", 400_000)


def _code_shape(context: Context) -> tuple[int, ...]:
    partners: Any = context.partners
    return tuple(partners.code.shape[1:]) if hasattr(partners, "code") else (400,)


def _guided() -> Iterator[Figure]:
    images = coloured(4096, 1)
    subject = resnet(coloured(8192, 0))
    x = images.x.to(DEVICE).float() / 255
    y = images.y.to(DEVICE)

    def bare(batch: int) -> int:
        z = x[:batch].clone().requires_grad_()
        loss = nn.functional.cross_entropy(subject.net(z), y[:batch])
        torch.autograd.grad(loss, z)
        return batch

    with arithmetic("strict", DEVICE):
        alone = best(bare, BATCHES[:4])
    for method in ("deepxplore", "adapt"):
        rate = _campaign_rate(subject, images, method, "gradients", {"gradients": 20})
        said = f"of a bare loop ({rate:,.0f} of {alone:,.0f} gradients/s)"
        yield _figure(f"gpu-{method}", rate / alone, said, 0.70)


def _figure(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=f"goal {goal:g}", command=COMMAND)


def hardware() -> dict[str, Any]:
    """What these figures were measured on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
