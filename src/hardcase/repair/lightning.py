"""A Lightning callback: every training batch is made harder before its step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from hardcase.errors import Problem
from hardcase.repair.hardest import Hardest

__all__ = ["HardestCallback"]


def _callback() -> Any:
    """Lightning's base class; where it is not installed a plain one, so that imports work."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    return object


# Lightning is an extra, so its types are not known here
class HardestCallback(_callback()):  # type: ignore[misc]
    """Replace part of every training batch ``(x, y, ...)`` by its hardest draws.

    Args:
        conditions: As for `hc.Hardest`.
        **options: Further options of `hc.Hardest`: draws, share, steps, mean, std, seed.
    """

    def __init__(self, conditions: Any, **options: Any) -> None:
        if HardestCallback.__base__ is object:
            raise Problem("Lightning is not installed.", fix="pip install 'hardcase[lightning]'")
        super().__init__()
        self.conditions = conditions
        self.options = options
        self.hard: Hardest | None = None
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model that is trained is the one that is asked."""
        self.hard = Hardest(pl_module, self.conditions, **self.options)
        self.hard.load_state_dict({"seen": self._seen})

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the harder images into the batch, which is on the device already."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise Problem(
                f"a batch is a {type(batch).__name__}; it must be (images, labels, ...).",
                fix="a data set of pairs (image, label)",
            )
        assert self.hard is not None
        x, y = batch[:2]
        with torch.no_grad():
            x.copy_(self.hard(x, y))

    def state_dict(self) -> dict[str, int]:
        """Return what Lightning's checkpoint keeps."""
        return {"seen": self._seen if self.hard is None else self.hard.seen}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on where the checkpoint was taken."""
        self._seen = int(state_dict["seen"])
