"""A judge held against people: thresholds that agree with them, and error rates on images that no
threshold was fitted to.
"""

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
from hardcase.errors import HardcaseError
from hardcase.judges.rules import (
    DecisionRule,
    Signals,
    error_rates,
    fit_to_people,
    precise_from,
    verdict_words,
)
from hardcase.statistics import auroc_interval, mean_interval
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

    Where a study knows the original of each image, each of the two answers is the majority of half
    of the raters.
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
        """Return the same images with the answers of half 1 or 2 of the raters."""
        answers = (self.rater1, self.rater2)[number - 1]
        return replace(self, rater1=answers, rater2=answers)

    @property
    def label_kept(self) -> Int[Tensor, " m"]:
        """1: both raters saw the expected class; 0: neither did; -1: split."""
        return _both_agree(self.rater1 == self.expected, self.rater2 == self.expected)

    @property
    def domain(self) -> Int[Tensor, " m"]:
        """1: both raters named a class; 0: neither did; -1: split."""
        return _both_agree(self.rater1 >= 0, self.rater2 >= 0)


def _both_agree(first: Bool[Tensor, " m"], second: Bool[Tensor, " m"]) -> Int[Tensor, " m"]:
    return torch.where(first & second, 1, torch.where(first | second, -1, 0))


def read_arrays(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file."""
    try:
        with open_npz(file) as stored:
            return {name: stored[name] for name in stored}
    except FileNotFoundError:
        raise HardcaseError(f"there is no file {file}.") from None
    except Exception as error:  # damaged archives raise many kinds
        raise HardcaseError(f"{file} is not an npz file of plain arrays: {error}") from error


def _require(arrays: Mapping[str, Any], names: Sequence[str], where: str, form: str) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise HardcaseError(f"{where} has no array {missing[0]!r}.", form)


def _channels_first(x: np.ndarray, shape: tuple[int, ...], where: str) -> UInt8[Tensor, "n c h w"]:
    """8-bit images of a judge's shape, whose channels may come last or be left out."""
    images = x
    if x.ndim == 3:
        images = x[:, None]
    elif x.shape[1:] == (*shape[1:], shape[0]):
        images = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8 or not len(x) or images.shape[1:] != shape:
        raise HardcaseError(
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
        raise HardcaseError(f"{where}: {len(x)} images, {lengths}.", FORMAT)
    names = tuple(map(str, columns.pop("generator")))
    numbers = {name: torch.from_numpy(own.astype(np.int64)) for name, own in columns.items()}
    for name, values in numbers.items():
        low = int(values.min())
        high = int(values.max())
        if low < -name.startswith("rater") or high >= classes:
            raise HardcaseError(f"{where}: {name} runs from {low} to {high} for {classes} classes.")
    seeds = tuple(map(str, np.asarray(arrays.get("seed", ()))))
    return People(x, generator=names, seed=seeds, **numbers)


@dataclass(frozen=True, slots=True)
class PeopleCounts:
    """Counts of people who named each class of an image, as soft targets (CIFAR-10H is such a
    set: J. Peterson et al., "Human uncertainty makes classification more robust", ICCV 2019); the
    last column counts "none of these".
    """

    x: UInt8[Tensor, "n c h w"]
    counts: Float[Tensor, "n k1"]

    @staticmethod
    def read(file: Path, shape: tuple[int, ...], classes: int) -> PeopleCounts:
        """Read an npz file of arrays ``images`` and ``counts``, a column per class and perhaps
        another for none of them.
        """
        arrays = read_arrays(file)
        _require(arrays, ("images", "counts"), str(file), COUNTS)
        x = _channels_first(arrays["images"], shape, str(file))
        counts = torch.from_numpy(arrays["counts"].astype(np.float32))
        if len(counts) != len(x) or counts[:1].numel() not in (classes, classes + 1):
            raise HardcaseError(
                f"{file} holds {len(x)} images and counts of shape {tuple(counts.shape)};"
                f" the data has {classes} classes.",
                COUNTS,
            )
        if not bool(((counts >= 0).all(1) & (counts.sum(1) > 0)).all()):
            raise HardcaseError(
                f"{file}: some image has a negative count, or no answer at all.", COUNTS
            )
        counts = functional.pad(counts, (0, classes + 1 - counts.shape[1]))
        return PeopleCounts(x, counts)

    @property
    def hash(self) -> str:
        """What the card of a judge knows them by."""
        return digest_tensors({"x": self.x, "counts": self.counts})

    def beside(self, *known: Images) -> PeopleCounts:
        """Those about images that are in none of these sets."""
        prints = torch.cat([fingerprints(images.x) for images in known])
        rows = ~torch.isin(fingerprints(self.x), prints)
        return PeopleCounts(self.x[rows], self.counts[rows])

    def labels_of(self, train: Images) -> tuple[Images, Float[Tensor, "n k1"]]:
        """Return training images whose label is their row, and the target of each row: people's
        shares where they are available, else the class. Other images that they saw are added.
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


# The order in which a judge ranks images (its evidence, and so the AUROC) comes from real and made
# images alone: no label of a person has a part in it. Probabilities and thresholds do follow
# people, so the verdicts on a generator's images that are measured here come from rules that were
# fitted without that generator. The rules that are kept afterwards are fitted on all images.

ENOUGH = 10
"""Least number of images with agreement on kept, and on lost, for a fit."""
FOLDS = 5
Rules = Mapping[str, DecisionRule]


class TooFewRated(HardcaseError):  # noqa: N818 - what is wrong
    """People's answers are too few to fit a judge to them."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The rules fitted to people, and their measured errors (plain values, for a card)."""

    rules: dict[str, DecisionRule]
    measured: dict[str, Any]


def calibrate(trainings: Sequence[Signals], people: People, rules: Rules) -> Calibration:
    """Fit scale and thresholds of a kept label to people's answers; measure them on answers outside
    the fit.

    That is images of other generators; of a study also images of other originals, and the answers
    of the other half of the raters.

    Args:
        trainings: What every training of the judge reads from the rated images.
        people: Their answers.
        rules: The rules of the judge as they are.

    Raises:
        TooFewRated: If people confirmed, or refused, the label of fewer than `ENOUGH` images.
    """
    shortage = _few(people.label_kept)
    if shortage:
        raise TooFewRated(
            f"people agree that the label is kept {shortage}; {ENOUGH} of each are needed to fit a"
            " judge.",
            fix="more rated images, also of bad ones",
        )
    fitted_to = scored_by = people
    if people.seed:
        fitted_to = people.half(1)
        scored_by = people.half(2)
    folds, how = _folds(people)
    truth = scored_by.label_kept
    agreed = truth >= 0
    evidence = rules["label_kept"].evidence(Signals.average(trainings)).cpu()
    _, words = _pooled(rules, trainings, fitted_to, folds)
    measured: dict[str, Any] = {
        "images": len(people),
        "pooled_over": how,
        "label_kept": {
            "auroc": auroc_interval(evidence[agreed], truth[agreed] == 1),
            **error_rates(words, truth),
        },
        "methods": {
            name: error_rates(
                [word for word, maker in zip(words, people.generator) if maker == name],
                truth[torch.tensor([maker == name for maker in people.generator])],
            )
            for name in sorted(set(people.generator))
        },
    }
    if not bool((people.rater1 == people.rater2).all()):
        measured["label_kept"]["one_rater"] = _one_rater(rules, trainings, people, folds)
    return Calibration({"label_kept": fitted(rules, trainings, people)}, measured)


def _few(truth: Int[Tensor, " m"]) -> str:
    """How many images people answered with yes and with no, if these are too few to fit a rule
    to."""
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

    Each generator's images of each block of seeds are measured once, by rules fitted to images of
    other generators from other seeds; with a single generator, to those from other seeds.

    >>> [(fit.tolist(), measure.tolist()) for fit, measure in seed_folds(["a", "b"], ["s", "t"])][0]
    ([False, True], [True, False])
    """
    makers = np.array(generator)
    # ordered by a hash of their names: the order in which they were found says something of them
    order = sorted(set(seed), key=lambda name: hashlib.blake2b(name.encode()).digest())
    count = min(blocks, max(2, len(order)))
    block_of = {name: i % count for i, name in enumerate(order)}
    block = np.array([block_of[name] for name in seed])
    more_generators = len(set(generator)) > 1
    pairs = []
    for maker in sorted(set(generator)):
        for part in range(count):
            measure = (makers == maker) & (block == part)
            fit = (block != part) & ((makers != maker) | (not more_generators))
            if measure.any():
                pairs.append((fit, measure))
    return pairs


def _folds(people: People) -> tuple[Folds, str]:
    """Every image is scored once by rules fitted without its generator (or seed)."""
    names = sorted(set(people.generator))
    if people.seed:
        pairs = seed_folds(people.generator, people.seed)
        how = f"{len(names)} generators, {len(set(people.seed))} seeds and two halves of the raters"
        return [
            (torch.from_numpy(fit), torch.from_numpy(test_fold)) for fit, test_fold in pairs
        ], how
    if len(names) > 1:
        fold = torch.tensor([names.index(name) for name in people.generator])
        how = f"{len(names)} generators"
    else:
        fold = torch.arange(len(people)) % FOLDS
        how = f"{FOLDS} parts of one generator"
    return [(fold != number, fold == number) for number in sorted(set(fold.tolist()))], how


def fitted(rules: Rules, trainings: Sequence[Signals], people: People) -> DecisionRule:
    """Return the rule of the label with scale and thresholds fitted to people's answers; unchanged
    if all answers are equal. The mean over the trainings is what counts, as in
    `verdict_words`.
    """
    rule = rules["label_kept"]
    truth = people.label_kept
    if not {0, 1} <= set(truth.tolist()):
        return rule
    # the answer of each rater counts: where they are split, so is the probability
    evidence = rule.evidence(Signals.average(trainings)).cpu().repeat(2)
    answers = [people.half(number).label_kept == 1 for number in (1, 2)]
    scaled = fit_to_people(rule, evidence, torch.cat(answers))
    chances = torch.stack([scaled.probability(each).cpu() for each in trainings]).mean(0)
    agreed = truth >= 0  # what people are split about is neither right nor wrong
    confirmed = (truth[agreed] == 1).double()
    high = precise_from(chances[agreed], confirmed, 1 - confirmed)
    # rated losses are few: the first image that people kept ends what is called lost
    low = 1 - precise_from(1 - chances[agreed], 1 - confirmed, confirmed, settled=1)
    return replace(scaled, low=min(low, high), high=high)


def _pooled(
    rules: Rules, trainings: Sequence[Signals], people: People, folds: Folds
) -> tuple[Float[Tensor, " m"], list[str]]:
    """Probability and verdict for every image by a rule that was fitted without its part."""
    pooled = torch.zeros(len(people), dtype=torch.float64)
    words = ["unsure"] * len(people)
    for outside, inside in folds:
        rule = fitted(rules, [each[outside] for each in trainings], people[outside])
        fold_rules = {**rules, "label_kept": rule}
        verdicts, chances = verdict_words(fold_rules, [each[inside] for each in trainings])
        pooled[inside] = chances.cpu()
        for row, word in zip(inside.nonzero().squeeze(1).tolist(), verdicts):
            words[row] = word
    return pooled, words


def _one_rater(
    rules: Rules, trainings: Sequence[Signals], people: People, folds: Folds
) -> dict[str, Any]:
    """Agreement of the judge, fitted to a rater, with the other rater, and agreement of the two
    raters; the difference with an interval over images.

    A smoothed predictor can agree with single people more often than they with each other without
    being right: this shows parity, not truth.
    """
    theirs = [people.half(number).label_kept == 1 for number in (1, 2)]
    agrees = []
    for number, other in ((1, 2), (2, 1)):
        pooled, _ = _pooled(rules, trainings, people.half(number), folds)
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
