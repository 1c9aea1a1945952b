"""The risk of a stored run under declared conditions: measured, kept, told, compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.conditions import Conditions, compare_risk, condition_box, measure_risk
from hardcase.conditions.risk import RiskComparison
from hardcase.data.streams import ImageSet
from hardcase.errors import Problem
from hardcase.runs.files import locked
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, keep_beside, read_beside
from hardcase.types import Model

__all__ = ["against", "in_words", "measure_run"]


def measure_run(
    run: Run, subject: Model, seeds: ImageSet, declared: str | Mapping[str, Any]
) -> Run:
    """Measure the risk of a run's subject on all of its seeds and keep it with the run.

    Args:
        run: A complete run; one that has the risk already is left as it is.
        subject: The network that was searched.
        seeds: All images that the run starts from.
        declared: A profile, a file or a table of ranges.
    """
    conditions = Conditions.load(declared)
    if run.record.get("conditions") == conditions.to_record():
        return run
    box = condition_box(conditions, tuple(run.record["image"]))
    table = measure_risk(subject, seeds, box, seed=run.record["seed"])
    rows = [
        {"id": name, "label": label, "clean": clean, "failing": failing}
        for name, label, clean, failing in zip(
            table.id, table.y.tolist(), table.clean.tolist(), table.failing.tolist()
        )
    ]
    with locked(run.folder):
        keep_beside(run.store, CONDITIONS, {"draws": table.draws, "seeds": rows})
        record = {**run.store.record(), "conditions": conditions.to_record(), **table.to_json()}
        run.store.write_record(record)
    return Run(run.folder)


def in_words(record: Mapping[str, Any]) -> list[str]:
    """Return what a record says of the risk, in lines."""
    risk = record["risk"]
    named = record["conditions"]["name"]
    these = _span(risk["these_images"])
    others = _span(risk["images_like_these"])
    lines = [
        f"risk: {100 * risk['value']:.1f} % of {risk['draws']} random {named} conditions"
        f" per image fail, over all {risk['seeds']} images; unchanged"
        f" {100 * risk['clean_error']:.1f} %",
        f"  95 %: {these} for these images, {others} for images like these",
    ]
    dear = [row for row in risk["costs"] if row["cost"] > 0][:2]
    if dear:
        told = [f"{row['condition']} (+{100 * row['cost']:.1f} points)" for row in dear]
        lines.append(f"  costs most: {', '.join(told)}")
    return lines


def _span(bounds: list[float]) -> str:
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"


def against(run: Run, baseline: Run, *, margin: float) -> RiskComparison:
    """Compare the risks of two runs seed by seed, under the same conditions.

    Args:
        run: The run of the model under test.
        baseline: The run of the version before, or of a reference.
        margin: By how much the model under test may be worse.

    Raises:
        Problem: If one of them has no risk, or their conditions differ.
    """
    for one in (run, baseline):
        if not one.record.get("risk"):
            raise Problem(
                f"{one.folder} has no risk: it was run without declared conditions.",
                fix="hardcase run ... --conditions scanner",
            )
    if run.record["conditions"] != baseline.record["conditions"]:
        raise Problem(
            "the two runs have other conditions, so their risks cannot be compared.",
            f"{run.folder}: {run.record['conditions']}",
            f"{baseline.folder}: {baseline.record['conditions']}",
        )
    return compare_risk(_shares(run), _shares(baseline), margin=margin)


def _shares(run: Run) -> dict[str, float]:
    """The share of failing draws by seed."""
    kept = read_beside(run.store, CONDITIONS)
    if kept is None:
        raise Problem(f"{run.folder / CONDITIONS} is missing, damaged or of another run.")
    return {row["id"]: row["failing"] / kept["draws"] for row in kept["seeds"]}
