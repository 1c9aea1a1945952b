"""Evaluate a logged classifier with MLflow, and hold its release to thresholds."""

import tempfile
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import MetricThreshold
from PIL import Image

import hardcase as hc


def table(folder: Path, count: int) -> pd.DataFrame:
    """Paths and labels, as a team has them; here digits that come with hardcase."""
    digits = hc.data.load("mnist5k", split="test").sample(count=count, seed=0)
    rows = []
    for name, pixels, label in zip(digits.id, digits.x, digits.y.tolist()):
        path = folder / f"{name.replace('/', '-')}.png"
        Image.fromarray(pixels[0].numpy()).save(path)
        rows.append({"path": str(path), "label": label})
    return pd.DataFrame(rows)


def main(store: str = "sqlite:///mlflow.db", *, count: int = 60, most: float = 0.5) -> mlflow.models.EvaluationResult:
    mlflow.set_tracking_uri(store)
    net = hc.models.load_model("zoo:lenet5", hc.models.Loading(train=hc.data.load("mnist5k", split="train"), test=hc.data.load("mnist5k", split="test"))).net
    with tempfile.TemporaryDirectory() as place, mlflow.start_run():
        logged = mlflow.pytorch.log_model(net, name="lenet5", serialization_format="pickle")
        result = mlflow.models.evaluate(
            logged.model_uri,
            table(Path(place), count),
            targets="label",
            model_type="classifier",
            evaluators="hardcase",
            evaluator_config={"conditions": "scanner", "worst": True, "classes": list("0123456789")},
        )
    mlflow.validate_evaluation_results({"risk_high": MetricThreshold(threshold=most, greater_is_better=False)}, result)
    return result


if __name__ == "__main__":
    for name, value in main().metrics.items():
        print(f"{name:<24} {value:.4g}")
