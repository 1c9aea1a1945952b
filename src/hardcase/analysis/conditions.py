"""Failing samples of a measured run: some are kept as images, judged and told."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.claims import claim_context, stored_label
from hardcase.conditions import (
    Conditions,
    WorstCase,
    measure_rare,
    measure_risk,
    measure_worst,
)
from hardcase.conditions.risk import (
    MAX_SAMPLES,
    SHOWN,
    answered,
    logits_under_conditions,
    seeds_of,
    with_pattern,
)
from hardcase.data.files import ImageSet
from hardcase.errors import HardcaseError
from hardcase.plain import read_plain
from hardcase.randomness import Rng, keys_of
from hardcase.runs.measured import Measured, Measurement
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_side_file, write_side_file
from hardcase.statistics import binomial_interval
from hardcase.tensors import chunks, encode_all, remade, to_bytes
from hardcase.types import WAYS, Images, Seeds

ROWS = 64
"""Images that are rendered at once."""
LARGEST_SHEET = 2**20
"""Bytes, at most, of the sheet of images of a field."""


def keep_shown(run: Run, measured: Measured, measurement: Measurement, images: ImageSet) -> None:
    """Keep a random choice of failing samples as images; none of a reserved image.

    Args:
        run: The run that was measured.
        measured: What was measured.
        measurement: With what.
        images: The images in the order in which they were measured.
    """
    shown: list[dict[str, Any]] = []
    if measurement.box is not None and measured.failed[~measured.reserved].any():
        shown = _shown(measured, measurement, images)
    conditions = None if measurement.box is None else measurement.box.conditions
    field = {} if conditions is None else _stored_field(conditions.field)
    write_side_file(run.store, CONDITIONS, {"shown": shown, **field})


def _stored_field(field: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of the field whose conditions were fitted; nothing of others."""
    if not field:
        return {}
    stored_field: dict[str, Any] = {"sentences": field["sentences"]}
    with suppress(OSError):  # without its sheet the sentences stand alone
        sheet = read_plain(Path(field["sheet"]), most=LARGEST_SHEET, links=True)
        stored_field["sheet"] = base64.b64encode(sheet).decode()
    return {"field": stored_field}


def field_shown(run: Run) -> dict[str, Any] | None:
    """Return what a run keeps of the field whose conditions were fitted: sentences, and a picture.

    None where its conditions were declared by hand, or what is kept cannot be shown.
    """
    stored_field = (read_side_file(run.store, CONDITIONS) or {}).get("field")
    if not isinstance(stored_field, Mapping):
        return None
    try:
        sentences = [str(text) for text in stored_field["sentences"]]
        sheet = remade(base64.b64decode(stored_field["sheet"])) if "sheet" in stored_field else None
    except (LookupError, TypeError, ValueError, HardcaseError):
        return None
    return {"sentences": sentences, "sheet": sheet}


def extremes(
    measured: Measured, measurement: Measurement, images: ImageSet, *, rare: bool, worst: bool
) -> dict[str, Any]:
    """Return what a declaration asks for beyond the failure rate, as run.json keeps it.

    Args:
        measured: What was measured.
        measurement: With what.
        images: The images in the order in which they were measured.
        rare: Estimate how much of the conditions fails of images without a failing sample.
        worst: Search for the least scale at which each image fails.
    """
    box = measurement.box
    if box is None or not (rare or worst):
        return {}
    seed = measurement.seed
    model = measurement.model
    images_measured = images.take(torch.arange(len(measured))).images()
    extras: dict[str, Any] = {}
    with measurement.arithmetic():
        table = measure_risk(model, images_measured, box, samples=MAX_SAMPLES, seed=seed)
        if rare:
            extras["rare"] = measure_rare(model, images_measured, box, table, seed=seed).to_json()
        if worst:
            extras |= measure_worst(model, images_measured, box, table=table, seed=seed).to_json()
    return extras


