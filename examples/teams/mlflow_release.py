"""Evaluate a logged classifier with MLflow, and hold its release to a threshold."""

import tempfile
from pathlib import Path

import mlflow
import pandas as pd
from digits import pixels, trained
from mlflow.models import EvaluationResult, MetricThreshold
from PIL import Image


def table(folder: Path, count: int) -> pd.DataFrame:
    """Paths and labels, as a team has them."""
    digits = pixels(count)
    rows = []
    for i, (image, label) in enumerate(zip(digits.x, digits.y.tolist())):
        Image.fromarray(image[0].numpy()).save(folder / f"{i}.png")
        rows.append({"path": str(folder / f"{i}.png"), "label": label})
    return pd.DataFrame(rows)


def main(
    store: str = "sqlite:///mlflow.db", *, count: int = 40, most: float = 0.9
) -> EvaluationResult:
    mlflow.set_tracking_uri(store)
    with tempfile.TemporaryDirectory() as place, mlflow.start_run():
        few = (
            pixels(4).x.float().numpy() / 255
        )  # more than one, so that it takes batches of any size
        logged = mlflow.pytorch.log_model(
            trained(), name="digits", input_example=few, pip_requirements=["torch"]
        )
        result = mlflow.models.evaluate(
            logged.model_uri,
            table(Path(place), count),
            targets="label",
            model_type="classifier",
            evaluators="hardcase",
            evaluator_config={"conditions": {"rotation": "±8 deg", "exposure": "±1 stops"}},
        )
    limit = MetricThreshold(threshold=most, greater_is_better=False)
    mlflow.validate_evaluation_results(
        {"failure_rate_high": limit}, result
    )  # raises where it is broken
    return result


if __name__ == "__main__":
    for name, value in main().metrics.items():
        print(f"{name:<24} {value:.4g}")
