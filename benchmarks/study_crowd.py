"""What the posterior and the stop rule are worth, on simulated crowds (no people) that neither was set on.

Twenty crowds with the shares of ambiguous, lost and kept images under which two raters agree as the two raters of 500 generated
digits did (V. Riccio, P. Tonella, ICSE 2023). Errors are against the majority of 25 answers that no rule saw, where at least 20 of them
agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from benchmarks.figures import Figure
from hardcase_study.crowd import labelled
from hardcase_study.posterior import SURE, posterior
from hardcase_study.session import STOP, first_sure

RESULT = "study-crowd"
COMMAND = "python -m benchmarks study_crowd"
SEEDS = range(9_000, 9_020)
CATEGORIES = 11
ITEMS, MOST, HELD_OUT = 1_000, 7, 25


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
    spent: dict[str, list[float]] = {}
    wrong: dict[str, list[float]] = {}
    for seed in SEEDS:
        made = labelled(ITEMS, 200, MOST + HELD_OUT, np.random.default_rng(seed + 500))
        votes = made.answer.reshape(ITEMS, -1)
        held_out = [Counter(row[MOST:].tolist()).most_common(1)[0] for row in votes]
        clear = np.array([times >= 0.8 * HELD_OUT for _, times in held_out])
        truth = np.array([name for name, _ in held_out])
        rules = {f"fixed k = {k}": [(_majority(row[:k]), k) for row in votes] for k in (3, 5)}
        rules["stop rule"] = [first_sure(row[:MOST].tolist(), CATEGORIES, STOP) for row in votes]
        for name, ends in rules.items():
            decided = np.array([each for each, _ in ends])
            spent.setdefault(name, []).append(float(np.mean([count for _, count in ends])))
            wrong.setdefault(name, []).append(float((decided != truth)[clear].mean()))
    for name in spent:
        against = f"{ITEMS} images, at most {MOST} answers each"
        yield _figure(f"{name}: answers an image", spent[name], "answers", against)
        yield _figure(f"{name}: wrong", wrong[name], "share", "clear images, answers held out")
    saved = [1 - one / five for one, five in zip(spent["stop rule"], spent["fixed k = 5"])]
    yield _figure("stop rule: answers saved against fixed k = 5", saved, "share", "goal 0.25")
    more = [one - five for one, five in zip(wrong["stop rule"], wrong["fixed k = 5"])]
    yield _figure("stop rule: error more than fixed k = 5", more, "share", "goal 0")


def _majority(votes: np.ndarray) -> int:
    return int(Counter(votes.tolist()).most_common(1)[0][0])
