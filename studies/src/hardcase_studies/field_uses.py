"""What conditions from a field's images are good for: an order of networks, and a repair.

Part of ``hardcase reproduce field``. What is decided before any of these networks is trained stands here.

**Fields.** USPS: `FIELD` of its training digits tell the conditions, its test digits the accuracy. Optdigits: the same 1,797 digits
tell both. Labels are used for the accuracy alone.

**Order.** The networks are the first of the recipes of `decides`, trained on the training images. Each has an accuracy on the test
images, one under the conditions and the mix of classes that were fitted to a field, and one under the `scanner` profile (`DRAWS`
samples of every test image). What counts is 1 minus Spearman's correlation with the accuracy in the field; the goal is that of the
fitted conditions a third smaller than that of test accuracy, in both fields.

**Repair.** LeNet-5 is trained from `SEEDS` seeds, and each of these networks is trained on three times as `hardcase repair` does it
by default: with nothing changed, with the worst of four samples of the fitted conditions, and with the same of the `scanner` profile.
What counts is the accuracy on USPS's test digits; a training is the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from hardcase.conditions import condition_box
from hardcase.conditions.declared import Conditions
from hardcase.conditions.fitting.accuracy import logits_of
from hardcase.conditions.fitting.fit import FieldFit, fitted, prepared
from hardcase.conditions.fitting.render import Candidate, Renderer
from hardcase.data.sources import load
from hardcase.models.load import Loading, load_model
from hardcase.repair.folder import repairable
from hardcase.repair.front import split_validation, with_network
from hardcase.repair.loop import RepairRecipe, train_on
from hardcase.statistics import mean_interval
from hardcase.suite.tables import Cell, Table
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images, Model
from hardcase_studies.bench import Bench
from hardcase_studies.decides import _trained, optdigits, recipes

FIELD = 1_000
DRAWS = 8
SEEDS = 5
SMALLER = 2 / 3
GAIN = 2.0
"""Points on USPS that a repair is to gain over more epochs."""
FIELDS = ("USPS", "optdigits")
ARMS = ("before", "more epochs", "fitted conditions", "scanner profile")

ORDER = "order of networks, 1 - rho: fitted conditions against test accuracy"
ORDER_GOAL = "a third smaller on each"
REPAIR = "repair under fitted conditions, accuracy on USPS over more epochs, points"
REPAIR_GOAL = "≥ +2, not below scanner's"

Labelled = tuple[Float[Tensor, "n c h w"], Int[Tensor, " n"]]


@dataclass(frozen=True)
class Elsewhere:
    """Two fields, the conditions fitted to them, and what networks are measured on.

    Args:
        bench: The setup.
        usps: Training and test digits of USPS, as MNIST shows digits.
        scanner: The `scanner` profile as a candidate.
    """

    bench: Bench
    usps: tuple[Labelled, Labelled]
    scanner: Candidate
    _fits: dict[str, FieldFit] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def train(self) -> Images:
        return load(self.bench.data, split="train")

    @cached_property
    def test(self) -> Images:
        return load(self.bench.data, split="test")

    @cached_property
    def truths(self) -> dict[str, Labelled]:
        """The digits on which accuracy in each field is measured."""
        x, y = optdigits()
        return {"USPS": self.usps[1], "optdigits": (from_bytes(x), y)}

    def fit(self, name: str) -> FieldFit:
        """Return what the images of a field say; a second time it is read from the folder."""
        if name not in self._fits:
            self.bench.say(f"fitting conditions to {name}")
            x = self.usps[0][0] if name == "USPS" else self.truths[name][0]
            rows = np.random.default_rng(48).choice(len(x), FIELD, replace=False)
            ready = prepared(self.test, to_bytes(x[rows]), train=self.train)
            self._fits[name] = fitted(ready, folder=self.bench.out / "fits" / name)
        return self._fits[name]

    @cached_property
    def shown(self) -> dict[str, list[Float[Tensor, "n c h w"]]]:
        """The test images under the conditions of each field, and of the profile."""
        candidates = {name: self.fit(name).candidate for name in FIELDS}
        candidates["scanner"] = self.scanner
        return {
            name: [Renderer(self.test, 3, f"order {draw}")(one) for draw in range(DRAWS)]
            for name, one in candidates.items()
        }

    def accuracies(self, model: Model) -> list[float]:
        """Return accuracies: on test images, in each field, under the fitted conditions of each, and
        under the profile.
        """
        even = torch.full((len(self.test),), 1 / len(self.test), dtype=torch.float64)
        numbers = [_right(model, from_bytes(self.test.x), self.test.y, even)]
        for x, y in self.truths.values():
            share = torch.full((len(y),), 1 / len(y), dtype=torch.float64)
            numbers.append(_right(model, x, y, share))
        for name, renderings in self.shown.items():
            weights = even if name == "scanner" else self._weights(self.fit(name).classes)
            right = [_right(model, x, self.test.y, weights) for x in renderings]
            numbers.append(float(np.mean(right)))
        return numbers

    def _weights(self, classes: Mapping[str, float]) -> Float[Tensor, " n"]:
        """What each test image counts, so that classes count as in the field."""
        counts = torch.bincount(self.test.y, minlength=len(self.test.classes))
        shares = torch.tensor([classes[name] for name in self.test.classes], dtype=torch.float64)
        return (shares / counts)[self.test.y]


def _right(
    model: Model, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], weights: Float[Tensor, " n"]
) -> float:
    return float(weights @ (logits_of(model, x).argmax(1) == y).double())


def network(world: Elsewhere, number: int) -> list[float]:
    """Return the accuracies of the network of one recipe."""
    recipe = recipes()[number]
    world.bench.say(f"network {number + 1}: {recipe}")
    return world.accuracies(_trained(recipe, world.train, world.bench, number))


def repaired(world: Elsewhere, number: int) -> list[float]:
    """Return accuracies on USPS, then on test images, of every arm of one training."""
    how = Loading(train=world.train, test=world.test)
    before = repairable(load_model(f"zoo:lenet5?seed={number}", how))
    recipe = RepairRecipe(seed=number)
    learn, valid = split_validation(world.train, recipe)
    arms = {
        "more epochs": (Conditions.load("scanner"), 0),
        "fitted conditions": (world.fit("USPS").conditions, 4),
        "scanner profile": (Conditions.load("scanner"), 4),
    }
    models: list[Model] = [before]
    for name, (conditions, draws) in arms.items():
        world.bench.say(f"training {number + 1}: {name}")
        box = condition_box(conditions, world.train.shape)
        trained = train_on(before, learn, valid, box, replace(recipe, draws=draws))
        models.append(with_network(before, trained, name))
    sets = [world.truths["USPS"], (from_bytes(world.test.x), world.test.y)]
    return [
        float((logits_of(model, x).argmax(1) == y).double().mean())
        for x, y in sets
        for model in models
    ]


# The tables.


def order(rows: Sequence[Sequence[float]]) -> tuple[Table, list[Cell]]:
    """Return how well each figure orders networks, and what comes of the goal."""
    table = np.array(rows)
    columns = dict(zip(("test", *FIELDS, *(f"fitted to {f}" for f in FIELDS), "scanner"), table.T))
    cells, reached = list[list[Cell]](), list[bool]()
    for truth in FIELDS:
        figures = ("test", f"fitted to {truth}", "scanner")
        away = [_disorder(columns[name], columns[truth]) for name in figures]
        reached.append(away[1] <= SMALLER * away[0])
        verdict = "reached" if reached[-1] else "missed"
        cells.append([truth, *(f"{value:.3f}" for value in away), verdict])
    head = ["field", "test accuracy", "under fitted conditions", "under the scanner profile"]
    notes = [
        f"{len(table)} of {len(recipes())} recipes, one training each; goal: a third smaller",
        f"accuracy on test images {table[:, 0].min():.3f} to {table[:, 0].max():.3f}",
    ]
    found = Table("Order of networks: 1 - rho", [*head, "goal"], cells, notes)
    parts = ", ".join(f"{row[0]} {row[2]} against {row[1]}" for row in cells)
    verdict = "missed"
    if all(reached):
        verdict = "reached" if len(rows) == len(recipes()) else "inconclusive: too few networks"
    return found, [ORDER, ORDER_GOAL, f"{parts} ({len(rows)} networks)", verdict]


def _disorder(figure: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """One minus Spearman's correlation."""
    return 1 - float(stats.spearmanr(figure, truth)[0])


