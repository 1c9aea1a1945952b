"""Runs of the command as it is typed, killed in each of their phases: resumed, they give the same
bytes. Of three kinds of models, in one process and with two workers.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections import Counter
from contextlib import redirect_stdout
from itertools import cycle, islice, product
from multiprocessing import get_context
from pathlib import Path

import disk
import numpy as np
import torch
import world

import hardcase.api
import hardcase.runs.plan
import hardcase.runs.workers
from hardcase.cli.main import main
from hardcase.judges.verdicts import judge_run
from hardcase.runs.phases import PHASES, status_of
from hardcase.testing.toys import toy_images

MODELS = '''
import torch
from torch import nn
from hardcase.testing.toys import Quarters

def weak():
    """The toy with noise on its weights: it errs under mild conditions."""
    net = Quarters()
    rng = torch.Generator().manual_seed(3)
    net.mean.weight.data += 0.1 * torch.randn(net.mean.weight.shape, generator=rng)
    return net

def colour():
    """The strongest of three colours."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
'''
KINDS = {
    "toy": "--model models.py:weak --data npz:toy.npz --images 6 --gradients 8",
    "photographs": "--model models.py:colour --data npz:photos.npz?split=all --images 4 --gradients 4",
    "labels": "--model models.py:weak --data npz:toy.npz --images 6 --queries 30"
    " --set model.label_only=true",
}
SMALL = "--witness none --allow-low-accuracy --set campaign.shard=2 --progress none -q"
TIMES = ("created", "finished", "elapsed", "argv", "seconds", "checksum")


def make_world(home):
    """Data and models in `home`, where the runs go; measured in several shards, judged at once."""
    os.chdir(home)
    Path("models.py").write_text(MODELS)
    toys = {"train": toy_images(24, seed=1), "test": toy_images(40)}
    arrays = {f"x_{split}": images.x.numpy() for split, images in toys.items()}
    arrays |= {f"y_{split}": images.y.numpy() for split, images in toys.items()}
    np.savez("toy.npz", **arrays)
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(40, 200, (24, 3, 72, 72), generator=rng, dtype=torch.uint8)
    y = torch.arange(24) % 3
    x[torch.arange(24), y] = x[torch.arange(24), y] // 2 + 80
    np.savez("photos.npz", images=x.numpy(), labels=y.numpy())
    hardcase.runs.plan._measured_at_once = lambda context, measurement: 8
    hardcase.api.finish = lambda run, **how: judge_run(run, world.trusting)
    hardcase.runs.workers.get_context = lambda kind: get_context("fork")


def command(words):
    """What the command line does; a failure is raised."""
    with redirect_stdout(io.StringIO()):
        code = main(words.split())
    assert code == 0, f"{code}: {words}"


def begin(folder, kind, workers):
    command(f"run {KINDS[kind]} {SMALL} --workers {workers} --out {folder}")


def go_on(folder, kind, workers):
    """What a user does: resume what there is, or give the first command once more."""
    if (folder / "state/begun.json").is_file():
        command(f"resume {folder} --progress none -q")
    else:
        begin(folder, kind, workers)


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in TIMES}
    return value


def left(folder):
    """Everything that must be the same in the end, however the run came about."""
    kinds = ("measured", "findings", "verdicts")
    paths = [path for kind in kinds for path in sorted((folder / kind).glob("part-*"))]
    named = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    for name in ("images.parquet", "config.toml", "conditions.json"):
        named[name] = (folder / name).read_bytes()
    return named, without_times(json.loads((folder / "run.json").read_text()))


def differences(one, other):
    """The files, and the entries of run.json, in which two runs differ."""
    return [
        name
        for mine, theirs in zip(one, other)
        for name in sorted({*mine, *theirs})
        if mine.get(name) != theirs.get(name)
    ]


def phase_of(folder):
    """The phase in which a run is."""
    try:
        record = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        return PHASES[0]
    return next((name for name in PHASES if status_of(record, name) != "done"), PHASES[-1])


def moments(folder, kind, workers):
    """The phase of every moment at which an undisturbed run can be killed, and what is left."""
    told = folder.with_suffix(".moments")

    def work():
        seen = []
        disk.fault(lambda name, path: seen.append(phase_of(folder)))
        begin(folder, kind, workers)
        told.write_text(json.dumps(seen))

    assert world.alone(work) == 0
    return json.loads(told.read_text()), left(folder)


def killed(home, count, breaking, die):
    """Kill runs at `count` random moments, of every kind and in every phase alike."""
    make_world(home)
    rng = random.Random(0)
    seen, wrong, known = Counter(), [], {}
    cases = list(product((1, 2), KINDS, PHASES))
    rng.shuffle(cases)
    for number, (workers, kind, phase) in enumerate(islice(cycle(cases), count)):
        if (kind, workers) not in known:
            known[kind, workers] = moments(home / f"whole-{kind}-{workers}", kind, workers)
        phases, expected = known[kind, workers]
        index = rng.choice([i for i, one in enumerate(phases) if one == phase])
        folder = home / "run"

        def doomed(index=index, kind=kind, workers=workers, folder=folder):
            disk.fault(breaking(index, die))
            begin(folder, kind, workers)

        ended = world.alone(doomed)
        seen[f"{kind}, {workers} at work, {phase_of(folder)}"] += ended != 0
        again = world.alone(lambda: go_on(folder, kind, workers))  # noqa: B023 - called at once
        other = differences(left(folder), expected)
        if again != 0 or other:
            wrong.append(f"{number} {kind} {workers} {phase} {index}: {ended}, {again} {other}")
        shutil.rmtree(folder)
    for kind in KINDS:  # where it computes changes nothing
        both = [known[kind, workers][1][0] for workers in (1, 2) if (kind, workers) in known]
        kept = [{name: one[name] for name in one if name != "config.toml"} for one in both]
        if any(one != kept[0] for one in kept):
            wrong.append(f"{kind}: two workers give other bytes than one")
    return {"kills": sum(seen.values()), "moments": seen, "wrong": wrong}
