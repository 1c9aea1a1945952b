"""An evaluator of MLflow's: ``mlflow.models.evaluate(..., evaluators="hardcase")``.

MLflow imports this when it starts, so that nothing of torch is imported here before a model is
evaluated.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardcase.errors import HardcaseError

try:
    from mlflow.models.evaluation import EvaluationResult, ModelEvaluator
    from mlflow.models.evaluation.artifacts import JsonEvaluationArtifact
    from mlflow.tracking import MlflowClient
except ModuleNotFoundError as error:
    raise HardcaseError("MLflow is not installed.", fix="pip install 'hardcase[mlflow]'") from error

if TYPE_CHECKING:
    from hardcase.runs.results import Run
    from hardcase.types import Images


PLACE = "hardcase"
"""Where the artefacts of an MLflow run are."""
OWN = ("classes", "resize", "crop", "col_mapping")
"""Keys of the configuration that `hc.run` does not know."""


# mlflow is an extra, so its types are not known here
class HardcaseEvaluator(ModelEvaluator):  # type: ignore[misc]
    """Measure the failure rate of a logged image classifier and log it with its report.

    The data is a table of paths of images and labels. ``evaluator_config`` takes what `hc.run`
    takes (``conditions``, ``images``, ``method``, ``baseline`` ...); ``classes``, ``resize`` and
    ``crop`` say how images are read. Without a method nothing is searched for: the failure rate
    is measured alone.
    """

    @classmethod
    def can_evaluate(cls, *, model_type: str, evaluator_config: Any, **kwargs: Any) -> bool:
        """Whether this is for a model of that type."""
        return model_type == "classifier"

    def evaluate(
        self,
        *,
        model_type: str,
        dataset: Any,
        run_id: str,
        evaluator_config: Mapping[str, Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run hardcase, log metrics, report and failures into the MLflow run.

        Args:
            model_type: ``classifier``.
            dataset: Paths of images and labels.
            run_id: The MLflow run.
            evaluator_config: As above.
            model: The model; networks of torch are taken as they are, others are asked.
            **kwargs: What else MLflow says.
        """
        from hardcase.api import run
        from hardcase.report import report

        given = dict(evaluator_config or {})
        images = _images(dataset, given)
        if model is None:
            raise HardcaseError(
                "there is no model to evaluate.", fix="mlflow.models.evaluate(MODEL, …)"
            )
        client = MlflowClient()
        settings: dict[str, Any] = {"method": "none", "judge": False}
        settings |= {key: value for key, value in given.items() if key not in OWN}
        settings["conditions"] = _conditions(given, images)
        with tempfile.TemporaryDirectory() as place:
            found = run(_network(model, images), images, out=Path(place) / "run", **settings)
            metrics = dict(run_metrics(found))
            for name, value in metrics.items():
                client.log_metric(run_id, name, value)
            hashes = found.record.get("hashes") or {}
            client.log_param(run_id, "hardcase.conditions", str(found.record.get("conditions")))
            client.log_param(run_id, "hardcase.weights", str(hashes.get("model")))
            client.log_param(run_id, "hardcase.data", str(hashes.get("data")))
            report(found)
            client.log_artifacts(run_id, str(found.folder), PLACE)
            record = found.record
        uri = client.get_run(run_id).info.artifact_uri
        whole = JsonEvaluationArtifact(uri=f"{uri}/{PLACE}/run.json", content=record)
        return EvaluationResult(metrics=metrics, artifacts={"hardcase_run": whole}, run_id=run_id)


def run_metrics(run: Run) -> Iterator[tuple[str, float]]:
    """The figures of a run as single numbers: those that decide, then the search results."""
    record = run.record
    known = record.get("accuracy") or {}
    if known.get("value") is not None:
        yield "accuracy", float(known["value"])
    risk = record.get("risk") or {}
    if risk:
        yield "failure_rate", risk["value"]
        yield "failure_rate_low", risk["low"]
        yield "failure_rate_high", risk["high"]
        yield "error_on_unmodified_images", risk["unmodified"]["value"]
        yield "robustness_gap", risk["gap"]["value"]
        for row in risk.get("effects") or ():
            yield f"effect_{row['condition']}", row["value"]
    for one in risk.get("baselines", ()):
        yield f"difference_from_{one['name']}", one["difference"]["value"]
    for part, value in (record.get("least_scale") or {"quantiles": {}})["quantiles"].items():
        yield f"least_scale_{part}", 1.0 if value is None else float(value)  # all is not enough
    if record.get("worst_case"):
        yield "worst_case", record["worst_case"]["value"]
    funnel = run.counts()["search_results"]
    for step, count in funnel.items():
        if count is not None and funnel["searched"]:  # where anything was searched for
            yield f"funnel_{step}", float(count)


def _network(model: Any, images: Images) -> Any:
    """The torch module inside a logged model; else a model that is asked with arrays."""
    from torch import Tensor, nn

    from hardcase.models.adapters import function_model
    from hardcase.tensors import from_bytes

    raw = None
    with suppress(AttributeError, NotImplementedError):
        raw = model.get_raw_model()
        raw = getattr(raw, "model", raw)  # a pipeline of transformers
    if isinstance(raw, nn.Module):
        return raw

    def predict(x: Any) -> Any:
        if isinstance(x, Tensor):
            raise TypeError("MLflow's models take arrays")
        return model.predict(x)

    return function_model(predict, from_bytes(images.x[:2]))


def _conditions(given: Mapping[str, Any], images: Images) -> Any:
    """The declared conditions; without any, those usual for images of this size."""
    from hardcase.conditions import Conditions
    from hardcase.conditions.declared import usual_profile

    return Conditions.load(given.get("conditions") or usual_profile(images.shape)).to_record()


def _images(dataset: Any, given: Mapping[str, Any]) -> Images:
    """Labelled images from MLflow's table."""
    from hardcase.data.own import PATHS
    from hardcase.data.sources import images_of

    table = dataset.features_data
    names = [str(name) for name in getattr(table, "columns", ())]
    column = next((name for name in names if name.lower() in PATHS), None)
    if column is None and len(names) == 1:
        column = names[0]
    if column is None or dataset.labels_data is None:
        raise HardcaseError(
            "the evaluation data is no table of paths of images and labels.",
            f"Columns: {', '.join(names) or 'none'}.",
            fix=f'a DataFrame with "{PATHS[0]}" and "label", targets="label"',
        )
    sizes = {key: given[key] for key in ("classes", "resize", "crop") if key in given}
    return images_of(list(table[column]), list(dataset.labels_data), name="mlflow", **sizes)
