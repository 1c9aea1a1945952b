"""How a model is to be asked, found by trying: what it returns, its normalisation, usual mistakes.

One idea throughout: ask the network about a few labelled images in another way, and say what gets
clearly more of them right, with the flag that does so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import process_time

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import named_path
from hardcase.errors import Problem
from hardcase.models.adapters import logits_of
from hardcase.models.subject import (
    BINARY,
    Subject,
    arranged,
    as_logits,
    in_evaluation_mode,
    prepared,
)
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Model, is_photographic

__all__ = [
    "FINE",
    "USUAL",
    "Diagnosis",
    "Mistake",
    "binary_reading",
    "diagnose",
    "diagnosis_of",
    "flags_of",
    "in_unit_interval",
    "is_softmax",
    "name_of",
    "odd_outputs",
    "reordered",
    "settled",
    "sizes_taken",
    "stated_by",
    "trying",
    "with_options",
]

ENOUGH = 50
"""Labelled images on which ways of asking are compared."""
GLANCE = 16
"""Images on which all normalisations are tried before the best are compared on more."""
FINE = 0.9
"""Share right from which on nobody looks for another normalisation."""
GAIN = 0.1
"""Share of images that another normalisation must get right more, to be taken unasked."""
CLEARLY = 0.15
"""Share of images that a remedy must get right more, beside two standard errors, to be named."""
SIZES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299, 384)
"""Sides that networks are made for."""
HANDICAP = {"class order": 0.1, "size": 0.05}
"""What is chosen from many possibilities must be better by so much."""
Values = tuple[float, ...]

NONE = "none (images in 0..1)"
USUAL: Mapping[str, tuple[Values, Values]] = {
    NONE: ((0.0,), (1.0,)),
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


Tell = Callable[[str], None]
_ALWAYS: tuple[float, Tell] = (math.inf, lambda text: None)
_TRYING: ContextVar[tuple[float, Tell]] = ContextVar("trying", default=_ALWAYS)


@contextmanager
def trying(seconds: float, tell: Tell) -> Iterator[None]:
    """Let mistakes be tried for so many seconds of processor time only, and say which is.

    Args:
        seconds: After these the best explanation so far is taken.
        tell: Told what was tried.
    """
    before = _TRYING.set((process_time() + seconds, tell))
    try:
        yield
    finally:
        _TRYING.reset(before)


@dataclass(frozen=True, slots=True)
class Trial:
    """A network and one way of asking it; the network is in evaluation mode while it is asked."""

    net: nn.Module
    mean: Values = (0.0,)
    std: Values = (1.0,)
    channels: str = "rgb"
    outputs: str = "logits"
    batch: int = 16

    def scores(self, x: Float[Tensor, "m c h w"]) -> Tensor:
        """What it returns for images in [0, 1]."""
        device = next((each.device for each in self.net.parameters()), torch.device("cpu"))
        mean = torch.tensor(self.mean).reshape(1, -1, 1, 1)
        std = torch.tensor(self.std).reshape(1, -1, 1, 1)
        with torch.no_grad(), in_evaluation_mode(self.net):
            parts = [
                logits_of(self.net(prepared(x[rows], mean, std, self.channels).to(device)))
                for rows in chunks(len(x), self.batch)
            ]
        scores = torch.cat(parts).float().cpu()
        if scores.ndim == 1:
            return scores[:, None]
        return scores

    def logits(self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]) -> Tensor:
        """The same as logits; one output for two classes is read as it fits the labels best."""
        scores = self.scores(x)
        if len(scores) != len(x):
            shape = " x ".join(map(str, scores.shape))
            raise Problem(f"the network returns {shape} numbers, no class scores per image")
        if scores.shape[1] != 1:
            return scores
        outputs = self.outputs if self.outputs in BINARY else binary_reading(scores, y)[0]
        return as_logits(scores, outputs)

    def attempt(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, str]:
        """Its logits, or the words of its failure."""
        try:
            return self.logits(x, y), ""
        except Problem as problem:
            return None, problem.what
        except Exception as error:  # a network may raise anything
            return None, f"{type(error).__name__}: {error}"


def is_softmax(scores: Float[Tensor, "n k"]) -> bool:
    """Whether every row is non-negative and sums to one: a softmax's output rather than logits."""
    return bool((scores >= 0).all() and (scores.sum(1) - 1).abs().max() < 1e-3)


