"""Why does a model do badly on these images? The usual mistakes,
each tried on a few labelled images and told with its remedy.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem
from hardcase.models.adapters import logits_of
from hardcase.models.normalisation import ENOUGH, USUAL, Values
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images

SIZES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299, 384)
"""Sides that networks are made for."""
CLEARLY = 0.15
"""A remedy is named if it raises the share of right answers by this much,
and by two standard errors.
"""
Inputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, in words; what to do, as a flag where there is one;
    and the share right with that remedy.
    """

    name: str
    what: str
    fix: str
    accuracy: float | None = None

    def __str__(self) -> str:
        better = "" if self.accuracy is None else f" ({100 * self.accuracy:.0f} % right then)"
        return f"{self.what}{better}; try: {self.fix}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The share of images that the model gets right as it is asked now (None: it fails on them),
    and its mistakes.
    """

    accuracy: float | None
    mistakes: tuple[Mistake, ...]

    def __str__(self) -> str:
        head = "the model fails on these images"
        if self.accuracy is not None:
            head = f"{100 * self.accuracy:.0f} % right"
        return "\n".join([head, *(f"- {mistake}" for mistake in self.mistakes)])


@torch.no_grad()
def diagnose(
    net: nn.Module, images: Images, *, mean: Values = (0.0,), std: Values = (1.0,), batch: int = 16
) -> Diagnosis:
    """Ask `net` about up to fifty images as it is, and as it might have been meant.

    Args:
        net: A network as the user gave it; it is not changed.
        images: Labelled images; the classes take turns.
        mean: The normalisation in use now, per channel.
        std: See `mean`.
        batch: Images asked at once.

    Example:
        >>> from torch import nn
        >>> black = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> grey = Images(black, torch.arange(4) % 2, tuple("abcd"), ("0", "1"))
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
        >>> diagnose(net, grey).mistakes[0].name
        'channels'
    """
    some = images.sample(count=min(ENOUGH, len(images)))
    x = from_bytes(some.x)
    found = list(_mode(net))
    asked = _Asked(_still(net), batch, mean, std)
    logits, failure = asked.tried(x)
    if logits is None:
        return Diagnosis(None, (*found, *_failing(asked, x, failure)))
    shape = list(_outputs(logits, len(some.classes)))
    if logits.ndim != 2 or any(mistake.name in ("outputs", "nan") for mistake in shape):
        return Diagnosis(None, (*found, *shape))
    own = _right(logits, some.y)
    found += [*shape, *_explained(asked, x, some.y, logits)]
    accuracy = float(own.mean())
    if not found and accuracy <= 2 / len(some.classes):
        found.append(_untrained(logits))
    return Diagnosis(accuracy, tuple(found))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A network in evaluation mode, and how it is asked now."""

    net: nn.Module
    batch: int
    mean: Values
    std: Values

    def __call__(self, x: Tensor, mean: Values = (), std: Values = ()) -> Tensor:
        shift, scale = (
            torch.tensor(values).reshape(1, -1, 1, 1)
            for values in (mean or self.mean, std or self.std)
        )
        device = next((each.device for each in self.net.parameters()), torch.device("cpu"))
        parts = [
            logits_of(self.net(((x[rows] - shift) / scale).to(device)))
            for rows in chunks(len(x), self.batch)
        ]
        return torch.cat(parts).float().cpu()

    def tried(self, x: Tensor) -> tuple[Tensor | None, str]:
        """Its answers, or the words of its failure."""
        try:
            return self(x), ""
        except Problem as problem:
            return None, problem.what
        except Exception as error:  # a network may raise anything
            return None, f"{type(error).__name__}: {error}"


def _still(net: nn.Module) -> nn.Module:
    return copy.deepcopy(net).eval()


def _mode(net: nn.Module) -> Iterator[Mistake]:
    active = (nn.Dropout, nn.modules.batchnorm._BatchNorm)
    if any(module.training and isinstance(module, active) for module in net.modules()):
        yield Mistake(
            "training mode",
            "the network is in training mode: dropout and batch statistics change its answers",
            "net.eval() in the factory",
        )


