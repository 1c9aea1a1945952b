"""Find out by trying how to call a model: its kind of output, its normalisation, usual mistakes.

The idea throughout: classify a sample of labelled images in another way, and report the way that
gets clearly more of them right, with its flag.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from time import process_time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.cache import named_path
from hardcase.errors import Endless, HardcaseError, Raised, guarded, within
from hardcase.models.adapters import fit_state, logits_of, read_state, timm_config
from hardcase.models.subject import (
    BINARY,
    LOOPING,
    Subject,
    as_logits,
    device_of,
    in_evaluation_mode,
    is_softmax,
    prepared,
)
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Model, is_photographic

ENOUGH = 50
"""Labelled images on which ways of asking are compared."""
GLANCE = 16
"""Those of photographs where time is short."""
FINE = 0.9
"""Share right from which on nobody looks for another normalisation."""
GAIN = 0.1
"""Gain in accuracy at which another normalisation is used by default."""
CLEARLY = 0.15
"""Gain in accuracy, besides two standard errors, at which a remedy is named."""
SEVERAL = 1.5
"""Outputs per image above 0.5 from which on a model counts as multi-label."""
CHANCE = 0.025
"""How likely guessing is to be right as often, at most, where a model is no guess."""
GUESSING = 1.5
"""Multiple of the chance level up to which a model may be guessing; small samples resolve no
less."""
WEIGHTS = (".safetensors", ".pt", ".pth")
SIZES = (28, 32, 64, 96, 128, 160, 192, 224, 256, 299, 384)
"""Usual input sides of networks."""
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

Log = Callable[[str], None]
_TRYING: ContextVar[tuple[float, Log]] = ContextVar("trying", default=(math.inf, lambda text: None))


@contextmanager
def trying(seconds: float, log: Log) -> Iterator[None]:
    """Let mistakes be tried for so many seconds of processor time only; `log` names it."""
    before = _TRYING.set((process_time() + seconds, log))
    try:
        yield
    finally:
        _TRYING.reset(before)


@dataclass(frozen=True, slots=True)
class Trial:
    """A network and a way of calling it, in evaluation mode."""

    net: nn.Module
    mean: Values = (0.0,)
    std: Values = (1.0,)
    channels: str = "rgb"
    outputs: str = "logits"
    batch: int = 16

    def scores(self, x: Float[Tensor, "m c h w"]) -> Tensor:
        """What it returns for images in [0, 1]."""
        device = device_of(self.net)
        mean = torch.tensor(self.mean).reshape(1, -1, 1, 1)
        std = torch.tensor(self.std).reshape(1, -1, 1, 1)
        with (
            guarded("the model"),
            within(LOOPING, Endless),
            torch.no_grad(),
            in_evaluation_mode(self.net),
        ):
            parts = [
                logits_of(self.net(prepared(x[rows], mean, std, self.channels).to(device)))
                for rows in chunks(len(x), self.batch)
            ]
        scores = torch.cat(parts).float().cpu()
        return scores[:, None] if scores.ndim == 1 else scores

    def logits(self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]) -> Tensor:
        """The same as logits; a single output for two classes is read as it fits the labels
        best."""
        scores = self.scores(x)
        if len(scores) != len(x):
            shape = " x ".join(map(str, scores.shape))
            raise HardcaseError(f"the network returns {shape} numbers, no class scores per image")
        if scores.shape[1] != 1:
            return scores
        outputs = self.outputs if self.outputs in BINARY else binary_reading(scores, y)[0]
        return as_logits(scores, outputs)

    def attempt(self, x: Tensor, y: Tensor) -> tuple[Tensor | None, str]:
        """Its logits, or the words of its failure."""
        try:
            return self.logits(x, y), ""
        except Raised as raised:
            return None, f"{type(raised.__cause__).__name__}: {raised.__cause__}"
        except HardcaseError as problem:
            return None, problem.what
        except Exception as error:  # what it answers may be of any kind
            return None, f"{type(error).__name__}: {error}"


def _in_unit_interval(scores: Float[Tensor, "n k"]) -> bool:
    """Whether outputs that differ all lie in 0..1, as a sigmoid's do."""
    return bool((scores >= 0).all() and (scores <= 1).all() and scores.std() > 0)


