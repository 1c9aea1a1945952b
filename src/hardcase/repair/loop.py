"""Training on from a network with the search inside the loop; each epoch is stored.

Candidates are weights averaged over about an epoch.
Order, draws and dropout of an epoch follow from the seed and its number alone, so a training that
was killed continues from the last complete epoch and ends with the same weights.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import write_atomically
from hardcase.conditions import ConditionBox
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject, as_logits, in_evaluation_mode, prepared
from hardcase.randomness import named_randomness, stream
from hardcase.repair.hardest import hardest_rows, render_draws, worst_rows
from hardcase.tensors import chunks, digest, from_bytes, steady
from hardcase.training.cards import OPTIMISERS, SCHEDULES
from hardcase.training.loop import AHEAD, NUMBERS, average, halved, tuned
from hardcase.types import Images

__all__ = ["RATES", "Learner", "RepairRecipe", "Source", "Trained", "condition_source", "train_on"]

_log = logging.getLogger(__name__)

RATES = (3e-3, 1e-3, 3e-4)
"""Learning rates among which the validation part chooses."""
TRIAL = 100
"""Steps after which they are compared."""
JUDGED = 4
"""Draws per validation image, of which the worst counts."""
TIES = 0.01
"""Weight of the loss where errors choose rate and epoch."""
LARGE = 1_000_000
"""Weights from which on a GPU computes in bfloat16."""
STATE = "training.safetensors"

Source = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, Tensor], Tensor]
"""Changed images (n, k, c, h, w) of (logits of images, images, labels, a key for each image)."""
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRecipe:
    """How a network is trained on.

    Args:
        epochs: Passes over the training images, at most.
        batch: Images in each step.
        rate: The largest learning rate of Adam; None: chosen from `RATES` on the validation part.
        draws: Draws of the conditions per changed image, of which the worst is learned from; 0:
            nothing is changed, which is training on for more epochs.
        steps: Gradient steps on the code from the worst draw, until it fails; with ``draws=1,
            steps=0`` it is random augmentation.
        share: The part of each batch that is changed.
        consistency: Weight of the divergence between answers to the changed and the unchanged
            image.
        patience: Epochs without a better validation score after which it stops.
        validation: The part of the training images that is held out to choose by.
        seed: Everything random follows from it.
    """

    epochs: int = 12
    batch: int = 64
    rate: float | None = None
    draws: int = 4
    steps: int = 0
    share: float = 0.5
    consistency: float = 0.5
    patience: int = 4
    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        valid = self.epochs >= 1 and self.batch >= 1 and min(self.draws, self.steps) >= 0
        parts = 0 < self.share <= 1 and 0 < self.validation < 1 and self.consistency >= 0
        if not valid or not parts or (self.rate is not None and not 0 < self.rate < math.inf):
            raise HardcaseError(
                f"nothing can be trained by {self}.",
                fix="epochs and batch from 1 on, shares between 0 and 1, a positive rate",
            )


@dataclass(slots=True)
class RepairProgress:
    """How far a training is; `best` is the epoch of the best weights, 0: those before training."""

    rate: float = 0.0
    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    best: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    over: bool = False


@dataclass(slots=True, kw_only=True)
class Trained(RepairProgress):
    """A training that is over, and the network with the weights of its best epoch."""

    net: nn.Module

    def to_json(self) -> dict[str, Any]:
        """Return what repair.json keeps."""
        entries = {field.name: getattr(self, field.name) for field in fields(RepairProgress)}
        del entries["over"]
        return {**entries, "epochs": len(self.losses)}


class Learner(nn.Module):
    """A copy of a model's network that learns: images in [0, 1] to logits.

    Weights that were frozen before the model was built stay frozen.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.net = copy.deepcopy(subject.net)
        self.outputs = subject.outputs
        self.channels = subject.channels
        self.register_buffer("mean", subject.mean.clone(), persistent=False)
        self.register_buffer("std", subject.std.clone(), persistent=False)
        for name, weight in self.net.named_parameters():
            weight.requires_grad_(name not in subject.frozen and weight.is_floating_point())

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        mean: Any = self.mean
        std: Any = self.std
        scores = self.net(prepared(x, mean, std, self.channels))
        return as_logits(scores if scores.ndim == 2 else scores[:, None], self.outputs)

    def learnable(self) -> list[nn.Parameter]:
        """The weights that training changes."""
        return [weight for weight in self.parameters() if weight.requires_grad]


