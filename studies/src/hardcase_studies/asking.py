"""Asking people where it pays: replayed on recorded raters, each generator a run nobody has seen.

The images are those of V. Riccio and P. Tonella, ICSE 2023, with the class that each of two persons
saw. For every generator the judge's rule is fitted to the other generators, then to the signals of
its own run, then to the recorded answers of one rater, asked about one by one as ``hardcase judge
RUN... --ask N`` does. Verdicts count where both raters agree, so half of what is asked is free of
the answer it is scored against: nothing that was asked is scored by the same rater's word alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hardcase.judges.asking import (
    PRECISE,
    Asking,
    BettingSequence,
    FindingPopulation,
    most_in_doubt,
)
from hardcase.judges.calibration import People
from hardcase.judges.judge import PanelJudge
from hardcase.judges.own_run import OwnRule, own_rule
from hardcase.judges.rules import Signals, fit_to_people, rules_from_card
from hardcase.statistics import Rate
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import from_bytes
from hardcase_studies.bench import Bench, share
from hardcase_studies.lab import Lab
from hardcase_studies.rated import judged_digits, judged_photographs

SHARES = (0.0, 0.05, 0.10, 0.15, 0.20, 0.30)
"""Parts of the images that are asked about."""
LARGE = 400
"""Images of a larger run, drawn with replacement from the recorded ones."""
RATES = ("generator", "random", "chosen", "ratio", "holds when stopped")
ASKED = 0.15
"""The part at which goals are measured."""


@dataclass(frozen=True)
class RatedRun:
    """The images of one generator as a run, judged by a rule that was fitted to the others.

    Args:
        name: The generator.
        rows: Which images of the file they are.
        population: What is asked about.
        kept: 1 both raters see the seed's class, 0 neither does, -1 they are split.
        raters: What each rater says: whether the seed's class is seen.
        open: Where lineages of the judge disagree, so that it leaves the label undecided.
    """

    name: str
    rows: np.ndarray
    population: FindingPopulation
    kept: np.ndarray
    raters: tuple[np.ndarray, np.ndarray]
    open: np.ndarray


def digits(bench: Bench) -> Outcome:
    """``--data mnist5k --set people=FILE.npz``: 500 rated digits of five generators."""
    judge, people = judged_digits(bench, Lab(bench))
    runs, _ = rated_runs(judge, people)
    note = (
        f"judge of {bench.data}: reads {judge.card['accuracy']:.1%} of"
        f" {judge.card['measured_images']} real images rightly"
    )
    return outcome("asking-digits", runs, bench, DIGIT_GOALS, note)


def photographs(bench: Bench) -> Outcome:
    """``--data "folder:PHOTOS?labels=prefix&split=all" --set people=FILE.npz``: 80 rated photographs of four generators.

    ``--set encoder=[…]`` names the networks that judge, one vote a lineage; ``learned=…`` how many photographs say what is usual.
    """
    names = bench.names("encoder", ("zoo:resnet50-imagenet", "zoo:efficientnet-lite0"))
    judge, people = judged_photographs(bench, names)
    runs, signals = rated_runs(judge, people)
    agreed = share(signals.seen >= 0)
    note = f"judge by {', '.join(names)}: its lineages agree about {agreed} of the rated images"
    return outcome("asking-photographs", runs, bench, PHOTO_GOALS, note)


def rated_runs(judge: PanelJudge, people: People) -> tuple[list[RatedRun], Signals]:
    """Each generator's images as a run, with the rule that the other generators' ratings give; and the judge's signals."""
    signals, looks = judge.panel.read(from_bytes(people.x), people.expected)
    rule = rules_from_card(judge.card)["label_kept"]
    evidence = rule.evidence(signals).cpu()
    said = [people.rater1 == people.expected, people.rater2 == people.expected]
    runs = []
    for name in sorted(set(people.generator)):
        own = torch.tensor([other == name for other in people.generator])
        others = torch.cat([each[~own] for each in said])
        fitted = fit_to_people(rule, evidence[~own].repeat(2), others)
        rows = own.nonzero().squeeze(1).numpy()
        odds = (fitted.scale * evidence + fitted.offset)[own].clamp(-13, 13).numpy()
        population = FindingPopulation(
            tuple(map(str, rows)), odds, fitted.share, len(rows), looks=looks.numpy()[rows]
        )
        kept = people.label_kept.numpy()[rows]
        first, second = (each.numpy()[rows] for each in said)
        unsure = (signals.seen < 0).cpu().numpy()[rows]
        runs.append(RatedRun(name, rows, population, kept, (first, second), unsure))
    return runs, signals


