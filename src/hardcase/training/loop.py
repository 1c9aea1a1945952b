"""The one training loop: data as a single tensor, order and noise from named streams, early checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training.recipe import Recipe
from hardcase.training.tables import AUGMENTS, OPTIMISERS, SCHEDULES, pick
from hardcase.training.telling import History, Progress, Teller
from hardcase.training.unfinished import Keeper
from hardcase.types import Images


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be learned.

    `loss` is the mean over a batch (network, images, labels, noise). `answer` is what the network then says of images;
    it must differ between images. `chance` is the loss of a network that ignores its input.
    """

    loss: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
    answer: Callable[[nn.Module, Tensor, Tensor], Tensor]
    chance: float


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
    kept: Path | None = None,
    seen: Callable[[], object] = lambda: None,
) -> History:
    """Train `net` in place and leave it on `device`, in eval mode; on a CPU the same seed gives the same bytes.

    (The same number of threads is meant: sums are taken in another order with another one.) With a folder to be `kept` in,
    a training that was stopped goes on where it stood and ends with the same bytes; `seen` is called whenever it was
    written there. Who keeps the network removes the folder.
    """
    started, place = time.monotonic(), torch.device(device)
    epochs, inside = recipe.rounds(len(images))
    noise, order = stream(seed, "training", "noise", device=place), stream(seed, "training", "order")
    optimiser = pick("optimiser", recipe.optimiser, OPTIMISERS)(net.to(place).parameters(), recipe.lr, recipe.decay)
    step = _stepper(net, goal, recipe, epochs * inside, optimiser, noise)
    x, y = images.x.to(place), images.y.to(place)
    tell = Teller(goal.chance, epochs, inside, progress, f"{name} on {images.name}")
    keep = Keeper(folder=kept, nets=[net], optimisers=[optimiser], noise=noise, place=place, tell=tell, seen=seen)
    with own_randomness(seed, "training", "layers", device=place):
        net.train()
        done = keep.resume()
        for epoch in range(epochs):
            rows = torch.randperm(len(images), generator=order).to(place)
            for number, part in enumerate(islice(chunks(len(images), recipe.batch), inside), epoch * inside + 1):
                if number > done:
                    tell(step(number, x[rows[part]], y[rows[part]]))
                    keep(number)
    net.eval()
    _refuse_constant(net, goal, x[:256], y[:256])
    return History(tuple(tell.means), epochs * inside, time.monotonic() - started, tuple(tell.warnings))


def _stepper(
    net: nn.Module, goal: Goal, recipe: Recipe, total: int, optimiser: torch.optim.Optimizer, noise: torch.Generator
) -> Callable[[int, Tensor, Tensor], Tensor]:
    """Step `number` (from 1) of the optimiser on 8-bit images and labels; it returns the loss, still on the device."""
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    augment = pick("augmentation", recipe.augment, AUGMENTS)

    def step(number: int, x: Tensor, y: Tensor) -> Tensor:
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * schedule((number - 1) / total)
        loss = goal.loss(net, augment(from_bytes(x), noise), y, noise)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward without types
        optimiser.step()
        return loss.detach()

    return step


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
