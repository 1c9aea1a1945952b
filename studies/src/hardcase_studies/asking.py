"""Asking people: replayed on recorded raters, each generator a run nobody has seen.

The images are those of V. Riccio and P. Tonella, ICSE 2023, with the class that each of two persons saw. For every generator
the judge's probabilities come from thresholds that were fitted to the other generators, and stay as they are. One rater's
recorded answers are then asked for one by one, as ``hardcase judge RUN --ask N`` does, at random or by doubt, until the share
of kept labels is known to five points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hardcase.judges.calibration import People, fitted
from hardcase.judges.judge import TrainedJudge
from hardcase.judges.rules import verdict_words
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab
from hardcase_studies.rated import judged_digits, judged_photographs
from hardcase_study.asking import Choice, FindingPopulation, RatingSession

LARGE = 400
"""Images of a larger run, drawn with replacement from the recorded ones."""
CERTAIN = 1e-3
"""No probability is taken for more certain: one wrong answer must not end a session."""
COLUMNS = (
    "generator",
    "random, no judge",
    "random, judge as control variate",
    "by doubt",
    "holds: random, no judge",
    "holds: random",
    "holds: by doubt",
)


@dataclass(frozen=True)
class RatedRun:
    """The images of one generator as a run.

    Args:
        name: The generator.
        p_kept: What the judge says of each, by thresholds that were fitted to other generators.
        raters: What each rater says: whether the label is seen.
    """

    name: str
    p_kept: np.ndarray
    raters: tuple[np.ndarray, np.ndarray]


def digits(bench: Bench) -> Outcome:
    """``--data mnist5k --set people=FILE.npz``: 500 rated digits of five generators."""
    judge, people = judged_digits(bench, Lab(bench))
    return outcome("asking-digits", rated_runs(judge, people), bench)


def photographs(bench: Bench) -> Outcome:
    """``--data "folder:PHOTOS?labels=prefix&split=all" --set people=FILE.npz``: 80 rated photographs of four generators.

    ``--set encoder=[…]`` names the networks that judge, one vote a lineage; ``learned=…`` how many photographs say what is usual.
    """
    names = bench.names("encoder", ("zoo:resnet50-imagenet", "zoo:efficientnet-lite0"))
    judge, people = judged_photographs(bench, names)
    return outcome("asking-photographs", rated_runs(judge, people), bench)


def rated_runs(judge: TrainedJudge, people: People) -> list[RatedRun]:
    """Each generator's images as a run, with the probabilities that the other generators' ratings give."""
    trainings = judge.panel.ask(from_bytes(people.x), people.expected)
    answers = [people.rater1 == people.expected, people.rater2 == people.expected]
    runs = []
    for name in sorted(set(people.generator)):
        inside = torch.tensor([other == name for other in people.generator])
        rule = fitted(judge.rules, [each[~inside] for each in trainings], people[~inside])
        rules = {**judge.rules, "label_kept": rule}
        chances = verdict_words(rules, [each[inside] for each in trainings])[1].cpu().double()
        first, second = (each.numpy()[inside.numpy()] for each in answers)
        runs.append(RatedRun(name, chances.clamp(CERTAIN, 1 - CERTAIN).numpy(), (first, second)))
    return runs


def resampled(run: RatedRun, size: int, seed: int) -> RatedRun:
    """A run of another size with the same joint distribution of probabilities and answers."""
    rng = np.random.default_rng((seed, size))
    rows = rng.integers(0, len(run.p_kept), size)
    said = np.stack(run.raters)[rng.integers(0, 2, size), rows]
    return RatedRun(run.name, run.p_kept[rows], (said, said))


def answers_for_rate(
    run: RatedRun, rater: int, seed: int, *, choose: Choice = "random", judged: bool = True
) -> tuple[int, bool]:
    """Return after how many answers the share of kept labels is known to five points, and whether the interval then holds it;
    without `judged` every probability is one half.
    """
    chances = run.p_kept if judged else np.full(len(run.p_kept), 0.5)
    population = FindingPopulation(tuple(map(str, range(len(chances)))), chances, len(chances))
    session = RatingSession(population, len(chances), None, seed, choose=choose)
    truth = run.raters[rater]
    while (draw := session.draw()) is not None:
        session.answer(draw.number, bool(truth[draw.row]))
    end = session.status()
    return end.answers, bool(end.low - 1e-9 <= truth.mean() <= end.high + 1e-9)


def outcome(name: str, runs: Sequence[RatedRun], bench: Bench) -> Outcome:
    """The tables of a replay."""
    repeats = bench.repeats or 10
    recorded = _rows(runs, repeats, bench)
    large = _rows([resampled(run, LARGE, bench.seed) for run in runs], repeats, bench)
    notes = (
        f"{len(runs)} generators, each judged by thresholds fitted to the others; means over both raters and {repeats} draws",
        "answers until the interval is at most ten points wide; a without-replacement confidence sequence, 95 %",
    )
    return Outcome(
        name,
        [
            Table("Answers for a rate to ± 5 points", COLUMNS, recorded, (*notes, "runs as recorded")),
            Table(
                f"Answers for a rate to ± 5 points, runs of {LARGE}",
                COLUMNS,
                large,
                (f"{LARGE} images drawn with replacement from those of each generator, each with the word of one of its raters",),
            ),
        ],
    )  # fmt: skip


def _rows(runs: Sequence[RatedRun], repeats: int, bench: Bench) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    sums = np.zeros(6)
    ways: tuple[tuple[Choice, bool], ...] = (("random", False), ("random", True), ("doubt", True))
    for run in runs:
        bench.say(f"a rate to ± 5 points: {run.name}")
        trials = [(rater, seed) for seed in range(repeats) for rater in (0, 1)]
        ended = np.array(
            [
                [answers_for_rate(run, *trial, choose=choose, judged=judged) for trial in trials]
                for choose, judged in ways
            ],
            dtype=float,
        )
        numbers = np.concatenate([ended[:, :, 0].mean(1), ended[:, :, 1].mean(1)])
        sums += numbers / len(runs)
        rows.append(_row(run.name, numbers))
    return [*rows, _row("all", sums)]


def _row(name: str, numbers: np.ndarray) -> list[Cell]:
    answers = [round(float(value), 1) for value in numbers[:3]]
    return [name, *answers, *(round(float(value), 3) for value in numbers[3:])]
