"""A simulated crowd: raters of known ability, speed and honesty. Never people, and said so.

It drives tests and the power estimate. Whatever it answers is stored with the kind ``simulated``;
an analysis of such answers says so in its title, and nothing calibrates a judge with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from hardcase.errors import HardcaseError
from hardcase_study.answers import Answers, Given, Rater
from hardcase_study.bundle import Study, opaque
from hardcase_study.forms import GRADES, NONE, SCORES, UNSURE, Item

Array = np.ndarray
KEPT = 0.75
OTHER = 0.09
NOTHING = 0.04
SPLIT = 0.12
"""What a test is to people: still its seed's class, the class the network said, none, or ambiguous.

With `ACCURACY`, the shares under which two raters agree as the two raters of V. Riccio, P. Tonella,
ICSE 2023, did on 500 generated digits: both saw the expected digit in 72 %, both the same other one
in 8 %, neither a digit in 4 %; they disagreed on 15 %."""
ACCURACY = 0.95
SPREAD = 40.0
"""Mean and concentration of the raters' abilities (a Beta distribution)."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated rater."""

    ability: float = ACCURACY
    seconds: float = 3.0
    fatigue: float = 0.02
    cheats: bool = False


def crowd(count: int, rng: np.random.Generator, *, cheats: float = 0.0) -> list[Simulated]:
    """`count` raters; a share of `cheats` answers at random.

    >>> sum(one.cheats for one in crowd(10, np.random.default_rng(0), cheats=0.2))
    2
    """
    ability = rng.beta(ACCURACY * SPREAD, (1 - ACCURACY) * SPREAD, count)
    seconds = rng.lognormal(np.log(3.0), 0.3, count)
    dishonest = rng.permutation(count) < round(cheats * count)
    return [
        Simulated(float(a), float(s), 0.02, bool(c)) for a, s, c in zip(ability, seconds, dishonest)
    ]


@dataclass(frozen=True, slots=True)
class CrowdWorld:
    """What the images of a study are to people, drawn once; the truth of a simulation."""

    seen: dict[str, tuple[str, ...]]
    quality: dict[str, float]


def world(study: Study, rng: np.random.Generator) -> CrowdWorld:
    """A truth for every image: real ones are their label, tests what `KEPT` and its kin say.

    Images that show the same pixels (a repeat, a test in two arms) have the same truth.
    """
    seen: dict[str, tuple[str, ...]] = {}
    quality: dict[str, float] = {}
    known: dict[tuple[str, str, str], tuple[tuple[str, ...], float]] = {}
    methods = sorted({one.method for one in study.stimuli.values()} - {""})
    for name, one in sorted(study.stimuli.items()):
        mark = (one.run, one.finding, one.seed)
        if mark not in known:
            own = study.classes[one.expected]
            other = study.class_name(one.predicted) or NONE
            kinds = ((own,), (other,), (NONE,), (own, other))
            pick = int(rng.choice(4, p=(KEPT, OTHER, NOTHING, SPLIT))) if one.role == "test" else 0
            level = methods.index(one.method) / max(len(methods) - 1, 1) if one.method else -0.5
            known[mark] = (kinds[pick], float(1.0 - 2.0 * level + 0.4 * rng.normal()))
        seen[name], quality[name] = known[mark]
    return CrowdWorld(seen, quality)


@dataclass(frozen=True, slots=True)
class CrowdLabels:
    """Labels that a simulated crowd gave to images nobody made, for tests of posteriors."""

    truth: Int[Array, " u"]
    ability: Float[Array, " r"]
    image: Int[Array, " n"]
    rater: Int[Array, " n"]
    answer: Int[Array, " n"]


def labelled(
    items: int, raters: int, votes: int, rng: np.random.Generator, *, classes: int = 10
) -> CrowdLabels:
    """`votes` raters of `raters` on each of `items` images, in the shares of `KEPT` and its kin.

    >>> labelled(5, 8, 3, np.random.default_rng(0)).answer.shape
    (15,)
    """
    kind = rng.choice(4, items, p=(KEPT, OTHER, NOTHING, SPLIT))
    own = rng.integers(0, classes, items)
    other = (own + rng.integers(1, classes, items)) % classes
    truth = np.select([kind == 0, kind == 1, kind == 2], [own, other, classes], classes + 1)
    ability = rng.beta(ACCURACY * SPREAD, (1 - ACCURACY) * SPREAD, raters)
    image = np.repeat(np.arange(items), votes)
    rater = np.concatenate([rng.permutation(raters)[:votes] for _ in range(items)])
    either = np.where(rng.random(len(image)) < 0.5, own[image], other[image])
    seen = np.where(truth[image] > classes, either, truth[image])
    slip = (seen + rng.integers(1, classes + 1, len(image))) % (classes + 1)
    answer = np.where(rng.random(len(image)) < ability[rater], seen, slip)
    return CrowdLabels(truth, ability, image, rater, answer)


