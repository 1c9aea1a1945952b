"""Which normalisation a network wants: told by its metadata, or found by trying the usual ones on
labelled images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase.errors import Problem
from hardcase.models.adapters import logits_of
from hardcase.models.subject import arranged
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images

ENOUGH = 50
"""Labelled images on which the usual normalisations are compared."""
GLANCE = 16
"""Images on which all of them are tried before the best are compared on more."""
FINE = 0.9
"""Share right from which on nobody looks for another normalisation."""
GAIN = 0.1
"""Share of images that another normalisation must get right more, to be taken unasked."""
Values = tuple[float, ...]

USUAL: Mapping[str, tuple[Values, Values]] = {
    "none (images in 0..1)": ((0.0,), (1.0,)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "to -1..1": ((0.5,), (0.5,)),
    "images in 0..255": ((0.0,), (1 / 255,)),
    "Caffe (0..255 minus the mean)": (
        (123.68 / 255, 116.779 / 255, 103.939 / 255),
        (1 / 255, 1 / 255, 1 / 255),
    ),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "MNIST": ((0.1307,), (0.3081,)),
}
"""Mean and standard deviation per channel, for images in [0, 1]."""
SCALED = ("images in 0..255", "Caffe (0..255 minus the mean)")
"""Those whose inputs are a hundred times larger than others'."""


@dataclass(frozen=True, slots=True)
class Normalisation:
    """What was found. `tried` is accuracy by name; `swapped`: red and blue had to change places;
    `sure`: clearly the best.
    """

    name: str
    mean: Values
    std: Values
    accuracy: float
    sure: bool
    swapped: bool = False
    tried: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        how = "clearly the best" if self.sure else "not clearly better than the next"
        order = ", with red and blue exchanged" if self.swapped else ""
        return (
            f"normalisation {self.name}{order}: {100 * self.accuracy:.0f} % right, {how} of"
            f" {len(self.tried)} tried; to fix it: {self.flags}"
        )

    @property
    def is_none(self) -> bool:
        """Whether images stay as they are."""
        return (set(self.mean), set(self.std), self.swapped) == ({0.0}, {1.0}, False)

    @property
    def flags(self) -> str:
        """The words that say it on the command line."""
        return flags_of(self.mean, self.std)


def flags_of(mean: Values, std: Values) -> str:
    """The words that say a normalisation on the command line.

    Example:
        >>> flags_of((0.5,), (0.25,))
        '--set subject.mean=0.5 --set subject.std=0.25'
    """
    values = [",".join(f"{value:.4g}" for value in row) for row in (mean, std)]
    return f"--set subject.mean={values[0]} --set subject.std={values[1]}"


def name_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """What a usual normalisation is called; ``another`` for any other.

    Example:
        >>> name_of([0.5], [0.5]), name_of([0.1], [0.2])
        ('to -1..1', 'another')
    """
    said = torch.tensor([*mean, *std])
    for name, (first, second) in USUAL.items():
        known = torch.tensor([*first, *second])
        if known.shape == said.shape and torch.allclose(known, said):
            return name
    return "another"


def stated_by(thing: object) -> tuple[Values, Values] | None:
    """Mean and standard deviation that a network carries itself, as timm's do; None if it says
    nothing.
    """
    config = getattr(thing, "pretrained_cfg", None) or getattr(thing, "default_cfg", None) or {}
    known = config if isinstance(config, Mapping) else vars(config)
    mean = known.get("mean")
    std = known.get("std")
    if mean is None or std is None:
        return None
    return tuple(map(float, mean)), tuple(map(float, std))


@torch.no_grad()
def settled(net: nn.Module, images: Images, channels: str = "rgb") -> Normalisation | None:
    """The usual normalisation that a network clearly wants of images in [0, 1]; None where it does
    well without any, fails, or where no other helps clearly.

    Args:
        net: A network in evaluation mode.
        images: Labelled images, in the order of its outputs.
        channels: How they are given to it; see `Subject`.
    """
    if not len(images) or net.training:
        return None
    some = images.sample(count=min(ENOUGH, len(images)))
    device = next((each.device for each in net.parameters()), torch.device("cpu"))
    x = arranged(from_bytes(some.x).to(device), channels)
    none = next(iter(USUAL))
    try:
        plain, _ = _asked(net, x, some.y, USUAL[none], GLANCE)
        if _mean(plain) >= FINE:
            return None
        found = _best(net, x, some.y, [name for name in USUAL if name not in SCALED])
        if found.accuracy < FINE:  # larger inputs are surer of everything: only if they are right
            larger = _best(net, x, some.y, [none, *SCALED])
            found = larger if larger.accuracy > found.accuracy + GAIN else found
    except Exception:  # a network that fails is told of in full by the check of its health
        return None
    better = found.accuracy - _mean(plain)
    return found if better > GAIN and not (found.is_none or found.swapped) else None


