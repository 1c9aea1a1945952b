"""What coverage costs: all criteria of one pass together, over a plain forward pass of the same model on the same images."""

from __future__ import annotations

import resource
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO

import torch
from torch import Tensor

from benchmarks.figures import Figure, ratio, seconds
from hardcase import data
from hardcase.criteria.criterion import Spec, build_criteria
from hardcase.criteria.network import join_taps
from hardcase.criteria.profile import Profile
from hardcase.errors import HardcaseError
from hardcase.models import zoo
from hardcase.models.subject import Subject
from hardcase.models.zoo import resnet18
from hardcase.randomness import stream
from hardcase.suite import coverage
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images

COMMAND = "python -m benchmarks coverage"
SIX = ("nc", "kmnc:k=1000", "nbc", "snac", "tknc", "tknp")
MODES = {"": "channel", "units-": "unit"}


def figures() -> Iterator[Figure]:
    lenet, train, test = _digits()
    deep, noise = _colour()
    yield from _six("lenet5", lenet, test, train.take(torch.arange(4000)))
    yield from _six("resnet18", deep, noise, noise.take(torch.arange(256)))
    yield _memory()
    yield from _surprise(lenet, test, train)
    yield from _growth(lenet, test)


def _six(name: str, subject: Subject, images: Images, training: Images) -> Iterator[Figure]:
    for prefix, mode in MODES.items():
        specs = _specs(mode)
        profile = coverage.profile_for(subject, training, specs)
        batch = _batch(subject, images, specs, profile)
        ours, plain = (
            _covered(subject, images, specs, profile, batch),
            _plain(subject, images, batch),
        )
        yield _ratio(
            f"coverage-six-{prefix}{name}",
            ratio(ours, plain),
            f"a forward pass of {len(images)} images",
        )
        yield from _dnn_tip(f"{prefix}{name}", subject, images, training, mode)


def _covered(
    subject: Subject, images: Images, specs: Sequence[Spec], profile: Profile, batch: int
) -> Callable[[], object]:
    graph = coverage.layer_graph(subject, images)

    def work() -> object:
        measures = [build_criteria(spec, graph, profile) for spec in specs]
        coverage.observe(subject, images, measures, batch=batch)
        return [measure.result() for measure in measures]

    return work


def _plain(subject: Subject, images: Images, batch: int) -> Callable[[], object]:
    def work() -> None:
        with torch.inference_mode():
            for part in chunks(len(images), batch):
                subject.net(from_bytes(images.x[part]))

    return work


def _dnn_tip(
    name: str, subject: Subject, images: Images, training: Images, mode: str
) -> Iterator[Figure]:
    """Each criterion of dnn-tip alone, a forward pass added, on as many images as its arrays leave room for."""
    try:
        from dnn_tip import neuron_coverage as tip
    except ImportError:
        return
    count = (
        {"channel": 256, "unit": 4}[mode] if "lenet5" in name else {"channel": 64, "unit": 0}[mode]
    )
    if not count:
        return
    few = images.take(torch.arange(count))
    values = [v.numpy() for v in _activations(subject, few, mode)]
    known = [v.numpy() for v in _activations(subject, training.take(torch.arange(64)), mode)]
    low, high, spread = (
        [f(v) for v in known] for f in (lambda v: v.min(0), lambda v: v.max(0), lambda v: v.std(0))
    )
    criteria = {
        "nc": tip.NAC(0.0),
        "kmnc": tip.KMNC(low, high, 1000),
        "nbc": tip.NBC(low, high, spread, 0),
        "snac": tip.SNAC(high, spread, 0),
        "tknc": tip.TKNC(3),
    }
    forward = _forward(subject, images, count)
    for criterion, measure in criteria.items():
        spent = min(seconds(partial(measure, values)) for _ in range(2))
        yield _ratio(
            f"dnn-tip-{criterion}-{name}", 1 + spent / forward, f"a forward pass of {count} images"
        )


def _forward(subject: Subject, images: Images, count: int) -> float:
    """Seconds of a forward pass per `count` images, measured on all of them in batches of 64."""
    plain = _plain(subject, images, 64)
    return min(seconds(plain) for _ in range(3)) * count / len(images)


def _surprise(subject: Subject, images: Images, training: Images) -> Iterator[Figure]:
    """LSA and DSA of all images; the profile, made once, is timed apart."""
    for spec in ("lsa", "dsa"):
        made: list[Profile] = []
        specs = coverage.specs_of(spec)
        spent = seconds(lambda: made.append(coverage.profile_for(subject, training, specs)))  # noqa: B023 - called at once
        fitted = seconds(
            partial(build_criteria, spec, coverage.layer_graph(subject, images), made[0])
        )
        what = f"nothing: once for {len(training)} training images"
        yield Figure(
            name=f"{spec}-profile", value=spent + fitted, unit="s", against=what, command=COMMAND
        )
        ours, plain = _covered(subject, images, specs, made[0], 256), _plain(subject, images, 256)
        yield _ratio(f"{spec}-10k", ratio(ours, plain), f"a forward pass of {len(images)} images")
        yield from _dnn_tip_surprise(spec, subject, images, made[0])


