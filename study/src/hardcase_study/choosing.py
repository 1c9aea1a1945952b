"""Studies that choose by what was answered: ``hardcase study new RUN --ask 40``.

The chooser is that of ``hardcase judge RUN --ask`` (`hardcase_study.asking`): every image is drawn
with chances that are stored before it is shown, one person answers about each, and the study ends
when its decision is made. Several people may answer at once: a question then follows from the
answers whose earlier ones are all there, and answers count in the order of their draws.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hardcase.cache import write_atomically
from hardcase.errors import HardcaseError
from hardcase_study import drawing
from hardcase_study.answers import Answers, ChosenItem, Given, Rater
from hardcase_study.asking import Draw, FindingPopulation, RatingSession, one_per_image
from hardcase_study.bundle import Study, private
from hardcase_study.making import Making

FILE = "asking.npz"
CHECK_EVERY = 8
"""Of so many questions one is about a real image whose class is known."""
GIVEN_UP = 600.0
"""Seconds after which a question that was not answered is shown to somebody else."""


def make_items(making: Making, budget: int, limit: float | None) -> None:
    """An item for each failure that may be asked about, and real images as checks."""
    (name, source), *more = making.sources.items()
    if more or making.plan.design != "label":
        raise HardcaseError(
            "--ask asks about one run, with the design label.",
            fix="hardcase study new RUN --ask 40",
        )
    rows, chances = _population(source)
    if not rows:
        raise HardcaseError(
            "there is nothing to ask about: no failing seed that people have not seen."
        )
    for row in rows:
        stimulus = making.test(
            name, row, verdict=drawing.verdict_of(source.verdicts.get(row["id"]))
        )
        labels = making.labels(row["expected"], row["predicted"])
        making.ask("label", [stimulus], labels=labels, unit=row["original"])
    seeds_left = {row["original"] for row in rows}
    confirmed = [
        row["original"]
        for row in source.failing
        if row["original"] not in seeds_left
        and (_by_norm(source, row) or source.rated.get(row["id"]) == "confirmed")
    ]
    making.facts["ask"] = {
        "budget": budget,
        "limit": limit,
        "searched": source.about.get("searched") or len(source.seeds),
        "known": len(set(confirmed)),
        "items": [item.id for item in making.items],
    }
    making.arrays = {"p_kept": chances}
    real = drawing.real_images([source], making.rng)
    for row in sorted(real, key=lambda one: -one["confidence"])[: 2 * making.plan.sizes.checks]:
        making.ask(
            "label",
            [making.real(row)],
            labels=making.labels(row["label"]),
            use="attention",
            truth=("label", making.classes[row["label"]]),
            unit=row["id"],
        )


def _population(source: drawing.Source) -> tuple[list[drawing.Row], np.ndarray]:
    """For each failing seed the failure that most likely keeps its label, with that probability."""
    from hardcase_study.entering import p_kept  # loads torch, which the server does without

    small = {row["original"] for row in source.failing if _by_norm(source, row)}
    failing = [row for row in source.failing if row["original"] not in small]
    chances = np.array([p_kept(source.verdicts.get(row["id"])) for row in failing])
    asked = np.array([row["id"] in source.rated for row in failing], dtype=bool)
    chosen = one_per_image([row["original"] for row in failing], chances, asked)
    return [failing[place] for place in chosen], chances[chosen]


def _by_norm(source: drawing.Source, row: drawing.Row) -> bool:
    return (source.verdicts.get(row["id"]) or {}).get("by") == "norm"


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep the judge's probabilities beside the study; they are part of its key."""
    file = io.BytesIO()
    np.savez(file, p_kept=arrays["p_kept"])
    with private():
        write_atomically(folder / FILE, file.getvalue())