def _shown(measured: Measured, measurement: Measurement, images: ImageSet) -> list[dict[str, Any]]:
    """Every failing sample has the same chance: the smallest random patterns are chosen."""
    box = measurement.box
    assert box is not None
    open_rows = torch.from_numpy((measured.failed.any(1) & ~measured.reserved).nonzero()[0])
    failed = torch.from_numpy(measured.failed)[open_rows]
    place = torch.arange(len(open_rows))
    names = [measured.id[row] for row in open_rows.tolist()]
    drawn = box.draw(Rng(measurement.seed, "conditions", keys_of(names)), place, failed.shape[1])
    where = failed.nonzero()
    chosen = where[drawn.pattern[failed].argsort(stable=True)[:SHOWN]]
    of, sample = chosen.unbind(1)
    sampled = images.take(open_rows[of]).images()
    codes = drawn.z[of, sample]
    with measurement.arithmetic(), torch.inference_mode():
        pictures, predicted = _rendered(measurement, sampled, codes, drawn.pattern[of, sample])
    labels = sampled.y.tolist()
    words = box.words(codes)
    facts = zip(sampled.id, labels, predicted, words, encode_all(sampled.x), encode_all(pictures))
    return [
        {
            "original": name,
            "label": label,
            "predicted": answer,
            "words": words,
            "unmodified": base64.b64encode(before).decode(),
            "image": base64.b64encode(png).decode(),
        }
        for name, label, answer, words, before, png in facts
    ]


def _rendered(
    measurement: Measurement, images: Images, codes: Tensor, pattern: Int[Tensor, " t"]
) -> tuple[Tensor, list[int]]:
    """Samples as 8-bit images, and what the model answers about each."""
    box = measurement.box
    assert box is not None
    device = measurement.model.device
    origin = seeds_of(images, box, device)
    origin = Seeds(codes.to(device), origin.x, origin.y, origin.id, claim_context(origin.context))
    drawn = with_pattern(origin, pattern.to(device))
    rows = torch.arange(len(images), device=device)
    parts = [rows[part] for part in chunks(len(images), ROWS)]
    pictures = torch.cat([box.decode(drawn.z[part], drawn.take(part)) for part in parts])
    logits = logits_under_conditions(
        measurement.model, box, origin, rows, origin.z, drawn.context["pattern"], rows=ROWS
    )
    predicted = answered(logits, origin.y).predicted
    label = stored_label(predicted, logits.shape[1], claim_context(origin.context))
    return to_bytes(pictures).cpu(), label.tolist()


def shown_samples(run: Run) -> list[dict[str, Any]]:
    """Return the failing samples that a run keeps as images; nothing where it keeps none."""
    side_file = read_side_file(run.store, CONDITIONS) or {}
    try:
        return [_checked_sample(row, run) for row in side_file.get("shown", ())]
    except (LookupError, TypeError, ValueError, AttributeError, HardcaseError):
        return []  # whoever wrote that, it is no sample of this run


def _checked_sample(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """A kept sample whose classes are the run's and whose images can be shown."""
    label = range(len(run.classes))[int(row["label"])]
    predicted = int(row["predicted"])
    if not (run.record.get("claims") and -len(WAYS) <= predicted < 0):
        predicted = range(len(run.classes))[predicted]
    return {
        "original": str(row["original"]),
        "label": label,
        "predicted": predicted,
        "words": str(row["words"]),
        "unmodified": remade(base64.b64decode(row["unmodified"])),
        "image": remade(base64.b64decode(row["image"])),
    }


def lost_share(lost: int, decided: int, shown: int) -> dict[str, Any]:
    """Return how many random failing draws lost their label, with the interval of their share."""
    undecided = shown - decided  # may be lost or kept: the interval holds for both
    low = binomial_interval(lost, shown).low
    high = binomial_interval(lost + undecided, shown).high
    return {"lost": lost, "decided": decided, "shown": shown, "low": low, "high": high}


def keep_lost_labels(
    run: Run, key: Literal["lost_labels", "lost_labels_people"], said: Mapping[str, Any]
) -> Run:
    """Keep with the risk of a run how many of its random failing draws lost their label."""
    with run.store.writing():
        record = run.store.record()
        run.store.write_record({**record, "risk": {**record["risk"], key: dict(said)}})
    return Run(run.store)


def keep_worst(run: Run, conditions: Conditions, worst: WorstCase) -> Run:
    """Keep with a run its least scale and its worst case, unless it declared other conditions."""
    if run.record.get("conditions") != conditions.to_record():
        return run
    with run.store.writing():
        run.store.write_record({**run.store.record(), **worst.to_json()})
    return Run(run.store)
