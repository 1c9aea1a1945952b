"""A training that was stopped goes on where it stood: what it needs for that, kept beside the network to be. Never pickle."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.cache import write_atomically
from hardcase.training.telling import Progress, Teller

STATE, SECONDS = "state.safetensors", 30.0
"""The file, and the time between two writings of it: as much work may be lost."""
_log = logging.getLogger(__name__)


def beside(folder: Path) -> Path:
    """Where the unfinished training of the network that will be in `folder` is kept."""
    return folder.with_name(f"{folder.name}.unfinished")


def forget(folder: Path) -> None:
    """Remove what an unfinished training has left in `folder`, if anything."""
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Everything that changes during a training. Called after every step, it writes it all to `folder` now and then.

    `seen` is called after every writing, for pictures. Without a folder nothing is kept.
    """

    folder: Path | None
    nets: Sequence[nn.Module]
    optimisers: Sequence[torch.optim.Optimizer]
    noise: torch.Generator
    place: torch.device
    tell: Teller
    seen: Callable[[], object] = lambda: None
    written: float = field(default_factory=time.monotonic)

    def __call__(self, step: int) -> None:
        if self.folder is None or time.monotonic() - self.written < SECONDS:
            return
        from safetensors.torch import save

        whole = {**self._weights(), **self._moments(), **self._random()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in whole.items()}
        write_atomically(self.folder / STATE, save(tensors, {"standing": json.dumps(self._standing(step))}))
        self.seen()
        self.written = time.monotonic()

    def resume(self) -> int:
        """The steps already taken, with everything as it was after them; 0 if there is nothing to go on from."""
        if self.folder is None or not (self.folder / STATE).exists():
            return 0
        try:
            standing, tensors = _read(self.folder / STATE)
            self._check(standing, tensors)
        except Exception as error:  # whatever is wrong with it: the training can be done again
            self._say(0, f"what was kept of a stopped training cannot be used ({error}); it begins anew")
            return 0
        self._restore(standing, tensors)
        self._say(int(standing["step"]), f"goes on after step {standing['step']}, where it was stopped")
        return int(standing["step"])

    def _weights(self) -> dict[str, Tensor]:
        return {f"net/{i}/{name}": value for i, net in enumerate(self.nets) for name, value in net.state_dict().items()}

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"optimiser/{i}/{j}/{name}": value
            for i, optimiser in enumerate(self.optimisers)
            for j, parameter in enumerate(_parameters(optimiser))
            for name, value in optimiser.state[parameter].items()
        }

    def _random(self) -> dict[str, Tensor]:
        states = {"random/noise": self.noise.get_state(), "random/layers": torch.get_rng_state()}
        return states | ({"random/cuda": torch.cuda.get_rng_state(self.place)} if self.place.type == "cuda" else {})

    def _standing(self, step: int) -> dict[str, Any]:
        waiting = [float(loss) for loss in self.tell.waiting]
        told = {"means": self.tell.means, "warnings": self.tell.warnings, "epoch": self.tell.epoch, "waiting": waiting}
        return {"step": step, "place": self.place.type, **told}

    def _check(self, standing: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Refuse what does not fit before anything is changed."""
        if standing["place"] != self.place.type:
            raise ValueError(f"it was begun on {standing['place']}")
        expected = {**self._weights(), **self._random()}
        shapes = {name: value.shape for name, value in tensors.items() if not name.startswith("optimiser/")}
        if shapes != {name: value.shape for name, value in expected.items()}:
            raise ValueError("it is of another network")

    def _restore(self, standing: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, own in self._weights().items():
                own.copy_(tensors[name])
        for name in (name for name in tensors if name.startswith("optimiser/")):
            _, i, j, key = name.split("/")
            optimiser = self.optimisers[int(i)]
            parameter = _parameters(optimiser)[int(j)]
            optimiser.state[parameter][key] = _like(parameter, tensors[name])
        self.noise.set_state(tensors["random/noise"])
        torch.set_rng_state(tensors["random/layers"])
        if self.place.type == "cuda":
            torch.cuda.set_rng_state(tensors["random/cuda"], self.place)
        self.tell.step, self.tell.means, self.tell.warnings = standing["step"], standing["means"], standing["warnings"]
        self.tell.epoch, self.tell.waiting = (
            standing["epoch"],
            list(torch.tensor(standing["waiting"], device=self.place)),
        )

    def _say(self, step: int, text: str) -> None:
        _log.info("%s: %s", self.tell.what, text)
        if self.tell.progress is not None:
            steps, epoch = self.tell.epochs * self.tell.inside, step // self.tell.inside + 1
            self.tell.progress(Progress(epoch, self.tell.epochs, step, steps, float("nan"), text, self.tell.what))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        return json.loads(file.metadata()["standing"]), {name: file.get_tensor(name) for name in names}


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _like(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """In the layout of the parameter, if it has its shape; the count of steps stays where torch keeps it."""
    if value.shape == parameter.shape:
        return torch.empty_like(parameter, requires_grad=False).copy_(value)
    return value.to(parameter.device) if parameter.device.type == "cuda" else value