@dataclass(frozen=True)
class Verdict:
    """What is said of every image after some questions.

    Args:
        kept: 1 yes, 0 no, -1 undecided.
        first: The same without the third answer.
        truth: What both raters say.
        raters: What each of them says.
    """

    kept: np.ndarray
    first: np.ndarray
    truth: np.ndarray
    raters: np.ndarray

    def measured(self) -> dict[str, Rate]:
        """Accuracy where raters agree, share undecided, precision of yes in two ways."""
        known = self.truth >= 0
        yes = self.kept == 1
        right = int((yes & (self.truth == 1)).sum())
        return {
            "right": Rate(int((self.first == self.truth)[known].sum()), int(known.sum())),
            "one rater": Rate(int((self.first == self.raters).sum()), self.raters.size),
            "undecided": Rate(int((self.kept < 0).sum()), len(self.kept)),
            "precision": Rate(right, int(yes.sum())),
            "agreed": Rate(right, int((yes & known).sum())),
        }


def asked_about(
    runs: Sequence[RatedRun], budget: int, chooser: str, rater: int, seed: int
) -> Verdict:
    """Ask one rater about images of several runs that share a budget; verdicts on all images."""
    asked = _CHOOSERS[chooser](runs, budget, rater, seed)
    kept, first = [], []
    for run, rows in zip(runs, asked):
        said = run.raters[rater][rows]
        rule = _rule(run, rows, said)
        probability = rule.probability(run.population.odds)
        answers = np.array([{True: 1, False: 0, None: -1}[one] for one in rule.said(probability)])
        answers[run.open] = -1
        plain = (probability >= 0.5).astype(int)
        answers[rows] = plain[rows] = said
        kept.append(answers)
        first.append(plain)
    truth = np.concatenate([run.kept for run in runs])
    raters = np.concatenate([np.stack(run.raters) for run in runs], 1)
    return Verdict(np.concatenate(kept), np.concatenate(first), truth, raters)


def _rule(run: RatedRun, rows: Sequence[int], said: np.ndarray) -> OwnRule:
    return own_rule(run.population.odds, run.population.presumed, asked=rows, answers=said.tolist())


def _chosen(runs: Sequence[RatedRun], budget: int, rater: int, seed: int) -> list[list[int]]:
    """As the program chooses: each question to the run in which most is in doubt."""
    sessions = [
        Asking(run.population, budget, None, 100 * seed + i, runs=len(runs))
        for i, run in enumerate(runs)
    ]
    for _ in range(budget):
        place = most_in_doubt(sessions)
        draw = None if place is None else sessions[place].draw()
        if place is None or draw is None:
            break
        sessions[place].answer(draw.number, bool(runs[place].raters[rater][draw.row]))
    return [[draw.row for draw in one.draws] for one in sessions]


def _random(runs: Sequence[RatedRun], budget: int, rater: int, seed: int) -> list[list[int]]:
    """Every image with the same chance."""
    places = [(i, row) for i, run in enumerate(runs) for row in range(len(run.rows))]
    order = np.random.default_rng((seed, rater, 5)).permutation(len(places))[:budget]
    return [[places[k][1] for k in order if places[k][0] == i] for i in range(len(runs))]


def _most_uncertain(
    runs: Sequence[RatedRun], budget: int, rater: int, seed: int
) -> list[list[int]]:
    """Always the image whose probability is nearest to one half; no rate can be had from it."""
    asked: list[list[int]] = [[] for _ in runs]
    doubts = [_doubt(run, rows, rater) for run, rows in zip(runs, asked)]
    for _ in range(budget):
        place = int(np.argmax([doubt.max() for doubt in doubts]))
        asked[place].append(int(doubts[place].argmax()))
        doubts[place] = _doubt(runs[place], asked[place], rater)
    return asked


