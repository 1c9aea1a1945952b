"""Curves, orders, slices and maps for a model, an image set or a run, as plain values: what
``hardcase curve`` and ``hardcase rank`` print and the report draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.analysis import curves
from hardcase.analysis.maps import cells_of, grid_from
from hardcase.analysis.semantics import Tags, measure
from hardcase.analysis.slices import Rules, Slice, find_slices
from hardcase.campaign.claims import Claims, claim_context
from hardcase.conditions import WorstCase
from hardcase.corruptions import CORRUPTIONS, corruption
from hardcase.errors import NO_SEEDS, Problem, choice
from hardcase.guides.archive import LEVELS
from hardcase.models.health import answers as first_answers
from hardcase.randomness import keys_of
from hardcase.runs.results import Run, seed_claims
from hardcase.statistics import Rate, confirmed_by
from hardcase.tensors import digest, from_bytes
from hardcase.types import Images, Model

Progress = Callable[[int, int], None]
Outcome = Literal["failing", "confirmed"]


def severity_curves(
    subject: Model,
    images: Images,
    names: Sequence[str] = tuple(CORRUPTIONS),
    *,
    worst: WorstCase | None = None,
    batch: int = 256,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What corruptions, and declared conditions one by one, do to a model.

    Args:
        subject: The model.
        images: Labelled images; curves and crossings are of those it classifies correctly,
            corruption error is of all.
        names: Which corruptions.
        worst: The least scale of declared conditions at which each of the images fails; None: only
            corruptions are told of.
        batch: Rows in one question.
        progress: Told how many curves are done, and of how many.

    Returns:
        For each corruption (severity 0 to 5), and for all declared conditions together and each
        alone (scale 0 to 1), the share failing on a grid of 16 severities with intervals, where
        seeds cross, and the share whose failing is not monotone; and the mean corruption error.
    """
    chosen = [corruption(name).name for name in names]
    if claim_context(images.context):  # some corruptions move objects, and say not where to
        chosen = []
    x = from_bytes(images.x).to(subject.device)
    y = images.y.to(subject.device)
    right = (first_answers(subject, images, batch).argmax(1) == images.y).to(subject.device)
    usable = right.nonzero().squeeze(1)
    if not len(usable):
        raise Problem(
            f"{subject.name} classifies none of the {len(images)} images correctly.", code=NO_SEEDS
        )
    keys = keys_of(images.id).to(subject.device)
    if not chosen and worst is None:
        raise Problem("there is no corruption and no condition to draw a curve of.")

    def answers(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        with torch.inference_mode():
            return subject(x).logits.clone()

    def drawn(change: curves.Change, most: float) -> dict[str, Any]:
        args = (change, answers, x[usable], y[usable])
        seen = curves.curve(*args, curves.grid(most), batch=batch)
        return {
            "most": most,
            "curve": seen.table(),
            "crossing": curves.crossings(*args, most=most, batch=batch).summary(),
            "non_monotone": Rate(int(seen.non_monotone().sum()), len(usable)).to_json(),
        }

    rows = []
    errors = {}
    for name in chosen:
        change = curves.one_condition(f"corruption.{name}", "0..5", images.shape, keys)
        errors[name] = curves.error_rates(change, answers, x, y, batch=batch)
        kind = CORRUPTIONS[name].kind
        seen = drawn(replace(change, keys=keys[usable]), change.most)
        rows.append({"corruption": name, "kind": kind, **seen, "error": errors[name]})
        if progress:
            progress(len(rows), len(chosen))
    scaled = []
    if worst is not None:
        together = {"all conditions together": worst.least_scale, **worst.alone}
        scaled = [_scaled(name, least[usable.cpu()]) for name, least in together.items()]
    counted = [name for name in errors if not CORRUPTIONS[name].extra] or list(errors)
    mean = None
    if counted:
        plain = fmean(fmean(errors[name]) for name in counted)
        mean = {"plain": plain, "corruptions": counted}
    return {
        "model": subject.name,
        "data": images.name,
        "images": len(images),
        "usable": len(usable),
        "clean_error": 1 - len(usable) / len(images),
        "corruptions": rows,
        "conditions": scaled,
        "corruption_error": mean,
    }


def _scaled(name: str, least: Float[Tensor, " n"]) -> dict[str, Any]:
    """The curve of a condition over the scale of its range, from where each image first fails."""
    at = curves.grid(1.0)
    beyond = torch.where(least <= 1, least, torch.inf)
    return {
        "condition": name,
        "most": 1.0,
        "curve": curves.Curve(at, beyond[None] <= at[:, None]).table(),
        "crossing": curves.Crossings(beyond, beyond, 0).summary(),
        "non_monotone": Rate(0, len(least)).to_json(),
    }


def slices_of_run(
    run: Run, *, outcome: Outcome = "failing", rules: Rules | None = None, seed: int = 0
) -> list[Slice]:
    """The slices of the attempted seeds of a run. Tags are of the seeds; equal seed images are one
    group.

    Args:
        run: A stored run.
        outcome: What counts: a finding on which the label is left, or one that the judge confirmed.
        rules: When a condition is called a slice.
        seed: Of the division into thirds.
    """
    seeds = _attempted(run)
    findings = run.findings.select(["id", "seed", "kind"]).to_pylist()
    rows = [row for row in findings if row["kind"] == "label"]
    if outcome == "confirmed":
        if run.verdicts is None:
            raise Problem(
                f"no judge has seen the findings of {run.folder}.",
                fix=f"hardcase judge {run.folder}",
            )
        rows = [row for row in rows if confirmed_by(run.verdicts, row["id"])]
    bad = {row["seed"] for row in rows}
    return find_slices(
        _tags_of(seeds),
        torch.tensor([name in bad for name in seeds.id]),
        seeds.y,
        group=[digest([image.numpy().tobytes()]) for image in seeds.x],
        rules=rules,
        seed=seed,
    )


def tagged_seeds(run: Run) -> tuple[Tags, tuple[str, ...]]:
    """The tags of the attempted seeds of a run, and the seeds' ids."""
    seeds = _attempted(run)
    return _tags_of(seeds), seeds.id


def having(tags: Tags, seeds: Sequence[str], names: str) -> set[str]:
    """The seeds that have all tags of a condition such as ``dark and thin strokes``."""
    wanted = names.split(" and ")
    for name in wanted:
        if name not in tags.names:
            raise choice("tag of these seeds", name, list(tags.names))
    inside = tags.has[:, [tags.names.index(name) for name in wanted]].all(1)
    return {seed for seed, has in zip(seeds, inside.tolist()) if has}


def attempted_labels(run: Run) -> dict[str, int]:
    """The class of each attempted seed, from which a candidate was tried, by its id."""
    rows = run.seeds.select(["id", "label", "status", "looked"]).to_pylist()
    tried = [row for row in rows if row["status"] in ("done", "out of time") and row["looked"]]
    return {row["id"]: row["label"] for row in tried}


def _attempted(run: Run) -> Images:
    """The attempted seeds of a run."""
    names = attempted_labels(run)
    if not names:
        raise Problem(f"{run.folder} has no attempted seeds to look for slices among.")
    return seeds_of(run, [run.seed_rows[name] for name in names])


def seeds_of(run: Run, rows: Sequence[int] | None = None) -> Images:
    """The seeds of a run, or some of its rows, as an image set with what is claimed of them."""
    table = run.seeds if rows is None else run.seeds.take(rows)
    y = torch.tensor(table["label"].to_pylist(), dtype=torch.int64)
    names = tuple(table["id"].to_pylist())
    claims = seed_claims(run)
    if claims is not None and rows is not None:
        claims = claims.take(torch.tensor(rows, dtype=torch.int64))
    context = {} if claims is None else claims.context()
    images = run.seed_images(rows)
    return Images(images, y, names, run.classes, name=str(run.folder), context=context)


def _tags_of(seeds: Images) -> Tags:
    claims = Claims.of(seeds)
    places = claims.places() if claims is not None else {}
    return measure(from_bytes(seeds.x), table={name: one.tolist() for name, one in places.items()})


CONFIRMED = "confirmed"
STATES = (*LEVELS, CONFIRMED)
"""What is known of a cell of a map, from least to most; the judge speaks last and never steers."""


def map_of_run(run: Run) -> dict[str, Any] | None:
    """The map that a run with ``--map`` filled; None for another run.

    A cell is in the state of its best finding: confirmed by the judge, kept by the witnesses, or
    failing; `example` is that finding, of several the one nearest to its seed. Cells that the
    search reached without a failure have *never failed*; `seeds` counts the real images in a cell.

    Args:
        run: A stored run.
    """
    said = run.record.get("map")
    if not said:
        return None
    grid = grid_from(said)
    visits = _visits(run, len(grid))
    table = run.findings
    kept = []
    cells = cells_of(grid, run.images()) if len(table) else []
    for row, cell in zip(table.drop_columns(["code"]).to_pylist(), cells):
        state = "fails, witnessed" if row["witnessed"] else "fails"
        if confirmed_by(run.verdicts or {}, row["id"]):
            state = CONFIRMED
        if row["kind"] == "label":
            kept.append({**row, "cell": cell, "state": STATES.index(state)})
    kept.sort(key=lambda row: (-row["state"], row["distance"], row["seed"], row["id"]))
    best: dict[int, dict[str, Any]] = {}
    for row in kept:
        best.setdefault(row["cell"], row)
    starts = cells_of(grid, run.seed_images())
    shape = [axis.cells for axis in grid.axes]
    rows = []
    for cell in range(len(grid)):
        found = best.get(cell, {})
        rows.append(
            {
                "cell": cell,
                "place": [int(i) for i in np.unravel_index(cell, shape)],
                "state": STATES[found.get("state", int(bool(visits[cell])))],
                "visits": visits[cell],
                "seeds": starts.count(cell),
                "failing_seeds": len({row["seed"] for row in kept if row["cell"] == cell}),
                "example": found.get("id"),
                **{name: found.get(name) for name in ("seed", "expected", "predicted")},
            }
        )
    return {
        "axes": said["axes"],
        "cells": rows,
        "counts": {state: sum(row["state"] == state for row in rows) for state in STATES},
    }


def _visits(run: Run, cells: int) -> list[int]:
    """How many candidates fell into each cell, over all shards."""
    total = torch.zeros(cells, dtype=torch.int64)
    for number in sorted(run.store.done()):
        delta = run.store.deltas(number).get("map", {})
        if "visits" in delta:
            visits = delta["visits"]
            sound = visits.dtype == torch.int64 and visits.shape == total.shape
            if not sound or bool((visits < 0).any()):
                raise Problem(f"shard {number} of {run.folder} is damaged: its map is another.")
            total += visits
    counted: list[int] = total.tolist()
    return counted
