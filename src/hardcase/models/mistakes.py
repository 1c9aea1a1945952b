"""Why does a model do badly on these images? The usual mistakes,
each tried on a few labelled images and told with its remedy.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import named_path
from hardcase.errors import Problem
from hardcase.models.adapters import logits_of
from hardcase.models.normalisation import ENOUGH, FINE, USUAL, Values, flags_of
from hardcase.models.subject import Subject, arranged
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Model

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


_NOISE = Mistake(
    "noise",
    "the network changes its answer from one time to the next: dropout or noise stays active",
    "net.eval() in the factory, and no randomness in its forward",
)


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


def diagnosis_of(subject: Model, images: Images) -> Diagnosis | None:
    """What is wrong with a model as it is asked; None where nothing can be tried with it."""
    if not isinstance(subject, Subject) or not len(images):
        return None
    mean = tuple(subject.mean.flatten().tolist())
    std = tuple(subject.std.flatten().tolist())
    found = diagnose(subject.net, images, mean=mean, std=std, channels=subject.channels)
    settled = {"probabilities": ("softmax", "double softmax"), "sigmoid": ("sigmoid",)}
    known = settled.get(subject.outputs, ())
    kept = [one for one in found.mistakes if one.name not in known]
    beside = _weights_beside(subject.name)
    named = [
        replace(one, fix=beside) if beside and one.name == "no weights" else one for one in kept
    ]
    return replace(found, mistakes=tuple(named))


def _weights_beside(model: str) -> str:
    """The flag with the first file of weights that lies beside a model's code; else nothing."""
    path = named_path(model.rpartition(":")[0])
    if "@" in model or path.suffix != ".py":
        return ""
    kinds = (".safetensors", ".pt", ".pth")
    found = sorted(one for one in path.parent.glob("*") if one.suffix in kinds)
    return f"--model {found[0]}@{model}" if found else ""


