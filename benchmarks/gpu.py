"""Campaigns on a GPU as ratios to their bare networks, in one run: ``python -m benchmarks gpu``.

``--only NAME,NAME`` measures some of them. A bare loop asks the same networks in the same arithmetic
at its best batch, with nothing around them. ``HARDCASE_DEVICE=cpu`` runs everything in a small form,
to see that it works; nothing is stored then.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import hardcase as hc
from benchmarks.figures import Figure
from hardcase import data, generators
from hardcase.config import parse
from hardcase.context import Context
from hardcase.environment import arithmetic
from hardcase.generators.adapters import Decoder
from hardcase.generators.quality import fresh
from hardcase.methods.generative import argus, feature_perturbation
from hardcase.models import zoo
from hardcase.models.zoo import build_classifier
from hardcase.runs.plan import plan_of
from hardcase.runs.progress import Watcher
from hardcase.runs.start import start
from hardcase.spaces.activations import Activations, early_places
from hardcase.spaces.latent import Grid, collect
from hardcase.tensors import from_bytes, to_grid, use_tile
from hardcase.types import Images

COMMAND = "python -m benchmarks gpu"
DEVICE = os.environ.get("HARDCASE_DEVICE", "cuda")
SMALL = DEVICE == "cpu"
RESULT = None if SMALL else "bench-gpu"
BATCHES = (64,) if SMALL else (256, 512, 1024, 2048, 4096)
NOTE = (
    "One run of each figure, the last of two or three repetitions in one process; a bare loop at"
    ' its best batch is no tight bound, so a ratio above 1 reads "no overhead seen".'
)

Measure = Callable[[], Iterator[Figure]]
_log = logging.getLogger(__name__)


def sized(usual: int, small: int) -> int:
    return small if SMALL else usual


def figures(only: Sequence[str] = ()) -> Iterator[Figure]:
    """The figures called `only`, or all; one that fails is told and does not stop the others."""
    from benchmarks.gpu_parts import PARTS
    from benchmarks.gpu_whole import WHOLE

    if not SMALL and not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    known = {**WHOLE, **CAMPAIGNS, **PARTS}
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise SystemExit(f"there is no figure {unknown[0]}; there are {', '.join(known)}")
    failed = []
    for name in only or known:
        use_tile(DEVICE, None)
        begun = perf_counter()
        try:
            yield from known[name]()
        except Exception:
            _log.exception("%s could not be measured", name)
            failed.append(name)
        print(f"  {name}: {perf_counter() - begun:.0f} s", flush=True)
        if not SMALL:
            torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)}")


def synchronise() -> None:
    if not SMALL:
        torch.cuda.synchronize()


def figure(name: str, value: float, unit: str, goal: float, sign: str = "at least") -> Figure:
    return Figure(
        name=name, value=value, unit=unit, against=f"goal {sign} {goal:g}", command=COMMAND
    )


# Images and networks to measure with.


@cache
def coloured(count: int, seed: int, size: int = 32) -> Images:
    """Ten kinds of colour images that a network learns in a moment."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 10
    base = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    x = nn.functional.interpolate(base, size=size, mode="bilinear")[y]
    x = (0.7 * x + 0.3 * torch.rand(count, 3, size, size, generator=rng)).mul(255).to(torch.uint8)
    names = tuple(f"coloured/{seed}/{i:06d}" for i in range(count))
    return Images(x, y, names, tuple(map(str, range(10))), name="coloured")


@cache
def resnet() -> hc.Subject:
    """A ResNet-18 that gets nearly all coloured images right."""
    images = coloured(sized(8192, 1024), 0)
    torch.manual_seed(0)
    kind = "lenet5" if SMALL else "resnet18"
    net = build_classifier(kind, channels=3, size=32, classes=10).to(DEVICE).train()
    x = (images.x.to(DEVICE).float() / 255).split(256)
    y = images.y.to(DEVICE).split(256)
    steps: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    if SMALL:
        steps = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(sized(3, 8)):
        for batch, labels in zip(x, y):
            steps.zero_grad()
            nn.functional.cross_entropy(net(batch), labels).backward()
            steps.step()
    return hc.Subject(net.eval(), classes=images.classes, name="resnet18", device=DEVICE)


def digits(data_set: str = "mnist5k") -> tuple[Images, Images]:
    return data.load(data_set, split="train"), data.load(data_set, split="test")


@cache
def lenet() -> hc.Subject:
    train, test = digits()
    net, _ = zoo.trained_classifier("lenet5", train, test, device=DEVICE)
    return hc.Subject(net, classes=test.classes, name="lenet5", device=DEVICE)


