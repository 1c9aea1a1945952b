"""The examinations of ``hardcase doctor``, one after the other, each with its remedy."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.training import Progress
    from hardcase.types import Model

OPTIONAL = {
    "onnxruntime": ("onnx", "ONNX models"),
    "torchvision": ("torchvision", "torchvision models"),
    "ray": ("ray", "clusters"),
    "pandas": ("frame", "run.to_frame()"),
    "datasets": ("datasets", "reading findings as a data set"),
}


class Finding(NamedTuple):
    """One line of the doctor."""

    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""


def environment() -> Iterator[Finding]:
    """Versions, arithmetic, threads, devices, cache, optional libraries."""
    import torch

    from hardcase import __version__
    from hardcase.running import strict_arithmetic

    yield Finding(
        "versions", "ok", f"hardcase {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    if strict_arithmetic():
        yield Finding("arithmetic", "ok", f"MKL_CBWR={os.environ['MKL_CBWR']}: the same bits in every batch")
    else:
        remedy = "unset MKL_CBWR, or set it to AUTO,STRICT before Python starts"
        yield Finding("arithmetic", "warning", "MKL_CBWR is not strict: findings may differ in their last bits", remedy)
    yield Finding("threads", "ok", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("devices", "ok", ", ".join(["cpu", *(f"cuda:{i} {name}" for i, name in enumerate(gpus))]))
    yield _cache()
    for name, (extra, purpose) in OPTIONAL.items():
        yield _optional(name, extra, purpose)


def job(config: Config, progress: Callable[[Progress], None]) -> Iterator[Finding]:
    """The data, the model, their fit, and a short run; the first problem ends it, for the rest depends on it."""
    try:
        yield from _job(config, progress)
    except Problem as problem:
        detail = " ".join([problem.what, *problem.why])
        yield Finding("here it stops", "problem", detail, problem.fix)


def _job(config: Config, progress: Callable[[Progress], None]) -> Iterator[Finding]:
    from hardcase.data import describe, load
    from hardcase.health import check
    from hardcase.planning import seeds, subject

    images = load(config.data, split=config.split, offline=config.offline)
    about = describe(images)
    shape = " x ".join(map(str, about["shape"]))
    yield Finding(
        "data",
        "ok",
        f"{config.data}: {about['images']:,} {images.split} images of {shape}, {len(images.classes)} classes",
    )
    for text in about["notes"]:
        yield Finding("data", "warning", text)
    model = subject(config, config.model, progress)
    yield Finding("model", "ok", f"{config.model}: {_kind(model)}, on {model.device}")
    health = check(model, seeds(config), allow_low_accuracy=config.allow_low_accuracy)
    yield Finding(
        "accuracy",
        "ok",
        f"{100 * health.accuracy:.1f} % of {health.images} images, mean confidence {health.confidence:.2f}",
    )
    yield _normalisation(config, model)
    batch = "answers do not depend on the batch" if health.bitwise else "answers depend on the batch in their last bits"
    yield Finding("repeatable", "ok" if health.bitwise else "warning", batch)
    for text in health.notes:
        yield Finding("model", "warning", text)
    yield _smoke(config, progress)


def _kind(model: Model) -> str:
    from hardcase.subject import Subject

    if not isinstance(model, Subject):
        return f"a black box that offers {model.offers}"
    weights = sum(parameter.numel() for parameter in model.net.parameters())
    return f"{weights:,} weights, returns {model.outputs}"


def _normalisation(config: Config, model: Model) -> Finding:
    """Images come in 0..1; whether the model was trained so shows in its accuracy, whether it was said shows here."""
    from hardcase.subject import Subject

    mean, std = list(config.subject.mean), list(config.subject.std)
    if isinstance(model, Subject):
        mean, std = model.mean.flatten().tolist(), model.std.flatten().tolist()
    if mean == [0.0] * len(mean) and std == [1.0] * len(std):
        inside = "" if config.model.startswith("zoo:") else "; right if the model was trained on 0..1"
        return Finding("normalisation", "ok", f"none: the model sees 0..1{inside}")
    shown = ", ".join(f"({m:.3g}, {s:.3g})" for m, s in zip(mean, std))
    return Finding("normalisation", "ok", f"(mean, std) by channel: {shown}")


def _smoke(config: Config, progress: Callable[[Progress], None]) -> Finding:
    """A few seeds for at most ten seconds, into a folder that is thrown away."""
    from hardcase.config import parse
    from hardcase.planning import plan
    from hardcase.running import start

    short = {"seeds": min(config.seeds, 16), "workers": 1, "budget": {**config.budget.model_dump(), "time": "10s"}}
    smoke = parse({**config.model_dump(), **short})
    with tempfile.TemporaryDirectory(prefix="hardcase-") as folder:
        record = start(plan(smoke, progress), Path(folder) / "run").record
    counts = record["funnel"]
    detail = (
        f"{config.method.name}: {counts['failing']} of {counts['attempted']} seeds failing, {record['elapsed']:.1f} s"
    )
    if not counts["attempted"]:
        return Finding("smoke run", "warning", detail, "a longer look: hardcase run --seeds 16")
    return Finding("smoke run", "ok", detail)


def _cache() -> Finding:
    from hardcase.cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Finding(
            "cache", "problem", f"{folder} cannot be written: {error.strerror}", "HARDCASE_CACHE=/another/folder"
        )
    return Finding("cache", "ok", str(folder))


def _optional(name: str, extra: str, purpose: str) -> Finding:
    if find_spec(name) is None:
        return Finding(
            "optional",
            "ok",
            f"{name} is not installed; it is only needed for {purpose} (pip install 'hardcase[{extra}]')",
        )
    return Finding("optional", "ok", f"{name} {metadata.version(name)} for {purpose}")
