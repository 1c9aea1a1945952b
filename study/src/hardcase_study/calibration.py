"""The loop closed: rated images for the judge to be fitted to, and what people said in the run.

A judge that is measured on what it was fitted to looks better than it is, in three ways: the same
image, a sibling made from the same seed or by the same generator, and the same person's eye. The
judge's calibration separates seeds and generators; the two labels that `rated` gives come from two
halves of the raters, so that rules are fitted to one half and measured against the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardcase.errors import HardcaseError
from hardcase_study.analysis import counted, lost_labels, outcomes, rates
from hardcase_study.answers import Answers, Given
from hardcase_study.bundle import Study, opaque
from hardcase_study.confirmed import ConfirmedRate
from hardcase_study.drawing import draw_name, rated_before
from hardcase_study.forms import NONE
from hardcase_study.screening import unflagged

if TYPE_CHECKING:
    from hardcase.runs.results import Run


def rated(folder: str | Path, *, database: str = "") -> dict[str, Any]:
    """Images of a study that two people or more have labelled, as arrays.

    ``images``, ``expected``, ``predicted``, ``generator``, ``seed``, ``finding`` and two labels,
    ``rater1`` and ``rater2``: the majority in each of two halves of the raters (-1: no class, or no
    majority). Suspicious raters and pilots are left out; a simulated crowd is refused.

    Raises:
        HardcaseError: If no person has answered.
        TooFewRated: If no image was labelled by both halves.
    """
    from hardcase import tensors
    from hardcase.judges.calibration import TooFewRated

    study, given = _of_people(folder, database)
    if not given:
        raise HardcaseError(
            f"no person has answered {study.folder}; a judge is calibrated on people.",
            fix=f"hardcase study serve {study.folder}",
        )
    given = unflagged(study, given)
    votes = _votes(study, given)
    halves = _halves(sorted({one.rater for one in given}))
    rows: list[tuple[Any, ...]] = []
    for name, said in sorted(votes.items()):
        two = [[v for r, v in said if r in half] for half in halves]
        if not all(two):
            continue
        one = study.stimuli[name]
        image = tensors.decode(study.png(name)).numpy()
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
        raise TooFewRated(
            f"{len(votes)} images of {study.folder} have a label by one person who is not flagged, "
            "none by two.",
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


def _of_people(folder: str | Path, database: str) -> tuple[Study, list[Given]]:
    """A study and what people answered; nothing where a simulated crowd did."""
    study = Study.open(folder)
    store = Answers(database or study.folder)
    people, given = counted(store.raters(), store.all())
    store.close()
    return study, [] if any(one.kind == "simulated" for one in people) else given


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


def ask(runs: Sequence[Run], **how: Any) -> None:
    """Ask a person at the terminal about judged runs; see `hardcase_study.terminal.ask`."""
    from hardcase_study import terminal

    terminal.ask(runs, **how)


def record(
    folder: str | Path, *, runs: Sequence[str | Path] = (), database: str = ""
) -> dict[str, dict[str, Any]]:
    """Enter into runs what people said of them; returns the entries by run folder.

    ``run.json`` gains ``"people"``: ``rated``, ``confirmed`` and ``undecided``, the ``rate`` with
    its interval, and the ``findings``, which no later study draws as unseen. A study of failing
    draws enters ``"lost_labels_people"`` under ``"risk"`` instead. A run is known by its failures
    or draws, so it may have been moved. Answers of a simulated crowd are never entered, and those
    of suspicious raters are left out as in the analysis.

    Args:
        folder: The study.
        runs: Run folders; by default those the study was made of, where they are now.
        database: Where its answers are, if not in the folder.
    """
    study, given = _of_people(folder, database)
    if not given:
        return {}
    if "ask" in study.settings:
        return _record_asked(study, given, runs, database)
    given = unflagged(study, given)
    if study.of_conditions:
        return _record_lost(study, given, runs)
    own: dict[str, dict[str, str]] = {}
    for stimulus, word in outcomes(study, given).items():
        one = study.stimuli[stimulus]
        own.setdefault(one.run, {})[one.finding] = word
    found = rates(study, given)
    places = runs or [about["folder"] for about in study.settings["runs"].values()]
    made: dict[str, dict[str, Any]] = {}
    for place in map(Path, places):
        if (place / "run.json").exists():
            made[str(place)] = _enter(place, str(study.settings["id"]), own, found)
    return {place: entry for place, entry in made.items() if entry}


def _record_lost(
    study: Study, given: Sequence[Given], runs: Sequence[str | Path]
) -> dict[str, dict[str, Any]]:
    """Enter how many random failing samples lost their label beside what the judge said of them."""
    from hardcase.analysis.conditions import keep_lost_labels, shown_samples
    from hardcase.runs.results import Run

    rated = {name: set[str]() for name in study.settings["runs"]}
    for one in study.stimuli.values():
        if one.finding:
            rated[one.run].add(one.finding)
    found = lost_labels(study, given)
    made: dict[str, dict[str, Any]] = {}
    for place in map(Path, runs or [one["folder"] for one in study.settings["runs"].values()]):
        if not (place / "run.json").exists():
            continue
        run = Run(place)
        own = {draw_name(i, row) for i, row in enumerate(shown_samples(run))}
        names = [name for name in found if rated[name] <= own]
        if names:
            keep_lost_labels(run, "lost_labels_people", found[names[0]])
            made[str(place)] = found[names[0]]
    return made


def _record_asked(
    study: Study, given: Sequence[Given], runs: Sequence[str | Path], database: str
) -> dict[str, dict[str, Any]]:
    """Enter the answers of a study that chose by them into the file of answers of its run."""
    from hardcase.runs.results import Run
    from hardcase_study.choosing import enter_into_run

    store = Answers(database or study.folder)
    drawn = store.drawn()
    store.close()
    findings = {one.finding for one in study.stimuli.values() if one.finding}
    made: dict[str, dict[str, Any]] = {}
    for place in map(Path, runs or [one["folder"] for one in study.settings["runs"].values()]):
        if (place / "run.json").exists() and findings <= {*Run(place).findings["id"].to_pylist()}:
            enter_into_run(study, given, drawn, place)
            made[str(place)] = dict(Run(place).record["people"])
    return made


def _enter(
    place: Path,
    study: str,
    own: Mapping[str, Mapping[str, str]],
    found: Mapping[str, ConfirmedRate],
) -> dict[str, Any]:
    """Write what people said of the run in `place`, if its failures are among the rated ones."""
    from hardcase.runs.files import locked
    from hardcase.runs.results import Run

    with locked(place):
        run = Run(place)
        ids = set(run.findings["id"].to_pylist())
        names = [name for name, words in own.items() if words.keys() <= ids]
        if not names:
            return {}
        known = rated_before(run.record)
        for name in names:
            known |= own[name]
        counts = Counter(known.values())
        studies = (run.record.get("people") or {}).get("studies", ())
        entry: dict[str, Any] = {
            "rated": len(known),
            "confirmed": counts["confirmed"],
            "undecided": counts["undecided"],
            "rate": found[names[0]].to_json() if names[0] in found else None,
            "studies": sorted({*studies, study}),
            "findings": known,
        }
        run.store.write_record({**run.record, "people": entry})
    return entry
