"""Coverage of any image set, and of what a campaign reached inside the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow.compute as pc
import torch

from hardcase.analysis.slices import seeds_of
from hardcase.criteria.criterion import (
    CoverageResult,
    Measure,
    Spec,
    batch_for,
    build_criteria,
    layer_graph,
    names,
    profile_for,
    specs_of,
)
from hardcase.criteria.network import LayerGraph, join_taps
from hardcase.criteria.profile import ActivationBatch, Profile
from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from hardcase.tensors import chunks, from_bytes, sent
from hardcase.types import Images, Model

Record = dict[str, Any]
Progress = Callable[[int, int], None]


def coverage(
    subject: Model,
    images: Images,
    criteria: str | Sequence[str | Spec],
    *,
    profile: Profile | Images | None = None,
    convention: str = "default",
    seeds: Images | None = None,
    batch: int = 0,
    progress: Progress | None = None,
) -> list[Record]:
    """The results of each criterion on `images`: value, covered of total, convention,
    profile, seconds in addition to the forward pass.

    Args:
        subject: The network under test.
        images: Labelled images.
        criteria: Names as ``--criteria`` gives them, or a list.
        profile: A saved profile, or the training images to compute it from.
        convention: How published ambiguities are settled, see ``hardcase list criteria``.
        seeds: The originals of `images`, row by row.
        batch: Images per call; 0: chosen by memory.
        progress: Called with how many images are done.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> hc.coverage(toy_subject(), toy_images(8), "nc")[0]["criterion"]
        'nc'
    """
    if not len(images):
        raise HardcaseError("there are no images to measure.", fix="another --data or --split")
    specs = specs_of(criteria)
    graph = layer_graph(subject, images)
    if isinstance(profile, Images):
        profile = profile_for(subject, profile, specs, convention=convention, graph=graph)
    checked = profile.check(subject.hash) if profile is not None else None
    measures = _built(specs, graph, checked, convention)
    seconds = observe(subject, images, measures, seeds=seeds, batch=batch, progress=progress)
    return [
        _record(m, spec, checked, spent)
        for m, spec, spent in zip(measures, specs, seconds, strict=True)
    ]


def _built(
    specs: Sequence[Spec], graph: LayerGraph, profile: Profile | None, convention: str = "default"
) -> list[Measure]:
    return [
        build_criteria(spec, graph, profile, convention=convention, name=name)
        for spec, name in zip(specs, names(specs), strict=True)
    ]


def observe(
    subject: Model,
    images: Images,
    measures: Sequence[Measure],
    *,
    seeds: Images | None = None,
    batch: int = 0,
    progress: Progress | None = None,
) -> list[float]:
    """Show all images to all criteria in a single pass; returns the seconds of each in addition
    to the forward pass."""
    taps = join_taps(m.taps for m in measures)
    batch = batch or batch_for(subject, images, taps)
    device = getattr(subject, "device", torch.device("cpu"))
    clocks = [Stopwatch(device) for _ in measures]
    for start, shown, are_seeds in _passes(images, seeds):
        parts = list(chunks(len(shown), batch))
        labels = shown.y.to(device)
        for part, x in zip(parts, sent(shown.x, parts, device), strict=True):
            with torch.no_grad():
                answer = subject(from_bytes(x), taps)
            ids = torch.arange(part.start, part.stop)
            frame = ActivationBatch(
                answer.activations,
                answer.logits,
                labels=labels[part],
                ids=ids,
                are_seeds=torch.full((len(ids),), are_seeds),
            )
            for m, clock in zip(measures, clocks, strict=True):
                with clock.running():
                    m.observe(frame)
            del frame, answer  # before the next is computed: activations of two batches may not fit
            if progress:
                progress(start + part.stop, len(images) + start)
    return [clock.seconds() for clock in clocks]


class Stopwatch:
    """Seconds of work on a device; on a GPU by its events, since the host does not wait until the
    end."""

    def __init__(self, device: torch.device) -> None:
        self.marks = list[tuple[torch.cuda.Event, torch.cuda.Event]]()
        self.spent = 0.0
        self.there = device.type == "cuda"

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.there:
            # torch leaves its events without types
            first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab")  # type: ignore[no-untyped-call]
            first.record()
            yield
            last.record()
            self.marks.append((first, last))
            return
        began = time.perf_counter()
        yield
        self.spent += time.perf_counter() - began

    def seconds(self) -> float:
        if self.marks:
            torch.cuda.synchronize()
        return self.spent + sum(float(first.elapsed_time(last)) for first, last in self.marks) / 1e3


def _passes(images: Images, seeds: Images | None) -> list[tuple[int, Images, bool]]:
    if seeds is None:
        return [(0, images, False)]
    if len(seeds) != len(images):
        raise HardcaseError(
            f"{len(images)} images came with {len(seeds)} originals; each image needs its original."
        )
    return [(0, seeds, True), (len(seeds), images, False)]


def _record(measure: Measure, spec: Spec, profile: Profile | None, seconds: float) -> Record:
    began = time.perf_counter()
    result = measure.result()
    seconds += time.perf_counter() - began
    used = None
    if profile is not None and measure.profiled:
        used = f"{profile.name}, {profile.count} images, data {profile.data}, model {profile.model}"
    record = {
        "criterion": str(spec),
        "value": result.value,
        "covered": result.covered,
        "total": result.total,
        "convention": measure.convention,
        "profile": used,
        "seconds": seconds,
    }
    if not result.detail:
        return record
    detail = dict(result.detail)
    note = {"note": _left_out(str(spec), detail)} if detail.get("without surprise") else {}
    return {**record, **note, "detail": detail}


def _left_out(spec: str, detail: Record) -> str:
    """A mean over a part of the inputs is marked: two networks' means are then over other
    inputs."""
    missing = detail["without surprise"]
    every = missing + detail["inputs"]
    return (
        f"{spec}: {missing} of {every} images have no surprise (their class spans another number"
        " of directions than most); the value is the mean of the others"
    )


def reach(
    run: Run, subject: Model, criteria: str | Sequence[str | Spec], *, training: Images
) -> Run:
    """Measure the searched seeds, then the seeds with the findings; the run stores both numbers
    for its report."""
    attempted = pc.indices_nonzero(pc.greater(run.seeds["evaluated"], 0))
    seeds = seeds_of(run, attempted.to_pylist())
    expected = torch.tensor(run.findings["expected"].to_pylist(), dtype=torch.int64)
    ids = tuple(run.findings["id"].to_pylist())
    failing = Images(run.images(), expected, ids, run.classes)
    specs = specs_of(criteria)
    graph = layer_graph(subject, training)
    profile = profile_for(subject, training, specs, graph=graph)
    measures = _built(specs, graph, profile)
    results = list[list[CoverageResult]]()
    for images in (seeds, failing):  # what the criteria say once these, too, were shown to them
        if len(images):
            observe(subject, images, measures)
        results.append([measure.result() for measure in measures])
    rows = [
        {
            "criterion": str(spec),
            "before": first.value,
            "after": then.value,
            "covered_before": first.covered,
            "covered_after": then.covered,
            "total": then.total,
            "convention": measure.convention,
        }
        for spec, measure, first, then in zip(specs, measures, *results, strict=True)
    ]
    with run.store.writing():
        run.store.write_record({**run.store.record(), "coverage": rows})
    return Run(run.store)
