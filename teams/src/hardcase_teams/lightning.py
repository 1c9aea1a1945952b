"""Callbacks for Lightning: the failure rate after validation, and harder training batches."""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from hardcase.errors import HardcaseError
from hardcase.repair.hardest import WorstOfK
from hardcase_teams.training import TrainingRisk

__all__ = ["Robustness", "WorstOfKCallback"]


def _callback() -> Any:
    """Lightning's base class; where it is not installed a plain one, so that imports work."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    return object


def _require_lightning() -> None:
    if Robustness.__base__ is object:
        raise HardcaseError("Lightning is not installed.", fix="pip install 'hardcase[lightning]'")


# Lightning is an extra, so its types are not known here
class Robustness(_callback()):  # type: ignore[misc]
    """Log the failure rate under declared conditions after every so many validations.

    It is logged as ``risk`` with the trainer's own logger, so that ``ModelCheckpoint`` and
    ``EarlyStopping`` may watch it; after other validations they see infinity, which is never best.

    Args:
        conditions: A profile, a ``.toml`` file, a table of ranges or `hc.Conditions`.
        every: Measured after every so many validations.
        best: A file that always holds the checkpoint with the least risk; None: none is kept.
        **options: Further options of `TrainingRisk`: images, count, draws, mean, std, seed.
    """

    def __init__(
        self, conditions: Any, *, every: int = 5, best: str | Path | None = None, **options: Any
    ) -> None:
        _require_lightning()
        super().__init__()
        self.risk = TrainingRisk(conditions, every=every, **options)
        self.best = best

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Measure, log, and keep the checkpoint if it is the best so far."""
        if trainer.sanity_checking:
            return
        if not self.risk.due():
            trainer.callback_metrics["risk"] = torch.tensor(float("inf"))
            return
        loaders = trainer.val_dataloaders or ()
        several = isinstance(loaders, list | tuple)
        table = self.risk.measure(pl_module, chain.from_iterable(loaders) if several else loaders)
        low, high = table.images_like_these
        pl_module.log_dict({"risk": table.value, "risk_low": low, "risk_high": high})
        if self.risk.improved(table.value) and self.best is not None:
            trainer.save_checkpoint(self.best)

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning's checkpoint keeps."""
        return self.risk.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was taken."""
        self.risk.load_state_dict(state_dict)


class WorstOfKCallback(_callback()):  # type: ignore[misc]
    """Replace part of every training batch ``(x, y, ...)`` by its hardest draws.

    Args:
        conditions: As for `hc.WorstOfK`.
        **options: Further options of `hc.WorstOfK`: draws, share, steps, mean, std, seed.
    """

    def __init__(self, conditions: Any, **options: Any) -> None:
        _require_lightning()
        super().__init__()
        self.conditions = conditions
        self.options = options
        self.hard: WorstOfK | None = None
        self._seen = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model that is trained is the one that is asked."""
        self.hard = WorstOfK(pl_module, self.conditions, **self.options)
        self.hard.load_state_dict({"seen": self._seen})

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the harder images into the batch, which is on the device already."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise HardcaseError(
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
