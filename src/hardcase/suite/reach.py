"""What a campaign reached inside the network: coverage of its seeds alone, and together with the tests that were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from hardcase.criteria import build
from hardcase.criteria.catalogue import Spec, names
from hardcase.criteria.measure import Measure, Tally
from hardcase.measuring import anatomy_of, observe, profile_for, specs_of
from hardcase.results import Run
from hardcase.store import locked, read_images
from hardcase.types import Images, Model


def reach(
    run: Run, subject: Model, criteria: str | Sequence[str | Spec], *, training: Images, convention: str = "default"
) -> Run:
    """Measure the seeds that were attempted, then the tests beside them; the run keeps both numbers for its report."""
    attempted = run.seeds.filter(pc.greater(run.seeds["looked"], 0))
    seeds, tests = _images(run, attempted, "label"), _images(run, run.findings, "expected")
    specs, anatomy = specs_of(criteria), anatomy_of(subject, training)
    profile = profile_for(subject, training, specs, convention=convention, anatomy=anatomy)
    named = zip(specs, names(specs), strict=True)
    measures = [build(spec, anatomy, profile, convention=convention, name=name) for spec, name in named]
    before = _tallies(subject, seeds, measures)
    after = _tallies(subject, tests, measures)
    parts = zip(specs, measures, before, after, strict=True)
    rows = [_row(str(spec), measure.convention, first, then) for spec, measure, first, then in parts]
    with locked(run.folder):
        run.store.write_record({**run.store.record(), "coverage": rows})
    return Run(run.folder)


def _tallies(subject: Model, images: Images, measures: Sequence[Measure]) -> list[Tally]:
    """What the criteria say once these images, too, were shown to them."""
    if len(images):
        observe(subject, images, measures)
    return [measure.tally() for measure in measures]


def _row(criterion: str, convention: dict[str, Any], before: Tally, after: Tally) -> dict[str, Any]:
    return {
        "criterion": criterion,
        "before": before.value,
        "after": after.value,
        "covered_before": before.covered,
        "covered_after": after.covered,
        "total": after.total,
        "convention": convention,
    }


def _images(run: Run, table: pa.Table, label: str) -> Images:
    y = torch.tensor(table[label].to_pylist(), dtype=torch.int64)
    return Images(read_images(table["image"]), y, tuple(table["id"].to_pylist()), run.classes, name=run.record["data"])