def asking_of(study: Study, drawn: Sequence[ChosenItem], given: Sequence[Given]) -> RatingSession:
    """The questions of a study as its stored draws and answers leave them."""
    about = study.settings["ask"]
    items = {name: row for row, name in enumerate(about["items"])}
    try:
        with np.load(study.folder / FILE, allow_pickle=False) as arrays:
            chances = arrays["p_kept"]
    except (OSError, ValueError, KeyError) as error:
        raise HardcaseError(f"{study.folder / FILE} cannot be read: {error}") from error
    population = FindingPopulation(
        tuple(about["items"]), chances, about["searched"], known=about["known"]
    )
    draws = [
        Draw(one.number, items[one.item], one.probability, one.predicted, one.knew, one.rule)
        for one in drawn
    ]
    said = {one.item: one for one in reversed(given)}  # of an item shown twice the first answer
    answers = {one.number: kept(study, said[one.item]) for one in drawn if one.item in said}
    return RatingSession(
        population,
        about["budget"],
        about["limit"],
        int(study.settings["seed"]),
        draws=draws,
        answers=answers,
    )


def kept(study: Study, one: Given) -> bool:
    """Whether an answer names the class of the seed."""
    own = study.stimuli[study.items[one.item].stimuli[0]].expected
    return bool(one.value["label"] == study.class_name(own))


def next_item(study: Study, store: Answers, rater: Rater, shown: Sequence[str]) -> str | None:
    """What this rater is shown next: a check, a question somebody gave up, or a new draw."""
    if len(shown) >= int(study.settings["per_rater"]):
        return None
    check = _check(study, rater, shown)
    if check is not None:
        return check

    def choose(
        drawn: Sequence[ChosenItem], given: Sequence[Given], now: float
    ) -> ChosenItem | str | None:
        answered = {one.item for one in given}
        for one in drawn:
            due = one.rater == rater.id or now - one.stored > GIVEN_UP
            if due and one.item not in answered and one.item not in shown:
                return one.item
        asking = asking_of(study, drawn, given)
        draw = asking.draw()
        if draw is None:
            return None
        item = asking.population.ids[draw.row]
        chances = (draw.probability, draw.predicted, draw.knew, draw.rule)
        return ChosenItem(draw.number, item, rater.id, *chances, now)

    return store.draw(choose)


def _check(study: Study, rater: Rater, shown: Sequence[str]) -> str | None:
    """A real image, once in `CHECK_EVERY` pages, at a place of the rater's own."""
    seen = set(shown)
    checks = [name for name, item in study.items.items() if item.use == "attention"]
    left = [name for name in checks if name not in seen]
    due = len(shown) % CHECK_EVERY == (3 + rater.slot) % CHECK_EVERY
    used = len(checks) - len(left)
    if not due or not left or used >= int(study.settings["checks"]):
        return None
    return left[rater.slot % len(left)]


def enter_into_run(
    study: Study, given: Sequence[Given], drawn: Sequence[ChosenItem], run: Path
) -> int:
    """Put the answers into the run's own file, from which its next judgement reads them."""
    from hardcase.judges.answers import AnswerFile, PersonAnswer, read_answers
    from hardcase.runs.results import Run
    from hardcase_study.entering import enter_people

    known = {(one.image, one.rater) for one in read_answers(run)}
    rules = {one.item: one for one in drawn}
    file = AnswerFile(run)
    new = 0
    for one in given:
        item = study.items[one.item]
        stimulus = study.stimuli[item.stimuli[0]]
        image = stimulus.finding or stimulus.seed
        if (image, one.rater) in known or not (one.item in rules or item.use == "attention"):
            continue
        draw = rules.get(one.item)
        file.add(
            PersonAnswer(
                image,
                str(one.value["label"]),
                study.class_name(stimulus.expected),
                one.rater,
                one.seconds,
                draw.probability if draw else None,
                draw.rule if draw else "a check: a real image",
                f"{study.settings['id']}/{one.rater}",
                draw is None,
            )
        )
        new += 1
    enter_people(Run(run), asking_of(study, drawn, given))
    return new
