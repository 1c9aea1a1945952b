"""Where it fails: the conditions in words under which images fail more often, the map of failures,
how failing grows with severity, how failures differ from their images, and which classes and claims
are lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.analysis.maps import ACCEPTED, STATES, map_of_run
from hardcase.analysis.semantics import (
    FEATURES,
    WORDS,
    equal_noise,
    fitting,
    measured,
    moved,
    noticeable,
)
from hardcase.analysis.slices import Outcome, Rules, Slice, slices_of_run
from hardcase.campaign.claims import Claims
from hardcase.errors import HardcaseError
from hardcase.guides.archive import LEVELS
from hardcase.randomness import stream
from hardcase.report.words import Sheet, Told, number, percent, plural, rate
from hardcase.runs.results import Run, seed_claims
from hardcase.runs.verify import CURVES, read_side_file
from hardcase.statistics import max_statistic
from hardcase.tensors import chunks, from_bytes
from hardcase.types import WAYS, ClassNames

NEEDED = 3 * 3 * Rules().support
"""Attempted seeds with which a third of a measure can have its images on each third of the seeds.
"""
MANY = 4_000
"""Attempted images of which measures are taken; more would only slow the page down."""
ENDS: Mapping[str, tuple[str, str]] = {**WORDS, "slant": ("left", "right")}
"""What the ends of a map's axis are called."""
FRAGILE = 3
"""Changes that the sentence names."""
PIXELS = 20_000_000
TESTS = 1000
"""What is measured at most; beyond it an even choice of the failures."""
LEAST = 1.0
"""A feature has moved if it did so by what a person can see: `semantics.noticeable`."""
LEVEL = 0.05
PERMUTATIONS = 2000
"""A sentence is said where the best of all features would be as clear in 5 % of sign flips."""
ENOUGH = 10
SENTENCES = 8
"""Findings that a pair of classes needs for a sentence, and sentences that are said."""
OTHER = "taken for another class"
PARTS = ("smallest third", "middle third", "largest third")


def where(run: Run, counts: Mapping[str, Any]) -> dict[str, Any]:
    """The slices of a run, of which the page shows those that held."""
    attempted = counts["search_results"]["searched"] or 0
    accepted = counts["search_results"]["accepted"]
    outcome: Outcome = "accepted" if accepted else "failing"
    bad = accepted or counts["search_results"]["failing"] or 0
    carried = list[Slice]()
    if NEEDED <= attempted <= MANY and 0 < bad < attempted:
        with suppress(HardcaseError):  # originals whose images cannot be read: the rest still can
            carried = slices_of_run(run, outcome=outcome)
    held = [region for region in carried if region.accepted and region.held]
    return {
        "outcome": outcome,
        "searched": attempted,
        "carried": [region.record() for region in carried],
        "held": [
            {
                "name": region.name,
                "sentence": str(region),
                "inside": rate(region.estimated.failing, region.estimated.total),
                "outside": rate(region.estimated.failing_outside, region.estimated.total_outside),
                "p": region.p_holm,
            }
            for region in held
        ],
        "sentence": _sentence(outcome, carried) if held else None,
    }


def _sentence(outcome: Outcome, carried: list[Slice]) -> str:
    """How the conditions were found, in words that promise no more."""
    word = "has an accepted failure" if outcome == "accepted" else "fails"
    return (
        f"An image inside one of these {word} more often in the search. Each was found on one third"
        " of the images, tested on another (Holm’s correction over"
        f" {plural(len(carried), 'condition')}) and measured on the last."
    )


def failure_map(run: Run) -> dict[str, Any] | None:
    """The map of a run with ``--map``, as the page draws it; None for another run."""
    try:
        found = map_of_run(run)
    except HardcaseError:  # images or counts that cannot be read: the rest of the report still can
        return None
    if found is None:
        return None
    row_of = {name: row for row, name in enumerate(run.findings["id"].to_pylist())}
    cells = [{**cell, "row": row_of.get(cell["example"])} for cell in found["cells"]]
    down, across, *third = found["axes"]
    at = {tuple(cell["place"]): cell for cell in cells}
    layers = [
        {
            "name": _part(third[0], k) if third else None,
            "rows": [
                [at[i, j, k] if third else at[i, j] for j in range(across["cells"])]
                for i in reversed(range(down["cells"]))
            ],
        }
        for k in range(third[0]["cells"] if third else 1)
    ]
    words = [
        {**axis, "ends": list(ENDS.get(axis["name"], ("low", "high")))} for axis in found["axes"]
    ]
    return {
        **found,
        "cells": cells,
        "axes": words,
        "layers": layers,
        "sentence": _map_sentence(found),
    }


def _part(axis: Mapping[str, Any], place: int) -> str:
    """The values of one cell of an axis."""
    width = (axis["high"] - axis["low"]) / axis["cells"]
    low = axis["low"] + place * width
    return f"{axis['name']} {low:.2g} to {low + width:.2g}"