def repair(rows: Sequence[Sequence[float]]) -> tuple[Table, list[Cell]]:
    """Return the accuracy of every arm, and what comes of the goal."""
    table = 100 * np.array(rows).reshape(len(rows), 2, len(ARMS))
    cells = list[list[Cell]]()
    for i, name in enumerate(ARMS):
        against = None if i < 2 else _mean(table[:, 0, i] - table[:, 0, 1])
        cells.append([name, _mean(table[:, 0, i]), against, _mean(table[:, 1, i])])
    gain = table[:, 0, 2] - table[:, 0, 1]
    beside = table[:, 0, 2] - table[:, 0, 3]
    columns = ["arm", "accuracy on USPS, %", "over more epochs, points", "accuracy on test, %"]
    notes = [
        f"{len(rows)} trainings of LeNet-5, {RepairRecipe().epochs} epochs at most; a training is the unit",
        f"fitted conditions minus scanner profile on USPS: {_mean(beside)} points",
    ]
    holds = bool(gain.mean() >= GAIN and beside.mean() >= 0)
    verdict = "reached" if holds else "missed"
    return Table("Repair", columns, cells, notes), [REPAIR, REPAIR_GOAL, _mean(gain), verdict]


def _mean(values: NDArray[np.float64]) -> str:
    return mean_interval(torch.from_numpy(values)).text(".2f")