def _failing(asked: _Asked, x: Tensor, failure: str) -> Iterator[Mistake]:
    """What makes a network that fails answer: other channels, another size,
    another device or type.
    """
    for channels in (1, 3):
        other = x.mean(1, keepdim=True).expand(-1, channels, -1, -1)
        if channels != x.shape[1] and asked.tried(other)[0] is not None:
            words = {1: "grey", 3: "colour"}
            yield Mistake(
                "channels",
                f"the network takes {words[channels]} images, these are"
                f" {words.get(x.shape[1], x.shape[1])}",
                f"{words[channels]} data, or a first layer of {x.shape[1]} channels",
            )
            return
    for size in SIZES:
        if asked.tried(_resized(x, size))[0] is not None:
            yield Mistake(
                "size",
                f"the network takes images of {size} pixels, these have {x.shape[2]}",
                f"--data '…?resize={size}&crop=center'",
            )
            return
    last = asked.tried(x.permute(0, 2, 3, 1))[0]
    if last is not None and last.ndim == 2:
        yield Mistake(
            "channels last",
            "the network takes images as N x H x W x C, these are N x C x H x W",
            "x.permute(0, 2, 3, 1) first in the model's forward",
        )
        return
    if re.search(r"same device|cuda|mps", failure, re.IGNORECASE):
        yield Mistake(
            "device",
            f"parts of the network are on different devices ({failure[:80]})",
            "--device cpu",
        )
    elif re.search(r"dtype|type|half|bfloat", failure, re.IGNORECASE):
        yield Mistake(
            "type",
            f"parts of the network have different number types ({failure[:80]})",
            "net.float()",
        )
    elif "class scores" in failure:
        yield Mistake("returned", failure, "a forward that returns the logits")
    else:
        yield Mistake("fails", f"the network fails: {failure[:200]}", "one forward pass by hand")


def _outputs(logits: Tensor, classes: int) -> Iterator[Mistake]:
    if logits.ndim != 2:
        shape = " x ".join(map(str, logits.shape))
        yield Mistake(
            "outputs",
            f"the network returns {shape}, no row of scores an image",
            "its last layer, the head",
        )
    elif logits.shape[1] < classes:
        yield Mistake(
            "outputs",
            f"the network has {logits.shape[1]} outputs for {classes} classes",
            "the data it was trained for, or weights of another head",
        )
    elif not bool(logits.isfinite().all()):
        yield Mistake(
            "nan", "the network answers NaN or infinity", "look at the weights and at mean and std"
        )
    elif bool((logits >= 0).all() and (logits.sum(1) - 1).abs().max() < 1e-3):
        twice = math.e / (logits.shape[1] - 1 + math.e)  # the most that a second softmax leaves
        if float(logits.max()) <= twice + 1e-6:
            yield Mistake(
                "double softmax",
                "the outputs are as flat as a softmax of a softmax",
                "one softmax fewer, then --set subject.outputs=probabilities",
            )
        yield Mistake(
            "softmax", "the outputs are probabilities", "--set subject.outputs=probabilities"
        )
    elif bool((logits >= 0).all() and (logits <= 1).all() and logits.std() > 0):
        yield Mistake(
            "sigmoid", "the outputs lie in 0..1: a sigmoid", "the scores before the sigmoid"
        )


Explanation = tuple[Mistake, Float[Tensor, " m"]]
"""A mistake, and which images are right once it is put right."""


def _explained(asked: _Asked, x: Tensor, y: Int[Tensor, " m"], logits: Tensor) -> list[Mistake]:
    """The one explanation that makes most images right, if it does so clearly."""
    tried = [
        *_labels(logits, y),
        *((mistake, _right(said, y)) for mistake, said in _hypotheses(asked, x)),
    ]
    mistake, right = max(
        tried, key=lambda pair: float(pair[1].mean()) - _HANDICAP.get(pair[0].name, 0.0)
    )
    if not _clearly(right, _right(logits, y)):
        return []
    return [Mistake(mistake.name, mistake.what, mistake.fix, float(right.mean()))]