def _dnn_tip_surprise(
    spec: str, subject: Subject, images: Images, profile: Profile
) -> Iterator[Figure]:
    try:
        from dnn_tip import surprise as tip
    except ImportError:
        return
    count = {"lsa": 100, "dsa": 20}[spec]
    few = images.take(torch.arange(0, len(images), len(images) // count)[:count])
    (traces,) = profile.traces.values()
    known, classes = traces.values.numpy(), traces.predicted.numpy()
    values, logits = (
        _activations(subject, few, "channel")[-2].numpy(),
        _activations(subject, few, "channel")[-1],
    )
    with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        model = tip.DSA(known, classes) if spec == "dsa" else _by_class(tip, known, classes)
        spent = seconds(lambda: model(values, logits.argmax(1).numpy()))
    yield _ratio(
        f"dnn-tip-{spec}",
        1 + spent / _forward(subject, images, count),
        f"a forward pass of {count} images",
    )


def _by_class(tip: object, known: object, classes: object) -> Callable[..., object]:
    build_by_class = tip.MultiModalSA.build_by_class  # type: ignore[attr-defined]  # a module without types
    model: Callable[..., object] = build_by_class(known, classes, lambda a, _: tip.LSA(a))  # type: ignore[attr-defined]  # the same
    return model


def _growth(subject: Subject, images: Images) -> Iterator[Figure]:
    """Twice the inputs, twice the cost; four times the units, four times the cost."""
    specs, curve = _specs("unit"), dict[int, float]()
    profile = coverage.profile_for(subject, images, specs)
    for count in (1000, 2000, 4000, 8000):
        part = images.take(torch.arange(count) % len(images))
        curve[count] = (
            min(seconds(_covered(subject, part, specs, profile, 256)) for _ in range(3)) / count
        )
    yield _growth_figure("inputs", curve)
    beyond = dict[int, float]()
    for width in (16, 32, 64):
        wider, noise = _colour(width, 96)
        profile = coverage.profile_for(wider, noise, specs)
        work, plain = _covered(wider, noise, specs, profile, 32), _plain(wider, noise, 32)
        units = build_criteria(specs[0], coverage.layer_graph(wider, noise), profile).convention[
            "units"
        ]
        beyond[units] = (
            (min(seconds(work) for _ in range(3)) - min(seconds(plain) for _ in range(3)))
            / len(noise)
            / units
        )
    yield _growth_figure("units", beyond)


def _growth_figure(what: str, curve: dict[int, float]) -> Figure:
    first, last = next(iter(curve.values())), list(curve.values())[-1]
    points = ", ".join(f"{size}: {1e6 * spent:.3g} us" for size, spent in curve.items())
    against = f"the cost of each at the smallest size (1 is linear); each of {points}"
    return Figure(
        name=f"coverage-growth-{what}",
        value=last / first,
        unit="times",
        against=against,
        command=COMMAND,
    )


def _memory() -> Figure:
    """The resident size of a process that covers every unit of a ResNet-18."""
    code = "from benchmarks.coverage import peak; print(peak())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    value, against = float(done.stdout.split()[-1]), "2 GB: 614,410 units, k = 1000"
    return Figure(
        name="coverage-six-units-resnet18-memory",
        value=value,
        unit="GB",
        against=against,
        command=COMMAND,
    )


def peak() -> float:
    subject, images = _colour(count=128)
    specs = _specs("unit")
    profile = coverage.profile_for(subject, images, specs)
    _covered(subject, images, specs, profile, _batch(subject, images, specs, profile))()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _digits() -> tuple[Subject, Images, Images]:
    """A trained LeNet-5, MNIST's 60,000 training and 10,000 test images; without MNIST, copies of the embedded ones."""
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    subject = Subject(zoo.trained_classifier("lenet5", train, test)[0], name="lenet5")
    try:
        return subject, data.load("mnist", split="train"), data.load("mnist", split="test")
    except HardcaseError:
        many = (
            part.take(torch.arange(count) % len(part))
            for part, count in ((train, 60_000), (test, 10_000))
        )
        jittered = [_jittered(part) for part in many]
        return subject, jittered[0], jittered[1]


def _jittered(images: Images) -> Images:
    noise = torch.randint(-20, 21, images.x.shape, generator=stream(0, "jitter"), dtype=torch.int16)
    x = (images.x.to(torch.int16) + noise).clamp(0, 255).to(torch.uint8)
    return Images(x, images.y, images.id, images.classes, images.name, images.split)


def _colour(width: int = 64, count: int = 512) -> tuple[Subject, Images]:
    """A ResNet-18 for 32x32 images as it starts out, and noise to show it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = resnet18(3, 32, 10, width=width)
    x = torch.randint(0, 256, (count, 3, 32, 32), generator=stream(0, "noise"), dtype=torch.uint8)
    names = tuple(f"noise-{i}" for i in range(count))
    return Subject(net, name="resnet18"), Images(
        x, torch.zeros(count).long(), names, tuple("0123456789"), "noise"
    )


def _activations(subject: Subject, images: Images, mode: str) -> list[Tensor]:
    selection = build_criteria(
        f"nc:mode={mode}", coverage.layer_graph(subject, images)
    ).rule.selection
    with torch.inference_mode():
        return selection.read(subject(from_bytes(images.x), selection.taps).activations)


def _specs(mode: str) -> list[Spec]:
    return coverage.specs_of(",".join(f"{spec},mode={mode}" for spec in SIX))


def _batch(subject: Subject, images: Images, specs: Sequence[Spec], profile: Profile) -> int:
    graph = coverage.layer_graph(subject, images)
    return coverage.batch_for(
        subject, images, join_taps(build_criteria(spec, graph, profile).taps for spec in specs)
    )


def _ratio(name: str, value: float, against: str) -> Figure:
    return Figure(name=name, value=value, unit="times", against=against, command=COMMAND)
