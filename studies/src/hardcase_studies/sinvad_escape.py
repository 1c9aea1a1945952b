"""SINVAD's RQ3: does class escape notice mixed training labels before the test set does (Figure 15), and does it tell pairs
of classes apart more than test errors do (Figure 14)?

S. Kang, R. Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.methods.sinvad import sinvad_code
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.types import Images
from hardcase_studies import figures
from hardcase_studies.bench import Bench, finite_mean
from hardcase_studies.escape import (
    CLEAN,
    LEVEL,
    Escapes,
    confusion,
    floor,
    measure,
    measure_as_published,
    unusual,
    ways_out,
)
from hardcase_studies.inference import correlation
from hardcase_studies.lab import Lab

PAIRS = ((0, 1), (2, 5), (6, 7))
QUICK = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
FULL = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3, 0.4, 0.5)
LOW = 0.1
HIGH = 0.2
PAPER = {
    "mnist": {"genetic search (paper)": (0.877, 0.977), "test error": (0.525, 0.952)},
    "cifar10": {"genetic search (paper)": (0.829, 0.911), "test error": (0.454, 0.930)},
}
PAPER["mnist5k"] = PAPER["mnist"]
OURS = "ways out (ours)"
FLOOR = "floor (ours, scores)"
GENETIC = "genetic search (paper)"
ERROR = "test error"
MEASURES = (OURS, FLOOR, GENETIC, ERROR)
PARTS = ("pairs", "rounds", "fill")
"""Options that only choose what a process measures."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Detection by pair of classes and share of mixed labels."""

    shares: tuple[float, ...]
    pairs: tuple[tuple[int, int], ...]
    of: dict[str, Float[Tensor, "p a"]]
    queries: dict[str, float]


def run(bench: Bench) -> Outcome:
    """Train one network for each pair, share and repeat, and see which measure follows the share.

    ``--set shares=[0.02,0.1] pairs=[[0,1]] attempts=60 walks=40``, ``--repeats N`` (trainings) change what is run. A study that
    was stopped goes on with the networks it lacks; several processes can fill one folder, each with ``fill=true`` and some
    ``pairs`` and ``rounds``.
    """
    here = Lab(bench)
    shares = (0.0, *bench.options.get("shares", FULL if bench.full else QUICK))
    pairs = tuple((int(a), int(b)) for a, b in bench.options.get("pairs", PAIRS))
    if max(max(pair) for pair in pairs) >= len(here.test.classes):
        raise HardcaseError(
            f"{here.test.name} has {len(here.test.classes)} classes; the pairs {pairs} do not fit."
        )
    trainings = range(bench.repeats or (6 if bench.full else 2))
    rounds = [
        _rates(bench, here, pairs, shares, int(number))
        for number in bench.options.get("rounds", trainings)
    ]
    if bench.options.get("fill"):
        return Outcome("sinvad-rq3", [])
    return Outcome("sinvad-rq3", [_correlations(here, rounds), _detection(_mean(rounds))])


def pollute(images: Images, pair: tuple[int, int], share: float, *, seed: int = 0) -> Images:
    """`images` with a `share` of each class of `pair` labelled as the other; a larger share contains a smaller one."""
    if not 0 <= share <= 1 or pair[0] == pair[1]:
        raise HardcaseError(
            f"a share of {share} of classes {pair} cannot be mixed.",
            fix="a share from 0 to 1 of two classes",
        )
    y = images.y.clone()
    for own, other in (pair, pair[::-1]):
        members = (images.y == own).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=stream(seed, "pollution", own, other))
        y[members[order[: round(share * len(members))]]] = other
    return replace(
        images,
        y=y,
        name=f"{images.name}, {share:g} of {pair[0]} and {pair[1]} mixed" if share else images.name,
    )


def _rates(
    bench: Bench, here: Lab, pairs: Sequence[tuple[int, int]], shares: Sequence[float], number: int
) -> Rates:
    seed = bench.seed + number
    found = {name: torch.zeros(len(pairs), len(shares)) for name in MEASURES}
    spent = dict.fromkeys(found, 0.0)
    for p, pair in enumerate(pairs):
        base: dict[str, float] = {}
        for a, share in enumerate(shares):
            numbers = _cell(bench, here, pair, share, seed)
            said = dict(zip(MEASURES, numbers, strict=False))
            base = base or {**said, ERROR: 0.0}
            for name in found:
                found[name][p, a] = said[name] - base[name]
            spent[OURS] += numbers[-2]
            spent[GENETIC] += numbers[-1]
    networks = len(pairs) * len(shares)
    return Rates(
        tuple(shares),
        tuple(pairs),
        found,
        {name: value / networks for name, value in spent.items()},
    )


