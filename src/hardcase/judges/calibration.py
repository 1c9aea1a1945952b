"""A judge against people: rules that agree with them, thresholds, and honest error rates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from hardcase.cache import open_npz
from hardcase.errors import Problem
from hardcase.judges.own_run import FEWEST, own_rule
from hardcase.judges.rules import (
    MISSED,
    Answers,
    DecisionRule,
    Signals,
    auroc_interval,
    error_rates,
    fit_to_people,
    precise_from,
    precision,
)
from hardcase.statistics import mean_interval
from hardcase.tensors import digest_tensors, fingerprints
from hardcase.types import Images

# Images that people have looked at: what they said, and what counts as the truth.

NEEDED = ("images", "expected", "predicted", "generator", "rater1", "rater2")
FORMAT = (
    "Human labels are arrays images (8-bit), expected, predicted, generator, rater1, rater2 (the"
    " class seen, -1 for none)."
)
COUNTS = (
    "Counts of people are arrays images (8-bit) and counts (a row per image, a column per class,"
    " perhaps one more for none of them)."
)


@dataclass(frozen=True, slots=True)
class People:
    """Images that two people have looked at, and the class that each of them saw; -1: none.

    Where a study knows the seed that each image was made from, each of the two answers is the
    majority of one half of the raters.
    """

    x: UInt8[Tensor, "m c h w"]
    expected: Int[Tensor, " m"]
    predicted: Int[Tensor, " m"]
    generator: tuple[str, ...]
    rater1: Int[Tensor, " m"]
    rater2: Int[Tensor, " m"]
    seed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.expected)

    def __getitem__(self, rows: Bool[Tensor, " m"]) -> People:
        """Return the images where `rows` is true."""
        chosen = rows.nonzero().squeeze(1).tolist()
        return People(
            self.x[rows],
            self.expected[rows],
            self.predicted[rows],
            tuple(self.generator[i] for i in chosen),
            self.rater1[rows],
            self.rater2[rows],
            tuple(self.seed[i] for i in chosen if self.seed),
        )

    def half(self, number: int) -> People:
        """Return the same images as one half of the raters (1 or 2) saw them."""
        answers = (self.rater1, self.rater2)[number - 1]
        return replace(self, rater1=answers, rater2=answers)

    @property
    def label_kept(self) -> Int[Tensor, " m"]:
        """1: both raters saw the expected class; 0: neither did; -1: split."""
        return _both_agree(self.rater1 == self.expected, self.rater2 == self.expected)

    @property
    def valid(self) -> Int[Tensor, " m"]:
        """1: both raters saw some class; 0: neither did; -1: split."""
        return _both_agree(self.rater1 >= 0, self.rater2 >= 0)

    @property
    def confirmed(self) -> Bool[Tensor, " m"]:
        """Both raters saw the expected class; a split counts as not confirmed."""
        return self.label_kept == 1


def _both_agree(first: Bool[Tensor, " m"], second: Bool[Tensor, " m"]) -> Int[Tensor, " m"]:
    return torch.where(first & second, 1, torch.where(first | second, -1, 0))


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file."""
    try:
        with open_npz(file) as stored:
            return {name: stored[name] for name in stored}
    except FileNotFoundError:
        raise Problem(f"there is no file {file}.") from None
    except Exception as error:  # damaged archives raise many kinds
        raise Problem(f"{file} is not an npz file of plain arrays: {error}") from error


def _require(arrays: Mapping[str, Any], names: Sequence[str], where: str, form: str) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise Problem(f"{where} has no array {missing[0]!r}.", form)


def _channels_first(x: np.ndarray, shape: tuple[int, ...], where: str) -> UInt8[Tensor, "n c h w"]:
    """8-bit images of a judge's shape, whose channels may come last or be left out."""
    images = x
    if x.ndim == 3:
        images = x[:, None]
    elif x.shape[1:] == (*shape[1:], shape[0]):
        images = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8 or not len(x) or images.shape[1:] != shape:
        raise Problem(
            f"{where} holds {len(x)} images of type {x.dtype} and shape {x.shape[1:]}; this judge"
            f" was made for 8-bit ones of {shape} (channels, height, width).",
            fix="labels of images of the judge's own data set",
        )
    return torch.from_numpy(np.ascontiguousarray(images))