def in_unit_interval(scores: Float[Tensor, "n k"]) -> bool:
    """Whether outputs that differ all lie in 0..1, as a sigmoid's do."""
    return bool((scores >= 0).all() and (scores <= 1).all() and scores.std() > 0)


def binary_reading(scores: Float[Tensor, "n 1"], y: Int[Tensor, " n"]) -> tuple[str, str]:
    """How one output for two classes is to be read, one of `BINARY`, and why in words.

    Args:
        scores: What the network returned: logits, or probabilities if all of them lie in 0..1.
        y: The labels, 0 or 1.

    Example:
        >>> binary_reading(torch.tensor([[3.0], [-2.0]] * 4), torch.tensor([0, 1] * 4))[0]
        'binary-first'
    """
    kind = "binary-sigmoid" if in_unit_interval(scores) else "binary"
    right = float(_right(as_logits(scores, kind), y).mean())
    reading = f"one {'probability' if 'sigmoid' in kind else 'logit'} for two classes"
    if abs(right - 0.5) <= 1 / len(y) ** 0.5:  # two standard errors of a coin
        return kind, f"{reading}, taken for the second class; {len(y)} images do not tell which"
    positive = "second" if right > 0.5 else "first"
    if positive == "first":
        kind += "-first"
    share = f"{100 * max(right, 1 - right):.0f} % of {len(y)} images right"
    return kind, f"{reading}, of the {positive} class ({share})"


# Normalisation.


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A usual normalisation, and the share of images that are right under it."""

    name: str
    accuracy: float
    swapped: bool = False
    """Whether red and blue had to change places."""

    @property
    def mean(self) -> Values:
        return USUAL[self.name][0]

    @property
    def std(self) -> Values:
        return USUAL[self.name][1]

    def __str__(self) -> str:
        return (
            f"normalisation {self.name}: {100 * self.accuracy:.0f} % right; to fix it:"
            f" {flags_of(self.mean, self.std)}"
        )


def flags_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """The words that say a normalisation on the command line.

    Example:
        >>> flags_of((0.5,), (0.25,))
        '--set subject.mean=0.5 --set subject.std=0.25'
    """
    means = ",".join(f"{value:.4g}" for value in mean)
    stds = ",".join(f"{value:.4g}" for value in std)
    return f"--set subject.mean={means} --set subject.std={stds}"


def name_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """What a usual normalisation is called; ``another`` for any other.

    Example:
        >>> name_of([0.5], [0.5]), name_of([0.1], [0.2])
        ('to -1..1', 'another')
    """
    for name, known in USUAL.items():
        pairs = list(zip([*mean, *std], [*known[0], *known[1]]))
        same = (len(mean), len(std)) == (len(known[0]), len(known[1]))
        if same and all(math.isclose(one, two, rel_tol=1e-5, abs_tol=1e-8) for one, two in pairs):
            return name
    return "another"


def stated_by(thing: object) -> tuple[Values, Values] | None:
    """Mean and standard deviation that a network carries itself, as timm's do; else None."""
    config = getattr(thing, "pretrained_cfg", None) or getattr(thing, "default_cfg", None) or {}
    known = config if isinstance(config, Mapping) else vars(config)
    mean = known.get("mean")
    std = known.get("std")
    if mean is None or std is None:
        return None
    return tuple(map(float, mean)), tuple(map(float, std))


def settled(net: nn.Module, images: Images, channels: str = "rgb") -> Normalisation | None:
    """The usual normalisation that a network clearly wants of images in [0, 1].

    Returns:
        None where it does well without any, fails, or where no other helps clearly.
    """
    if len(set(images.y.tolist())) < 2:  # of one class, a network that always says it seems best
        return None
    some = images.sample(count=min(ENOUGH, len(images)))
    x = from_bytes(some.x)
    trial = Trial(net, channels=channels)
    try:
        plain = float(_right(trial.logits(x, some.y), some.y).mean())
        if plain >= FINE:
            return None
        found = _best(trial, x, some.y, [name for name in USUAL if name not in SCALED])
        if found.accuracy < FINE:  # larger inputs are surer of everything: only if they are right
            larger = _best(trial, x, some.y, [NONE, *SCALED])
            if larger.accuracy > found.accuracy + GAIN:
                found = larger
    except Exception:  # a network that fails is told of in full by the check of its health
        return None
    if found.accuracy - plain <= GAIN or found.name == NONE or found.swapped:
        return None
    return found