def _cell(
    bench: Bench, here: Lab, pair: tuple[int, int], share: float, seed: int
) -> Sequence[float]:
    """The measures of one network, then the queries per seed of the two searches; kept once they are measured."""

    def numbers() -> list[float]:
        subject, accuracy = _network(here, pollute(here.train, pair, share, seed=seed), seed)
        spent = dict.fromkeys(MEASURES, 0.0)
        said = _measures(bench, here, subject, pair, spent)
        bench.say(
            f"{pair[0]} and {pair[1]}, {share:g} mixed: accuracy {accuracy:.3f}, " + _told(said)
        )
        return [*(said[name] for name in MEASURES), spent[OURS], spent[GENETIC]]

    return bench.cell(f"{pair} {share:g} {seed}", numbers, but=PARTS)


def _told(said: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in said.items())


def _network(here: Lab, train: Images, seed: int) -> tuple[Subject, float]:
    subject, card = here.network(here.subject.name, train=train, seed=seed)
    return subject, card["accuracy"]


def _measures(
    bench: Bench, here: Lab, subject: Subject, pair: tuple[int, int], spent: dict[str, float]
) -> dict[str, float]:
    """The three rates between the two classes of `pair`, both ways together."""
    rows = ((here.test.y == pair[0]) | (here.test.y == pair[1])).nonzero().squeeze(1)
    both = here.test.take(rows)
    attempts = bench.size("attempts", 60, 200)
    seeds = both.sample(count=min(attempts, len(both)), seed=bench.seed)
    walks = bench.size("walks", 40, 40)
    ours, _, _ = measure(
        subject, ways_out(here.space, here.codes, walks=walks), seeds, seed=bench.seed
    )
    theirs = measure_as_published(
        subject,
        lambda target: sinvad_code(space=here.space, target=target),
        seeds,
        seed=bench.seed,
        targets=pair,
    )
    for name, some in ((OURS, ours), (GENETIC, theirs)):
        spent[name] += some.queries / max(some.seeds, 1)
    wrong = confusion(subject, both)
    kept = floor(subject, both)
    return {
        OURS: _between(ours, pair),
        FLOOR: float(kept[pair] + kept[pair[::-1]]) / 2,
        GENETIC: _between(theirs, pair),
        ERROR: float(wrong[pair] + wrong[pair[::-1]]) / len(both),
    }


def _between(escapes: Escapes, pair: tuple[int, int]) -> float:
    hits = int(escapes.entered[pair] + escapes.entered[pair[::-1]])
    return hits / max(int(escapes.attempts[list(pair)].sum()), 1)


def _mean(rounds: Sequence[Rates]) -> Rates:
    """The mean over repetitions."""
    of = {name: torch.stack([some.of[name] for some in rounds]).mean(0) for name in rounds[0].of}
    return Rates(rounds[0].shares, rounds[0].pairs, of, rounds[0].queries)


def _correlations(here: Lab, rounds: Sequence[Rates]) -> Table:
    rates = rounds[0]
    parts = [torch.tensor(rates.shares) <= LOW, torch.tensor(rates.shares) >= HIGH]
    rows: list[list[Cell]] = []
    for name in rates.of:
        paper = PAPER.get(here.test.name, {}).get(name, ("", ""))
        cells: list[Cell] = [name]
        for part, published in zip(parts, paper):
            followed = _by_training(rounds, name, part)
            cells.append("not enough shares" if followed is None else _over(followed))
            cells.append(str(published))
        lead = _lead(rounds, name, parts[0]) if name != ERROR else ""
        rows.append([*cells, lead, _undefined(rounds, name, parts[0]), rates.queries[name] or ""])
    columns = [
        "measure", f"r, shares ≤ {LOW}", "paper", f"r, shares ≥ {HIGH}", "paper ",
        f"lead over the test error, shares ≤ {LOW}", f"r without a value, shares ≤ {LOW}",
        "queries per seed",
    ]  # fmt: skip
    notes = [
        *here.notes,
        f"pairs {', '.join(f'{a} and {b}' for a, b in rates.pairs)}, one pair a network; shares {', '.join(map(str, rates.shares))}; "
        f"{len(rounds)} training(s) of each network",
        "detection: rate at that share minus rate without mixing (test error: errors between the two ÷ their images)",
        "ways out: share of random walks out of one class that enter the other; floor: median probability of the other class on "
        "test images; genetic search: share of attempts that reach the other class",
        "r: Pearson's coefficient of each training, averaged over the pairs that have one, unmixed networks included: a measure that "
        "never moves has none; 95 % intervals are over trainings, not the shares, which are a design",
        "lead: over the pairs of a training in which both measures have a coefficient",
    ]
    return Table(
        "Figure 15: correlation of detection with the share of mixed labels", columns, rows, notes
    )