@torch.no_grad()
def diagnose(
    net: nn.Module,
    images: Images,
    *,
    mean: Values = (0.0,),
    std: Values = (1.0,),
    channels: str = "rgb",
    batch: int = 16,
) -> Diagnosis:
    """Ask `net` about up to fifty images as it is, and as it might have been meant.

    Args:
        net: A network as the user gave it; it is not changed.
        images: Labelled images; the classes take turns.
        mean: The normalisation in use now, per channel.
        std: See `mean`.
        channels: How they are given to it now; see `Subject`.
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
    asked = _Asked(_still(net), batch, mean, std, channels)
    logits, failure = asked.tried(x)
    if logits is None:
        return Diagnosis(None, (*found, *_failing(asked, x, failure, some.name)))
    if not torch.equal(asked(x[:batch]), logits[:batch]) and not logits.isnan().any():
        return Diagnosis(None, (*found, _NOISE))
    shape = list(_outputs(logits, some))
    if logits.ndim != 2 or any(mistake.name in ("outputs", "nan") for mistake in shape):
        return Diagnosis(None, (*found, *shape))
    own = _right(logits, some.y)
    if all(one.name != "labels from 1" for one in shape):
        shape += _explained(asked, x, some, logits)
    found += shape
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
    channels: str

    def __call__(self, x: Tensor, mean: Values = (), std: Values = ()) -> Tensor:
        shift, scale = (
            torch.tensor(values).reshape(1, -1, 1, 1)
            for values in (mean or self.mean, std or self.std)
        )
        device = next((each.device for each in self.net.parameters()), torch.device("cpu"))
        given = (arranged(x, self.channels) - shift) / scale
        given = given.permute(0, 2, 3, 1) if self.channels == "last" else given
        parts = [logits_of(self.net(given[rows].to(device))) for rows in chunks(len(x), self.batch)]
        return torch.cat(parts).float().cpu()

    def given(self, channels: str) -> _Asked:
        """The same, given its images in another way."""
        return replace(self, channels=channels)

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


def with_options(data: str, **options: str | int) -> str:
    """The flag that names the data with other options; empty where they have none.

    Example:
        >>> with_options("folder:photos?split=all", resize=224, crop="center")
        "--data 'folder:photos?split=all&resize=224&crop=center'"
    """
    path, _, query = data.partition("?")
    if "resize" in options and not path.startswith(("folder:", "csv:")):
        return ""
    words = dict(word.partition("=")[::2] for word in query.split("&") if word)
    both = "&".join(f"{name}={word}" for name, word in {**words, **options}.items())
    return f"--data '{path}?{both}'"


def _failing(asked: _Asked, x: Tensor, failure: str, data: str) -> Iterator[Mistake]:
    """What makes a network that fails answer: other channels, another size,
    another device or type.
    """
    kind = "grey" if x.shape[1] == 1 else "colour"
    other = "colour" if x.shape[1] == 1 else "grey"
    if asked.given(other).tried(x)[0] is not None:
        yield Mistake(
            "channels",
            f"the network takes {other} images, these are {kind}",
            f"--set subject.channels={other}",
        )
        return
    last = asked.given("last").tried(x)[0]
    if last is not None and last.ndim == 2:
        yield Mistake(
            "channels last",
            "the network takes images as N x H x W x C, these are N x C x H x W",
            "--set subject.channels=last",
        )
        return
    for size in SIZES:
        if asked.tried(_resized(x, size))[0] is not None:
            yield Mistake(
                "size",
                f"the network takes images of {size} pixels, these have {x.shape[2]}",
                with_options(data, resize=size, crop="center") or "a factory that resizes inside",
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


def _outputs(logits: Tensor, images: Images) -> Iterator[Mistake]:
    classes = len(images.classes)
    if logits.ndim != 2:
        shape = " x ".join(map(str, logits.shape))
        yield Mistake(
            "outputs",
            f"the network returns {shape}, no row of scores an image",
            "its last layer, the head",
        )
    elif logits.shape[1] == classes - 1 and int(images.y.min()) == 1:
        yield Mistake(
            "labels from 1",
            f"the labels count from 1 to {classes - 1}, the outputs from 0",
            with_options(images.name, first=1),
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
            "sigmoid", "the outputs lie in 0..1: a sigmoid", "--set subject.outputs=sigmoid"
        )


Explanation = tuple[Mistake, Float[Tensor, " m"]]
"""A mistake, and which images are right once it is put right."""


def _explained(asked: _Asked, x: Tensor, images: Images, logits: Tensor) -> list[Mistake]:
    """The one explanation that makes most images right, if it does so clearly."""
    y = images.y
    hypotheses = _hypotheses(asked, x)
    tried = [
        *_labels(logits, images),
        *((mistake, _right(said, y)) for mistake, said in hypotheses),
    ]
    if max(float(right.mean()) for _, right in tried) < FINE:
        tried += [(mistake, _right(said, y)) for mistake, said in _sizes(asked, x, images.name)]
    mistake, right = max(
        tried, key=lambda pair: float(pair[1].mean()) - _HANDICAP.get(pair[0].name, 0.0)
    )
    if not _clearly(right, _right(logits, y)):
        return []
    return [Mistake(mistake.name, mistake.what, mistake.fix, float(right.mean()))]


_HANDICAP = {"class order": 0.1, "size": 0.05}
"""What is chosen from many possibilities must be better by so much."""


def _labels(logits: Tensor, images: Images) -> Iterator[Explanation]:
    """Labels that count from 1, an output before the first class, and classes in another order."""
    y = images.y
    first = Mistake("labels from 1", "the labels count from 1", with_options(images.name, first=1))
    if int(y.min()) == 1:
        yield first, _right(logits, y - 1)
    names = ["background", *images.classes]
    before = "the network has an output before the first class (background)"
    if logits.shape[1] == len(names):
        yield Mistake("background", before, _named_outputs(names)), _right(logits, y + 1)
    order = _order(logits, y)
    present = sorted(set(y.tolist()))
    if len({int(order[at]) for at in present}) == len(present) <= len(y) // 3:
        some = ", ".join(f"{images.classes[at]} -> {int(order[at])}" for at in present[:4])
        words = f"the classes have another order ({some} …)"
        names = [f"output {at}" for at in range(logits.shape[1])]
        for at in present:
            names[int(order[at])] = images.classes[at]
        yield Mistake("class order", words, _named_outputs(names)), _right(logits, order[y])


def _named_outputs(names: list[str]) -> str:
    """The flag that says which class each output means."""
    joined = ",".join(names)
    if any(mark in joined for mark in " '\"") or joined.count(",") >= len(names):
        return "class folders named as the model names its outputs, or hc.Subject(classes=...)"
    return f"--set subject.classes={joined}"


def _order(logits: Tensor, y: Int[Tensor, " m"]) -> Int[Tensor, " k"]:
    """For every label the output that is said most often."""
    table = torch.zeros(int(y.max()) + 1, logits.shape[1])
    table.index_put_((y, logits.argmax(1)), torch.ones(len(y)), accumulate=True)
    return table.argmax(1)


def _hypotheses(asked: _Asked, x: Tensor) -> Iterator[tuple[Mistake, Tensor]]:
    """Every change that is tried, with the answers under it."""
    yield Mistake("inverted", "light and dark are exchanged", _inverted(asked)), asked(1 - x)
    if x.shape[1] == 3 and asked.channels in ("rgb", "bgr"):
        order = "bgr" if asked.channels == "rgb" else "rgb"
        swap = Mistake("BGR", "red and blue are exchanged", f"--set subject.channels={order}")
        yield swap, asked.given(order)(x)
    if x.shape[2] == x.shape[3]:
        turn = Mistake(
            "transposed",
            "rows and columns are exchanged",
            "x.transpose(2, 3) first in the model's forward, or images saved upright",
        )
        yield turn, asked(x.transpose(2, 3))
    for name, (mean, std) in USUAL.items():
        if max(len(mean), len(std)) not in (1, arranged(x[:1], asked.channels).shape[1]):
            continue
        other = f"the normalisation is another one: {name}"
        yield Mistake("normalisation", other, flags_of(mean, std)), asked(x, mean, std)


def _sizes(asked: _Asked, x: Tensor, data: str) -> Iterator[tuple[Mistake, Tensor]]:
    """Images of other sizes, with the answers to them."""
    for size in SIZES:
        if abs(size - x.shape[2]) > 2 and x.shape[2] / 8 <= size <= 8 * x.shape[2]:
            logits = asked.tried(_resized(x, size))[0]
            if logits is not None and logits.ndim == 2:
                words = (
                    f"the network was trained on images of about {size} pixels, these have"
                    f" {x.shape[2]}"
                )
                flag = with_options(data, resize=size, crop="center")
                yield Mistake("size", words, flag or "a factory that resizes inside"), logits


def _inverted(asked: _Asked) -> str:
    """The flags of the normalisation in use, of images whose light and dark are exchanged:
    1 - x is normalised as x is by 1 - mean and -std.
    """
    mean = tuple(1 - value for value in asked.mean)
    return flags_of(mean, tuple(-value for value in asked.std))


def _resized(x: Tensor, size: int) -> Tensor:
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def _untrained(logits: Tensor) -> Mistake:
    share = logits.argmax(1).bincount().max().item() / len(logits)
    same = f"; it says the same class for {100 * share:.0f} % of them" if share > 0.8 else ""
    return Mistake(
        "no weights",
        f"the network is no better than chance whatever is tried{same}: its weights may be missing",
        "--model weights.safetensors@file.py:factory",
    )


def _right(logits: Tensor, y: Tensor) -> Float[Tensor, " m"]:
    return (logits.argmax(1) == y).double()


def _clearly(better: Float[Tensor, " m"], than: Float[Tensor, " m"]) -> bool:
    gap = better - than
    error = float(gap.std(correction=0)) / len(gap) ** 0.5
    return bool(float(gap.mean()) > max(CLEARLY, 2 * error))