def read_people(
    arrays: Mapping[str, Any], *, where: str, shape: tuple[int, ...], classes: int
) -> People:
    """Check labels of people in the arrays of the npz file `where`, for a judge of images of this
    shape (channels, height, width).
    """
    _require(arrays, NEEDED, where, FORMAT)
    x = _channels_first(np.asarray(arrays["images"]), shape, where)
    columns = {name: np.asarray(arrays[name]) for name in NEEDED[1:]}
    sizes = {name: len(column) for name, column in columns.items()}
    if {*sizes.values()} != {len(x)}:
        lengths = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise Problem(f"{where}: {len(x)} images, {lengths}.", FORMAT)
    names = tuple(map(str, columns.pop("generator")))
    numbers = {name: torch.from_numpy(own.astype(np.int64)) for name, own in columns.items()}
    for name, values in numbers.items():
        low = int(values.min())
        high = int(values.max())
        if low < -name.startswith("rater") or high >= classes:
            raise Problem(f"{where}: {name} runs from {low} to {high} for {classes} classes.")
    seeds = tuple(map(str, np.asarray(arrays.get("seed", ()))))
    return People(x, generator=names, seed=seeds, **numbers)


@dataclass(frozen=True, slots=True)
class PeopleCounts:
    """How many people named each class of some images, as soft targets (CIFAR-10H is such a set:
    J. Peterson et al., "Human uncertainty makes classification more robust", ICCV 2019); the last
    column counts "none of these".
    """

    x: UInt8[Tensor, "n c h w"]
    counts: Float[Tensor, "n k1"]

    @staticmethod
    def read(file: Path, shape: tuple[int, ...], classes: int) -> PeopleCounts:
        """Read an npz file of arrays ``images`` and ``counts``, a column per class and perhaps one
        more for none of them.
        """
        arrays = read_arrays(file)
        _require(arrays, ("images", "counts"), str(file), COUNTS)
        x = _channels_first(arrays["images"], shape, str(file))
        counts = torch.from_numpy(arrays["counts"].astype(np.float32))
        if len(counts) != len(x) or counts[:1].numel() not in (classes, classes + 1):
            raise Problem(
                f"{file} holds {len(x)} images and counts of shape {tuple(counts.shape)};"
                f" the data has {classes} classes.",
                COUNTS,
            )
        if not bool(((counts >= 0).all(1) & (counts.sum(1) > 0)).all()):
            raise Problem(f"{file}: some image has a negative count, or no answer at all.", COUNTS)
        counts = functional.pad(counts, (0, classes + 1 - counts.shape[1]))
        return PeopleCounts(x, counts)

    @property
    def hash(self) -> str:
        """What the card of a judge knows them by."""
        return digest_tensors({"x": self.x, "counts": self.counts})

    def beside(self, *known: Images) -> PeopleCounts:
        """Those about images that are in none of these sets."""
        seen = torch.cat([fingerprints(images.x) for images in known])
        rows = ~torch.isin(fingerprints(self.x), seen)
        return PeopleCounts(self.x[rows], self.counts[rows])

    def labels_of(self, train: Images) -> tuple[Images, Float[Tensor, "n k1"]]:
        """Return training images whose label is their row, and the target of each row: people's
        shares where they were asked, else the class. Other images that they saw are added.
        """
        targets = functional.one_hot(train.y.long(), self.counts.shape[1]).float()
        shares = self.counts / self.counts.sum(1, keepdim=True)
        place = {key: row for row, key in enumerate(fingerprints(self.x).tolist())}
        for row, key in enumerate(fingerprints(train.x).tolist()):
            if key in place:
                targets[row] = shares[place[key]]
        added = self.beside(train)
        targets = torch.cat([targets, added.counts / added.counts.sum(1, keepdim=True)])
        names = (*train.id, *(f"people-{row}" for row in range(len(added.x))))
        x = torch.cat([train.x, added.x])
        return replace(train, x=x, y=torch.arange(len(x)), id=names, context={}), targets


