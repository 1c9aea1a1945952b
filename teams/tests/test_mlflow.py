"""MLflow's evaluator, found by its entry point, with a store in SQLite; the example's release passes and fails."""

import runpy
from pathlib import Path

import pytest

mlflow = pytest.importorskip("mlflow", reason="an extra: hardcase[mlflow]")
pytest.importorskip("mlflow.models.evaluation", reason="an extra: hardcase[mlflow]")

import hardcase as hc  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "teams"


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.syspath_prepend(str(EXAMPLES))
    place = tmp_path_factory.mktemp("mlflow")
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield runpy.run_path(str(EXAMPLES / "mlflow_release.py"))["main"], f"sqlite:///{place}/store.db"
    monkeypatch.undo()


@pytest.fixture(scope="module")
def result(example):
    main, store = example
    return main(store, count=24)


def test_figures_report_and_findings_are_in_the_store(result):
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    stored = client.get_run(result.run_id).data.metrics
    rates = ("failure_rate", "failure_rate_low", "failure_rate_high")
    for name in (*rates, "robustness_gap", "error_on_unmodified_images", "accuracy"):
        assert stored[name] == pytest.approx(result.metrics[name])
    assert stored["failure_rate_low"] <= stored["failure_rate"] <= stored["failure_rate_high"]
    place = Path(client.download_artifacts(result.run_id, "hardcase"))
    assert (place / "report" / "index.html").is_file()
    assert hc.Run(place).record["risk"]["value"] == stored["failure_rate"]
    record = result.artifacts["hardcase_run"].content
    assert record["risk"]["value"] == stored["failure_rate"]


def test_a_threshold_fails_the_release(result):
    from mlflow.models import MetricThreshold
    from mlflow.models.evaluation.validation import ModelValidationFailedException

    def limit(most):
        return {"failure_rate_high": MetricThreshold(threshold=most, greater_is_better=False)}

    mlflow.validate_evaluation_results(limit(1.0), result)
    with pytest.raises(ModelValidationFailedException):
        mlflow.validate_evaluation_results(limit(0.0), result)


def test_a_function_is_asked_and_data_without_paths_is_refused(example, tmp_path):
    import numpy as np
    import pandas as pd
    from PIL import Image

    from hardcase.errors import HardcaseError

    rows = []
    for i in range(24):
        image = np.full((8, 8), 40 + 120 * (i % 2), np.uint8)
        Image.fromarray(image).save(tmp_path / f"{i}.png")
        rows.append({"path": str(tmp_path / f"{i}.png"), "label": i % 2})

    def bright(x):
        mean = np.asarray(x).mean((1, 2, 3))
        return np.stack([0.4 - mean, mean - 0.4], 1) * 40

    given = {"targets": "label", "model_type": "classifier", "evaluators": "hardcase"}
    how = {"evaluator_config": {"conditions": {"exposure": "±3 stops"}}}
    found = mlflow.models.evaluate(bright, pd.DataFrame(rows), **given, **how)
    assert found.metrics["accuracy"] == 1
    assert found.metrics["failure_rate"] > 0
    table = pd.DataFrame({"a": [1, 2], "b": [3, 4], "label": [0, 1]})
    with pytest.raises(HardcaseError):
        mlflow.models.evaluate(bright, table, **given, **how)