def _best(trial: Trial, x: Tensor, y: Tensor, names: Sequence[str]) -> Normalisation:
    """The best of some normalisations: all on a few images, the three that lead on all of them."""
    tried = [replace(trial, mean=USUAL[name][0], std=USUAL[name][1]) for name in names]
    ways = dict(zip(names, tried))
    fitting = {name: way for name, way in ways.items() if _fits(name, x, trial.channels)}
    swapped = {f"{name} BGR": replace(way, channels="bgr") for name, way in fitting.items()}
    if x.shape[1] == 3 and trial.channels == "rgb":
        fitting |= swapped
    glance = {name: _merit(way, x[:GLANCE], y[:GLANCE]) for name, way in fitting.items()}
    leading = sorted(glance, key=lambda name: glance[name], reverse=True)[:3]
    merits = {name: _merit(fitting[name], x, y) for name in leading}
    name = max(merits, key=lambda name: merits[name])
    return Normalisation(name.removesuffix(" BGR"), merits[name][0], name.endswith(" BGR"))


def _fits(name: str, x: Tensor, channels: str) -> bool:
    return max(map(len, USUAL[name])) in (1, arranged(x[:1], channels).shape[1])


def _merit(trial: Trial, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Share right; ties go to the higher likelihood."""
    logits = trial.logits(x, y)
    likelihood = logits.log_softmax(1).gather(1, y[:, None]).double()
    mean = float(likelihood.nan_to_num(-1e3).clamp_min(-1e3).mean())
    return float(_right(logits, y).mean()), mean


# Mistakes.


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, in words; what to do, as a flag where there is one; the share right then."""

    name: str
    what: str
    fix: str
    accuracy: float | None = None

    def __str__(self) -> str:
        return f"{self.sentence}; try: {self.fix}"

    @property
    def sentence(self) -> str:
        """What is wrong, and how much better the remedy is."""
        if self.accuracy is None:
            return self.what
        return f"{self.what} ({100 * self.accuracy:.0f} % right then)"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The share of images that the model gets right as it is asked now, and its mistakes.

    An `accuracy` of None: it fails on them.
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
    found = diagnose(
        subject.net,
        images,
        mean=tuple(subject.mean.flatten().tolist()),
        std=tuple(subject.std.flatten().tolist()),
        channels=subject.channels,
        outputs=subject.outputs,
    )
    settled = {"probabilities": ("softmax", "double softmax"), "sigmoid": ("sigmoid",)}
    known = settled.get(subject.outputs, ())
    mistakes = [mistake for mistake in found.mistakes if mistake.name not in known]
    if mistakes and mistakes[-1].name == "no weights":
        mistakes[-1] = replace(mistakes[-1], fix=_weights_beside(subject.name) or mistakes[-1].fix)
    return replace(found, mistakes=tuple(mistakes))


def _weights_beside(model: str) -> str:
    """The flag with the first file of weights that lies beside a model's code; else nothing."""
    path = named_path(model.rpartition(":")[0])
    if "@" in model or path.suffix != ".py":
        return ""
    kinds = (".safetensors", ".pt", ".pth")
    found = sorted(file for file in path.parent.glob("*") if file.suffix in kinds)
    if found:
        return f"--model {found[0]}@{model}"
    return ""


def diagnose(
    net: nn.Module,
    images: Images,
    *,
    mean: Values = (0.0,),
    std: Values = (1.0,),
    channels: str = "rgb",
    outputs: str = "logits",
) -> Diagnosis:
    """Ask `net` about up to fifty images as it is, and as it might have been meant.

    Args:
        net: A network as the user gave it; it is not changed.
        images: Labelled images; the classes take turns.
        mean: The normalisation in use now, per channel.

    Example:
        >>> from torch import nn
        >>> black = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> grey = Images(black, torch.arange(4) % 2, tuple("abcd"), ("0", "1"))
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
        >>> diagnose(net, grey).mistakes[0].name
        'channels'
    """
    hurried = math.isfinite(_TRYING.get()[0]) and is_photographic(images.shape)
    some = images.sample(count=min(GLANCE if hurried else ENOUGH, len(images)))
    x = from_bytes(some.x)
    found = list(_mode(net))
    trial = Trial(net, mean, std, channels, outputs)
    logits, failure = trial.attempt(x, some.y)
    if logits is None:
        return Diagnosis(None, (*found, *_failing(trial, x, some, failure)))
    scores = trial.scores(x)
    if not torch.equal(scores[: trial.batch], trial.scores(x[: trial.batch])) and not (
        scores.isnan().any()
    ):
        noise = Mistake(
            "noise",
            "the network changes its answer from one time to the next: dropout or noise is active",
            "net.eval() in the factory, and no randomness in its forward",
        )
        return Diagnosis(None, (*found, noise))
    answers = list(odd_outputs(scores, some, outputs))
    if logits.ndim != 2 or any(mistake.name in ("outputs", "nan") for mistake in answers):
        return Diagnosis(None, (*found, *answers))
    if all(mistake.name != "labels from 1" for mistake in answers):
        answers += _explained(trial, x, some, logits)
    found += answers
    accuracy = float(_right(logits, some.y).mean())
    if not found and accuracy <= 2 / len(some.classes):
        found += _untrained(logits, accuracy, len(some.classes))
    return Diagnosis(accuracy, tuple(found))


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


def _size(size: int, what: str, x: Tensor, data: str) -> Mistake:
    flag = with_options(data, resize=size, crop="center") or "a factory that resizes inside"
    return Mistake("size", f"{what} {size} pixels, these have {x.shape[2]}", flag)


def _failing(trial: Trial, x: Tensor, images: Images, failure: str) -> Iterator[Mistake]:
    """What makes a network that fails answer: other channels, another size, device or type."""
    kind, other = ("grey", "colour") if x.shape[1] == 1 else ("colour", "grey")
    if replace(trial, channels=other).attempt(x, images.y)[0] is not None:
        yield Mistake(
            "channels",
            f"the network takes {other} images, these are {kind}",
            f"--set subject.channels={other}",
        )
        return
    last = replace(trial, channels="last").attempt(x, images.y)[0]
    if last is not None and last.ndim == 2:
        yield Mistake(
            "channels last",
            "the network takes images as N x H x W x C, these are N x C x H x W",
            "--set subject.channels=last",
        )
        return
    for size in SIZES:
        if trial.attempt(_resized(x[:1], size), images.y[:1])[0] is not None:
            yield _size(size, "the network takes images of", x, images.name)
            return
    if re.search(r"same device|cuda|mps", failure, re.IGNORECASE):
        what = f"parts of the network are on different devices ({failure[:80]})"
        yield Mistake("device", what, "--device cpu")
    elif re.search(r"dtype|type|half|bfloat", failure, re.IGNORECASE):
        what = f"parts of the network have different number types ({failure[:80]})"
        yield Mistake("type", what, "net.float()")
    elif "class scores" in failure:
        yield Mistake("returned", failure, "a forward that returns the logits")
    else:
        yield Mistake("fails", f"the network fails: {failure[:200]}", "one forward pass by hand")


def odd_outputs(scores: Tensor, images: Images, outputs: str = "") -> Iterator[Mistake]:
    """What is odd about what a network returns."""
    classes = len(images.classes)
    if scores.ndim != 2:
        shape = " x ".join(map(str, scores.shape))
        what = f"the network returns {shape}, no row of scores per image"
        yield Mistake("outputs", what, "its last layer, the head")
    elif scores.shape[1] == 1 and classes == 2 and int(images.y.max()) < 2:
        reading, why = binary_reading(scores, images.y)
        if outputs not in BINARY:
            fix = f"--set subject.outputs={reading}"
            yield Mistake("outputs", f"the network has {why}", fix)
    elif scores.shape[1] == classes - 1 and int(images.y.min()) == 1:
        what = f"the labels count from 1 to {classes - 1}, the outputs from 0"
        yield Mistake("labels from 1", what, with_options(images.name, first=1))
    elif scores.shape[1] < classes:
        what = f"the network has {scores.shape[1]} outputs for {classes} classes"
        yield Mistake("outputs", what, "the data it was trained for, or weights of another head")
    elif not bool(scores.isfinite().all()):
        fix = "look at the weights and at mean and std"
        yield Mistake("nan", "the network answers NaN or infinity", fix)
    elif is_softmax(scores):
        twice = math.e / (scores.shape[1] - 1 + math.e)  # the most that a second softmax leaves
        fix = "--set subject.outputs=probabilities"
        if float(scores.max()) <= twice + 1e-6:
            what = "the outputs are as flat as a softmax of a softmax"
            yield Mistake("double softmax", what, f"one softmax fewer, then {fix}")
        yield Mistake("softmax", "the outputs are probabilities", fix)
    elif _labels_at_once(scores) >= SEVERAL:
        several = f"{_labels_at_once(scores):.1f} outputs per image exceed one half"
        what = f"{several}: a model of several labels at once, which are not tested yet"
        yield Mistake("several labels", what, "the outputs of classes that exclude each other")
    elif in_unit_interval(scores):
        what = "the outputs lie in 0..1: a sigmoid"
        yield Mistake("sigmoid", what, "--set subject.outputs=sigmoid")


SEVERAL = 1.5
"""Outputs per image that exceed one half from which on a model says several labels at once."""


def _labels_at_once(scores: Float[Tensor, "n k"]) -> float:
    """How many outputs per image exceed one half, if all lie in 0..1; 0 for logits."""
    return float((scores > 0.5).sum(1).double().mean()) if in_unit_interval(scores) else 0.0


Explanation = tuple[Mistake, Float[Tensor, " m"]]
"""A mistake, and which images are right once it is put right."""


def _explained(trial: Trial, x: Tensor, images: Images, logits: Tensor) -> list[Mistake]:
    """The one explanation that makes most images right, if it does so clearly."""
    now = float(_right(logits, images.y).mean())
    if now >= 1 - CLEARLY or len(set(images.y.tolist())) < 2:  # none can be clearly better
        return []
    tried = _timely(_labels(logits, images), _other_inputs(trial, x, images.y))
    if max((float(right.mean()) for _, right in tried), default=0.0) < FINE:
        tried += _timely(_other_sizes(trial, x, images))
    if not tried:
        return []
    best, right = max(
        tried, key=lambda pair: float(pair[1].mean()) - HANDICAP.get(pair[0].name, 0.0)
    )
    gap = right - _right(logits, images.y)
    error = float(gap.std(correction=0)) / len(gap) ** 0.5
    if float(gap.mean()) <= max(CLEARLY, 2 * error):
        return []
    return [replace(best, accuracy=float(right.mean()))]


def _timely(*ways: Iterator[Explanation]) -> list[Explanation]:
    """Explanations, each tried when it is asked for, until the time is over."""
    until, tell = _TRYING.get()
    tried: list[Explanation] = []
    for way in ways:
        while process_time() < until:
            following = next(way, None)
            if following is None:
                break
            tried.append(following)
            tell(f"tried ({len(tried)}): {following[0].what}")
    return tried


def _labels(logits: Tensor, images: Images) -> Iterator[Explanation]:
    """Labels that count from 1, an output before the first class, and classes in another order."""
    y = images.y
    if int(y.min()) == 1:
        fix = with_options(images.name, first=1)
        yield Mistake("labels from 1", "the labels count from 1", fix), _right(logits, y - 1)
    names = ["background", *images.classes]
    if logits.shape[1] == len(names):
        what = "the network has an output before the first class (background)"
        yield Mistake("background", what, _named_outputs(names)), _right(logits, y + 1)
    order = _class_order(logits, images)
    if order is not None and len(set(y.tolist())) <= len(y) // 3:
        yield order


def _class_order(logits: Tensor, images: Images) -> Explanation | None:
    """Each class as the output that is said most often of it, if these are different ones."""
    order = _most_said(logits, images.y)
    present = sorted(set(images.y.tolist()))
    if not 1 < len({int(order[at]) for at in present}) == len(present):
        return None
    some = ", ".join(f"{images.classes[at]} -> {int(order[at])}" for at in present[:4])
    names = [f"output {at}" for at in range(logits.shape[1])]
    for at in present:
        names[int(order[at])] = images.classes[at]
    what = f"the classes have another order ({some} …)"
    return Mistake("class order", what, _named_outputs(names)), _right(logits, order[images.y])


def reordered(logits: Float[Tensor, "n k"], images: Images) -> Mistake | None:
    """Return that the classes have another order, if that clearly explains a model's answers."""
    found = _class_order(logits, images)
    if found is None or len(set(images.y.tolist())) < len(images.classes):
        return None
    best, own = (float(right.mean()) for right in (found[1], _right(logits, images.y)))
    return replace(found[0], accuracy=best) if best > own + 2 * CLEARLY else None


def _named_outputs(names: list[str]) -> str:
    """The flag that says which class each output means."""
    joined = ",".join(names)
    if any(mark in joined for mark in " '\"") or joined.count(",") >= len(names):
        return "class folders named as the model names its outputs, or hc.Subject(classes=...)"
    return f"--set subject.classes={joined}"


def _most_said(logits: Float[Tensor, "m k"], y: Int[Tensor, " m"]) -> Int[Tensor, " l"]:
    """For every label the output that is said most often."""
    table = torch.zeros(int(y.max()) + 1, logits.shape[1])
    table.index_put_((y, logits.argmax(1)), torch.ones(len(y)), accumulate=True)
    return table.argmax(1)


def _other_inputs(trial: Trial, x: Tensor, y: Tensor) -> Iterator[Explanation]:
    """Images given in another way: light and dark, colours, rows and columns, normalisation."""

    def right(trial: Trial, x: Tensor = x) -> Tensor:
        return _right(trial.logits(x, y), y)

    # 1 - x is normalised as x is by 1 - mean and -std
    inverted = flags_of([1 - value for value in trial.mean], [-value for value in trial.std])
    yield Mistake("inverted", "light and dark are exchanged", inverted), right(trial, 1 - x)
    swaps = {"rgb": "bgr", "bgr": "rgb"}
    if x.shape[1] == 3 and trial.channels in swaps:
        order = swaps[trial.channels]
        swapped = Mistake("BGR", "red and blue are exchanged", f"--set subject.channels={order}")
        yield swapped, right(replace(trial, channels=order))
    if x.shape[2] == x.shape[3]:
        turned = Mistake(
            "transposed",
            "rows and columns are exchanged",
            "x.transpose(2, 3) first in the model's forward, or images saved upright",
        )
        yield turned, right(trial, x.transpose(2, 3))
    for name, (mean, std) in USUAL.items():
        if _fits(name, x, trial.channels):
            what = f"the normalisation is another one: {name}"
            other = replace(trial, mean=mean, std=std)
            yield Mistake("normalisation", what, flags_of(mean, std)), right(other)


def _other_sizes(trial: Trial, x: Tensor, images: Images) -> Iterator[Explanation]:
    """Images of other sizes."""
    for size in sorted(SIZES, key=lambda size: abs(math.log(size / x.shape[2]))):
        if abs(size - x.shape[2]) > 2 and x.shape[2] / 8 <= size <= 8 * x.shape[2]:
            logits, _ = trial.attempt(_resized(x, size), images.y)
            if logits is not None and logits.ndim == 2:
                what = "the network was trained on images of about"
                yield _size(size, what, x, images.name), _right(logits, images.y)


def sizes_taken(net: nn.Module, *more: int) -> list[int]:
    """Return the sides of `SIZES` and `more` that a network answers, tried with an image of each.

    Those that are left when the time of `trying` is over are not tried.
    """
    until, _ = _TRYING.get()
    trial = Trial(net)
    label = torch.zeros(1, dtype=torch.int64)

    def takes(size: int) -> bool:
        shapes = ((1, channels, size, size) for channels in (3, 1))
        found = (trial.attempt(torch.full(shape, 0.5), label)[0] for shape in shapes)
        return any(logits is not None and logits.ndim == 2 for logits in found)

    tried = sorted({*SIZES, *more})
    return [size for size in tried if process_time() < until and takes(size)]


def _resized(x: Tensor, size: int) -> Tensor:
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def _untrained(logits: Tensor, accuracy: float, classes: int) -> Iterable[Mistake]:
    """Nothing helps: the weights may be missing."""
    if classes == 2 and accuracy > 0.5 + 1 / len(logits) ** 0.5:
        return  # of two classes nobody gets more than twice the chance
    share = logits.argmax(1).bincount().max().item() / len(logits)
    same = f"; it says the same class for {100 * share:.0f} % of them" if share > 0.8 else ""
    yield Mistake(
        "no weights",
        f"the network is no better than chance whatever is tried{same}: its weights may be missing",
        "--model weights.safetensors@file.py:factory",
    )


def _right(logits: Tensor, y: Tensor) -> Float[Tensor, " m"]:
    return (logits.argmax(1) == y).double()