# A judge against people: rules that agree with them, thresholds, and honest error rates.
#
# The order in which a judge ranks images (its evidence, and so the AUROC) comes from real and made
# images alone: no label of a person has a part in it. Probabilities and answers do follow people,
# so those of a generator's images are given by rules and thresholds that were fitted without that
# generator; they are pooled, and all rates are measured on them. The rules that are kept afterwards
# are fitted on all images.

ENOUGH = 10
"""Rules are fitted where people agree on yes, and on no, for so many images."""
DOUBTED = 0.05
"""Yes is never said to the last such share of the right images."""
FOLDS = 5
Rules = Mapping[str, DecisionRule]


class TooFewRated(Problem):
    """People have not said enough to fit a judge to it."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rules fitted to people, and what is known of their errors (plain values, for a card)."""

    rules: dict[str, DecisionRule]
    measured: dict[str, Any]


def calibrate(
    signals: Signals, people: People, rules: Rules, *, plain: Rules | None = None
) -> Calibration:
    """Fit `rules` to what people said; measure them on what they were not fitted to.

    That is images of other generators; of a study also images of other seeds, and the answers of
    the other half of the raters.

    Where people gave one answer only to "valid", the rule of `plain` is kept. If they kept, or
    refused, the label of fewer than `ENOUGH` images, that is `TooFewRated`.
    """
    few = _few(people.label_kept)
    if few:
        raise TooFewRated(
            f"people agree that the label is kept {few}; {ENOUGH} of each are needed to fit a"
            " judge.",
            fix="more rated images, also of bad ones",
        )
    fitted_to = scored_by = people
    if people.seed:
        fitted_to = people.half(1)
        scored_by = people.half(2)
    folds, how = _folds(people)
    fixed = {name: (plain or rules)[name] for name in rules if _few(getattr(people, name))}
    final = {name: _fitted(rules[name], name, signals, people) for name in rules} | fixed
    pooled = {name: _pooled(rules[name], name, signals, fitted_to, folds) for name in rules}
    for name, rule in fixed.items():
        probability = rule.probability(signals).cpu()
        pooled[name] = (probability, rule.answers(probability))
    measured: dict[str, Any] = {}
    for name, rule in rules.items():
        truth: Tensor = getattr(scored_by, name)
        known = truth >= 0
        evidence = rule.evidence(signals).cpu()
        measured[name] = {
            "auroc": auroc_interval(evidence[known], truth[known] == 1),
            **error_rates(pooled[name][1], truth),
        }
        if not bool((people.rater1 == people.rater2).all()):
            measured[name]["one_rater"] = _left_out(rule, name, signals, people, folds)
    honest = [all(said) for said in zip(*(pooled[name][1] for name in rules))]
    return Calibration(
        final,
        {
            "images": len(people),
            "pooled_over": how,
            "not_fitted": sorted(fixed),
            **measured,
            "confirmed": precision(honest, scored_by.confirmed),
        },
    )


def _few(truth: Int[Tensor, " m"]) -> str:
    """How many images people said yes and no of, if these are too few to fit a rule to."""
    yes = int((truth == 1).sum())
    no = int((truth == 0).sum())
    if min(yes, no) >= ENOUGH:
        return ""
    return f"in {yes} and lost in {no} images"


Folds = list[tuple[Tensor, Tensor]]
"""Pairs of masks: images that rules are fitted to, and images these rules are then scored on."""


def seed_folds(
    generator: Sequence[str], seed: Sequence[str], blocks: int = 5
) -> list[tuple[Bool[np.ndarray, " m"], Bool[np.ndarray, " m"]]]:
    """Pairs of (rows to fit, rows to measure) that share no seed image and no generator.

    Each generator's images of each block of seeds are measured once, by rules fitted to the images
    that other generators made from other seeds; with one generator, to those from other seeds.

    >>> [(fit.tolist(), measure.tolist()) for fit, measure in seed_folds(["a", "b"], ["s", "t"])][0]
    ([False, True], [True, False])
    """
    makers = np.array(generator)
    # ordered by a hash of their names: the order in which they were found says something of them
    order = sorted(set(seed), key=lambda name: hashlib.blake2b(name.encode()).digest())
    count = min(blocks, max(2, len(order)))
    block_of = {name: i % count for i, name in enumerate(order)}
    block = np.array([block_of[name] for name in seed])
    several = len(set(generator)) > 1
    pairs = []
    for maker in sorted(set(generator)):
        for part in range(count):
            measure = (makers == maker) & (block == part)
            fit = (block != part) & ((makers != maker) | (not several))
            if measure.any():
                pairs.append((fit, measure))
    return pairs


