"""The training loop: `fit` trains a network towards a goal, `train_adversarially` two or more
against each other. Both are `train`, which makes the batches, reports, stores and resumes. Images
are augmented so that a network learns what does not change a label; every augmentation follows the
device of its images and of its generator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.imaging.blur import stroke_width
from hardcase.imaging.resample import affine
from hardcase.randomness import named_randomness, stream
from hardcase.tensors import chunks, from_bytes, steady
from hardcase.training.cards import (
    OPTIMISERS,
    SCHEDULES,
    History,
    TrainingProgress,
    TrainingRecipe,
    pick,
)
from hardcase.training.monitor import INSTEAD, Checkpoints, Monitor
from hardcase.types import Images

Augment = Callable[[Tensor, torch.Generator], Tensor]


def crop(x: Float[Tensor, "m c h w"], reach: int, rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every image moved by up to `reach` pixels each way, black coming in at the edges."""
    count, _, height, width = x.shape
    offset = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=rng, device=x.device)
    rows = offset[0] + torch.arange(height, device=x.device)
    columns = offset[1] + torch.arange(width, device=x.device)
    image = torch.arange(count, device=x.device)[:, None, None]
    padded = functional.pad(x, (reach, reach, reach, reach)).permute(0, 2, 3, 1)
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def flip(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every image mirrored with a chance of one half."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(3), x)


class RowSampler:
    """Random numbers between 0 and 1, a number per image, shaped to broadcast over images."""

    def __init__(self, count: int, rng: torch.Generator) -> None:
        self.count = count
        self.rng = rng

    def __call__(self, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "m 1 1 1"]:
        return low + (high - low) * torch.rand(
            self.count, 1, 1, 1, generator=self.rng, device=self.rng.device
        )

    def chance(self, share: float) -> Float[Tensor, "m 1 1 1"]:
        """1 for about this share of the images, 0 for the others."""
        return (self() < share).float()

    def one_of(self, count: int) -> int:
        """A number below `count`, the same for the whole batch."""
        return int(torch.randint(count, (1,), generator=self.rng, device=self.rng.device))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, device=self.rng.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.rng, device=self.rng.device)


@dataclass(frozen=True, slots=True)
class Bend:
    """How far images are turned (degrees), stretched, sheared, moved and bent (shares)."""

    turn: float = 15.0
    stretch: float = 0.15
    shear: float = 0.2
    move: float = 0.09
    wave: float = 0.032
    cells: int = 5


USUAL = Bend()
GENTLE = Bend(turn=8, stretch=0.08, shear=0.1, move=0.04, wave=0.02)


def bend(
    x: Float[Tensor, "m c h w"], rng: torch.Generator, how: Bend = USUAL
) -> Float[Tensor, "m c h w"]:
    """Every image under a separate random affine map and smooth displacement, edges repeated."""
    dice = RowSampler(len(x), rng)
    count = len(x)
    angle = math.radians(how.turn) * _both(dice)
    scale = torch.exp(how.stretch * (2 * dice.uniform(count, 2, 1) - 1))
    turned = torch.stack(
        [angle.cos(), how.shear * _both(dice) - angle.sin(), angle.sin(), angle.cos()], 1
    )
    moved = 2 * how.move * (2 * dice.uniform(count, 2, 1) - 1)
    maps = torch.cat([turned.reshape(count, 2, 2) * scale, moved], 2)
    waves = 2 * how.wave * dice.normal(count, 2, how.cells, how.cells)
    return affine(x, maps, outside="border", waves=waves)


def _both(dice: RowSampler) -> Float[Tensor, " m"]:
    return 2 * dice().flatten() - 1


def _none(x: Tensor, rng: torch.Generator) -> Tensor:
    return x


def _shift(x: Tensor, rng: torch.Generator) -> Tensor:
    return crop(x, 2, rng)


def _crop_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    return flip(crop(x, 4, rng), rng)