def _doubt(run: RatedRun, rows: Sequence[int], rater: int) -> np.ndarray:
    """Nearness of every probability to one half, by the answers so far; asked images have none."""
    rule = _rule(run, rows, run.raters[rater][list(rows)])
    doubt: np.ndarray = -abs(rule.probability(run.population.odds) - 0.5)
    doubt[list(rows)] = -1
    return doubt


_CHOOSERS: Mapping[str, Callable[[Sequence[RatedRun], int, int, int], list[list[int]]]] = {
    "chosen": _chosen,
    "random": _random,
    "uncertainty alone": _most_uncertain,
}


def resampled(run: RatedRun, size: int, seed: int) -> RatedRun:
    """A run of another size with the same joint distribution of signals and answers."""
    rng = np.random.default_rng((seed, size))
    rows = rng.integers(0, len(run.rows), size)
    said = np.stack(run.raters)[rng.integers(0, 2, size), rows]
    names = tuple(map(str, range(size)))
    people = FindingPopulation(
        names, run.population.odds[rows], run.population.presumed, attempted=size
    )
    return RatedRun(run.name, rows, people, run.kept[rows], (said, said), run.open[rows])


def answers_for_rate(run: RatedRun, rater: int, seed: int) -> tuple[int, bool]:
    """Answers until the rate is known to five points, and whether the interval then holds it."""
    asking = Asking(run.population, len(run.rows), None, seed)
    said = run.raters[rater]
    while (draw := asking.draw()) is not None:
        asking.answer(draw.number, bool(said[draw.row]))
    end = asking.standing()
    return end.answers, bool(end.low - 1e-9 <= said.mean() <= end.high + 1e-9)


def answers_at_random(run: RatedRun, rater: int, seed: int) -> tuple[int, bool]:
    """The same for a random order, whose interval knows nothing of a judge."""
    said = run.raters[rater]
    order = np.random.default_rng((seed, rater, 6)).permutation(len(said))
    seen = BettingSequence(len(said))
    for number, row in enumerate(order):
        left = len(said) - number
        mean = np.full(left, (seen.yes + 1) / (seen.answers + 2))
        seen.enter(np.full(left, 1 / left), mean, 0, bool(said[row]), distance=PRECISE)
        if seen.high - seen.low <= 2 * PRECISE + 1e-9:
            break
    return seen.answers, bool(seen.low - 1e-9 <= said.mean() <= seen.high + 1e-9)


@dataclass(frozen=True)
class Goal:
    """A figure to reach: its name, the row of the verdicts' table, which rate, and the bound."""

    name: str
    share: float
    figure: str
    bound: str

    def reached(self, value: float) -> str:
        """``reached`` or ``missed``."""
        number = float(self.bound.split()[1])
        good = value >= number if self.bound.startswith(">=") else value <= number
        return "reached" if good else "missed"


DIGIT_GOALS = (
    Goal("verdicts right where both raters agree, none asked", 0.0, "right", ">= 0.90"),
    Goal("the same, 15 % asked", ASKED, "right", ">= 0.96"),
    Goal("undecided, none asked", 0.0, "undecided", "<= 0.25"),
    Goal("undecided, 15 % asked", ASKED, "undecided", "<= 0.10"),
    Goal("precision of confirmed, none asked, a split counts as wrong", 0.0, "precision", ">= 0.93"),
    Goal("precision of confirmed, 15 % asked, a split counts as wrong", ASKED, "precision", ">= 0.93"),
    Goal("precision of confirmed, 15 % asked, where both raters agree", ASKED, "agreed", ">= 0.93"),
)  # fmt: skip
PHOTO_GOALS = (
    Goal("agrees with one rater, none asked", 0.0, "one rater", ">= 0.90"),
    Goal("the same, 20 % asked", 0.20, "one rater", ">= 0.95"),
    Goal("verdicts right where both raters agree, none asked", 0.0, "right", ">= 0.90"),
    Goal("right where both agree, 20 % asked", 0.20, "right", ">= 0.95"),
)


