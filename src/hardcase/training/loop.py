"""The one training loop: data as a single tensor, order and noise from named streams, early checks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training.recipe import Recipe
from hardcase.training.tables import AUGMENTS, OPTIMISERS, SCHEDULES, pick
from hardcase.types import Images

_log = logging.getLogger(__name__)
_EVERY = 20
"""Steps between two reports: a report waits for the device."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be learned.

    `loss` is the mean over a batch (network, images, labels, noise). `answer` is what the network then says of images;
    it must differ between images. `chance` is the loss of a network that ignores its input.
    """

    loss: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
    answer: Callable[[nn.Module, Tensor, Tensor], Tensor]
    chance: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the training of `what` stands; `loss` is the mean since the last report, `warning` is said once."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    warning: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The mean loss of every epoch, the steps taken, what was odd."""

    loss: tuple[float, ...]
    steps: int
    seconds: float
    warnings: tuple[str, ...] = ()


@contextmanager
def own_randomness(seed: int, *names: str | int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Layers that draw from torch's global generator (initialisation, dropout) draw from a named stream in here.

    The global state is the same afterwards, also after an exception.
    """
    place = torch.device(device)
    index = place.index if place.index is not None else torch.cuda.current_device() if place.type == "cuda" else 0
    with torch.random.fork_rng(devices=[index] if place.type == "cuda" else []):
        torch.default_generator.manual_seed(stream(seed, *names).initial_seed())
        if place.type == "cuda":
            torch.cuda.default_generators[index].manual_seed(stream(seed, *names).initial_seed())
        yield


def fit(
    net: nn.Module,
    images: Images,
    goal: Goal,
    recipe: Recipe,
    *,
    seed: int,
    name: str = "a network",
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] | None = None,
) -> History:
    """Train `net` in place and leave it on `device`, in eval mode; on a CPU the same seed gives the same bytes.

    (The same number of threads is meant: sums are taken in another order with another one.)
    """
    started, place = time.monotonic(), torch.device(device)
    epochs, inside = recipe.rounds(len(images))
    step = _stepper(net.to(place), goal, recipe, epochs * inside, stream(seed, "training", "noise", device=place))
    order = stream(seed, "training", "order")
    x, y = images.x.to(place), images.y.to(place)
    tell = _Teller(goal.chance, epochs, inside, progress, f"{name} on {images.name}")
    with own_randomness(seed, "training", "layers", device=place):
        net.train()
        for _ in range(epochs):
            rows = torch.randperm(len(images), generator=order).to(place)
            for part in islice(chunks(len(images), recipe.batch), inside):
                tell(step(x[rows[part]], y[rows[part]]))
    net.eval()
    _refuse_constant(net, goal, x[:256], y[:256])
    return History(tuple(tell.means), epochs * inside, time.monotonic() - started, tuple(tell.warnings))


def _stepper(
    net: nn.Module, goal: Goal, recipe: Recipe, total: int, noise: torch.Generator
) -> Callable[[Tensor, Tensor], Tensor]:
    """One step of the optimiser on 8-bit images and labels; it returns the loss, still on the device."""
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    augment = pick("augmentation", recipe.augment, AUGMENTS)
    optimiser = pick("optimiser", recipe.optimiser, OPTIMISERS)(net.parameters(), recipe.lr, recipe.decay)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda done: schedule(done / total))

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = goal.loss(net, augment(from_bytes(x), noise), y, noise)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward without types
        optimiser.step()
        rate.step()
        return loss.detach()

    return step


class _Teller:
    """Adds up losses, reports them, stops a training that has become NaN, and says when nothing is learned."""

    def __init__(
        self, chance: float, epochs: int, inside: int, progress: Callable[[Progress], None] | None, what: str
    ) -> None:
        self.chance, self.epochs, self.inside, self.progress, self.what = chance, epochs, inside, progress, what
        self.means: list[float] = []
        self.warnings: list[str] = []
        self.step = 0
        self.waiting: list[Tensor] = []
        self.epoch: list[float] = []

    def __call__(self, loss: Tensor) -> None:
        self.step += 1
        self.waiting.append(loss)
        ended = self.step % self.inside == 0
        if ended or self.step % _EVERY == 1:
            recent = torch.stack(self.waiting).tolist()
            self.waiting.clear()
            self._report(recent, ended)

    def _report(self, recent: list[float], ended: bool) -> None:
        self._refuse_infinite(recent)
        self.epoch += recent
        warning = self._doubt() if ended else ""
        if ended:
            self.means.append(sum(self.epoch) / len(self.epoch))
            self.epoch.clear()
        if self.progress is not None:
            steps, mean = self.epochs * self.inside, sum(recent) / len(recent)
            epoch = (self.step - 1) // self.inside + 1
            self.progress(Progress(epoch, self.epochs, self.step, steps, mean, warning, self.what))

    def _refuse_infinite(self, recent: list[float]) -> None:
        if not all(map(math.isfinite, recent)):
            raise Problem(
                f"the loss became {next(value for value in recent if not math.isfinite(value))} by step {self.step}.",
                "Weights that are not numbers answer nothing; nothing was kept.",
                fix="a smaller learning rate; and look for images or labels that are not numbers",
            )

    def _doubt(self) -> str:
        """After the first and the last epoch: was anything learned?"""
        late = self.epoch[-max(len(self.epoch) // 4, 1) :]
        seen, epoch = sum(late) / len(late), len(self.means) + 1
        if seen < self.chance or epoch not in (1, self.epochs):
            return ""
        warning = (
            f"after epoch {epoch} of {self.epochs} the loss is {seen:.4g}; ignoring the input costs {self.chance:.4g}"
        )
        self.warnings.append(warning)
        _log.warning(warning)
        return warning


def _refuse_constant(net: nn.Module, goal: Goal, x: Tensor, y: Tensor) -> None:
    """A network that says the same of every image has died (most often a rate that is too large)."""
    with torch.no_grad():
        answer = goal.answer(net, from_bytes(x), y).float()
    if bool((x != x[:1]).any()) and float((answer.amax(0) - answer.amin(0)).max()) < 1e-6:
        raise Problem(
            f"the trained network gives one and the same answer for {len(x)} different images.",
            "It has learned nothing, or its units have died; nothing was kept.",
            fix="a smaller learning rate, more epochs, or check that the images differ between classes",
        )