def binary_reading(scores: Float[Tensor, "n 1"], y: Int[Tensor, " n"]) -> tuple[str, str]:
    """How a single output for two classes is to be read, a kind of `BINARY`, and why in words.

    Example:
        >>> binary_reading(torch.tensor([[3.0], [-2.0]] * 4), torch.tensor([0, 1] * 4))[0]
        'binary-first'
    """
    kind, word = "binary", "logit"
    if _in_unit_interval(scores):
        kind, word = "binary-sigmoid", "probability"
    right = float(_right(as_logits(scores, kind), y).mean())
    reading = f"one {word} for two classes"
    if abs(right - 0.5) <= 1 / len(y) ** 0.5:  # two standard errors of a coin
        return kind, f"{reading}, taken for the second class; {len(y)} images do not tell which"
    share = f"{100 * max(right, 1 - right):.0f} % of {len(y)} images right"
    if right > 0.5:
        return kind, f"{reading}, of the second class ({share})"
    return f"{kind}-first", f"{reading}, of the first class ({share})"


def flags_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """The words that say a normalisation on the command line."""
    means = ",".join(f"{value:.4g}" for value in mean)
    stds = ",".join(f"{value:.4g}" for value in std)
    return f"--set model.mean={means} --set model.std={stds}"


def name_of(mean: Sequence[float], std: Sequence[float]) -> str:
    """The name of a usual normalisation; ``another`` for any other."""
    for name, usual in USUAL.items():
        if len(mean) == len(usual[0]) and np.allclose([mean, std], usual):
            return name
    return "another"


def stated_by(thing: object) -> tuple[Values, Values] | None:
    """Mean and standard deviation that a network carries itself, as timm's do; else None."""
    settings = timm_config(thing)
    if settings.get("mean") is None or settings.get("std") is None:
        return None
    return tuple(map(float, settings["mean"])), tuple(map(float, settings["std"]))


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, in words; what to do, if possible as a flag; the share right then."""

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
class Explanation:
    """A mistake, which images are right once it is put right, and how likely their labels are.

    What is chosen from many, or is surer of everything, must be better by `handicap`; `label` is
    the other way of asking in a list of what each gave.
    """

    mistake: Mistake
    right: Float[Tensor, " m"]
    likelihood: float
    handicap: float = 0.0
    label: str = ""
    normalisation: str = ""

    @property
    def accuracy(self) -> float:
        return float(self.right.mean())

    @property
    def merit(self) -> tuple[float, float]:
        """Share right; ties go to the higher likelihood."""
        return self.accuracy - self.handicap, self.likelihood


def _explanation(mistake: Mistake, logits: Tensor, y: Tensor, **facts: Any) -> Explanation:
    known = logits.log_softmax(1).gather(1, y.clamp(0, logits.shape[1] - 1)[:, None]).double()
    likelihood = float(known.nan_to_num(-1e3).clamp_min(-1e3).mean())
    return Explanation(mistake, _right(logits, y), likelihood, **facts)


def settled(
    net: nn.Module, images: Images, channels: str = "rgb"
) -> tuple[Values, Values, str] | None:
    """Mean and std of the usual normalisation that a network clearly wants, and why in words."""
    if len(set(images.y.tolist())) < 2:  # of one class, a network that always says it seems best
        return None
    sampled = images.sample(count=min(ENOUGH, len(images)))
    x = from_bytes(sampled.x)
    trial = Trial(net, channels=channels)
    try:
        plain = float(_right(trial.logits(x, sampled.y), sampled.y).mean())
        if plain >= FINE:
            return None
        rows = slice(len(x))
        if is_photographic(images.shape):  # each image costs, so only the best is held against all
            rows = slice(GLANCE)
        best = max(_other_inputs(trial, x[rows], sampled.y[rows]), key=lambda tried: tried.merit)
        name = best.normalisation
        if name in ("", NONE):
            return None
        mean, std = USUAL[name]
        normalised = replace(trial, mean=mean, std=std)
        right = float(_right(normalised.logits(x, sampled.y), sampled.y).mean())
    except Exception:  # a network that fails is told of in full by the check of its health
        return None
    if right - plain <= GAIN:
        return None
    words = f"{100 * right:.0f} % right; to fix it: {flags_of(mean, std)}"
    return mean, std, f"normalisation {name}: {words}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The share right with the present settings (None: it crashes), the mistakes, the share right
    in each other way that was tried, and the number of images."""

    accuracy: float | None
    mistakes: tuple[Mistake, ...]
    tried: tuple[tuple[str, float], ...] = ()
    images: int = 0

    def __str__(self) -> str:
        head = "the model fails on these images"
        if self.accuracy is not None:
            head = f"{100 * self.accuracy:.0f} % right"
        return "\n".join([head, *(f"- {mistake}" for mistake in self.mistakes)])


