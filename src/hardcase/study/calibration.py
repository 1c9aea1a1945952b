"""The loop closed: rated images for the judge to be fitted to, and what people said in the run.

A judge that is measured on what it was fitted to looks better than it is, in three ways: the same
image, a sibling made from the same seed or by the same generator, and the same person's eye. So
`folds` separates seeds and generators, and the two labels that `rated` gives come from two halves
of the raters: rules are fitted to one half and measured against the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from hardcase.cache import write_atomically
from hardcase.errors import Problem
from hardcase.study.analysis import counted, outcomes, rates
from hardcase.study.answers import Answers, Given
from hardcase.study.bundle import Study, opaque
from hardcase.study.drawing import RATED, rated_before
from hardcase.study.forms import NONE
from hardcase.study.screening import screen

Array = np.ndarray
BLOCKS = 5


def rated(folder: str | Path, *, database: str = "") -> dict[str, Any]:
    """Images of a study that two people or more have labelled, as arrays.

    ``images``, ``expected``, ``predicted``, ``generator``, ``seed``, ``finding`` and two labels,
    ``rater1`` and ``rater2``: the majority in each of two halves of the raters (-1: no class, or no
    majority). Flagged raters and pilots are left out; a simulated crowd is refused.
    """
    from hardcase import tensors

    study = Study.open(folder)
    store = Answers(database or study.folder)
    people, given = counted(store.raters(), store.all())
    store.close()
    if any(one.kind == "simulated" for one in people):
        raise Problem(
            f"{study.folder} was answered by a simulated crowd; a judge is calibrated on people.",
            fix=f"hardcase study serve {study.folder}",
        )
    flagged = {one.rater for one in screen(study, given) if one.flags}
    votes = _votes(study, [one for one in given if one.rater not in flagged])
    halves = _halves(sorted({one.rater for one in given} - flagged))
    rows: list[tuple[Any, ...]] = []
    for name, said in sorted(votes.items()):
        two = [[v for r, v in said if r in half] for half in halves]
        if not all(two):
            continue
        one = study.stimuli[name]
        image = tensors.decode(study.image(name).read_bytes()).numpy()
        labels = [_majority(half, study.classes) for half in two]
        rows.append(
            (
                image,
                one.expected,
                one.predicted,
                one.method or "real",
                one.seed,
                one.finding,
                *labels,
            )
        )
    if not rows:
        raise Problem(
            f"{study.folder} has no image that two halves of its raters have labelled.",
            f"{len(votes)} images have an answer to a label question.",
            fix="more raters, or a study of --design label",
        )
    images, expected, predicted, generator, seed, finding, first, second = zip(*rows)
    return {
        "images": np.stack(images),
        "expected": np.array(expected),
        "predicted": np.array(predicted),
        "generator": np.array(generator),
        "seed": np.array(seed),
        "finding": np.array(finding),
        "rater1": np.array(first),
        "rater2": np.array(second),
    }


def _votes(study: Study, given: Sequence[Given]) -> dict[str, list[tuple[str, str]]]:
    votes: dict[str, list[tuple[str, str]]] = {}
    for one in given:
        item = study.items[one.item]
        if item.use == "main" and item.form == "label":
            votes.setdefault(item.stimuli[0], []).append((one.rater, one.value["label"]))
    return votes


def _halves(raters: Sequence[str]) -> tuple[set[str], set[str]]:
    """Two halves that do not depend on who came first."""
    mixed = sorted(raters, key=lambda name: opaque("half", name))
    return set(mixed[::2]), set(mixed[1::2])


def _majority(answers: Sequence[str], classes: Sequence[str]) -> int:
    word, times = Counter(answers).most_common(1)[0]
    sure = 2 * times > len(answers)
    return classes.index(word) if sure and word != NONE and word in classes else -1


def folds(
    generator: Sequence[str], seed: Sequence[str]
) -> list[tuple[Bool[Array, " m"], Bool[Array, " m"]]]:
    """Pairs of (rows to fit, rows to measure) that share no seed image and no generator.

    Each generator's images of each block of seeds are measured once, by rules fitted to the images
    that other generators made from other seeds; with one generator, to those from other seeds.

    >>> [(fit.tolist(), measure.tolist()) for fit, measure in folds(["a", "b"], ["s", "t"])][0]
    ([False, True], [True, False])
    """
    made = np.array(generator)
    names = sorted(set(seed))
    order = sorted(names, key=lambda name: opaque("fold", name))
    count = min(BLOCKS, max(2, len(names)))
    block_of = {name: i % count for i, name in enumerate(order)}
    block = np.array([block_of[name] for name in seed])
    several = len(set(generator)) > 1
    pairs = []
    for own in sorted(set(generator)):
        for part in range(count):
            measure = (made == own) & (block == part)
            fit = (block != part) & ((made != own) | (not several))
            if measure.any():
                pairs.append((fit, measure))
    return pairs


def record(folder: str | Path, *, database: str = "") -> dict[str, dict[str, int]]:
    """Enter into each run what people said of it; returns that, by run folder.

    ``run.json`` gains ``"people": {"rated", "confirmed", "undecided", …}`` with the rate and its
    interval; ``people.json`` beside it names the findings, which no later study calls unseen.
    Answers of a simulated crowd are never entered.
    """
    from hardcase.runs.results import Run

    study = Study.open(folder)
    store = Answers(database or study.folder)
    people, given = counted(store.raters(), store.all())
    store.close()
    if any(one.kind == "simulated" for one in people):
        return {}
    said = outcomes(study, given)
    found = rates(study, given)
    made: dict[str, dict[str, int]] = {}
    for name, about in study.settings["runs"].items():
        place = Path(about["folder"])
        own = {
            study.stimuli[s].finding: word
            for s, word in said.items()
            if study.stimuli[s].run == name
        }
        if not own or not (place / "run.json").exists():
            continue
        known = {**rated_before(place), **own}
        text = json.dumps({"study": study.settings["id"], "findings": known}, indent=1)
        write_atomically(place / RATED, (text + "\n").encode())
        counts = Counter(known.values())
        entry: dict[str, Any] = {
            "rated": len(known),
            "confirmed": counts["confirmed"],
            "undecided": counts["undecided"],
        }
        if name in found:
            entry["rate"] = found[name].to_json()
        run = Run(place)
        run.store.write_record({**run.record, "people": entry})
        made[str(place)] = entry
    return made