def _folds(people: People) -> tuple[Folds, str]:
    """Every image is scored once by rules that have seen none of its generator (or seed)."""
    names = sorted(set(people.generator))
    if people.seed:
        pairs = seed_folds(people.generator, people.seed)
        how = f"{len(names)} generators, {len(set(people.seed))} seeds and two halves of the raters"
        return [(torch.from_numpy(fit), torch.from_numpy(own)) for fit, own in pairs], how
    if len(names) > 1:
        fold = torch.tensor([names.index(name) for name in people.generator])
        how = f"{len(names)} generators"
    else:
        fold = torch.arange(len(people)) % FOLDS
        how = f"{FOLDS} parts of one generator"
    return [(fold != number, fold == number) for number in sorted(set(fold.tolist()))], how


def _fitted(rule: DecisionRule, question: str, signals: Signals, people: People) -> DecisionRule:
    """Fit scale, offset and thresholds to people; unchanged where they gave one answer only."""
    truth: Tensor = getattr(people, question)
    known = truth >= 0
    if set(truth[known].tolist()) != {0, 1}:
        return rule
    # the answer of each rater counts: where they are split, so is the probability
    evidence = rule.evidence(signals).cpu().repeat(2)
    each = [getattr(people.half(number), question) == 1 for number in (1, 2)]
    fitted = fit_to_people(rule, evidence, torch.cat(each))
    probability = fitted.probability(signals).cpu()
    right = (truth == 1).double()  # what people were split about counts as wrong
    kept = probability[truth == 1]
    high = max(precise_from(probability, right, 1 - right), float(kept.quantile(DOUBTED)))
    return replace(fitted, low=float(kept.quantile(MISSED)), high=high)


def _pooled(
    rule: DecisionRule, question: str, signals: Signals, people: People, folds: Folds
) -> tuple[Float[Tensor, " m"], Answers]:
    """Probability and answer for every image by a rule that was fitted without its part."""
    pooled = torch.zeros(len(people), dtype=torch.float64)
    answers: list[bool | None] = [None] * len(people)
    for outside, inside in folds:
        fitted = _fitted(rule, question, signals[outside], people[outside])
        pooled[inside] = fitted.probability(signals[inside]).cpu()
        said: Answers = fitted.answers(pooled[inside])
        rows = inside.nonzero().squeeze(1).tolist()
        if len(rows) >= FEWEST:  # thresholds are those of a run, from its own signals
            odds = pooled[inside].logit(eps=1e-6).numpy()
            own = own_rule(odds, fitted.share)
            probability = own.probability(odds)
            pooled[inside] = torch.from_numpy(probability)
            said = own.said(probability)
        for row, answer in zip(rows, said):
            answers[row] = answer
    return pooled, tuple(answers)


def _left_out(
    rule: DecisionRule, question: str, signals: Signals, people: People, folds: Folds
) -> dict[str, Any]:
    """How often the judge, fitted to one rater, says what the other one says, beside how often the
    two say the same; the difference with an interval over images.

    A smoothed predictor can agree with single people more often than they with each other without
    being right: this shows parity, not truth.
    """
    theirs = [getattr(people.half(number), question) == 1 for number in (1, 2)]
    agrees = []
    for number, other in ((1, 2), (2, 1)):
        pooled, _ = _pooled(rule, question, signals, people.half(number), folds)
        agrees.append((pooled >= 0.5) == theirs[other - 1])
    judge = torch.stack(agrees).double().mean(0)
    pair = (theirs[0] == theirs[1]).double()
    gap = mean_interval(judge - pair, unit="images")
    ends = {"low": gap.low, "high": gap.high} if gap.known else {"low": None, "high": None}
    return {
        "judge": float(judge.mean()),
        "two_raters": float(pair.mean()),
        "difference": {"value": gap.value, **ends},
    }