def diagnosis_of(subject: Model, images: Images) -> Diagnosis | None:
    """What is wrong with a model's settings; None where no other can be tried."""
    if not isinstance(subject, Subject) or not len(images):
        return None
    diagnosis = diagnose(
        subject.net,
        images,
        mean=tuple(subject.mean.flatten().tolist()),
        std=tuple(subject.std.flatten().tolist()),
        channels=subject.channels,
        outputs=subject.outputs,
    )
    stated = {"probabilities": ("softmax", "double softmax"), "sigmoid": ("sigmoid",)}
    kinds = stated.get(subject.outputs, ())
    mistakes = [mistake for mistake in diagnosis.mistakes if mistake.name not in kinds]
    if mistakes and mistakes[-1].name == "no weights":
        mistakes[-1] = replace(mistakes[-1], fix=_fix_of_weights(subject))
    return replace(diagnosis, mistakes=tuple(mistakes))


def _fix_of_weights(subject: Subject) -> str:
    """What to do about a network without weights: the flag with the first file next to its
    code that fits, if any does."""
    model = subject.name
    path = named_path(model.rpartition(":")[0])
    if "@" in model or path.suffix != ".py":
        return "weights of this network that are trained for these classes"
    for file in sorted(each for each in path.parent.glob("*") if each.suffix in WEIGHTS):
        with suppress(HardcaseError):
            fit_state(copy.deepcopy(subject.net), read_state(file))
            return f"--model {file}@{model}"
    return f"--model WEIGHTS@{model} with the file of its weights"


def diagnose(net: nn.Module, images: Images, **asked: Any) -> Diagnosis:
    """Classify up to fifty images with the present settings (`asked`), and with other plausible
    settings."""
    hurried = math.isfinite(_TRYING.get()[0]) and is_photographic(images.shape)
    sampled = images.sample(count=min(GLANCE if hurried else ENOUGH, len(images)))
    x = from_bytes(sampled.x)
    mistakes = list[Mistake]()
    active = (nn.Dropout, nn.modules.batchnorm._BatchNorm)
    if any(module.training and isinstance(module, active) for module in net.modules()):
        what = "the network is in training mode: dropout and batch statistics change its answers"
        mistakes.append(Mistake("training mode", what, "net.eval() in the factory"))
    trial = Trial(net, **asked)
    logits, failure = trial.attempt(x, sampled.y)
    if logits is None:
        return Diagnosis(None, (*mistakes, _failing(trial, x, sampled, failure)))
    scores = trial.scores(x)
    again = trial.scores(x[: trial.batch])
    if not torch.equal(scores[: trial.batch], again) and not scores.isnan().any():
        what = "the network changes its answer from one time to the next: dropout or noise"
        noise = Mistake("noise", what, "net.eval() in the factory, no randomness in its forward")
        return Diagnosis(None, (*mistakes, noise))
    outputs = list(odd_outputs(scores, sampled, trial.outputs))
    mistakes += outputs
    if logits.ndim != 2 or any(mistake.name in ("outputs", "nan") for mistake in outputs):
        return Diagnosis(None, tuple(mistakes))
    tried: list[Explanation] = []
    if all(mistake.name != "labels from 1" for mistake in outputs):
        tried = _tried(trial, x, sampled, logits)
        mistakes += _explained(tried, logits, sampled.y)
    if not mistakes:
        mistakes += _untrained(trial, images)
    outcomes = tuple((each.label or each.mistake.name, each.accuracy) for each in tried)
    accuracy = float(_right(logits, sampled.y).mean())
    return Diagnosis(accuracy, tuple(mistakes), outcomes, len(sampled))