def _by_pair(
    rounds: Sequence[Rates], name: str, part: Bool[Tensor, " a"]
) -> Float[Tensor, "t p"] | None:
    """Each training's coefficient of each pair, NaN where it has none; nothing for a single share."""
    if int(part.sum()) < 2:
        return None
    shares = torch.tensor(rounds[0].shares)[part].expand(len(rounds[0].pairs), -1)
    return torch.stack([correlation(shares, some.of[name][:, part]) for some in rounds])


def _by_training(
    rounds: Sequence[Rates], name: str, part: Bool[Tensor, " a"]
) -> Float[Tensor, " t"] | None:
    """The mean over the pairs that have a coefficient, for each training; NaN where none has."""
    each = _by_pair(rounds, name, part)
    return None if each is None else each.nanmean(1)


def _lead(rounds: Sequence[Rates], name: str, part: Bool[Tensor, " a"]) -> str:
    """By how much a measure's correlation exceeds the test error's, on the same networks."""
    of_measure, of_error = (_by_pair(rounds, each, part) for each in (name, ERROR))
    if of_measure is None or of_error is None:
        return ""
    return _over((of_measure - of_error).nanmean(1), "+")


def _undefined(rounds: Sequence[Rates], name: str, part: Bool[Tensor, " a"]) -> str:
    """How many coefficients do not exist because the measure never moved."""
    each = _by_pair(rounds, name, part)
    return "" if each is None else f"{int(each.isnan().sum())} of {each.numel()}"


def _over(values: Float[Tensor, " t"], sign: str = "") -> str:
    """The mean with an interval over trainings; one training has none."""
    most = 2.0 if sign else 1.0  # of differences of coefficients, of coefficients
    return finite_mean(values, unit="trainings", within=(-most, most)).text(f"{sign}.3f")


def _detection(rates: Rates) -> Table:
    rows: list[list[Cell]] = [
        [f"{a} and {b}", name, *map(float, found[p])]
        for p, (a, b) in enumerate(rates.pairs)
        for name, found in rates.of.items()
    ]
    return Table(
        "Detection rates", ["pair", "measure", *(f"{share:g}" for share in rates.shares)], rows
    )


def matrix(bench: Bench) -> Outcome:
    """Figure 14: how often the genetic search from each class arrives in each other, beside the test set's confusion matrix.

    ``--set seeds=N`` images of the test half start it, about a tenth of them in each class: the paper's 1,000 attempts a pair are
    10,000 seeds (``--full``). A study that was stopped goes on with the next target.
    """
    here = Lab(bench)
    subject = here.subject
    images = here.test.sample(count=bench.size("seeds", 200, 10_000), seed=bench.seed)
    columns = []
    for target in range(len(here.test.classes)):
        bench.say(f"genetic search from {len(images)} images to class {target}")
        columns.append(_arrivals(bench, here, subject, images, target))
    attempts = torch.stack([tried for tried, _ in columns]).amax(0)
    arrived = torch.stack([entered for _, entered in columns], 1)
    wrong = confusion(subject, here.test).double()
    errors = _of_a_thousand(wrong, wrong.sum(1))
    escapes = _of_a_thousand(arrived, attempts)
    shown = {"test images given to, %": errors / 1000, "genetic search arrives, %": escapes / 1000}
    figure = figures.matrices(bench.out / "escape.png", shown, here.test.classes)
    notes = [
        *here.notes,
        f"{int(attempts.sum())} attempts' starts, {int(attempts.min())} to {int(attempts.max())} a class; the paper has 1,000 a pair",
    ]
    tables = [
        _pronounced(errors, escapes, notes),
        _square("Escapes of 1,000 attempts", here.test.classes, escapes),
        _square("Errors of 1,000 test images", here.test.classes, errors),
    ]
    return Outcome("sinvad-matrix", tables, [figure])


def _arrivals(
    bench: Bench, here: Lab, subject: Subject, images: Images, target: int
) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]]:
    """Attempts from each class to reach `target`, and arrivals; kept once they are measured."""

    def numbers() -> list[float]:
        found = measure_as_published(
            subject,
            lambda to: sinvad_code(space=here.space, target=to),
            images,
            seed=bench.seed,
            targets=(target,),
        )
        return [*found.attempts.tolist(), *found.entered[:, target].tolist()]

    both = torch.tensor(bench.cell(f"arrivals in {target}", numbers), dtype=torch.float64)
    attempts, arrived = both.chunk(2)
    return attempts, arrived