def _bend_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Bent a little, mirrored, and in more or less light."""
    x = flip(bend(x, rng, GENTLE), rng)
    return (x * RowSampler(len(x), rng)(0.7, 1.3)).clamp(0, 1)


def _handwriting(x: Tensor, rng: torch.Generator) -> Tensor:
    """Bent as another hand would write it, with thicker or thinner, fainter or stronger strokes."""
    x = bend(x, rng)
    dice = RowSampler(len(x), rng)
    way = dice()
    x = stroke_width(x, thicker=(way < 0.2) * dice(), thinner=(way > 0.8) * dice())
    return x * dice(0.5, 1.0)


AUGMENTS: dict[str, Augment] = {
    "none": _none,
    "shift": _shift,
    "flip": flip,
    "crop-flip": _crop_flip,
    "bend-flip": _bend_flip,
    "handwriting": _handwriting,
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be learned.

    `loss` is the mean over a batch (network, images, labels, noise). `answer` is what the network
    then says of images; it must differ between images. `chance` is the loss of a network that
    ignores its input. `prepare` makes of images and labels what `loss` is given, without the
    network: on a GPU for several steps at once.
    """

    loss: Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
    answer: Callable[[nn.Module, Tensor, Tensor], Tensor]
    chance: float
    prepare: Prepare | None = None


AHEAD = 16
"""Steps whose images are made at once on a GPU, where small batches cost as much as large ones."""
NUMBERS = 2**26
"""Numbers of the images that are made at once, at most, unless one step needs more."""


def _refuse_too_large(net: nn.Module, name: str, place: torch.device) -> None:
    """Refuse a training whose weights, gradients and moments do not fit into the memory."""
    needed = 16 * sum(weight.numel() for weight in net.parameters())
    free = free_memory(place)
    if free is not None and needed > free:
        raise HardcaseError(
            f"training {name} takes at least {needed / 2**30:.1f} GB for its weights alone;"
            f" {free / 2**30:.1f} GB are free on {place}.",
            "The images are too large for this network.",
            fix=INSTEAD,
        )


def free_memory(place: torch.device) -> int | None:
    """Bytes that are free on a device; None where the system does not say."""
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    with suppress(OSError):
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
        if match := re.search(r"MemAvailable:\s+(\d+) kB", meminfo):
            return int(match[1]) * 1024
    return None


Prepare = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""What is made of images and labels before a loss sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """The networks that one side may change, its loss on a batch, and how often it moves."""

    nets: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor, torch.Generator], Tensor]
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    every: int = 1
    clip: float = 0.0


