"""What coverage, surprise, training and judging cost on a GPU; figures of ``python -m benchmarks gpu``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import torch

import hardcase as hc
from benchmarks.coverage import SIX
from benchmarks.figures import Figure
from benchmarks.gpu import (
    BATCHES,
    DEVICE,
    SMALL,
    Measure,
    best,
    coloured,
    digits,
    figure,
    resnet,
    sized,
    synchronise,
)
from hardcase import generators
from hardcase.criteria.criterion import build_criteria
from hardcase.judges import panel
from hardcase.judges.features import encoder
from hardcase.judges.photographs import feature_judge
from hardcase.models import zoo
from hardcase.suite import coverage
from hardcase.tensors import from_bytes
from hardcase.types import Findings, Images
from hardcase_teams.pretrained.resnet50 import resnet50


def _seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of several times, the device's own included; one more warms up."""
    work()
    times = []
    for _ in range(repeats):
        synchronise()
        begun = perf_counter()
        work()
        synchronise()
        times.append(perf_counter() - begun)
    return min(times)


def _forward(subject: hc.Subject, images: Images) -> float:
    """Seconds of a plain forward pass over all images at its best batch."""
    x = images.x.to(DEVICE)

    def bare(batch: int) -> int:
        with torch.inference_mode():
            for part in x.split(batch):
                subject.net(from_bytes(part))
        return len(x)

    return len(x) / best(bare, BATCHES, repeats=2)


def _covered(subject: hc.Subject, images: Images, training: Images, specs: str) -> float:
    """Times a forward pass that these criteria take; what they know of training data is made before."""
    wanted = coverage.specs_of(specs)
    profile = coverage.profile_for(subject, training, wanted)
    graph = coverage.layer_graph(subject, images)

    def work() -> object:
        measures = [build_criteria(spec, graph, profile) for spec in wanted]
        coverage.observe(subject, images, measures)
        return [measure.result() for measure in measures]

    return _seconds(work) / _forward(subject, images)


def _six(kind: str) -> Iterator[Figure]:
    specs = ",".join(SIX)
    if kind == "resnet50":
        images = coloured(sized(1024, 16), 2, 224)
        torch.manual_seed(0)
        subject = hc.Subject(resnet50(classes=10), name="resnet50", device=DEVICE)
        times = _covered(subject, images, images.first(sized(256, 16)), specs)
        yield _times("gpu-coverage-six-resnet50", times, f"{len(images)} images of 224 px", 1.15)
        return
    images = coloured(sized(16_384, 32), 2)
    times = _covered(resnet(), images, images.first(sized(4096, 32)), specs)
    yield _times("gpu-coverage-six-resnet18", times, f"{len(images)} images of 32 px", 1.15)


def _surprise(spec: str) -> Iterator[Figure]:
    images = coloured(sized(10_000, 40), 3)
    training = coloured(sized(50_000, 2000), 4)
    times = _covered(resnet(), images, training, spec)
    yield _times(f"gpu-{spec}", times, f"{len(images)} images against {len(training)}", 1.3)


def _times(name: str, value: float, what: str, goal: float) -> Figure:
    return figure(name, value, f"times a forward pass ({what})", goal, "at most")


@contextmanager
def _empty_cache() -> Iterator[None]:
    """Trained networks are neither found nor kept while this lasts."""
    before = os.environ.get("HARDCASE_CACHE")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HARDCASE_CACHE"] = home
        try:
            yield
        finally:
            os.environ.pop("HARDCASE_CACHE")
            if before is not None:
                os.environ["HARDCASE_CACHE"] = before


def _training(what: str) -> Iterator[Figure]:
    train, test = digits("mnist5k" if SMALL else "mnist")
    if SMALL:
        train = train.sample(count=200, seed=0)
    with _empty_cache():
        synchronise()
        begun = perf_counter()
        if what == "lenet5":
            epochs = 1 if SMALL else None
            _, card = zoo.trained_classifier("lenet5", train, test, epochs=epochs, device=DEVICE)
            goal = 8
            quality = f"accuracy {card['accuracy']:.4f}"
        elif what == "vae":
            epochs = 1 if SMALL else None
            _, card = generators.trained_generator("vae", train, test, epochs=epochs, device=DEVICE)
            goal = 10
            quality = f"loss {card['loss'][-1]:.1f}"
        else:
            judge = panel.trained(train, test, device=DEVICE)
            goal = 40
            quality = f"accuracy {judge.card['accuracy']:.4f}"
        synchronise()
        spent = perf_counter() - begun
    yield figure(
        f"gpu-train-{what}", spent, f"s for {len(train):,} images ({quality})", goal, "at most"
    )


def _judged(size: int) -> Iterator[Figure]:
    if size == 28:
        train, test = digits()
        judge = panel.trained(train, test, device=DEVICE)
        count = sized(50_000, 300)
        goal = 50_000
    else:
        train = coloured(sized(256, 40), 5, size)
        test = coloured(sized(64, 20), 6, size)
        torch.manual_seed(0)
        net = hc.Subject(resnet50(classes=10), name="resnet50", device=DEVICE)
        reader = encoder(net, from_bytes(test.x[:1].to(DEVICE)), spec="resnet50")
        with _empty_cache():
            judge = feature_judge(("resnet50",), train, test, device=DEVICE, encoders=[reader])
        count = sized(4000, 20)
        goal = 2000
    rows = torch.arange(count) % len(test)
    some = test.take(rows)
    findings = _findings(some)
    spent = _seconds(lambda: judge(findings), repeats=2)
    yield figure(f"gpu-judge-{size}", count / spent, f"findings/s of {size} px", goal)


def _findings(images: Images) -> Findings:
    count = len(images)
    zero = torch.zeros(count)
    whole = torch.zeros(count, dtype=torch.int64)
    return Findings(
        seed=torch.arange(count),
        x=images.x,
        kind=whole,
        expected=images.y,
        predicted=(images.y + 1) % len(images.classes),
        peer_predicted=whole[:, None][:, :0],
        confidence=zero,
        score=zero,
        distance=zero,
        queries=whole,
        code=zero[:, None][:, :0],
        witnessed=whole.bool(),
        witness_margin=zero,
    )


PARTS: dict[str, Measure] = {
    "gpu-coverage-six-resnet18": partial(_six, "resnet18"),
    "gpu-coverage-six-resnet50": partial(_six, "resnet50"),
    "gpu-lsa": partial(_surprise, "lsa"),
    "gpu-dsa": partial(_surprise, "dsa"),
    "gpu-train-lenet5": partial(_training, "lenet5"),
    "gpu-train-vae": partial(_training, "vae"),
    "gpu-train-judge": partial(_training, "judge"),
    "gpu-judge-28": partial(_judged, 28),
    "gpu-judge-224": partial(_judged, 224),
}
