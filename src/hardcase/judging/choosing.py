"""Which judge a run, or a data set, is judged by; and what people say of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hardcase import data
from hardcase.errors import Problem
from hardcase.judges.calibration import calibrate as _calibrate
from hardcase.judges.panel import Panel
from hardcase.judges.people import read_people
from hardcase.judging import training
from hardcase.judging.judge import Judge, calibrated, judge_of, keep_calibration
from hardcase.judging.schooling import Tell
from hardcase.randomness import stream
from hardcase.results import Run
from hardcase.store import read_images
from hardcase.tensors import from_bytes
from hardcase.training import cards
from hardcase.types import Images


def for_data(
    name: str,
    *,
    learn_from: str = "train",
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Judge:
    """The judge of a data set by name, trained if it is missing; it learns from one split and is measured on the other."""
    first, second = _splits(name, learn_from, offline=offline)
    return training.trained(first, second, seed=seed, device=device, progress=progress)


def for_run(
    run: Run,
    *,
    offline: bool = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
) -> Judge:
    """The judge for a run: of the run's data, learned from the split that the seeds are not from."""
    name, split = run.record["data"], run.record.get("split", "test")
    learn_from = "train" if split == "test" else "test"
    first, second = _splits(name, learn_from, offline=offline)
    if not str(run.seeds["id"][0]).startswith("generated"):
        _same_data(run, second)
    return training.trained(first, second, seed=seed, device=device, progress=progress)


def is_ready(run: Run, *, offline: bool = True, seed: int = 0) -> bool:
    """Whether the judge of a run's data is in the cache, so that judging takes seconds."""
    split = run.record.get("split", "test")
    try:
        first, second = _splits(run.record["data"], "train" if split == "test" else "test", offline=offline)
        return training.folder(first, second, seed=seed).is_dir()
    except Problem:
        return False


def read(folder: Path) -> Judge:
    """A judge from its folder."""
    net, card = cards.load(folder, training.build, kind=training.KIND)
    assert isinstance(net, Panel)
    return judge_of(net, card, folder)


def calibrate(judge: Judge, file: Path, *, seed: int = 0, device: torch.device | str = "cpu") -> Judge:
    """Fit the judge's rules to the labels of people in `file`, measure it, and keep both beside the judge."""
    config = judge.card["configuration"]
    try:
        with np.load(file, allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in arrays}
    except FileNotFoundError:
        raise Problem(f"there is no file {file}.") from None
    except Exception as error:  # damaged archives raise many kinds
        raise Problem(f"{file} is not an npz file of plain arrays: {error}") from error
    shape = (config["channels"], config["size"], config["size"])
    people = read_people(given, where=str(file), shape=shape, classes=config["classes"])
    signals = judge.panel.to(device).ask(from_bytes(people.x.to(device)), people.expected.to(device))
    found = _calibrate(signals, people, training.made(judge.card), stream(seed, "judge", "calibration"))
    keep_calibration(judge, found)
    return calibrated(judge, found)


def _splits(name: str, learn_from: str, *, offline: bool) -> tuple[Images, Images]:
    other = "test" if learn_from == "train" else "train"
    first, second = (data.load(name, split=split, offline=offline) for split in (learn_from, other))
    return first, second


def _same_data(run: Run, images: Images) -> None:
    """Refuse a data set of the same name that does not hold the run's seeds."""
    table = run.seeds.select(["id", "image"])
    rows = {name: i for i, name in enumerate(images.id)}
    ids = table["id"].to_pylist()
    strange = [name for name in ids if name not in rows]
    if not strange and len(ids):
        own = images.x[torch.tensor([rows[name] for name in ids])]
        stored = read_images(table["image"])
        same = own.shape == stored.shape and bool((own == stored).all())
        strange = [] if same else ids[:1]
    if strange:
        raise Problem(
            f"{images.name} as it is now does not hold the run's seed {strange[0]!r}; these are other data.",
            "A judge of other data says little about these images.",
            fix="the data that the run was made with, or --data D",
        )
