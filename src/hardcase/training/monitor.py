"""Where a training stands: its losses, how long it will take, and checkpoints to go on from."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.cache import write_atomically
from hardcase.errors import HardcaseError
from hardcase.training.cards import TrainingProgress, patience

_log = logging.getLogger(__name__)

EVERY = 20
"""Steps between two reports: a report waits for the device."""


PACED = 6
"""Steps after which it is told how long a training will take."""
LONG = 10.0
"""Seconds from which on that is worth a word."""


def minutes(seconds: float) -> str:
    """So many seconds in words, as whole minutes or tens of seconds."""
    if seconds < 55:
        return f"{max(1, round(seconds, -1 if seconds > 10 else 0)):.0f} s"
    count = round(seconds / 60)
    return "a minute" if count == 1 else f"{count} minutes"


INSTEAD = (
    "a method that trains nothing (--method natural, pgd or deephunter), a GPU (--device cuda), or"
    " hardcase train beforehand"
)


def refuse_long(seconds: float, what: str) -> None:
    """Refuse a training that nobody asked for and that takes longer than there is patience."""
    limit = patience.get()
    if seconds > limit:
        raise HardcaseError(
            f"training {what} would take about {minutes(seconds)} here.",
            f"Nobody asked for it, and at most {minutes(limit)} are spent on that.",
            fix=INSTEAD,
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
        refuse_long(seconds, self.what)
        if seconds > LONG:
            self.report(loss, f"takes about {minutes(seconds)}; it is trained once")

    def report(self, loss: float, warning: str = "") -> None:
        """Tell whoever watches where the training stands."""
        if self.progress is not None:
            steps = self.epochs * self.inside
            epoch = max(self.step - 1, 0) // self.inside + 1
            self.progress(
                TrainingProgress(epoch, self.epochs, self.step, steps, loss, warning, self.what)
            )

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        stored = {name: getattr(self, name) for name in ("means", "warnings", "epoch")}
        return {**stored, "waiting": [float(loss) for loss in self.waiting]}

    def restore(self, step: int, state: Mapping[str, Any], place: torch.device) -> None:
        self.step = step
        for name in ("means", "warnings", "epoch"):
            setattr(self, name, state[name])
        self.waiting = list(torch.tensor(state["waiting"], device=place))

    def _report(self, recent: list[float], ended: bool) -> None:
        wrong = [value for value in recent if not math.isfinite(value)]
        if wrong:
            raise HardcaseError(
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
        self.report(sum(recent) / len(recent), warning)

    def _learned(self) -> str:
        """After the first and the last epoch: was anything learned?"""
        late = self.epoch[-max(len(self.epoch) // 4, 1) :]
        mean_loss = sum(late) / len(late)
        epoch = len(self.means) + 1
        if mean_loss < self.chance or epoch not in (1, self.epochs):
            return ""
        warning = (
            f"after epoch {epoch} of {self.epochs} the loss is {mean_loss:.4g};"
            " ignoring the input costs"
            f" {self.chance:.4g}"
        )
        self.warnings.append(warning)
        _log.warning(warning)
        return warning


STATE = "state.pt"
"""The checkpoint of an unfinished training, in a folder beside that of the network."""
SECONDS = 30.0
"""Time between two checkpoints: as much work may be lost."""


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
        self.monitor.report(float("nan"), text)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in weights.items()}