def answer(
    study: Study,
    item: Item,
    rater: Simulated,
    truth: CrowdWorld,
    rng: np.random.Generator,
    done: float,
) -> tuple[dict[str, Any], float]:
    """What `rater` says of `item`, and after how many seconds; `done` is the share of the list."""
    ability = rater.ability * (1 - rater.fatigue * done)
    if rater.cheats:
        return _at_random(study, item, rng), float(rng.uniform(0.2, 0.7))
    able = bool(rng.random() < ability)
    seen = [truth.seen[one] for one in item.stimuli]
    seconds = float(rng.lognormal(np.log(rater.seconds * (1.4 if len(seen[0]) > 1 else 1)), 0.35))
    if not able:
        return _at_random(study, item, rng), seconds
    one = seen[0][int(rng.integers(len(seen[0])))]
    noise = 0.5 * rng.normal(size=len(item.stimuli))
    liked = np.array([truth.quality[name] for name in item.stimuli]) + noise
    order = [item.stimuli[i] for i in np.argsort(-liked)]
    match item.form:
        case "label":
            return {"label": one if one in item.labels else NONE}, seconds
        case "same":
            return {"same": "yes" if one == item.labels[0] else "no"}, seconds
        case "scale":
            return {"score": _score(3 + liked[0])}, seconds
        case "resemble":
            return _resemble(item, truth.seen[item.stimuli[0]], rng), seconds
        case "rank":
            return {"order": order}, seconds
        case "grade":
            grades = {
                f"grade-{n}": GRADES[3 - int(np.clip(np.round(v + 1.5), 0, 3))]
                for n, v in zip(item.stimuli, liked)
            }
            return {"order": order, **grades}, seconds
        case "choose":
            return {"better": order[0]}, seconds
        case "change":
            stimulus = study.stimuli[item.stimuli[0]]
            shows = stimulus.arm == "faulty" and rng.random() < 0.8
            return {"change": "more" if shows else NONE}, seconds
    raise HardcaseError(f"a simulated rater has no answer to form {item.form!r}.")


def simulate(
    study: Study,
    *,
    raters: int | None = None,
    seed: int = 0,
    cheats: float = 0.0,
    place: str | None = None,
) -> CrowdWorld:
    """Let a simulated crowd answer `study`; returns the truth it answered by.

    Args:
        raters: How many; by default as many as the study wants.
        cheats: The share that answers at random.
        place: The database; by default the study's own.
    """
    rng = np.random.default_rng([seed, 11])
    store = Answers(place or study.folder)
    if any(one.kind != "simulated" for one in store.raters()):
        raise HardcaseError(
            f"people have answered {study.folder}; a simulated crowd must not be mixed in."
        )
    truth = world(study, rng)
    count = min(raters or study.raters, len(study.assignments))
    people: list[Rater] = []
    given: list[Given] = []
    for slot, one in enumerate(crowd(count, rng, cheats=cheats)):
        name = f"simulated-{opaque(study.settings['id'], seed, slot)}"
        plan = study.assignments[slot]
        people.append(Rater(name, slot, "simulated", "en", 0.0, 1.0))
        for position, item in enumerate(plan, 1):
            value, seconds = answer(study, study.items[item], one, truth, rng, position / len(plan))
            given.append(Given(name, item, position, value, seconds))
    store.add(people, given)
    store.close()
    return truth


def _at_random(study: Study, item: Item, rng: np.random.Generator) -> dict[str, Any]:
    from hardcase_study.forms import questions

    made: dict[str, Any] = {}
    for question in questions(item, study.thing):
        options = list(question.options)
        shuffled = [options[i] for i in rng.permutation(len(options))]
        plain = [one for one in shuffled if one != UNSURE]
        made[question.name] = shuffled if question.kind == "order" else plain[0]
    return made


def _resemble(item: Item, seen: Sequence[str], rng: np.random.Generator) -> dict[str, str]:
    """High for what is seen, low for the other label, middling for both where it is ambiguous."""
    ambiguous = len(seen) > 1
    clear = [4.6 if label == seen[0] else 1.4 for label in item.labels]
    level = [3.0] * len(clear) if ambiguous else clear
    return {name: _score(v + 0.6 * rng.normal()) for name, v in zip(("first", "second"), level)}


def _score(value: float) -> str:
    return SCORES[int(np.clip(np.round(value), 1, 5)) - 1]
