"""The risk of a stored run under declared conditions: measured, kept, judged, told."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from hardcase.analysis.references import Reference, ReferenceModel
from hardcase.campaign.claims import claim_context
from hardcase.conditions import (
    Conditions,
    RiskTable,
    WorstCase,
    compare_risk,
    condition_box,
    measure_rare,
    measure_risk,
    measure_worst,
)
from hardcase.conditions.box import ConditionBox
from hardcase.conditions.risk import COST_DRAWS, DRAWS, asked_under, failing_rows, with_pattern
from hardcase.conditions.worst import most_questions
from hardcase.data.files import ImageSet
from hardcase.errors import Problem
from hardcase.runs.files import locked
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, keep_beside, read_beside
from hardcase.statistics import binomial_interval, needed_images
from hardcase.tensors import (
    chunks,
    encode_all,
    from_bytes,
    remade,
    tile_in_use,
    to_bytes,
)
from hardcase.types import WAYS, Model, Seeds

EFFECT = 0.01
"""The difference of risks for which the number of images is told that shows it."""
DEAREST = 2
"""Conditions that are named as costing most."""
OFTEN = 30.0
"""Seconds after which it is said how far measuring has come."""
ROWS = 64
"""Images that are drawn again at once."""
GRADIENT_COST = 3
"""Queries that take as long as one gradient: forth, and twice as much back."""
Say = Callable[[str], None]
Rows = Sequence[Mapping[str, Any]]
"""What happened to every seed, as `conditions.json` keeps it."""


def measure_run(
    run: Run,
    subject: Model,
    seeds: ImageSet,
    conditions: Conditions,
    *,
    references: Sequence[Reference] = (),
    say: Say = lambda text: None,
) -> Run:
    """Measure the risk of a run's subject on all of its seeds and keep it with the run."""
    declared = conditions.to_record()
    wanted = ["risk", *["rare"] * conditions.rare, *["worst_case"] * conditions.worst]
    if all(run.record.get(key) for key in wanted) and run.record.get("conditions") == declared:
        return run
    box = condition_box(conditions, tuple(run.record["image"]))
    seed = run.record["seed"]
    asked = sum(isinstance(one, ReferenceModel) for one in references)
    say(_expected(subject, seeds, box, asked))
    table = measure_risk(subject, seeds, box, seed=seed, tell=_telling(say))
    beside = list[tuple[Reference, Rows]]()
    for one in references:
        if isinstance(one, ReferenceModel):
            other = measure_risk(one.model, seeds, box, seed=seed, costs=False, tell=_telling(say))
            beside.append((one, _rows(other)))
        else:
            one.check(conditions, seeds, seed)
            beside.append((one, one.rows()))
    kept = {
        "draws": table.draws,
        "seeds": _rows(table),
        "references": {one.name: [row["failing"] for row in rows] for one, rows in beside},
        **_shown(table, subject, seeds, box),
    }
    figures = table.to_json()
    figures["risk"]["references"] = [_paired(table, *pair) for pair in beside]
    figures["risk"]["needed"] = _needed(table, beside)
    if conditions.rare:
        say("rare failures of the images without a failing draw: by splitting")
        rare = measure_rare(subject, seeds, box, table, seed=seed, tell=_telling(say))
        figures["rare"] = rare.to_json()
    if conditions.worst:
        say(worst_expected(subject, seeds, box))
        worst = measure_worst(subject, seeds, box, table=table, seed=seed, tell=_telling(say))
        figures |= worst.to_json()
    with locked(run.folder):
        keep_beside(run.store, CONDITIONS, kept)
        run.store.write_record({**run.store.record(), "conditions": declared, **figures})
    return Run(run.folder)


def _rows(table: RiskTable) -> Rows:
    columns = (table.id, table.y.tolist(), table.clean.tolist(), table.failing.tolist())
    names = ("id", "label", "clean", "failing")
    return [dict(zip(names, row)) for row in zip(*columns)]