def outcome(
    name: str, runs: Sequence[RatedRun], bench: Bench, goals: Sequence[Goal], note: str
) -> Outcome:
    """The tables of a replay."""
    repeats = bench.repeats or 10
    total = sum(len(run.rows) for run in runs)
    figures = dict[tuple[str, float], dict[str, float]]()
    rows: list[list[Cell]] = []
    for chooser, part in _settings():
        bench.say(f"{chooser}, {part:.0%}")
        once = chooser == "uncertainty alone" or not part  # no chance in it
        ended = [
            asked_about(runs, round(part * total), chooser, rater, seed).measured()
            for seed in range(1 if once else repeats)
            for rater in (0, 1)
        ]
        mean = {key: float(np.mean([_share(one[key]) for one in ended])) for key in ended[0]}
        figures[chooser, part] = mean
        label = "none asked" if not part else f"{chooser}, {part:.0%}"
        rows.append([label, *(round(mean[key], 3) for key in mean)])
    rates = _rate_rows(runs, repeats, bench)
    large = _rate_rows([resampled(run, LARGE, bench.seed) for run in runs], repeats, bench)
    reached: list[list[Cell]] = []
    for goal in goals:
        value = figures["chosen", goal.share][goal.figure]
        reached.append([goal.name, round(value, 3), goal.bound, goal.reached(value)])
    wanted = {
        f"answers for a rate to ± 5 points, against random choice, runs of {LARGE}": (large, 3),
        "the same, runs as recorded": (rates, 3),
        f"coverage of that rate when stopped, runs of {LARGE}": (large, 4),
        "its coverage, runs as recorded": (rates, 4),
    }
    for title, (table, column) in wanted.items():
        bound = "<= 0.85" if column == 3 else ">= 0.95"
        number = float(str(table[-1][column]))
        reached.append([title, number, bound, Goal(title, 0, "", bound).reached(number)])
    notes = [
        note,
        f"two raters agree with each other in {_pair(runs):.3f}",
        f"{len(runs)} generators, each judged by rules fitted to the others; means over both raters and {repeats} draws",
        "questions go to the generator where most is in doubt; settings were chosen on the rated digits, so of digits this is no test",
        f"raters agree on {sum(int((run.kept >= 0).sum()) for run in runs)} of {total} images",
    ]
    return Outcome(
        name,
        [
            Table("Goals", ("figure", "measured", "goal", "outcome"), reached, notes),
            Table(
                "Verdicts",
                ("asked", "right where raters agree", "agrees with one rater", "undecided", "precision of confirmed",
                 "precision where raters agree"),
                rows,
                ("of what is confirmed, images on which raters are split count as wrong, but in the last column",),
            ),
            Table("Answers for a rate to ± 5 points", RATES, rates, ("runs as recorded",)),
            Table(
                f"Answers for a rate to ± 5 points, runs of {LARGE}",
                RATES,
                large,
                (f"{LARGE} images drawn with replacement from those of each generator, each with the word of one of its raters",),
            ),
        ],
    )  # fmt: skip


def _pair(runs: Sequence[RatedRun]) -> float:
    return float(np.mean(np.concatenate([run.raters[0] == run.raters[1] for run in runs])))


def _settings() -> Iterator[tuple[str, float]]:
    for part in SHARES:
        for chooser in _CHOOSERS if part else ("chosen",):
            yield chooser, part


def _share(rate: Rate) -> float:
    return rate.hits / rate.of if rate.of else float("nan")


def _rate_rows(runs: Sequence[RatedRun], repeats: int, bench: Bench) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    sums = np.zeros(3)
    for run in runs:
        bench.say(f"a rate to ± 5 points: {run.name}")
        trials = [(rater, seed) for seed in range(repeats) for rater in (0, 1)]
        random = np.array([answers_at_random(run, *trial) for trial in trials], dtype=float)
        chosen = np.array([answers_for_rate(run, *trial) for trial in trials], dtype=float)
        numbers = np.array([random[:, 0].mean(), chosen[:, 0].mean(), chosen[:, 1].mean()])
        sums += numbers / len(runs)
        rows.append(_rate_row(run.name, numbers))
    return [*rows, _rate_row("all", sums)]


def _rate_row(name: str, numbers: np.ndarray) -> list[Cell]:
    random, chosen, holds = (float(value) for value in numbers)
    return [name, round(random, 1), round(chosen, 1), round(chosen / random, 3), round(holds, 3)]