_HANDICAP = {"class order": 0.1, "size": 0.05}
"""What is chosen from many possibilities must be better by so much."""


def _labels(logits: Tensor, y: Int[Tensor, " m"]) -> Iterator[Explanation]:
    """Labels that count from 1, an output before the first class, and classes in another order."""
    yield Mistake("labels from 1", "the labels count from 1", "labels - 1"), _right(logits, y - 1)
    yield (
        Mistake(
            "labels from 1",
            "the network has an output before the first class (background)",
            "labels + 1, or drop the first output",
        ),
        _right(logits, y + 1),
    )
    order = _order(logits, y)
    present = sorted(set(y.tolist()))
    if len({int(order[at]) for at in present}) == len(present) <= len(y) // 3:
        first = ", ".join(f"{at} -> {int(order[at])}" for at in present[:4])
        words = f"the classes have another order ({first} …)"
        fix = "class folders named as the model names its outputs"
        yield Mistake("class order", words, fix), _right(logits, order[y])


def _order(logits: Tensor, y: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
    """For every label the output that is said most often."""
    table = torch.zeros(int(y.max()) + 1, logits.shape[1])
    table.index_put_((y, logits.argmax(1)), torch.ones(len(y)), accumulate=True)
    return table.argmax(1)


def _hypotheses(asked: _Asked, x: Tensor) -> Iterator[tuple[Mistake, Tensor]]:
    """Every change that is tried, with the answers under it."""
    yield (
        Mistake(
            "inverted", "light and dark are exchanged", "1 - x in the factory, or inverted images"
        ),
        asked(1 - x),
    )
    if x.shape[1] == 3:
        swap = Mistake("BGR", "red and blue are exchanged", "--set subject.channels=bgr")
        yield swap, asked(x.flip(1))
    if x.shape[2] == x.shape[3]:
        turn = Mistake(
            "transposed",
            "rows and columns are exchanged",
            "x.transpose(2, 3) first in the model's forward, or images saved upright",
        )
        yield turn, asked(x.transpose(2, 3))
    for name, (mean, std) in USUAL.items():
        if max(len(mean), len(std)) not in (1, x.shape[1]):
            continue
        values = [",".join(f"{value:.4g}" for value in row) for row in (mean, std)]
        flags = f"--set subject.mean={values[0]} --set subject.std={values[1]}"
        yield (
            Mistake("normalisation", f"the normalisation is another one: {name}", flags),
            asked(x, mean, std),
        )
    for size in SIZES:
        if abs(size - x.shape[2]) > 2:
            logits = asked.tried(_resized(x, size))[0]
            if logits is not None and logits.ndim == 2:
                words = (
                    f"the network was trained on images of about {size} pixels, these have"
                    f" {x.shape[2]}"
                )
                yield Mistake("size", words, f"--data '…?resize={size}&crop=center'"), logits


def _resized(x: Tensor, size: int) -> Tensor:
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def _untrained(logits: Tensor) -> Mistake:
    share = logits.argmax(1).bincount().max().item() / len(logits)
    same = f"; it says the same class for {100 * share:.0f} % of them" if share > 0.8 else ""
    return Mistake(
        "no weights",
        f"the network is no better than chance whatever is tried{same}: its weights may be missing",
        "weights.safetensors@file.py:factory",
    )


def _right(logits: Tensor, y: Tensor) -> Float[Tensor, " m"]:
    return (logits.argmax(1) == y).double()


def _clearly(better: Float[Tensor, " m"], than: Float[Tensor, " m"]) -> bool:
    gap = better - than
    error = float(gap.std(correction=0)) / len(gap) ** 0.5
    return bool(float(gap.mean()) > max(CLEARLY, 2 * error))