def _expected(subject: Model, seeds: ImageSet, box: ConditionBox, references: int) -> str:
    """What measuring will take, in words."""
    conditions = len(box.conditions.ranges)
    again = COST_DRAWS * conditions if conditions > 1 else 0
    count = len(seeds) * (1 + DRAWS + again + references * (1 + DRAWS))
    return (
        f"risk: {len(seeds):,} images under {DRAWS} random {box.name} conditions each, "
        f"{count:,} queries, about {_forecast(count, subject, seeds, box)}"
    )


def worst_expected(subject: Model, seeds: ImageSet, box: ConditionBox) -> str:
    """Return what the worst case will take, in words."""
    questions, gradients = most_questions(subject, box)
    count = len(seeds) * (questions + GRADIENT_COST * gradients)
    return (
        f"worst case: searching the declared box, up to {questions:,} queries and "
        f"{gradients:,} gradients for each of {len(seeds):,} images, about "
        f"{_forecast(count, subject, seeds, box)}"
    )


def _forecast(count: int, subject: Model, seeds: ImageSet, box: ConditionBox) -> str:
    """How long so many queries take: a few draws of the first image are timed."""
    first = seeds.first(1)
    measure_risk(subject, first, box, draws=1, costs=False)  # what is slow once is not counted
    each = 0.0
    tile = tile_in_use(subject.device.type)  # a call of fewer rows takes as long
    for few in (tile,) if tile else (16, 128):  # few photographs say enough; of digits many
        began = perf_counter()
        measure_risk(subject, first, box, draws=few, costs=False)
        took = perf_counter() - began
        each = took / (2 * few if tile else few + 1)  # the unchanged image has a call of its own
        if took > 0.5:
            break
    minutes, seconds = divmod(round(count * each), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{max(seconds, 1)} s"


def _telling(say: Say) -> Callable[[int, int], None]:
    """Says now and then how many images are done."""
    last = perf_counter()

    def tell(done: int, total: int) -> None:
        nonlocal last
        if perf_counter() - last > OFTEN and done < total:
            last = perf_counter()
            say(f"risk: {done:,} of {total:,} images")

    return tell


def _paired(table: RiskTable, reference: Reference, rows: Rows) -> dict[str, Any]:
    """The risk of a reference, and by how much the subject's is larger, image by image."""
    theirs = {row["id"]: row["failing"] / table.draws for row in rows}
    own = dict(zip(table.id, table.shares.tolist()))
    found = compare_risk(own, theirs, margin=0.0, claims=bool(table.image))
    return {
        "name": reference.name,
        "training": reference.training,
        "accuracy": 1 - float(np.mean([row["clean"] for row in rows])),
        "risk": float(np.mean(list(theirs.values()))),
        "difference": found.difference,
        "low": found.bounds.low,
        "high": found.bounds.high,
        "seeds": found.seeds,
    }


def _needed(table: RiskTable, beside: Sequence[tuple[Reference, Rows]]) -> dict[str, Any] | None:
    """How many images show a difference of risks of `EFFECT`, from the spread that was seen."""
    spread = table.excess
    if beside:
        theirs = {row["id"]: row["failing"] / table.draws for row in beside[0][1]}
        pairs = zip(table.id, table.shares.tolist())
        spread = np.array([share - theirs[name] for name, share in pairs if name in theirs])
    if len(spread) < 2 or not float(spread.std(ddof=1)):
        return None
    return {"effect": EFFECT, "seeds": needed_images(spread, EFFECT)}


# --- failing draws that are kept to be looked at


def _shown(table: RiskTable, subject: Model, seeds: ImageSet, box: ConditionBox) -> dict[str, Any]:
    """A random choice of failing draws as images, and which of them show the dearest conditions.

    A draw shows a condition if the model is right about it with that condition at neutral."""
    if not len(table.shown_seed):
        return {"shown": [], "examples": {}}
    own = seeds.take(table.shown_seed).images()
    x = from_bytes(own.x).to(subject.device)
    y = table.y[table.shown_seed].to(subject.device)
    claims = {name: one.to(x.device) for name, one in claim_context(own.context).items()}
    origin = Seeds(table.shown_z.to(x), x, y, table.shown_seed.to(y), claims)
    pattern = table.shown_pattern.to(y)
    rows = torch.arange(len(y), device=y.device)
    with torch.inference_mode():
        drawn = with_pattern(origin, pattern)
        parts = [rows[part] for part in chunks(len(y), ROWS)]
        images = torch.cat([box.decode(origin.z[part], drawn.take(part)) for part in parts])
    names = ("predicted", "words", "image")
    facts = zip(
        table.shown_predicted.tolist(),
        box.words(table.shown_z),
        [base64.b64encode(image).decode() for image in encode_all(to_bytes(images).cpu())],
    )
    shown = [
        {"seed": table.id[row], "label": int(table.y[row]), **dict(zip(names, known))}
        for row, known in zip(table.shown_seed.tolist(), facts)
    ]
    examples = dict[str, int]()
    for row in dear(table.costs()):
        held = box.held(origin.z, row["condition"])
        logits = asked_under(subject, box, origin, rows, held, pattern, rows=ROWS)
        wrong = failing_rows(logits, y)[0].tolist()
        fresh = [i for i, one in enumerate(wrong) if not one and i not in examples.values()]
        if fresh:
            examples[row["condition"]] = fresh[0]
    return {"shown": shown, "examples": examples}


def dear(costs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the conditions that cost most, of those that cost anything."""
    return [row for row in costs if row["cost"] > 0][:DEAREST]


def shown_draws(run: Run) -> dict[str, Any]:
    """Return the failing draws that a run keeps to be looked at; nothing where it keeps none."""
    kept = read_beside(run.store, CONDITIONS) or {}
    try:
        shown = [_checked_draw(row, run) for row in kept.get("shown", ())]
        places = {str(name): int(place) for name, place in kept.get("examples", {}).items()}
    except (LookupError, TypeError, ValueError, AttributeError, Problem):
        return {"shown": [], "examples": {}}  # whoever wrote that, it is no draw of this run
    return {
        "shown": shown,
        "examples": {name: i for name, i in places.items() if 0 <= i < len(shown)},
    }


def _checked_draw(row: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """A kept draw whose seed and classes are the run's and whose image can be shown."""
    label = range(len(run.classes))[int(row["label"])]
    predicted = int(row["predicted"])
    if not (run.record.get("claims") and -len(WAYS) <= predicted < 0):
        predicted = range(len(run.classes))[predicted]
    if row["seed"] not in run.seed_rows:
        raise LookupError(row["seed"])
    return {
        "seed": row["seed"],
        "label": label,
        "predicted": predicted,
        "words": str(row["words"]),
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
    with locked(run.folder):
        record = run.store.record()
        run.store.write_record({**record, "risk": {**record["risk"], key: dict(said)}})
    return Run(run.folder)


def keep_worst(run: Run, conditions: Conditions, worst: WorstCase) -> Run:
    """Keep with a run its least scale and its worst case, unless it declared other conditions."""
    if run.record.get("conditions") != conditions.to_record():
        return run
    with locked(run.folder):
        run.store.write_record({**run.store.record(), **worst.to_json()})
    return Run(run.folder)


# --- in words


def in_words(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what a record says of the risk, line by line under short headings."""
    risk = record["risk"]
    declared = record.get("conditions") or {}
    excess = risk["value"] - risk["clean_error"]
    claims = record.get("claims")
    what = f"{risk['seeds']:,} images"
    if claims:
        what = f"{risk['seeds']:,} claims about {claims['images']:,} images"
    lines = {
        "risk": f"{percent(risk['value'])} of random {declared.get('name', '')} conditions"
        f" fail ({risk['draws']} for each of all {what}), {_points(excess)} above"
        f" the clean error",
        "": f"95 %: {span(risk['these_images'])} for these images, "
        f"{span(risk['images_like_these'])} for images like these",
    }
    for i, one in enumerate(risk.get("references", ())):
        lines["reference" if i == 0 else " " * i] = reference_in_words(one)
    costly = [cost_in_words(row, declared) for row in dear(risk["costs"])]
    if costly:
        doubt = doubt_in_words(risk["costs"], risk["seeds"])
        lines["costs most"] = "; ".join([*costly, *[doubt] * bool(doubt)])
    rare = record.get("rare")
    if rare:
        lines["rare"] = (
            f"images without a failing draw ({rare['seeds']:,}) fail in {rare['volume']:.1e}"
            f" ({' to '.join(f'{end:.1e}' for end in rare['these_images'])}) of the declared box: a"
            f" volume, no probability in the field"
        )
    judged = risk.get("lost_labels") or not claims
    if judged and risk.get("failing") != 0:
        lines["labels"] = lost_in_words(risk)
    return lines


def cost_in_words(row: Mapping[str, Any], conditions: Mapping[str, str]) -> str:
    """Return what a condition adds to the risk, such as ``rotation ±8 deg: 3.1 points (...)``."""
    name = row["condition"]
    low, high = (100 * row[side] for side in ("low", "high"))
    return f"{name} {conditions.get(name, '')}: {_points(row['cost'])} ({low:.1f} to {high:.1f})"


def doubt_in_words(costs: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Return why the order of the conditions by cost is not certain; nothing if it is."""
    named = dear(costs)
    nothing = [row["condition"] for row in named if row["low"] <= 0]
    if nothing:
        return f"too few images ({seeds:,}) to say whether {' or '.join(nothing)} costs anything"
    if any(row["high"] >= one["low"] for row in costs[len(named) :] for one in named):
        return f"too few images ({seeds:,}) to say that these cost more than others"
    return ""


def reference_in_words(one: Mapping[str, Any]) -> str:
    """Return how the risk of a reference stands beside that of the subject."""
    known = ", ".join(filter(None, [f"{percent(one['accuracy'])} right", one["training"]]))
    low, high = (100 * one[side] for side in ("low", "high"))
    return (
        f"{one['name']} ({known}): risk {percent(one['risk'])}; this model "
        f"{100 * one['difference']:+.1f} points ({low:+.1f} to {high:+.1f})"
    )


def lost_in_words(risk: Mapping[str, Any]) -> str:
    """Return which share of random failing images no longer shows what the seed showed."""
    told = list[str]()
    for key in ("lost_labels", "lost_labels_people"):
        said = risk.get(key)
        if not said:
            continue
        who = f"{said['people']} people call" if "people" in said else "the judge calls"
        text = f"{who} {said['lost']} lost and {said['decided'] - said['lost']} kept"
        if said["shown"] > said["decided"]:
            text += f", {said['shown'] - said['decided']} unsure"
        text += f" ({span([said['low'], said['high']])} lost)"
        if said.get("unreadable"):
            text += f", {said['unreadable']} more show images that it cannot read unmodified either"
        told.append(text)
        shown = said["shown"]
    if not told:
        return "no judge was asked whether the failing images still show what they showed"
    text = f"of {shown} random failing images {'; '.join(told)}"
    said = risk.get("lost_labels") or {}
    if said.get("perhaps_mislabelled"):
        text += f"; perhaps mislabelled: {len(said['perhaps_mislabelled'])} of {said['images']:,}"
    return text


def needed_in_words(risk: Mapping[str, Any]) -> str:
    """Return how many images show a difference of risks; nothing where that is not known."""
    needed = risk.get("needed")
    if not needed:
        return ""
    return (
        f"to see a difference of {_points(needed['effect'])} between two versions you need about "
        f"{needed['seeds']:,} images"
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    text = f"{100 * share:.1f}".removesuffix(".0")
    return f"{text} point" if text == "1" else f"{text} points"


def span(bounds: Sequence[float]) -> str:
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"