def _map_sentence(cells: Mapping[str, Any]) -> str:
    counts = cells["counts"]
    total = len(cells["cells"])
    failing = sum(counts[state] for state in STATES[2:])
    sure = counts[ACCEPTED]
    confirmed = sure + counts["fails, witnessed"]
    names = " and ".join(axis["name"] for axis in cells["axes"])
    accepted = f"; in {number(sure)} a failure is accepted" if sure else ""
    witnessed = (
        f"; in {number(confirmed)} other networks keep the label" if confirmed > sure else ""
    )
    return (
        f"All images that were tried, by {names}: in {number(failing)} of {number(total)} cells the"
        f" model fails{accepted}{witnessed}. In {number(counts[LEVELS[1]])} cells it was tried and"
        f" never failed, {number(counts[LEVELS[0]])} cells this search did not reach, which does"
        " not say that nothing can."
    )


def severities(run: Run) -> dict[str, Any] | None:
    """The curves that ``hardcase curve`` left in a run, the most fragile change first; or None."""
    stored = read_side_file(run.store, CURVES)
    if stored is None:
        return None
    try:
        rows = [_curve(row) for row in (*stored["corruptions"], *stored["conditions"])]
        usable = int(stored["correctly_classified"])
        error = stored["corruption_error"]
        plain = None if error is None else float(error["plain"])
        model = str(stored["model"])
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None  # it says nothing that can be drawn
    rows.sort(key=lambda row: (-row["mean"], row["name"]))
    return {
        "correctly_classified": usable,
        "model": model,
        "rows": rows,
        "mean_corruption_error": plain,
        "sentence": _fragile(rows, usable),
    }


def _curve(stored: Mapping[str, Any]) -> dict[str, Any]:
    points = [
        {name: float(point[name]) for name in ("severity", "share", "low", "high")}
        | {name: int(point[name]) for name in ("failing", "total")}
        for point in stored["curve"]
    ]
    middle = stored["crossing"]["quartiles"][1]
    corruption = stored.get("corruption")
    return {
        "name": str(corruption or stored["condition"]).replace("_", " "),
        "kind": "corruption" if corruption else "condition",
        "most": float(stored["most"]),
        "points": points,
        "mean": sum(point["share"] for point in points) / len(points),
        "crossing": None if middle is None else float(middle),
        "crossed": int(stored["crossing"]["crossed"]),
        "queries": int(stored["crossing"]["queries"]),
        "non_monotone": float(stored["non_monotone"]["share"]),
    }


def _fragile(rows: list[dict[str, Any]], usable: int) -> str:
    worst = [row for row in rows if row["points"][-1]["failing"]][:FRAGILE]
    if not worst:
        return f"None of {plural(usable, 'image')} fails under any of {len(rows)} changes."
    sentences = []
    for row in worst:
        half = f"{percent(row['points'][-1]['share'])} fail at the end"
        if row["crossing"] is not None:
            half = f"half of the images fail by severity {row['crossing']:.2f}"
        sentences.append(f"{row['name']} ({half})")
    return (
        f"{number(usable)} correctly classified images under {plural(len(rows), 'change')}. "
        f"Most fragile: {', '.join(sentences)}."
    )


def differences(run: Run, sheet: Sheet, classes: ClassNames) -> dict[str, Any]:
    """Shares of failures in which each feature rose or fell, and in words what most failures of a
    class pair share."""
    rows = np.flatnonzero(sheet.label)
    most = max(1, min(TESTS, PIXELS // int(np.prod(run.record.get("shape") or [1, 28, 28]))))
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]
    features = list[dict[str, Any]]()
    pairs = list[dict[str, Any]]()
    if len(rows):
        change, control, spread = _changes(run, rows)
        shown = [i for i in fitting(int(run.record["shape"][0])) if float(spread[i]) > 0]
        relative = change[:, shown] / noticeable()[shown]
        by_chance = control[:, shown] / noticeable()[shown]
        features = _shares(relative, by_chance, shown)
        pairs = _by_pair(sheet, rows, relative, by_chance, shown)
    return {
        "tests": len(rows),
        "left_out": int(sheet.label.sum()) - len(rows),
        "least": LEAST,
        "features": features,
        "pairs": pairs,
        "sentences": _sentences(pairs, classes),
    }


def _changes(
    run: Run, rows: Int[np.ndarray, " t"]
) -> tuple[Float[Tensor, "t f"], Float[Tensor, "t f"], Float[Tensor, " f"]]:
    """How far each feature moved in each failure, and under noise of the same size; and its
    standard deviation over the images of these failures."""
    findings = run.findings.take(pa.array(rows))
    originals = np.array([run.seed_rows[name] for name in findings.column("original").to_pylist()])
    used, back = np.unique(originals, return_inverse=True)
    seeds = run.seed_images(used.tolist())
    images = run.images(rows.tolist())
    back_rows = torch.from_numpy(back)
    rng = stream(0, "equal_noise")
    change = list[Tensor]()
    control = list[Tensor]()
    for part in chunks(len(images), 512):
        before = from_bytes(seeds[back_rows[part]])
        after = from_bytes(images[part])
        change.append(moved(before, after))
        control.append(moved(before, equal_noise(before, after, rng=rng)))
    spread = torch.cat([measured(from_bytes(seeds[part])) for part in chunks(len(seeds), 512)])
    deviation = spread.std(0) if len(spread) > 1 else torch.zeros(len(FEATURES))
    return torch.cat(change), torch.cat(control), deviation


def _shares(
    relative: Float[Tensor, "t g"], control: Float[Tensor, "t g"], shown: Sequence[int]
) -> list[dict[str, Any]]:
    rows = []
    for column, i in enumerate(shown):
        feature = FEATURES[i]
        row: dict[str, Any] = {"feature": feature.name, "up": feature.up, "down": feature.down}
        for prefix, values in (("", relative[:, column]), ("control_", control[:, column])):
            row[f"{prefix}rose"] = rate(int((values > LEAST).sum()), len(values))
            row[f"{prefix}fell"] = rate(int((values < -LEAST).sum()), len(values))
        rows.append({**row, "median": float(relative[:, column].median())})
    return rows


def _by_pair(
    sheet: Sheet,
    rows: Int[np.ndarray, " t"],
    relative: Float[Tensor, "t g"],
    control: Float[Tensor, "t g"],
    shown: Sequence[int],
) -> list[dict[str, Any]]:
    """The same for every pair of classes with enough failures, most failures first."""
    pairs = list(zip(sheet.expected[rows].tolist(), sheet.predicted[rows].tolist()))
    found = []
    for pair, count in sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0])):
        if count >= ENOUGH:
            inside = torch.tensor([value == pair for value in pairs])
            shares = _shares(relative[inside], control[inside], shown)
            ways = _ways(relative[inside]) - _ways(control[inside])
            p = max_statistic(ways, rng=stream(0, "what moved"), permutations=PERMUTATIONS)
            shares = [{**row, "p": value} for row, value in zip(shares, p.tolist(), strict=True)]
            names = dict(zip(("expected", "predicted"), pair))
            found.append({**names, "tests": count, "features": shares})
    return found


