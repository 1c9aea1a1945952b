"""The one training loop: recipes, progress, checkpoints to resume from, and what is learned.

`fit` trains one network towards a goal, `adversarial.duel` several against each other; both are
`steps_of`, which makes the batches, reports, keeps and resumes.
"""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import write_atomically
from hardcase.data.streams import check
from hardcase.errors import Problem, choice
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes, steady
from hardcase.training.augmentation import AUGMENTS
from hardcase.types import Images

__all__ = [
    "Goal",
    "History",
    "TrainingProgress",
    "TrainingRecipe",
    "classify",
    "fit",
    "geometry",
    "own_randomness",
    "patient_for",
    "predict",
]

_log = logging.getLogger(__name__)

UNSTATED: Mapping[str, Any] = {"unstated": True}
"""Marks a field that a card states only where it differs from its default, so that networks which
were kept before the field existed are found again.
"""


def stated(value: Any) -> Any:
    """Parameters as a card states them: as `dataclasses.asdict`, less unstated defaults."""
    if is_dataclass(value):
        return {
            one.name: stated(getattr(value, one.name))
            for one in fields(value)
            if not (one.metadata.get("unstated") and getattr(value, one.name) == one.default)
        }
    if isinstance(value, tuple):
        return [stated(one) for one in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How a network is trained, as plain values that fit into a table and into a card.

    Args:
        epochs: Passes over the data.
        batch: Images in each step.
        lr: The largest learning rate.
        steps: The fewest steps: small data sets are passed over more often.
        optimiser: A name of `OPTIMISERS`.
        schedule: A name of `SCHEDULES`.
        augment: A name of `AUGMENTS`.
        decay: Weight decay.
        half: Compute losses in bfloat16 on a GPU, and on a CPU that has instructions for it.
        smoothing: Share of a label that is spread over all classes.
        most: The most steps of an epoch, which then passes over a part of the images; 0: all.
        clip: The longest gradient of a step; a longer one is shortened. 0: as long as it is.
    """

    epochs: int
    batch: int
    lr: float
    steps: int = 0
    optimiser: str = "adam"
    schedule: str = "cosine"
    augment: str = "none"
    decay: float = 0.0
    half: bool = field(default=False, metadata=UNSTATED)
    smoothing: float = field(default=0.0, metadata=UNSTATED)
    most: int = field(default=0, metadata=UNSTATED)
    clip: float = field(default=0.0, metadata=UNSTATED)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.lr > 0:
            seen = f"epochs {self.epochs}, batch {self.batch}, lr {self.lr}"
            raise Problem(
                "training needs at least one epoch, a batch of one and a positive rate; "
                f"given: {seen}."
            )

    def rounds(self, count: int) -> tuple[int, int]:
        """Epochs, and steps in each, for `count` images; a smaller last batch is left out."""
        inside = max(count // self.batch, 1)
        inside = min(inside, self.most or inside)
        return max(self.epochs, math.ceil(self.steps / inside)), inside


Optimiser = Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer]
"""Makes an optimiser of parameters, learning rate and weight decay."""
Schedule = Callable[[float], float]
"""The share of the training that is done (0 to 1) gives the factor of the learning rate."""
_Row = TypeVar("_Row")


def pick(kind: str, name: str, table: Mapping[str, _Row]) -> _Row:
    """The row called `name`, or an error that lists the names there are."""
    if name not in table:
        raise choice(kind, name, list(table))
    return table[name]


OPTIMISERS: dict[str, Optimiser] = {
    "adam": lambda parameters, lr, decay: torch.optim.AdamW(
        parameters, lr=lr, weight_decay=decay, fused=True
    ),
    "sgd": lambda parameters, lr, decay: torch.optim.SGD(
        parameters, lr=lr, weight_decay=decay, momentum=0.9, nesterov=True, fused=True
    ),
}


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _warm(done: float, rise: float = 0.1) -> float:
    """Up in the first tenth, then down along a cosine."""
    if done < rise:
        return (done + 0.01) / (rise + 0.01)
    return _cosine((done - rise) / (1 - rise))


SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": _cosine,
    "warm": _warm,
    # a tenth after two and after four fifths, as ARGUS's every 20 of 50 epochs
    "stairs": lambda done: 0.1 ** int(done / 0.4 + 1e-9),
}


EVERY = 20
"""Steps between two reports: a report waits for the device."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where the training of `what` stands; `loss` is the mean since the last report."""

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


_PATIENCE: ContextVar[float] = ContextVar("patience", default=math.inf)
PACED = 6
"""Steps after which it is told how long a training will take."""
LONG = 60.0
"""Seconds from which on that is worth a word."""


PATIENCE = 1800.0
"""Seconds that the training of a network may take that nobody asked for by name."""


@contextmanager
def patient_for(seconds: float) -> Iterator[None]:
    """Refuse trainings that would take longer than this, as soon as their pace is known."""
    before = _PATIENCE.set(seconds)
    try:
        yield
    finally:
        _PATIENCE.reset(before)


def minutes(seconds: float) -> str:
    """So many seconds in words, as whole minutes."""
    count = round(seconds / 60)
    return "a minute" if count == 1 else f"{count} minutes"


INSTEAD = (
    "a method that trains nothing (--method natural, pgd or deephunter), a GPU (--device cuda), or"
    " hardcase train beforehand"
)


@dataclass(slots=True)
class Monitor:
    """Adds up and reports losses, forecasts the time, stops at NaN, warns if nothing is learned."""

    chance: float
    epochs: int
    inside: int
    progress: Callable[[TrainingProgress], None] | None
    what: str
    most: float = math.inf
    means: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    epoch: list[float] = field(default_factory=list)
    waiting: list[Tensor] = field(default_factory=list)
    step: int = 0
    calls: int = 0
    began: float = 0.0

    def __call__(self, loss: Tensor) -> None:
        self.step += 1
        self._pace(float(loss) if self.calls == PACED - 1 else 0.0)
        self.waiting.append(loss)
        ended = self.step % self.inside == 0
        if ended or self.step % EVERY == 1:
            recent = torch.stack(self.waiting).tolist()
            self.waiting.clear()
            self._report(recent, ended)

    def _pace(self, loss: float) -> None:
        """After a few steps, forecast the time of all; refuse more than there is patience for."""
        self.calls += 1
        if self.calls == 1:  # the first step warms up
            self.began = time.monotonic()
        if self.calls != PACED:
            return
        steps = self.epochs * self.inside
        pace = (time.monotonic() - self.began) / (PACED - 1)
        seconds = min(pace * (steps - self.step), self.most)
        patience = _PATIENCE.get()
        if seconds > patience:
            raise Problem(
                f"training {self.what} would take about {minutes(seconds)} here.",
                f"Nobody asked for it, so more than {patience / 60:.0f} minutes are not spent.",
                fix=INSTEAD,
            )
        if seconds > LONG:
            self.say(loss, f"takes about {minutes(seconds)}; it is trained once")

    def say(self, loss: float, warning: str = "") -> None:
        """Tell whoever watches where the training stands."""
        if self.progress is not None:
            steps = self.epochs * self.inside
            epoch = max(self.step - 1, 0) // self.inside + 1
            self.progress(
                TrainingProgress(epoch, self.epochs, self.step, steps, loss, warning, self.what)
            )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        kept = {name: getattr(self, name) for name in ("means", "warnings", "epoch")}
        return {**kept, "waiting": [float(loss) for loss in self.waiting]}

    def restore(self, step: int, state: Mapping[str, Any], place: torch.device) -> None:
        self.step = step
        for name in ("means", "warnings", "epoch"):
            setattr(self, name, state[name])
        self.waiting = list(torch.tensor(state["waiting"], device=place))

    def _report(self, recent: list[float], ended: bool) -> None:
        wrong = [value for value in recent if not math.isfinite(value)]
        if wrong:
            raise Problem(
                f"the loss became {wrong[0]} by step {self.step}.",
                "Weights that are not numbers answer nothing; nothing was kept.",
                fix="a smaller learning rate; and look for images or labels that are not numbers",
            )
        self.epoch += recent
        warning = ""
        if ended:
            warning = self._learned()
            self.means.append(sum(self.epoch) / len(self.epoch))
            self.epoch.clear()
        self.say(sum(recent) / len(recent), warning)

    def _learned(self) -> str:
        """After the first and the last epoch: was anything learned?"""
        late = self.epoch[-max(len(self.epoch) // 4, 1) :]
        seen = sum(late) / len(late)
        epoch = len(self.means) + 1
        if seen < self.chance or epoch not in (1, self.epochs):
            return ""
        warning = (
            f"after epoch {epoch} of {self.epochs} the loss is {seen:.4g}; ignoring the input costs"
            f" {self.chance:.4g}"
        )
        self.warnings.append(warning)
        _log.warning(warning)
        return warning


STATE = "state.pt"
"""The checkpoint of an unfinished training, in a folder beside that of the network."""
SECONDS = 30.0
"""Time between two checkpoints: as much work may be lost."""


def unfinished_folder(folder: Path) -> Path:
    """Where the unfinished training of the network that will be in `folder` is kept."""
    return folder.with_name(f"{folder.name}.unfinished")


def remove_unfinished(folder: Path) -> None:
    """Remove what an unfinished training has left in `folder`, if anything."""
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """Checkpoints of everything that changes during a training, every now and then."""

    folder: Path | None
    nets: Sequence[nn.Module]
    optimisers: Sequence[torch.optim.Optimizer]
    noise: torch.Generator
    place: torch.device
    monitor: Monitor
    on_checkpoint: Callable[[], object] = lambda: None
    begun: float = field(default_factory=time.monotonic)
    written: float = field(default_factory=time.monotonic)
    pause: float = 0.0
    earlier: float = 0.0

    @property
    def spent(self) -> float:
        """Seconds of training, those before a stop included."""
        return self.earlier + time.monotonic() - self.begun

    def __call__(self, step: int, *, now: bool = False) -> None:
        start = time.monotonic()
        if self.folder is None or not (now or start - self.written >= max(SECONDS, self.pause)):
            return
        content = BytesIO()
        torch.save(self._state(step), content)
        write_atomically(self.folder / STATE, content.getvalue())
        self.on_checkpoint()
        self.written = time.monotonic()
        self.pause = 20 * (self.written - start)  # at most a twentieth of the time for writing

    def resume(self) -> int:
        """Restore the last checkpoint and return its number of steps; 0 if there is none."""
        if self.folder is None or not (self.folder / STATE).exists():
            return 0
        try:
            state = torch.load(self.folder / STATE, map_location="cpu", weights_only=True)
            self._check(state)
        except Exception as error:  # whatever is wrong with it: the training can be done again
            self._say(
                f"what was kept of a stopped training cannot be used ({error}); it begins anew"
            )
            return 0
        self._restore(state)
        step = int(state["step"])
        if step < self.monitor.epochs * self.monitor.inside:
            self._say(f"goes on after step {step}, where it was stopped")
        return step

    def _state(self, step: int) -> dict[str, Any]:
        random = {"noise": self.noise.get_state(), "layers": torch.get_rng_state()}
        if self.place.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.place)
        return {
            "step": step,
            "place": self.place.type,
            "seconds": self.spent,
            "nets": [net.state_dict() for net in self.nets],
            "optimisers": [optimiser.state_dict()["state"] for optimiser in self.optimisers],
            "random": random,
            "monitor": self.monitor.state(),
        }

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse what does not fit before anything is changed."""
        if state["place"] != self.place.type:
            raise ValueError(f"it was begun on {state['place']}")
        if [*map(_shapes, state["nets"])] != [_shapes(net.state_dict()) for net in self.nets]:
            raise ValueError("it is of another network")

    def _restore(self, state: Mapping[str, Any]) -> None:
        for net, weights in zip(self.nets, state["nets"]):
            net.load_state_dict(weights)
        for optimiser, moments in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
        self.noise.set_state(state["random"]["noise"])
        torch.set_rng_state(state["random"]["layers"])
        if self.place.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"], self.place)
        self.earlier = float(state["seconds"])
        self.monitor.restore(state["step"], state["monitor"], self.place)

    def _say(self, text: str) -> None:
        _log.info("%s: %s", self.monitor.what, text)
        self.monitor.say(float("nan"), text)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}


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


@contextmanager
def own_randomness(
    seed: int, *names: str | int, device: torch.device | str = "cpu"
) -> Iterator[None]:
    """Let layers that draw from torch's global generator draw from a named stream in here."""
    place = torch.device(device)
    generators = [torch.default_generator]
    devices = []
    if place.type == "cuda":
        devices = [torch.cuda.current_device() if place.index is None else place.index]
        generators.append(torch.cuda.default_generators[devices[0]])
    with torch.random.fork_rng(devices=devices):
        for generator in generators:
            generator.manual_seed(stream(seed, *names).initial_seed())
        yield


def _refuse_too_large(net: nn.Module, name: str, place: torch.device) -> None:
    """Refuse a training whose weights, gradients and moments do not fit into the memory."""
    needed = 16 * sum(weight.numel() for weight in net.parameters())
    free = free_memory(place)
    if free is not None and needed > free:
        raise Problem(
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
        said = Path("/proc/meminfo").read_text(encoding="ascii")
        if found := re.search(r"MemAvailable:\s+(\d+) kB", said):
            return int(found[1]) * 1024
    return None


Prepare = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""What is made of images and labels before a loss sees them."""
Step = Callable[[int, float, Tensor, Tensor], Tensor]
"""One step of training: its number, the share that is done, images, labels; the loss."""


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
    """Train `net` in place and leave it on `device`, in eval mode; `how` goes to `steps_of`.

    On a CPU the same seed gives the same bytes (with the same number of threads: sums are taken in
    another order with another one). A network that has learned nothing is a `Problem`.
    """
    place = torch.device(device)
    _refuse_too_large(net, name, place)
    half = recipe.half and has_halves(place)
    optimiser = pick("optimiser", recipe.optimiser, OPTIMISERS)(
        placed(net, place, half=half).parameters(), recipe.lr, recipe.decay
    )
    history = steps_of(
        lambda noise: _stepper(net, goal, recipe, optimiser, noise),
        images,
        recipe,
        learners=[net],
        optimisers=[optimiser],
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


def steps_of(
    stepper: Callable[[torch.Generator], Step],
    images: Images,
    recipe: TrainingRecipe,
    *,
    learners: Sequence[nn.Module],
    optimisers: Sequence[torch.optim.Optimizer],
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
        stepper: Makes the step, given the noise it may draw from.
        learners: The networks that are trained; they end in eval mode.
        label: Of the streams of random numbers.
        ahead: Steps whose images are made at once; 0: as many as pay on a GPU.
        on_step: Called with the number of every step taken; it may change the networks `also`.
    """
    epochs, inside = recipe.rounds(len(images))
    total = epochs * inside
    noise = stream(seed, label, "noise", device=place)
    order = stream(seed, label, "order")
    step = stepper(noise)
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
    with own_randomness(seed, label, "layers", device=place), tuned(half):
        for net in learners:
            net.train()
        number = done = keep.resume()
        for number, batch in _batches(prepare, recipe, data, order, noise, done, ahead):
            share = max((number - 1) / total, keep.spent / limit)
            monitor(step(number, share, *batch))
            on_step(number)
            over = number == total or keep.spent >= limit
            keep(number, now=over)
            if over:
                break
    for net in learners:
        net.eval()
    return History(tuple(monitor.means), number, keep.spent, tuple(monitor.warnings))


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
            made = augment(from_bytes(x[chosen]), noise), y[chosen]
            if prepare is not None:
                made = prepare(*made, noise)
                if ahead > 1:
                    mixed = torch.randperm(len(chosen), generator=noise, device=x.device)
                    made = made[0][mixed], made[1][mixed]
            cuts = chunks(len(chosen), recipe.batch)
            for number, cut in enumerate(cuts, epoch * inside + first + 1):
                yield number, (made[0][cut], made[1][cut])


def _stepper(
    net: nn.Module,
    goal: Goal,
    recipe: TrainingRecipe,
    optimiser: torch.optim.Optimizer,
    noise: torch.Generator,
) -> Step:
    """A step of the optimiser on a batch; the loss that it returns stays on the device."""
    schedule = pick("schedule", recipe.schedule, SCHEDULES)

    def step(number: int, share: float, x: Tensor, y: Tensor) -> Tensor:
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * schedule(min(share, 1.0))
        with halved(x.device, wanted=recipe.half):
            loss = goal.loss(net, x, y, noise)
        optimiser.zero_grad(set_to_none=True)
        # torch leaves Tensor.backward without types
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe.clip:
            nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
        optimiser.step()
        return loss.detach()

    return step


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
    torch._foreach_lerp_([own for own, _ in real], [other for _, other in real], 1 - keep)
    for own, other in pairs:
        if not own.is_floating_point():
            own.copy_(other)


def _refuse_constant(net: nn.Module, goal: Goal, x: Tensor, y: Tensor) -> None:
    """Refuse a network that says the same of every image: it has died."""
    with torch.no_grad():
        answer = goal.answer(net, from_bytes(x), y).float()
    if bool((x != x[:1]).any()) and float((answer.amax(0) - answer.amin(0)).max()) < 1e-6:
        raise Problem(
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


def geometry(train: Images, test: Images) -> tuple[int, int, int]:
    """Channels, size and classes of a data set, once it is known to be fit for training."""
    _, channels, height, width = train.x.shape
    if height != width or train.x.shape[1:] != test.x.shape[1:]:
        seen = f"{tuple(train.x.shape[1:])} for training, {tuple(test.x.shape[1:])} for measuring"
        raise Problem(
            f"images must be square and alike; {train.name} has {seen} (channels, height, width)."
        )
    if train.classes != test.classes:
        raise Problem(
            f"{train.name} names {len(train.classes)} classes for training, {len(test.classes)}"
            " others for measuring."
        )
    for part in (train, test):
        check(part, f"the {part.split} split of {part.name}")
    if bool((train.y == train.y[0]).all()):
        raise Problem(
            f"the {train.split} split of {train.name} holds a single class.",
            "There is nothing to tell apart.",
        )
    return channels, height, len(train.classes)