def with_options(data: str, **options: str | int) -> str:
    """The flag that names the data with other options; empty where they have none."""
    path, _, query = data.partition("?")
    if "resize" in options and not path.startswith(("folder:", "csv:")):
        return ""
    words = dict(word.partition("=")[::2] for word in query.split("&") if word)
    both = "&".join(f"{name}={word}" for name, word in {**words, **options}.items())
    return f"--data '{path}?{both}'"


def _size(size: int, what: str, x: Tensor, data: str) -> Mistake:
    flag = with_options(data, resize=size, crop="center") or "a factory that resizes inside"
    return Mistake("size", f"{what} {size} pixels, these have {x.shape[2]}", flag)


def _failing(trial: Trial, x: Tensor, images: Images, failure: str) -> Mistake:
    """What makes a network that fails answer: other channels, another size, device or type."""
    kind, other = ("grey", "colour") if x.shape[1] == 1 else ("colour", "grey")
    if replace(trial, channels=other).attempt(x, images.y)[0] is not None:
        what = f"the network takes {other} images, these are {kind}"
        return Mistake("channels", what, f"--set model.channels={other}")
    last = replace(trial, channels="last").attempt(x, images.y)[0]
    if last is not None and last.ndim == 2:
        what = "the network takes images as N x H x W x C, these are N x C x H x W"
        return Mistake("channels last", what, "--set model.channels=last")
    for size in SIZES:
        if trial.attempt(_resized(x[:1], size), images.y[:1])[0] is not None:
            return _size(size, "the network takes images of", x, images.name)
    if re.search(r"same device|cuda|mps", failure, re.IGNORECASE):
        what = f"parts of the network are on different devices ({failure[:80]})"
        return Mistake("device", what, "--device cpu")
    if re.search(r"dtype|type|half|bfloat", failure, re.IGNORECASE):
        what = f"parts of the network have different number types ({failure[:80]})"
        return Mistake("type", what, "net.float()")
    if "class scores" in failure:
        return Mistake("returned", failure, "a forward that returns the logits")
    return Mistake("fails", f"the network crashes: {failure[:200]}", "one forward pass by hand")


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
            yield Mistake("outputs", f"the network has {why}", f"--set model.outputs={reading}")
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
        fix = "--set model.outputs=probabilities"
        if float(scores.max()) <= twice + 1e-6:
            what = "the outputs are as flat as a softmax of a softmax"
            yield Mistake("double softmax", what, f"one softmax fewer, then {fix}")
        yield Mistake("softmax", "the outputs are probabilities", fix)
    elif _in_unit_interval(scores):
        at_once = float((scores > 0.5).sum(1).double().mean())
        if at_once >= SEVERAL:
            what = f"{at_once:.1f} outputs per image exceed one half: a model of several labels"
            fix = "the outputs of classes that exclude each other"
            yield Mistake("several labels", f"{what} at once, which are not tested yet", fix)
        else:
            what = "the outputs lie in 0..1: a sigmoid"
            yield Mistake("sigmoid", what, "--set model.outputs=sigmoid")


def _tried(trial: Trial, x: Tensor, images: Images, logits: Tensor) -> list[Explanation]:
    """The other ways of asking, each with the images that are right then."""
    if len(set(images.y.tolist())) < 2:
        return []
    right = float(_right(logits, images.y).mean())
    until, log = _TRYING.get()
    if process_time() < until:
        log("trying other colours, normalisations and sizes")
    if right >= 1 - CLEARLY:  # none can be clearly better, but a person may want to see it
        return _timely(_other_inputs(trial, x, images.y)) if math.isfinite(until) else []
    tried = _timely(_labels(logits, images), _other_inputs(trial, x, images.y))
    if max((each.accuracy for each in tried), default=0.0) < FINE:
        tried += _timely(_other_sizes(trial, x, images))
    return tried