# Rates of bare networks and of campaigns.


def best(work: Callable[[int], int], batches: Sequence[int] = BATCHES, repeats: int = 3) -> float:
    """Rows a second at the best of several batches."""
    rates = []
    for batch in batches:
        work(batch)
        synchronise()
        begun = perf_counter()
        rows = sum(work(batch) for _ in range(repeats))
        synchronise()
        rates.append(rows / (perf_counter() - begun))
    return max(rates)


class Clock(Watcher):
    """When each shard came home, and what had been spent by then."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int, int]] = []

    def shard(self, progress: Any) -> None:
        self.marks.append((perf_counter(), progress.queries, progress.gradients))

    def rate(self, what: str) -> float:
        """Queries or gradients a second from the end of the first shard on, files included."""
        place = {"queries": 1, "gradients": 2}[what]
        first = self.marks[1]
        last = self.marks[-1]
        return (last[place] - first[place]) / max(last[0] - first[0], 1e-9)


def shard_rate(context: Context, what: str, repeats: int = 3) -> float:
    """Queries or gradients a second inside the shards of the last of several runs."""
    plan = plan_of(context)
    rate = 0.0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as home:
            run = start(plan, Path(home) / "run", Watcher())
            entries = run.store.ledger.read().values()
            seconds = sum(entry.summary.get("seconds", 0.0) for entry in entries)
            rate = run.record["totals"][what] / seconds
    return rate


def share(name: str, rate: float, alone: float, what: str, goal: float) -> Figure:
    return figure(
        name, rate / alone, f"of bare networks ({rate:,.0f} of {alone:,.0f} {what}/s)", goal
    )


def _bare_gradients(subject: hc.Subject, images: Images, steps: int) -> Callable[[int], int]:
    x = images.x.to(DEVICE).float() / 255
    y = images.y.to(DEVICE)

    def bare(batch: int) -> int:
        z = x[:batch].clone().requires_grad_()
        for _ in range(steps):
            loss = nn.functional.cross_entropy(subject.net(z), y[:batch])
            (gradient,) = torch.autograd.grad(loss, z)
            z = (z + 0.001 * gradient.sign()).clamp(0, 1).detach().requires_grad_()
        return steps * len(z)

    return bare


def _pgd(precision: str, goal: float) -> Iterator[Figure]:
    images = coloured(sized(4096, 64), 1)
    with arithmetic(precision, DEVICE):
        alone = best(_bare_gradients(resnet(), images, 4))
    context = Context.of(
        resnet(),
        images,
        "pgd",
        options={"epsilon": 1 / 255, "gradients": 10},
        precision=precision,
        campaign={"shard": sized(1024, 16)},
    )
    rates = []
    for _ in range(2):  # the first run warms up
        clock = Clock()
        with tempfile.TemporaryDirectory() as home:
            start(plan_of(context), Path(home) / "run", clock)
        rates.append(clock.rate("gradients"))
    name = "gpu-pgd-resnet18" if precision == "strict" else f"gpu-pgd-resnet18-{precision}"
    yield share(name, rates[-1], alone, "gradients", goal)


def _sinvad() -> Iterator[Figure]:
    config = parse(
        {"model": "zoo:lenet5", "data": "mnist5k", "method": "sinvad", "device": DEVICE,
         "split": "train", "seeds": sized(4000, 20)}
    )  # fmt: skip
    context = Context(config)
    rate = shard_rate(context, "queries")
    space: Any = context.space
    subject: Any = context.subject
    codes = torch.randn(8192, 400, device=DEVICE)

    def bare(batch: int) -> int:
        with torch.no_grad():
            subject.net(space.vae.decode(codes[:batch]))
        return batch

    tile = context.tile or 256
    with arithmetic("strict", DEVICE):
        alone = best(bare, (tile,), repeats=50)
    yield share("gpu-sinvad-lenet5", rate, alone, f"queries at tile {tile}", 0.5)
    yield figure("gpu-sinvad-lenet5-rate", rate, "queries/s", 400_000)


def _argus() -> Iterator[Figure]:
    """A VQ-VAE that was trained for a moment: its speed is that of a better one."""
    train, test = digits()
    net, _ = generators.trained_generator("vqvae", train, test, epochs=sized(2, 1), device=DEVICE)
    space = Grid(net)
    with torch.no_grad():
        codes = collect(train, space.vqvae.encode, device=torch.device(DEVICE))
        example = space.vqvae.encode(from_bytes(test.x[:1].to(DEVICE)))
    method = argus(space=space, partners=codes, mix=0.3, queries=sized(2000, 40))
    seeds = test.sample(count=sized(256, 4), seed=0)
    rate = shard_rate(Context.of(lenet(), seeds, method, train=train), "queries")
    many = torch.randn(max(BATCHES), *example.shape[1:], device=DEVICE)

    def bare(batch: int) -> int:
        with torch.no_grad():
            lenet().net(to_grid(space.vqvae.decode(many[:batch])))
        return batch

    with arithmetic("strict", DEVICE):
        alone = best(bare, repeats=20)
    yield share("gpu-argus", rate, alone, "queries", 0.80)


def _feature_perturbation() -> Iterator[Figure]:
    """The decoder of a conditional VAE that was trained for a moment."""
    train, test = digits()
    vae: Any = generators.trained_generator(
        "vae", train, test, kind="conditional", epochs=2 if SMALL else None, device=DEVICE
    )[0]
    net = Decoder(vae.requires_grad_(False))
    classes = len(test.classes)
    space = Activations(net, early_places(net, classes=classes), classes=classes)
    seeds = fresh(
        net,
        test.classes,
        sized(16_384, 20),
        accept=lambda x, y: (lenet()(x).logits.argmax(1) == y) | SMALL,
        device=DEVICE,
    )
    method = feature_perturbation(space=space)
    context = Context.of(lenet(), seeds, method, train=train, allow_low_accuracy=SMALL)
    rate = shard_rate(context, "gradients")
    latent = seeds.context["latent"].to(DEVICE)
    y = seeds.y.to(DEVICE)

    def bare(batch: int) -> int:
        moved = {
            place.number: torch.zeros(len(y[:batch]), *place.shape, device=DEVICE).requires_grad_()
            for place in space.places
        }
        image = net.walk(latent[:batch], y[:batch], lambda n, h: h + moved[n] if n in moved else h)
        loss = nn.functional.cross_entropy(lenet().net(to_grid(image)), y[:batch])
        torch.autograd.grad(loss, list(moved.values()))
        return len(y[:batch])

    with arithmetic("strict", DEVICE):
        alone = best(bare, repeats=20)
    yield share("gpu-feature-perturbation", rate, alone, "gradients", 0.75)


def _guided(method: str) -> Iterator[Figure]:
    images = coloured(sized(4096, 24), 1)
    with arithmetic("strict", DEVICE):
        alone = best(_bare_gradients(resnet(), images, 1))
    options = {"gradients": sized(20, 3)}
    context = Context.of(resnet(), images, method, options=options, train=images)
    rate = shard_rate(context, "gradients", repeats=2)
    yield share(f"gpu-{method}", rate, alone, "gradients", 0.70)


def _natural() -> Iterator[Figure]:
    """Digits with the default witnesses: every query is of four networks."""
    config = parse(
        {"model": "zoo:lenet5", "data": "mnist5k", "method": "natural", "device": DEVICE,
         "split": "train", "seeds": sized(4000, 20)}
    )  # fmt: skip
    context = Context(config)
    rate = shard_rate(context, "gradients")
    networks: list[Any] = [context.subject, *context.witnesses]
    images = context.seeds
    x = images.x.to(DEVICE).float() / 255
    y = images.y.to(DEVICE)

    def bare(batch: int) -> int:
        z = x[:batch].clone().requires_grad_()
        said = [nn.functional.cross_entropy(one.net(z), y[: len(z)]) for one in networks]
        torch.autograd.grad(torch.stack(said).sum(), z)
        return len(z)

    tile = context.tile or 256
    with arithmetic("strict", DEVICE):
        alone = best(bare, (tile,), repeats=20)
    yield share("gpu-natural-lenet5", rate, alone, f"gradients at tile {tile}", 0.75)


CAMPAIGNS: dict[str, Measure] = {
    "gpu-pgd-resnet18": partial(_pgd, "strict", 0.80),
    "gpu-pgd-resnet18-tf32": partial(_pgd, "tf32", 0.60),
    "gpu-sinvad-lenet5": _sinvad,
    "gpu-natural-lenet5": _natural,
    "gpu-argus": _argus,
    "gpu-feature-perturbation": _feature_perturbation,
    "gpu-deepxplore": partial(_guided, "deepxplore"),
    "gpu-adapt": partial(_guided, "adapt"),
}


def hardware() -> dict[str, Any]:
    """What these figures were measured on."""
    return {
        "device": f"one {torch.cuda.get_device_name()}",
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "command": COMMAND,
        "notes": [NOTE],
    }