def condition_source(box: ConditionBox, recipe: RepairRecipe) -> Source | None:
    """Return what a recipe changes images by: samples of the conditions, or nothing."""
    if recipe.draws == 0:
        return None

    def changed(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        if recipe.steps == 0:
            return render_draws(box, x, keys, recipe.draws, seed=recipe.seed)[0]
        return hardest_rows(
            logits, box, x, y, keys, draws=recipe.draws, steps=recipe.steps, seed=recipe.seed
        )[:, None]

    return changed


def train_on(
    subject: Subject,
    train: ImageSet,
    valid: Images,
    box: ConditionBox,
    recipe: RepairRecipe,
    *,
    source: Source | None = None,
    kept: Path | None = None,
    log: Log = lambda text: None,
) -> Trained:
    """Train a copy of a model's network on from its weights; images in files stay there."""
    work = _Work(subject, train, valid, box, recipe, source or condition_source(box, recipe))
    key = digest(
        [json.dumps(asdict(recipe)), train.hash, valid.hash, subject.hash, str(box.to_record())]
    )
    path = None if kept is None else kept / STATE
    state = _load(path, key, work)
    if state is None:
        began = time.monotonic()
        log(f"scoring the network on {len(valid):,} images, then timing some steps of training")
        first = work.score()
        log(work.forecast(time.monotonic() - began))
        state = RepairProgress(scores=[first], rate=recipe.rate or work.choose_rate(log))
        work.begin(state.rate)
    elif not state.over:
        log(f"goes on after epoch {len(state.losses)}, where it was stopped")
    while not state.over:
        began = time.monotonic()
        loss = work.epoch(len(state.losses))
        if not math.isfinite(loss):
            _not_finite(state, loss)
            state.over = True
        else:
            state.losses.append(loss)
            state.scores.append(work.score())
            number = len(state.losses)
            if state.scores[-1] < min(state.scores[:-1]):
                state.best = number
                work.remember()
            # a large rate costs at first what its fall wins back: only trained epochs are compared
            lowest = 1 + min(range(number), key=state.scores[1:].__getitem__)
            state.over = number >= recipe.epochs or number - lowest >= recipe.patience
        state.seconds += time.monotonic() - began
        if not state.notes:
            log(
                f"epoch {len(state.losses)} of {recipe.epochs}: validation score"
                f" {state.scores[-1]:.4f} (before {state.scores[0]:.4f})"
            )
        _save(path, key, work, state)
    for note in state.notes:
        _log.warning("%s", note)
    return Trained(**asdict(state), net=work.recall())


def _not_finite(state: RepairProgress, loss: float) -> None:
    """Stop at the last good epoch; without any there is no result."""
    number = len(state.losses) + 1
    if number == 1:
        raise HardcaseError(
            f"the loss became {loss} in the first epoch at rate {state.rate:g}.",
            "Weights that are not numbers answer nothing; nothing was kept.",
            fix="a smaller --rate; and look for images or labels that are not numbers",
        )
    state.notes.append(
        f"the loss became {loss} in epoch {number}; the weights of epoch {state.best} were kept"
    )


class _Work:
    """A network in training, its optimiser, and images on the device or still in their files."""

    def __init__(
        self,
        subject: Subject,
        train: ImageSet,
        valid: Images,
        box: ConditionBox,
        recipe: RepairRecipe,
        source: Source | None,
    ) -> None:
        self.device = subject.device
        self.net = Learner(subject)
        if not self.net.learnable():
            raise HardcaseError(
                f"all weights of model {subject.name} are frozen, so nothing can be learned.",
                fix="net.requires_grad_(True) in the factory",
            )
        self.recipe = recipe
        self.source = source
        self.train = train
        self.x = train.x.to(self.device) if isinstance(train, Images) else None
        self.y = train.y.to(self.device)
        self.batch = min(recipe.batch, len(train))
        self.inside = len(train) // self.batch
        self.changed = max(1, round(recipe.share * self.batch)) if source else 0
        batch_norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        if self.batch < 2 and any(isinstance(module, batch_norm) for module in self.net.modules()):
            raise HardcaseError(
                f"model {subject.name} has batch normalisation, which learns nothing from batches"
                " of one.",
                f"There are {len(self.y)} training images, {self.batch} in each step.",
                fix="--batch 16, and more training images than that",
            )
        weights = sum(weight.numel() for weight in self.net.parameters())
        self.half = self.device.type == "cuda" and weights >= LARGE
        self.averaged = copy.deepcopy(self.net).requires_grad_(False)
        self.best = copy.deepcopy(self.averaged)
        self.nets = nn.ModuleDict({"net": self.net, "averaged": self.averaged, "best": self.best})
        self.valid = valid
        self.box = box
        self.begin(recipe.rate or RATES[-1])

    def begin(self, rate: float) -> None:
        """Start from the weights as they are, with a new optimiser."""
        self.rate = rate
        self.optimiser = OPTIMISERS["adam"](self.net.learnable(), rate, 0.0)
        self.noise = torch.Generator(self.device)

    def forecast(self, scoring: float) -> str:
        """Return how long the training takes and how much memory, by timed steps, which are then
        undone."""
        before = _weights(self.nets)
        paces = list[float]()
        began = time.monotonic()
        for step, batch in enumerate(self._batches(0)):
            float(self._take(batch, 0.0))
            paces.append(time.monotonic() - began)
            began = time.monotonic()
            if step == 3:
                break
        _write(self.nets, before)
        self.begin(self.rate)
        trials = 0 if self.recipe.rate else len(RATES)
        steps = self.recipe.epochs * self.inside + trials * min(TRIAL, self.inside)
        seconds = min(paces) * steps + scoring * (self.recipe.epochs + trials)
        if self.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(self.device)
        else:
            import resource

            memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (
            f"training takes about {max(1, round(seconds))} s for {self.recipe.epochs} epochs of"
            f" {self.inside} steps, and {memory / 2**30:.1f} GB of memory on {self.device}"
        )

    def choose_rate(self, log: Log) -> float:
        """Return the rate with the lowest validation score after `TRIAL` steps from here."""
        before = _weights(self.nets)
        scores = dict[float, float]()
        for rate in RATES:
            log(f"trying the learning rate {rate:g} for {min(TRIAL, self.inside)} steps")
            self.begin(rate)
            loss = self.epoch(0, most=TRIAL)
            score = self.score() if math.isfinite(loss) else math.inf
            scores[rate] = score if math.isfinite(score) else math.inf
            _write(self.nets, before)
        best = min(scores, key=scores.__getitem__)
        log("validation score by rate: " + ", ".join(f"{r:g}: {s:.4f}" for r, s in scores.items()))
        if math.isinf(scores[best]):
            raise HardcaseError(
                f"the loss is no number at any of the rates {', '.join(map(str, RATES))}.",
                fix="a smaller --rate; and look for images or labels that are not numbers",
            )
        return best

    def epoch(self, number: int, most: int = 0) -> float:
        """A pass over the training images, or `most` steps of it; the mean loss.

        The learning rate falls along a cosine over all epochs, or over `most` steps.
        """
        losses = list[Tensor]()
        total = most or self.recipe.epochs * self.inside
        names = ("repair layers", number)
        with named_randomness(self.recipe.seed, *names, device=self.device), tuned(self.half):
            self.noise.manual_seed(stream(self.recipe.seed, *names).initial_seed())
            for step, batch in enumerate(self._batches(number)):
                losses.append(self._take(batch, (number * self.inside + step) / total))
                if step + 1 == most:
                    break
        return float(torch.stack(losses).mean())

    def _batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images of each step of an epoch: the batch, then all variants of its first rows."""
        order = torch.randperm(
            len(self.y), generator=stream(self.recipe.seed, "repair order", number)
        )
        rows = order[: self.inside * self.batch].reshape(self.inside, self.batch).to(self.device)
        for part in chunks(self.inside, self._ahead()):
            chosen = rows[part]
            clean = from_bytes(self._pixels(chosen))
            if self.source is None:
                yield from zip(clean, self.y[chosen])
                continue
            hard = chosen[:, : self.changed]
            keys = hard.flatten() + number * len(self.y)
            with in_evaluation_mode(self.net), torch.no_grad(), self._precision():
                first = clean[:, : self.changed].flatten(0, 1)
                changed = self.source(self.net, first, self.y[hard.flatten()], keys)
            changed = changed.reshape(len(chosen), -1, *clean.shape[2:])
            yield from zip(torch.cat([clean, changed], 1), self.y[chosen])

    def _pixels(self, rows: Int[Tensor, "s b"]) -> UInt8[Tensor, "s b c h w"]:
        """The training images of these rows, on the device."""
        if self.x is not None:
            return self.x[rows]
        images = self.train.take(rows.flatten().cpu()).images().x
        return images.reshape(*rows.shape, *images.shape[1:]).to(self.device)

    def _ahead(self) -> int:
        if steady(self.device) or self.recipe.steps:
            return 1
        numbers = self.valid.x[:1].numel() * self.batch * max(1, self.recipe.draws)
        return max(1, min(AHEAD, NUMBERS // numbers))

    def _take(self, batch: tuple[Tensor, Tensor], done: float) -> Tensor:
        """A step of the optimiser; the loss stays on the device."""
        rate = self.rate * SCHEDULES["cosine"](min(done, 1.0))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.net.train()
        with self._precision():
            loss = self._loss(*batch)
        self.optimiser.zero_grad(set_to_none=True)
        # torch leaves Tensor.backward without types
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        average(self.averaged, self.net, keep=1 - 2 / (1 + max(self.inside, 2)))
        return loss.detach()

    def _loss(self, x: Tensor, y: Int[Tensor, " n"]) -> Tensor:
        """Cross-entropy of the unchanged part and of the hardest variants, and their divergence."""
        clean = x[: self.batch]
        if not self.changed:
            return functional.cross_entropy(self.net(clean), y)
        variants = x[self.batch :].reshape(self.changed, -1, *x.shape[1:])
        own = y[: self.changed]
        with torch.no_grad(), in_evaluation_mode(self.net):
            worst = worst_rows(self.net, variants, own)
        hard = variants[torch.arange(self.changed, device=x.device), worst]
        logits = self.net(torch.cat([clean, hard])).float()
        learned = torch.cat([logits[self.changed : self.batch], logits[self.batch :]])
        labels = torch.cat([y[self.changed :], own])
        loss = functional.cross_entropy(learned, labels)
        if self.recipe.consistency:
            aim = logits[: self.changed].detach().softmax(1)
            targets = logits[self.batch :].log_softmax(1)
            divergence = functional.kl_div(targets, aim, reduction="batchmean")
            loss = loss + self.recipe.consistency * self.recipe.share * divergence
        return loss

    def _precision(self) -> torch.autocast:
        return halved(self.device, wanted=self.half)

    def score(self) -> float:
        """Return what rate and epoch are chosen by: half unmodified images, half changed ones.

        Without gradient steps it is the loss, of the worst of the draws. With them it is the
        error after such steps, since networks that stand a search are less sure of draws; the loss
        then decides ties alone.
        """
        total = 0.0
        recipe = self.recipe
        numbers = NUMBERS // 16
        if steady(self.device):  # a processor takes no longer for a few at a time
            numbers //= JUDGED
        size = max(1, min(128, numbers // self.valid.x[:1].numel()))
        with torch.no_grad(), in_evaluation_mode(self.averaged), self._precision():
            for part in chunks(len(self.valid), size):
                x = from_bytes(self.valid.x[part].to(self.device))
                y = self.valid.y[part].to(self.device)
                keys = torch.arange(part.start, part.stop, device=self.device)
                if recipe.steps:
                    hard = hardest_rows(
                        *(self.averaged, self.box, x, y, keys),
                        draws=1,
                        steps=recipe.steps,
                        seed=recipe.seed,
                    )[:, None]
                else:
                    hard, _ = render_draws(
                        self.box, x, keys, JUDGED, seed=recipe.seed, name="validation"
                    )
                images = torch.cat([x[:, None], hard], 1)
                labels = y.repeat_interleave(images.shape[1])
                logits = self.averaged(images.flatten(0, 1)).float()
                figure = functional.cross_entropy(logits, labels, reduction="none")
                if recipe.steps:
                    figure = (logits.argmax(1) != labels) + TIES * figure
                figure = figure.reshape(len(x), -1)
                total += float((figure[:, 0] + figure[:, 1:].amax(1)).sum() / 2)
        return total / len(self.valid)

    def remember(self) -> None:
        """The averaged weights as they are now are the best so far."""
        _write(self.best, self.averaged.state_dict())

    def recall(self) -> nn.Module:
        """Return the network with the best weights, in evaluation mode."""
        _write(self.net, self.best.state_dict())
        return self.net.net.eval()

    def tensors(self) -> dict[str, Tensor]:
        """Return all that a checkpoint keeps."""
        tensors = _weights(self.nets)
        for i, weight in enumerate(self.net.learnable()):
            moments = self.optimiser.state.get(weight, {})
            tensors |= {f"optimiser/{i}/{name}": value for name, value in moments.items()}
        return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}

    def restore(self, tensors: Mapping[str, Tensor], rate: float) -> None:
        """Go on with what `tensors` gave."""
        _write(self.nets, tensors)
        self.begin(rate)
        weights = self.net.learnable()
        for name, value in tensors.items():
            if name.startswith("optimiser/"):
                _, i, moment = name.split("/")
                # the number of steps stays on the CPU, unless a GPU computes
                if value.ndim or self.device.type == "cuda":
                    value = value.to(self.device)
                self.optimiser.state[weights[int(i)]][moment] = value


def _weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


@torch.no_grad()
def _write(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Write weights in place, all of them or none."""
    pairs = [(value, state[name]) for name, value in net.state_dict().items()]
    for value, new in pairs:
        value.copy_(new)


def _save(path: Path | None, key: str, work: _Work, state: RepairProgress) -> None:
    """Store the state after an epoch in a safetensors file."""
    from safetensors.torch import save

    if path is not None:
        about = {"key": key, "progress": json.dumps(asdict(state))}
        write_atomically(path, save(work.tensors(), about))


def _load(path: Path | None, key: str, work: _Work) -> RepairProgress | None:
    """Return where the training stood; None if there is nothing to go on from."""
    from safetensors import SafetensorError, safe_open

    if path is None or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("key") != key:
                _log.warning("%s is of another training; it begins anew", path)
                return None
            state = RepairProgress(**json.loads(about["progress"]))
            work.restore({name: file.get_tensor(name) for name in list(file.keys())}, state.rate)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s cannot be used (%s); the training begins anew", path, error)
        return None
    return state