def _best(net: nn.Module, x: Tensor, y: Tensor, names: Sequence[str]) -> Normalisation:
    """The best of some of the usual ones: all on a few images, the leading ones on all of them."""
    known = {name: USUAL[name] for name in names}
    first = guess(net, x[:GLANCE], y[:GLANCE], usual=known)
    leading = sorted(first.tried, key=lambda name: first.tried[name], reverse=True)[:3]
    last = {name: pair for name, pair in known.items() if name in (first.name, *leading)}
    return guess(net, x, y, usual=last)


@torch.no_grad()
def guess(
    net: nn.Module,
    x: Float[Tensor, "m c h w"],
    y: Int[Tensor, " m"],
    *,
    usual: Mapping[str, tuple[Values, Values]] = USUAL,
    batch: int = 16,
) -> Normalisation:
    """The usual normalisation under which `net` gets most of these images right; ties go to the
    higher likelihood.

    Args:
        net: A network in evaluation mode; a copy is not made.
        x: Images in [0, 1]; the first `ENOUGH` are used.
        y: Their outputs, in the network's own numbers.
        usual: What is tried, by name. Rows whose number of channels does not fit are left out.
        batch: Images asked at once.
    """
    if not len(x):
        raise Problem("a normalisation is found by trying it on labelled images; there are none.")
    if net.training:
        raise Problem("the network is in training mode.", fix="net.eval()")
    images = x[:ENOUGH]
    labels = y[:ENOUGH]
    channels = images.shape[1]
    fitting = {name: pair for name, pair in usual.items() if max(map(len, pair)) in (1, channels)}
    orders = (False, True) if channels == 3 else (False,)
    rows = {
        (name, swapped): _asked(net, images.flip(1) if swapped else images, labels, pair, batch)
        for name, pair in fitting.items()
        for swapped in orders
    }
    ranked = sorted(rows, key=lambda key: (_mean(rows[key][0]), _mean(rows[key][1])), reverse=True)
    best = ranked[0]
    name, swapped = best
    mean, std = fitting[name]
    return Normalisation(
        name=name,
        mean=mean,
        std=std,
        accuracy=_mean(rows[best][0]),
        sure=_clearly(rows[best], [rows[key] for key in ranked[1:]]),
        swapped=swapped,
        tried={f"{n}{', BGR' if s else ''}": _mean(rows[n, s][0]) for n, s in rows},
    )


Row = tuple[Float[Tensor, " m"], Float[Tensor, " m"]]
"""Right or not, and log-likelihood, image by image."""


def _asked(net: nn.Module, x: Tensor, y: Tensor, pair: tuple[Values, Values], batch: int) -> Row:
    mean, std = (torch.tensor(values, device=x.device).reshape(1, -1, 1, 1) for values in pair)
    parts = [logits_of(net((x[rows] - mean) / std)).float() for rows in chunks(len(x), batch)]
    logits = torch.cat(parts)
    if int(y.max()) >= logits.shape[1]:
        raise Problem(f"label {int(y.max())} is none of the network's {logits.shape[1]} outputs.")
    said = logits.log_softmax(1).gather(1, y[:, None].to(logits.device)).squeeze(1)
    return (logits.argmax(1) == y.to(logits.device)).double(), said.double().nan_to_num(
        -1e3
    ).clamp_min(-1e3)


def _mean(values: Tensor) -> float:
    return float(values.mean())


def _clearly(best: Row, others: Sequence[Row]) -> bool:
    """Whether the likelihood is above that of every other row by two standard errors of the paired
    difference, or equal.
    """
    if not others:
        return True
    gaps = torch.stack([best[1] - other[1] for other in others])
    errors = gaps.std(1) / max(len(best[1]), 2) ** 0.5
    return bool((gaps.mean(1) > 2 * errors).all())