def _explained(tried: Sequence[Explanation], logits: Tensor, y: Tensor) -> list[Mistake]:
    """The explanation that makes most images right, if it does so clearly."""
    if not tried:
        return []
    before = _right(logits, y)
    best = max(tried, key=lambda each: each.merit)
    gap = best.right - before
    error = float(gap.std(correction=0)) / len(gap) ** 0.5
    if float(gap.mean()) <= max(CLEARLY, 2 * error):
        return []
    return [replace(best.mistake, accuracy=best.accuracy)]


def _timely(*ways: Iterator[Explanation]) -> list[Explanation]:
    """Explanations, each tried when it is requested, until the time is over."""
    until, _ = _TRYING.get()
    tried: list[Explanation] = []
    following = chain(*ways)
    while process_time() < until and (mistake := next(following, None)):
        tried.append(mistake)
    return tried


def _labels(logits: Tensor, images: Images) -> Iterator[Explanation]:
    """Labels that count from 1, an output before the first class, and classes in another order."""
    y = images.y
    if int(y.min()) == 1:
        mistake = Mistake(
            "labels from 1", "the labels count from 1", with_options(images.name, first=1)
        )
        yield _explanation(mistake, logits, y - 1)
    names = ["background", *images.classes]
    if logits.shape[1] == len(names):
        what = "the network has an output before the first class (background)"
        yield _explanation(Mistake("background", what, _named_outputs(names)), logits, y + 1)
    order = _class_order(logits, images)
    if order is not None and len(set(y.tolist())) <= len(y) // 3:
        yield order


def _class_order(logits: Tensor, images: Images) -> Explanation | None:
    """Map each class to its most frequent output, if these outputs differ."""
    votes = torch.zeros(int(images.y.max()) + 1, logits.shape[1])
    votes.index_put_((images.y, logits.argmax(1)), torch.ones(len(logits)), accumulate=True)
    order = votes.argmax(1)
    present = sorted(set(images.y.tolist()))
    if not 1 < len({int(order[at]) for at in present}) == len(present):
        return None
    listed = ", ".join(f"{images.classes[at]} -> {int(order[at])}" for at in present[:4])
    names = [f"output {at}" for at in range(logits.shape[1])]
    for at in present:
        names[int(order[at])] = images.classes[at]
    what = f"the classes have another order ({listed} …)"
    mistake = Mistake("class order", what, _named_outputs(names))
    return _explanation(
        mistake, logits, order[images.y], handicap=0.1, label="another order of classes"
    )


def reordered(logits: Float[Tensor, "n k"], images: Images) -> Mistake | None:
    """Return that the classes have another order, if that clearly explains a model's answers."""
    order = _class_order(logits, images)
    if order is None or len(set(images.y.tolist())) < len(images.classes):
        return None
    if order.accuracy <= float(_right(logits, images.y).mean()) + 2 * CLEARLY:
        return None
    return replace(order.mistake, accuracy=order.accuracy)


def _named_outputs(names: list[str]) -> str:
    """The flag that says which class each output means."""
    joined = ",".join(names)
    if any(mark in joined for mark in " '\"") or joined.count(",") >= len(names):
        return "class folders named as the model names its outputs, or hc.Subject(classes=...)"
    return f"--set model.classes={joined}"


