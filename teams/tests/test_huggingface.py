"""The callback of transformers' Trainer: the risk among its metrics, its logs, its best model."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="an extra: hardcase[huggingface]")
pytest.importorskip("accelerate", reason="an extra: hardcase[huggingface]")

from hardcase_teams.huggingface import RobustnessCallback

EXAMPLES = Path(__file__).parents[2] / "examples" / "teams"


def test_the_best_checkpoint_of_the_example_has_the_least_risk(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    trainer = runpy.run_path(str(EXAMPLES / "trainer_risk.py"))["main"](tmp_path, epochs=2)
    logged = [row["eval_risk"] for row in trainer.state.log_history if "eval_risk" in row]
    assert len(logged) == 2
    assert trainer.state.best_metric == min(logged)
    assert all(0 <= value <= 1 for value in logged)
    assert len({*logged}) == 2, "the risk follows the weights"


def test_evaluations_that_are_not_due_are_never_best():
    class State:
        log_history: list = []  # noqa: RUF012
        global_step = 3

    callback = RobustnessCallback("scanner", every=2)
    metrics = {"eval_loss": 1.0}
    callback.on_evaluate(None, State, None, model=None, metrics=metrics)
    assert metrics["eval_risk"] == float("inf")
    assert not State.log_history