def fit(
    net: nn.Module,
    images: Images,
    goal: Goal,
    recipe: TrainingRecipe,
    *,
    name: str = "a network",
    device: torch.device | str = "cpu",
    **how: Any,
) -> History:
    """Train `net` in place and leave it on `device`, in eval mode; `how` goes to `train`.

    On a CPU the same seed gives the same bytes (with the same number of threads: sums are taken in
    another order with another one). A network that has learned nothing is a `HardcaseError`.
    """
    place = torch.device(device)
    _refuse_too_large(net, name, place)
    half = recipe.half and has_halves(place)
    optimiser = pick("optimiser", recipe.optimiser, OPTIMISERS)(
        placed(net, place, half=half).parameters(), recipe.lr, recipe.decay
    )

    def loss(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        return goal.loss(net, x, y, noise)

    history = train(
        [Player(nets=[net], loss=loss, lr=recipe.lr, clip=recipe.clip)],
        [optimiser],
        images,
        recipe,
        label="training",
        chance=goal.chance,
        prepare=goal.prepare,
        half=half,
        ahead=0,
        name=name,
        place=place,
        **how,
    )
    _refuse_constant(net, goal, images.x[:256].to(place), images.y[:256].to(place))
    return history


def train_adversarially(
    players: Sequence[Player],
    images: Images,
    recipe: TrainingRecipe,
    *,
    name: str = "networks",
    device: torch.device | str = "cpu",
    half: bool = False,
    **how: Any,
) -> History:
    """Train networks against each other: on every batch each player takes a step, in order; `how`
    goes to `train`.

    The first player's loss is reported. With `half`, losses are computed in bfloat16 on a GPU.
    """
    place = torch.device(device)
    half = half and place.type == "cuda"
    fused = place.type == "cuda" or None
    optimisers = []
    for player in players:
        nets = [placed(net, place, half=half) for net in player.nets]
        trained = [p for net in nets for p in net.parameters() if p.requires_grad]
        optimisers.append(torch.optim.Adam(trained, player.lr, player.betas, fused=fused))
    return train(
        players,
        optimisers,
        images,
        recipe,
        label="duel",
        name=name,
        place=place,
        half=half,
        **how,
    )


def train(
    players: Sequence[Player],
    optimisers: Sequence[torch.optim.Optimizer],
    images: Images,
    recipe: TrainingRecipe,
    *,
    label: str,
    name: str,
    place: torch.device,
    seed: int = 0,
    chance: float = math.inf,
    prepare: Prepare | None = None,
    half: bool = False,
    ahead: int = 1,
    progress: Callable[[TrainingProgress], None] | None = None,
    kept: Path | None = None,
    on_checkpoint: Callable[[], object] = lambda: None,
    also: Sequence[nn.Module] = (),
    on_step: Callable[[int], None] = lambda step: None,
    limit: float = math.inf,
) -> History:
    """All steps of a training: batches, progress, checkpoints, and resuming after a stop.

    With a folder to be `kept` in, a training that was stopped goes on where it stood and ends with
    the same bytes; who keeps the network removes the folder. Within a `limit` of seconds the
    schedule is that of the time, and bytes may differ.

    Args:
        players: Their networks are trained and end in eval mode.
        label: Of the streams of random numbers.
        ahead: Steps whose images are made at once; 0: as many as pay on a GPU.
        on_step: Called with the number of every step taken; it may change the networks `also`.
    """
    epochs, inside = recipe.rounds(len(images))
    total = epochs * inside
    noise = stream(seed, label, "noise", device=place)
    order = stream(seed, label, "order")
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    learners = [net for player in players for net in player.nets]
    data = images.x.to(place), images.y.to(place)
    monitor = Monitor(chance, epochs, inside, progress, f"{name} on {images.name}", limit)
    keep = Checkpoints(
        folder=kept,
        nets=[*learners, *also],
        optimisers=optimisers,
        noise=noise,
        place=place,
        monitor=monitor,
        on_checkpoint=on_checkpoint,
    )
    with named_randomness(seed, label, "layers", device=place), tuned(half):
        for net in learners:
            net.train()
        number = done = keep.resume()
        for number, (x, y) in _batches(prepare, recipe, data, order, noise, done, ahead):
            share = max((number - 1) / total, keep.spent / limit)
            rate = schedule(min(share, 1.0))
            monitor(_step(players, optimisers, number, rate, x, y, noise, half=half))
            on_step(number)
            over = number == total or keep.spent >= limit
            keep(number, now=over)
            if over:
                break
    for net in learners:
        net.eval()
    return History(tuple(monitor.means), number, keep.spent, tuple(monitor.warnings))


def _step(
    players: Sequence[Player],
    optimisers: Sequence[torch.optim.Optimizer],
    number: int,
    rate: float,
    x: Tensor,
    y: Tensor,
    noise: torch.Generator,
    *,
    half: bool,
) -> Tensor:
    """A step of every player whose turn it is; the first one's loss, which stays on the device."""
    parameters = [optimiser.param_groups[0]["params"] for optimiser in optimisers]
    losses = []
    for player, mine, optimiser in zip(players, parameters, optimisers):
        if number % player.every:
            continue
        if len(players) > 1:  # who does not move is not differentiated
            _set_learning(parameters, [mine])
        for group in optimiser.param_groups:
            group["lr"] = player.lr * rate
        with halved(x.device, wanted=half):
            loss = player.loss(x, y, noise)
        optimiser.zero_grad(set_to_none=True)
        # torch leaves Tensor.backward without types
        loss.backward()  # type: ignore[no-untyped-call]
        if player.clip:
            nn.utils.clip_grad_norm_(mine, player.clip)
        optimiser.step()
        losses.append(loss.detach())
    if len(players) > 1:
        _set_learning(parameters, parameters)
    return losses[0]


def _set_learning(
    everybody: Sequence[Sequence[nn.Parameter]], wanted: Sequence[Sequence[nn.Parameter]]
) -> None:
    for parameter in chain(*everybody):
        parameter.requires_grad_(False)
    for parameter in chain(*wanted):
        parameter.requires_grad_(True)


def _batches(
    prepare: Prepare | None,
    recipe: TrainingRecipe,
    data: tuple[Tensor, Tensor],
    order: torch.Generator,
    noise: torch.Generator,
    done: int,
    ahead: int,
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """The number of every step after the first `done`, and what is learned from in it."""
    x, y = data
    epochs, inside = recipe.rounds(len(x))
    augment = pick("augmentation", recipe.augment, AUGMENTS)
    if not ahead and not steady(x.device):
        ahead = min(AHEAD, NUMBERS // max(x[:1].numel() * recipe.batch, 1))
    ahead = max(1, ahead)
    for epoch in range(epochs):
        rows = torch.randperm(len(x), generator=order).to(x.device)
        for part in chunks(inside, ahead):
            first = max(part.start, done - epoch * inside)
            if first >= part.stop:
                continue
            chosen = rows[first * recipe.batch : part.stop * recipe.batch]
            augmented = augment(from_bytes(x[chosen]), noise), y[chosen]
            if prepare is not None:
                augmented = prepare(*augmented, noise)
                if ahead > 1:
                    mixed = torch.randperm(len(chosen), generator=noise, device=x.device)
                    augmented = augmented[0][mixed], augmented[1][mixed]
            cuts = chunks(len(chosen), recipe.batch)
            for number, cut in enumerate(cuts, epoch * inside + first + 1):
                yield number, (augmented[0][cut], augmented[1][cut])


def placed(net: nn.Module, place: torch.device, *, half: bool) -> nn.Module:
    """`net` on its device, for half precision with channels last."""
    net.to(place)
    if half:
        # torch's types lack this form of `to`
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def halved(place: torch.device, *, wanted: bool) -> torch.autocast:
    """bfloat16 in here, if it is wanted and `place` is quick at it."""
    enabled = wanted and has_halves(place)
    return torch.autocast(place.type, dtype=torch.bfloat16, enabled=enabled)


def has_halves(place: torch.device) -> bool:
    """Whether bfloat16 is quicker there: on a GPU, and on a CPU with instructions for it."""
    if place.type != "cpu":
        return place.type == "cuda"
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


@contextmanager
def tuned(wanted: bool) -> Iterator[None]:
    """Let cuDNN choose its fastest algorithms in here: every batch has the same size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or wanted
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@torch.no_grad()
def average(net: nn.Module, new: nn.Module, *, keep: float) -> None:
    """Move weights and running statistics of `net` toward those of `new`; copy counters."""
    pairs = list(zip(net.state_dict().values(), new.state_dict().values()))
    real = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_(
        [trainable for trainable, _ in real], [other for _, other in real], 1 - keep
    )
    for trainable, other in pairs:
        if not trainable.is_floating_point():
            trainable.copy_(other)


def _refuse_constant(net: nn.Module, goal: Goal, x: Tensor, y: Tensor) -> None:
    """Refuse a network that says the same of every image: it has died."""
    with torch.no_grad():
        answer = goal.answer(net, from_bytes(x), y).float()
    if bool((x != x[:1]).any()) and float((answer.amax(0) - answer.amin(0)).max()) < 1e-6:
        raise HardcaseError(
            f"the trained network gives one and the same answer for {len(x)} different images.",
            "It has learned nothing, or its units have died; nothing was kept.",
            fix="a smaller learning rate, more epochs, or check that images differ between classes",
        )


Perturb = Callable[[nn.Module, Tensor, Tensor, torch.Generator], Tensor]
"""Other images to train on in place of these: (network, images, labels, noise)."""


def classify(classes: int, *, perturb: Perturb | None = None, smoothing: float = 0.0) -> Goal:
    """Cross-entropy of logits; with `perturb`, on the images it makes of the batch."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        if perturb is not None:
            x = perturb(net, x, y, noise)
        return functional.cross_entropy(net(x), y, label_smoothing=smoothing)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits: Tensor = net(x)
        return logits

    return Goal(loss, answer, math.log(classes))


@torch.no_grad()
def predict(
    net: Callable[[Tensor], Tensor], images: Images, *, device: torch.device | str = "cpu"
) -> Int[Tensor, " n"]:
    """The class that `net` (images to logits) gives each image."""
    parts = [
        net(from_bytes(images.x[rows].to(device))).argmax(1) for rows in chunks(len(images), 256)
    ]
    return torch.cat(parts).cpu()