def _other_inputs(trial: Trial, x: Tensor, y: Tensor) -> Iterator[Explanation]:
    """Images in another form: light and dark, colours, rows and columns, normalisation."""
    # 1 - x is normalised as x is by 1 - mean and -std
    inverted = flags_of([1 - value for value in trial.mean], [-value for value in trial.std])
    mistake = Mistake("inverted", "light and dark are exchanged", inverted)
    yield _explanation(mistake, trial.logits(1 - x, y), y, label="light and dark exchanged")
    swaps = {"rgb": "bgr", "bgr": "rgb"}
    if x.shape[1] == 3 and trial.channels in swaps:
        order = swaps[trial.channels]
        mistake = Mistake("BGR", "red and blue are exchanged", f"--set model.channels={order}")
        logits = replace(trial, channels=order).logits(x, y)
        yield _explanation(mistake, logits, y, label=order.upper())
    if x.shape[2] == x.shape[3]:
        fix = "x.transpose(2, 3) first in the model's forward, or images saved upright"
        mistake = Mistake("transposed", "rows and columns are exchanged", fix)
        logits = trial.logits(x.transpose(2, 3), y)
        yield _explanation(mistake, logits, y, label="rows and columns exchanged")
    channels = {"grey": 1, "colour": 3}.get(trial.channels, x.shape[1])
    for name, (mean, std) in USUAL.items():
        if max(len(mean), len(std)) not in (1, channels) or (mean, std) == (trial.mean, trial.std):
            continue
        what = f"the normalisation is another one: {name}"
        mistake = Mistake("normalisation", what, flags_of(mean, std))
        logits = replace(trial, mean=mean, std=std).logits(x, y)
        # inputs a hundred times larger than others' are surer of everything
        handicap = GAIN if max(std) < 0.01 else 0.0
        about: dict[str, Any] = {"label": f"normalisation {name}", "normalisation": name}
        yield _explanation(mistake, logits, y, handicap=handicap, **about)


def _other_sizes(trial: Trial, x: Tensor, images: Images) -> Iterator[Explanation]:
    """Images of other sizes."""
    for size in sorted(SIZES, key=lambda size: abs(math.log(size / x.shape[2]))):
        if abs(size - x.shape[2]) > 2 and x.shape[2] / 8 <= size <= 8 * x.shape[2]:
            logits, _ = trial.attempt(_resized(x, size), images.y)
            if logits is not None and logits.ndim == 2:
                what = "the network was trained on images of about"
                mistake = _size(size, what, x, images.name)
                yield _explanation(mistake, logits, images.y, handicap=0.05, label=f"{size} pixels")


def sizes_taken(net: nn.Module, *more: int) -> list[int]:
    """Return the sides of `SIZES` and `more` that a network answers, while there is time."""
    until, _ = _TRYING.get()
    trial = Trial(net)
    label = torch.zeros(1, dtype=torch.int64)

    def takes(size: int) -> bool:
        shapes = ((1, channels, size, size) for channels in (3, 1))
        answers = (trial.attempt(torch.full(shape, 0.5), label)[0] for shape in shapes)
        return any(logits is not None and logits.ndim == 2 for logits in answers)

    tried = sorted({*SIZES, *more})
    return [size for size in tried if process_time() < until and takes(size)]


def _resized(x: Tensor, size: int) -> Tensor:
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def may_be_guessing(right: int, total: int, classes: int) -> bool:
    """Whether a model is hardly better than a guess among `classes`, and a guess might be
    right as often (one-sided binomial test).

    Example:
        >>> may_be_guessing(37, 67, 3), may_be_guessing(7, 67, 10), may_be_guessing(3, 4, 3)
        (False, True, False)
    """
    from scipy.special import bdtrc

    hardly_more = right * classes <= GUESSING * total
    return hardly_more and (not right or float(bdtrc(right - 1, total, 1 / classes)) > CHANCE)


def _untrained(trial: Trial, images: Images) -> list[Mistake]:
    """Report missing weights as a possible cause if no other settings make the network better than
    chance; a glance at a small sample is repeated with more images."""
    sampled = images.sample(count=min(ENOUGH, len(images)))
    logits, _ = trial.attempt(from_bytes(sampled.x), sampled.y)
    if logits is None:
        return []
    right = int(_right(logits, sampled.y).sum())
    constant = len(set(logits.argmax(1).tolist())) == 1 < len(set(sampled.y.tolist()))
    if not may_be_guessing(right, len(sampled), len(sampled.classes)) and not constant:
        return []
    what = "the network is no better than chance whatever is tried: its weights may be missing"
    return [Mistake("no weights", what, "--model weights.safetensors@file.py:factory")]


def _right(logits: Tensor, y: Tensor) -> Float[Tensor, " m"]:
    return (logits.argmax(1) == y).double()