def _of_a_thousand(counts: Float[Tensor, "k k"], of: Float[Tensor, " k"]) -> Float[Tensor, "k k"]:
    return (1000 * counts / of.clamp_min(1)[:, None]).fill_diagonal_(torch.nan)


RESAMPLES = 2000


def _pronounced(
    errors: Float[Tensor, "k k"], escapes: Float[Tensor, "k k"], notes: Sequence[str]
) -> Table:
    """How much ordered pairs of classes differ in each matrix; pairs are resampled for the intervals."""
    there = ~errors.isnan()
    both = torch.stack([errors[there], escapes[there]])
    pairs = both.shape[1]
    rng = stream(0, "pairs of classes")
    drawn = torch.randint(pairs, (RESAMPLES, pairs), generator=rng)
    spread = both[:, drawn].std(-1)
    difference = spread[1] - spread[0]

    def text(value: Tensor, draws: Tensor) -> str:
        low, high = draws.quantile(torch.tensor([0.025, 0.975], dtype=draws.dtype)).tolist()
        return f"{float(value):.1f} [{low:.1f}, {high:.1f}]"

    deviation = both.std(-1)
    none = (both == 0).sum(1).tolist()
    rows: list[list[Cell]] = [
        ["errors", text(deviation[0], spread[0]), none[0], pairs],
        ["escapes", text(deviation[1], spread[1]), none[1], pairs],
        ["escapes above errors", text(deviation[1] - deviation[0], difference), "", pairs],
    ]
    columns = ["matrix", "standard deviation over pairs, of 1,000", "pairs with none", "pairs"]
    return Table("Figure 14: how pronounced the differences are", columns, rows, notes)


def _square(title: str, classes: Sequence[str], values: Float[Tensor, "k k"]) -> Table:
    rows: list[list[Cell]] = [
        [name, *("" if cell != cell else round(cell, 1) for cell in row)]
        for name, row in zip(classes, values.tolist(), strict=True)
    ]
    return Table(title, ["from", *(f"to {name}" for name in classes)], rows)


def null(bench: Bench) -> Outcome:
    """How often ways out name a mixed pair, and a clean one, against clean retrainings (``hardcase escape --clean``).

    ``--set clean=10 shares=[0.02,0.05,0.1,0.2] pairs=[[0,1]] tested=2 seeds=100 walks=40`` change what is run.
    """
    here = Lab(bench)
    pairs = [(int(a), int(b)) for a, b in bench.options.get("pairs", PAIRS[:1])]
    shares = [float(share) for share in bench.options.get("shares", (0.02, 0.05, 0.1, 0.2))]
    count = bench.size("clean", CLEAN, 20)
    images = here.test.sample(count=bench.size("seeds", 100, 500), seed=bench.seed)
    walks = ways_out(here.space, here.codes, walks=bench.size("walks", 40, 40))

    def rate(train: Images, seed: int) -> Float[Tensor, "k w"]:
        subject, _ = _network(here, train, seed)
        return measure(subject, walks, images, seed=bench.seed)[0].rate

    bench.say(f"{count} clean networks")
    clean = [rate(here.train, 1 + number) for number in range(count)]
    tested = [1 + count + number for number in range(bench.size("tested", 2, 5))]
    rows: list[list[Cell]] = []
    for pair, share in [(pairs[0], 0.0), *((pair, s) for pair in pairs for s in shares)]:
        for seed in tested:
            bench.say(f"{pair[0]} and {pair[1]}, {share:g} mixed, training {seed}")
            p = unusual(rate(pollute(here.train, pair, share, seed=seed), seed), clean)
            own = min(float(p[pair]), float(p[pair[::-1]]))
            others = [cell for cell in (p <= LEVEL).nonzero().tolist() if set(cell) != set(pair)]
            name = f"{pair[0]} and {pair[1]}, {share:g} mixed" if share else "nothing mixed"
            found = "none" if not share else f"{own:.2f}"
            named = "yes" if share and own <= LEVEL else "no"
            rows.append([f"{name}, training {seed}", found, named, len(others)])
    notes = [
        *here.notes,
        f"{count} networks trained on clean labels are the null; others, from other weights, are tested against them",
        f"p: the share of clean retrainings whose most unusual pair is as unusual; at most {LEVEL} names a pair; with {count} "
        f"retrainings no p is below {1 / (1 + count):.2f}",
    ]
    columns = ["network", "p of the mixed pair", "named", "other pairs named"]
    return Outcome(
        "escape-null", [Table("Ways out against clean retrainings", columns, rows, notes)]
    )
