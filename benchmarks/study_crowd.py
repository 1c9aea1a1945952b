"""What the posterior and the stop rule are worth, on simulated crowds (no people) that neither was set on.

Twenty crowds with the shares of ambiguous, lost and kept images under which two raters agree as the two raters of 500 generated
digits did (V. Riccio, P. Tonella, ICSE 2023). An error is a label
that a rule names and 25 answers which it never saw do not: another one, or of an image on which fewer than 20 of them agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Figure
from hardcase_study.crowd import labelled
from hardcase_study.posterior import SURE, certainty, posterior
from hardcase_study.session import STOP, first_sure

RESULT = "study-crowd"
COMMAND = "python -m benchmarks study_crowd"
SEEDS = range(9_000, 9_020)
CATEGORIES = 11
ITEMS, MOST, HELD_OUT = 1_000, 7, 25
OPEN = -1
"""No label is named."""
NAMED = "a label named that held-out answers do not have, or of an image that they call ambiguous"


def figures() -> Iterator[Figure]:
    yield from _posterior()
    yield from _stopping()


def _figure(name: str, values: list[float], unit: str, against: str) -> Figure:
    """The mean over crowds; the spread of single crowds stands in the words."""
    spread = f"{min(values):.4g} to {max(values):.4g} over {len(values)} crowds"
    return Figure(
        name=name,
        value=float(np.mean(values)),
        unit=unit,
        against=f"{against}; {spread}",
        command=COMMAND,
    )


def _posterior() -> Iterator[Figure]:
    covered, sized, said, right = [], [], [], []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        made = labelled(600, 24, 5, rng)
        found = posterior(made.image, made.rater, made.answer, CATEGORIES, rng)
        order = np.argsort(-found.outcome, axis=1)
        mass = np.take_along_axis(found.outcome, order, 1).cumsum(1)
        size = (mass < 0.95).sum(1)
        covered.append(float(((order == made.truth[:, None]).argmax(1) <= size).mean()))
        sized.append(float((size + 1).mean()))
        sure = found.outcome.max(1) >= SURE
        said.append(float(found.outcome.max(1)[sure].mean()))
        right.append(float((found.outcome.argmax(1) == made.truth)[sure].mean()))
    against = "600 images, 24 raters, 5 answers an image; 0.95 was promised"
    yield _figure("posterior: 95 % sets that hold the truth", covered, "share", against)
    yield _figure("posterior: outcomes in a 95 % set", sized, "outcomes", "1 is the least")
    yield _figure(
        f"posterior: said, where {SURE} or more is said", said, "probability", "600 images"
    )
    yield _figure(f"posterior: true, where {SURE} or more is said", right, "share", "600 images")


def _stopping() -> Iterator[Figure]:
    """What a rule names, against what 25 answers that it never saw say: one class, or none (ambiguous)."""
    spent: dict[str, list[float]] = {}
    wrong: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        made = labelled(ITEMS, 200, MOST + HELD_OUT, np.random.default_rng(seed + 500))
        votes = made.answer.reshape(ITEMS, -1)
        held_out = [Counter(row[MOST:].tolist()).most_common(1)[0] for row in votes]
        clear = np.array([times >= 0.8 * HELD_OUT for _, times in held_out])
        truth = np.array([name for name, _ in held_out])
        rules = {f"fixed k = {k}": [_majority(row[:k]) for row in votes] for k in (3, 5)}
        rules["stop rule"] = [_stopped(row[:MOST]) for row in votes]
        for name, ends in rules.items():
            said, answers = (np.array(column) for column in zip(*ends))
            spent.setdefault(name, []).append(float(np.mean(answers)))
            named = said != OPEN
            error = named & (~clear | (said != truth))
            for which, own in (("all", clear | ~clear), ("clear", clear), ("ambiguous", ~clear)):
                wrong.setdefault(name, {}).setdefault(which, []).append(float(error[own].mean()))
    for name in spent:
        against = f"{ITEMS} images, at most {MOST} answers each"
        yield _figure(f"{name}: answers an image", spent[name], "answers", against)
        for which, shares in wrong[name].items():
            yield _figure(f"{name}: wrong, {which} images", shares, "share", NAMED)
    saved = [1 - one / five for one, five in zip(spent["stop rule"], spent["fixed k = 5"])]
    yield _figure("stop rule: answers saved against fixed k = 5", saved, "share", "goal 0.25")
    ours, five = (wrong[name]["all"] for name in ("stop rule", "fixed k = 5"))
    more = [one - other for one, other in zip(ours, five)]
    yield _figure("stop rule: error more than fixed k = 5, all images", more, "share", "goal 0")


def _majority(votes: np.ndarray) -> tuple[int, int]:
    """The label of more than half of the answers, or none; and how many answers there are."""
    name, times = Counter(votes.tolist()).most_common(1)[0]
    return int(name) if 2 * times > len(votes) else OPEN, len(votes)


def _stopped(votes: np.ndarray) -> tuple[int, int]:
    """What the stop rule names and after how many answers; none where it is never sure."""
    name, count = first_sure(votes.tolist(), CATEGORIES, STOP)
    counts = np.bincount(votes[:count], minlength=CATEGORIES)
    return name if certainty(counts) >= STOP else OPEN, count
