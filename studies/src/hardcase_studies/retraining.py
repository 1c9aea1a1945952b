"""Does training with findings help? Always beside controls of the same size, repeated, on images nobody trained on.

ARGUS's own control, "Random", moves 1,000 images from the test set into the training set: it has more real data than what it is
compared with, and is scored on another, smaller test set. Here every arm adds the same number of images, all made from what is
known in training, and all arms are scored on the same held-out images.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from hardcase.errors import HardcaseError
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.repair.front import joined_images
from hardcase.statistics import Interval, mean_interval, newcombe_paired
from hardcase.suite.tables import Cell, Table
from hardcase.tensors import chunks, from_bytes, to_bytes
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import AUGMENTS, classify, fit, predict
from hardcase.types import KINDS, Findings, Images
from hardcase_study.agreement import crossed_interval

GENTLE = TrainingRecipe(epochs=5, batch=64, lr=3e-4)
BEFORE = "before"
FOUND = "with found tests"
AUGMENTED = "with augmented images"
MORE = "with images again"
NOTES = (
    (
        "every arm starts from the same network and trains on the training images and as many added"
        " images: found tests under their seeds' labels, shifted training images, or training"
        " images once more"
    ),
    (
        "images that found tests came from are in no held-out set; 95 % intervals resample held-out"
        " images and repeats independently of each other; before: Wilson's"
    ),
    (
        'ARGUS\'s "Random" control adds real test images and is scored on fewer: it has more data,'
        " not a fair share of it"
    ),
)


class _Tunable(nn.Module):
    """A copy of a subject that can learn; it stays in evaluation mode,
    so running statistics do not move.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = copy.deepcopy(subject)
        for weight in self.subject.parameters():
            weight.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.subject(x).logits
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """How an arm is trained, how often, and on how many added images at most."""

    recipe: TrainingRecipe = GENTLE
    repeats: int = 5
    most: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 2 or self.most < 1:
            raise HardcaseError(
                f"{self.repeats} repeats with {self.most} images give no interval.",
                fix="5 repeats or more",
            )


Arm = Callable[[int], Images]
"""The images that an arm adds, by the seed of the repeat."""


def against_controls(train: Images, found: Images, most: int = 1000) -> dict[str, Arm]:
    """The arm with up to `most` findings, and the two controls of the same size."""
    count = min(most, len(found))

    def again(seed: int) -> Images:
        return train.sample(count=count, seed=seed)

    return {
        FOUND: lambda seed: found.sample(count=count, seed=seed),
        AUGMENTED: lambda seed: replace(again(seed), x=_shifted(again(seed).x, seed)),
        MORE: again,
    }


def compare(
    subject: Subject,
    train: Images,
    arms: Mapping[str, Arm],
    held_out: Mapping[str, Images],
    how: Retraining,
) -> dict[str, dict[str, Bool[Tensor, "r n"]]]:
    """Which images of every held-out set each arm gets right, a row for each repeat."""
    before = _Tunable(subject)
    results = {
        BEFORE: {
            name: correct(before, images).expand(how.repeats, -1)
            for name, images in held_out.items()
        }
    }
    for arm, more in arms.items():
        rows = []
        for seed in range(how.seed, how.seed + how.repeats):
            net = tuned(subject, joined_images(train, more(seed)), how.recipe, seed=seed)
            rows.append({name: correct(net, images) for name, images in held_out.items()})
        results[arm] = {name: torch.stack([row[name] for row in rows]) for name in held_out}
    return results


def tuned(subject: Subject, images: Images, recipe: TrainingRecipe, *, seed: int) -> nn.Module:
    """A copy of `subject`, trained further."""
    net = _Tunable(subject)
    fit(
        net,
        images,
        classify(len(images.classes)),
        recipe,
        seed=seed,
        name=subject.name,
        device=subject.device,
    )
    return net


def correct(net: nn.Module, images: Images) -> Bool[Tensor, " n"]:
    """Which of `images` the network gets right."""
    return predict(net, images, device=next(net.parameters()).device).cpu() == images.y


def accuracy(right: Bool[Tensor, "r n"]) -> Interval:
    """The share of images that are right, over all repeats, in percent; drawn anew are images and
    repeats. Wilson's interval over images where all repeats agree.
    """
    if bool((right == right[0]).all()):
        return mean_interval(right[0]).scaled(100)
    return crossed_interval(right.double(), unit="repeats").scaled(100)


def gain(one: Bool[Tensor, "r n"], other: Bool[Tensor, "r n"]) -> Interval:
    """Points of accuracy by which one arm is above another, image by image and repeat by repeat."""
    difference = one.double() - other.double()
    if bool((one == one[0]).all() and (other == other[0]).all()):
        return newcombe_paired(one[0], other[0]).scaled(100)
    return crossed_interval(difference, unit="repeats").scaled(100)


def tabulated(
    title: str, results: Mapping[str, Mapping[str, Tensor]], notes: Sequence[str] = ()
) -> Table:
    """The accuracy of every arm on every held-out set."""
    sets = list(results[BEFORE])
    rows: list[list[Cell]] = []
    for arm, values in results.items():
        cells = [accuracy(values[name]) for name in sets]
        rows.append([arm, *(cell.text(".2f") for cell in cells)])
    return Table(title, ["", *(f"{name}, %" for name in sets)], rows, [*notes, *NOTES])


def as_images(findings: Findings, like: Images) -> Images:
    """Found label failures under their seeds' labels."""
    rows = (findings.kind == KINDS.index("label")).nonzero().squeeze(1)
    names = tuple(f"found/{i:06d}" for i in range(len(rows)))
    return Images(
        findings.x[rows], findings.expected[rows], names, like.classes, name=f"found on {like.name}"
    )


def _shifted(x: Tensor, seed: int) -> Tensor:
    noise = stream(seed, "augmented")
    parts = [
        to_bytes(AUGMENTS["shift"](from_bytes(x[rows]), noise)) for rows in chunks(len(x), 256)
    ]
    return torch.cat(parts)


def helped(results: Mapping[str, Mapping[str, Tensor]]) -> Table:
    """Whether training with findings helped at all: beside the network before, and beside the
    better of the two controls, repeat by repeat."""
    rows: list[list[Cell]] = []
    for name in results[BEFORE]:
        found = results[FOUND][name]
        control = max(
            (results[AUGMENTED][name], results[MORE][name]), key=lambda v: float(v.double().mean())
        )
        gains = [gain(found, other) for other in (results[BEFORE][name], control)]
        above = gains[1]
        word = "inconclusive"
        if above.low > 0:
            word = "helped"
        elif above.high < 0:
            word = "harmed"
        rows.append([name, *(one.text("+.2f") for one in gains), word])
    columns = ["measured on", "points above before", "points above the better control", "it"]
    notes = ["points of accuracy; only what exceeds a control of the same size is due to the tests"]
    return Table("did it help?", columns, rows, notes)
