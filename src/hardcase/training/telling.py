"""How a training is told of: where it stands, and what it was."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.errors import Problem

_log = logging.getLogger(__name__)
EVERY = 20
"""Steps between two reports: a report waits for the device."""


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


class Teller:
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
        if ended or self.step % EVERY == 1:
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
