"""A callback for the Trainer of Hugging Face transformers: the failure rate after evaluation."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hardcase.errors import HardcaseError
from hardcase_teams.training import TrainingRisk

__all__ = ["RobustnessCallback"]


def _callback() -> Any:
    """The library's base class; where it is not installed a plain one, so that imports work."""
    try:
        return import_module("transformers").TrainerCallback
    except ModuleNotFoundError:
        return object


# transformers is an extra, so its types are not known here
class RobustnessCallback(_callback()):  # type: ignore[misc]
    """Report the risk under declared conditions as ``eval_risk`` after every so many evaluations.

    With ``metric_for_best_model="risk"`` and ``greater_is_better=False`` the trainer keeps its best
    checkpoint by it; after other evaluations it sees infinity, which is never best.

    Args:
        conditions: A profile, a ``.toml`` file, a table of ranges or `hc.Conditions`.
        every: Measured after every so many evaluations.
        **options: Further options of `TrainingRisk`: images, count, draws, mean, std, seed.
    """

    def __init__(self, conditions: Any, *, every: int = 1, **options: Any) -> None:
        if RobustnessCallback.__base__ is object:
            raise HardcaseError(
                "transformers is not installed.", fix="pip install 'hardcase[huggingface]'"
            )
        self.risk = TrainingRisk(conditions, every=every, **options)
        self.trainer: Any = None

    def attach(self, trainer: Any) -> RobustnessCallback:
        """Add this to `trainer`, whose own loggers then get the failure rate.

        Args:
            trainer: A ``transformers.Trainer``.
        """
        trainer.add_callback(self)
        self.trainer = trainer
        return self

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Measure, log, and put the value among the metrics of this evaluation."""
        metrics = given.get("metrics") or {}
        metrics["eval_risk"] = float("inf")
        if not self.risk.due():
            return
        table = self.risk.measure(given["model"], given.get("eval_dataloader") or ())
        low, high = table.images_like_these
        logs = {"eval_risk": table.value, "eval_risk_low": low, "eval_risk_high": high}
        metrics |= logs
        if self.trainer is not None:
            self.trainer.log(logs)
        else:
            state.log_history.append({**logs, "step": state.global_step})
