"""Retraining with the tests of a stored run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from hardcase import data, png
from hardcase.config import parse, read
from hardcase.errors import Problem
from hardcase.experiments.bench import Outcome
from hardcase.experiments.retrain import Retraining, compare, tabulated
from hardcase.models import network
from hardcase.planning import device, subject
from hardcase.randomness import stream
from hardcase.results import Run
from hardcase.types import Images


def retrain(
    folder: Path, how: Retraining, *, others: Sequence[Path] = (), place: str = "cpu", say: Callable[[str], None]
) -> Outcome:
    """Train with most of a run's tests; hold out the rest, the test images it did not start from, and `others`' tests."""
    run = Run(folder)
    config = parse({**read(folder / "config.toml"), "device": device(place)})
    train, test = (data.load(config.data, split=split, offline=config.offline) for split in ("train", "test"))
    if config.split == "train":
        seeds: set[str] = set()
    else:
        seeds = {str(name) for name in run.seeds.column("id").to_pylist()}
    fresh = [i for i, name in enumerate(test.id) if name not in seeds]
    if not fresh:
        raise Problem(
            "every test image was a seed of this run, so none is left to measure on.", fix="a run with fewer --seeds"
        )
    learn, keep = _split(run, train, how.seed)
    held = {f"{len(fresh)} test images": test.take(torch.tensor(fresh)), f"{len(keep)} unseen tests of this run": keep}
    for other in others:
        tests = _tests(Run(other), train)[0]
        held[f"{len(tests)} tests of {other.name}"] = tests
    say(f"{len(learn)} tests to learn from, {how.repeats} repeats of three arms")
    results = compare(network(subject(config, config.model)), train, learn, held, how)
    notes = [f"run {folder.name}: {run.record['method']} on {run.record['model']}, data {run.record['data']}"]
    return Outcome(f"retraining with {folder.name}", [tabulated("accuracy before and after", results, notes)])


def _split(run: Run, like: Images, seed: int) -> tuple[Images, Images]:
    """Two thirds of the seeds' tests to learn from, those of the other seeds to measure with."""
    tests, owner = _tests(run, like)
    names = sorted(set(owner))
    if len(names) < 3:
        raise Problem(
            f"the run has label failures of {len(names)} seeds; retraining needs tests of 3 or more.",
            fix="more --seeds",
        )
    order = torch.randperm(len(names), generator=stream(seed, "retraining")).tolist()
    first = {names[i] for i in order[: max(2 * len(names) // 3, 1)]}
    learn = torch.tensor([i for i, name in enumerate(owner) if name in first])
    keep = torch.tensor([i for i, name in enumerate(owner) if name not in first])
    return tests.take(learn), tests.take(keep)


def _tests(run: Run, like: Images) -> tuple[Images, list[str]]:
    """The label failures of a run as images under their seeds' labels, and the seed of each."""
    rows = [row for row in run.findings.to_pylist() if row["kind"] == "label"]
    if not rows:
        raise Problem(f"{run.folder} holds no label failures, so there is nothing to learn from or to measure with.")
    x = torch.stack([png.decode(row["image"]["bytes"]) for row in rows])
    if x.shape[1:] != like.x.shape[1:]:
        raise Problem(
            f"{run.folder} holds images of shape {tuple(x.shape[1:])}, the training data {tuple(like.x.shape[1:])}."
        )
    y = torch.tensor([row["expected"] for row in rows])
    names = tuple(str(row["id"]) for row in rows)
    return replace(like, x=x, y=y, id=names, name=run.folder.name, context={}), [str(row["seed"]) for row in rows]