def _ways(relative: Float[Tensor, "t g"]) -> Float[Tensor, "t g"]:
    """1 where a feature rose by what can be seen, -1 where it fell."""
    return (relative > LEAST).double() - (relative < -LEAST).double()


def _sentences(pairs: Sequence[Mapping[str, Any]], classes: ClassNames) -> list[dict[str, Any]]:
    """What more than half of the failures of a pair share, the surest first.

    The interval must be above a half, and the feature further from the control than the best of all
    features would be by chance."""
    sentences = []
    for pair in pairs:
        for row in pair["features"]:
            share, words, by_chance = max(
                (
                    (row["rose"], row["up"], row["control_rose"]),
                    (row["fell"], row["down"], row["control_fell"]),
                ),
                key=lambda way: way[0]["hits"],
            )
            if share["low"] > 0.5 and row["p"] <= LEVEL:
                names = classes.pair(pair["expected"], pair["predicted"])
                span = f"{percent(share['low'])} to {percent(share['high'])}"
                text = (
                    f"In {share['hits']} of {share['total']} failures {names}"
                    f" ({percent(share['share'])}, {span}) {words}; in"
                    f" {percent(by_chance['share'])} under noise of the same size."
                )
                about = {name: pair[name] for name in ("expected", "predicted")}
                sentences.append(
                    {"sentence": text, **about, "feature": row["feature"], "rate": share}
                )
    return sorted(sentences, key=lambda sentence: -sentence["rate"]["low"])[:SENTENCES]


def claims_section(run: Run, sheet: Sheet, told: Told) -> dict[str, Any] | None:
    """How claims were lost, and how often by the size of the object; None for a classifier."""
    claims = seed_claims(run)
    if claims is None:
        return None
    failing = {name for name, label in zip(sheet.seed, sheet.label.tolist()) if label}
    first = dict(zip(reversed(sheet.seed), reversed(sheet.predicted.tolist())))
    ways = Counter(OTHER if first[name] >= 0 else WAYS[-1 - first[name]] for name in failing)
    done = [
        (row, name in failing)
        for row, (name, seed) in enumerate(sheet.seeds.items())
        if seed["status"] == "done"
    ]
    return {
        **run.record["claims"],
        "ways": {way: ways[way] for way in (*WAYS, OTHER) if ways[way]},
        "sizes": _sizes(claims, done, told),
    }


def _sizes(claims: Claims, rows: list[tuple[int, bool]], told: Told) -> list[dict[str, Any]]:
    """Claims with a place by the side of a square of the object's area, in thirds."""
    sides = claims.places().get("claimed size")
    if sides is None or len(rows) < len(PARTS):
        return []
    order = sorted((float(sides[row]), fails) for row, fails in rows)
    sizes = list[dict[str, Any]]()
    for name, part in zip(PARTS, np.array_split(np.arange(len(order)), len(PARTS))):
        part_rows = [order[i] for i in part]
        hits = told(sum(fails for _, fails in part_rows), len(part_rows))
        sizes.append(
            {"size": name, "from": part_rows[0][0], "to": part_rows[-1][0], "failing": hits}
        )
    return sizes
