"""A small guided run whose every byte is known, and what is left of it after a disaster."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

import torch

from hardcase.campaign.record import Campaign, parse_keep
from hardcase.errors import HardcaseError
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.runs.plan import Plan
from hardcase.runs.progress import Watcher
from hardcase.runs.start import resume, start
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget, Method, Verdicts

torch.set_num_threads(1)


PROBLEM = 2
"""How a child ends that was told of a problem."""


class Heat:
    """A guide that counts looks. Searches step farther the more were counted before their round: a wrong merge shows."""

    name, taps = "heat", {}

    def __init__(self, base=0):
        self.base, self.own = base, 0

    def choose(self, rows, rng):
        return {"heat": torch.full((len(rows),), float(self.base % 7))}

    def gain(self, probe):
        return torch.zeros(len(probe.x))

    def update(self, probe):
        self.own += len(probe.x)

    def fork(self):
        return Heat(self.base)

    def delta(self):
        return {"looks": torch.tensor([self.own])}

    def merge(self, deltas):
        self.base += sum(int(delta["looks"]) for delta in deltas)


@dataclass(frozen=True)
class Walk:
    """Random steps, as far as the guide says."""

    def init(self, seeds, rng):
        return {"z": seeds.z}

    def step(self, state, evaluate, rng):
        rows = evaluate.live.nonzero().squeeze(1)
        far = evaluate.choose(rows)["heat"].reshape(-1, 1, 1, 1)
        noise = rng.normal(rows, state["z"].shape[1:])
        z = state["z"].clone()
        z[rows] = evaluate(z[rows] + noise * 0.02 * (1 + far), rows).z
        return {"z": z}


def campaign(subject=None):
    method = Method(
        name="walk", space=Pixels(Linf(0.4)), search=Walk(), objective=Margin(), oracle=LeavesLabel(), guides=(Heat(),),
        until="budget", budget=Budget(queries=6), keep="all",
    )  # fmt: skip
    return Campaign(subject=subject or toy_subject(), method=method, keep=parse_keep("all"))


class Dangerous(Counting):
    """A model that ends any process but `owner`: at its `after`-th call, `times` times in all (as files in `folder` tell)."""

    def __init__(self, folder, owner, after=4, times=1):
        super().__init__(toy_subject())
        self.folder, self.owner, self.after, self.times = folder, owner, after, times

    def __call__(self, x, taps=None):
        if os.getpid() != self.owner and self.calls >= self.after:
            for number in range(self.times):
                try:
                    (self.folder / f"death-{number}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(x, taps)


class UnsendableError(Exception):
    """An exception that no other process can rebuild."""

    def __init__(self, one, two):
        super().__init__(one)


class Failing(Counting):
    """A model that raises `error`, in any process but `owner`, from its `after`-th call on."""

    def __init__(self, owner, error=None, after=8):
        super().__init__(toy_subject())
        self.owner, self.error, self.after = owner, error, after

    def __call__(self, x, taps=None):
        if os.getpid() != self.owner and self.calls >= self.after:
            raise self.error or UnsendableError("of no use", 3)
        return super().__call__(x, taps)


class Slow(Counting):
    """A model that takes its time, and leaves a file in `folder` for every GPU that a process was given."""

    def __init__(self, seconds, folder=None):
        super().__init__(toy_subject())
        self.seconds, self.folder = seconds, folder

    def __call__(self, x, taps=None):
        if self.folder:
            (self.folder / f"gpu-{os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}").touch()
        time.sleep(self.seconds)
        return super().__call__(x, taps)


def of(model, *how):
    """A run that asks such a model, made where it is asked."""
    return partial(_of, model, how)


def _of(model, how):
    return campaign(model(*how))


def plan(source=campaign, **changes):
    images = toy_images(int(changes.pop("seeds", 22)))
    given = {"shard": 4, "rounds": 2, "config": 'model = "toy"\n', "images": images}
    return Plan(source=source, **{**given, **changes})


def trusting(pairs):
    """A judge that accepts everything."""
    return Verdicts(["kept"] * len(pairs))


class Notes(Watcher):
    def __init__(self):
        self.said = []

    def log(self, text):
        self.said.append(text)


class Impatient(Notes):
    """Asks to stop after a number of shards."""

    def __init__(self, shards):
        super().__init__()
        self.left = shards

    def shard(self, progress):
        self.left -= 1

    def stopped(self):
        return self.left < 0


def go(folder, **changes):
    """What a user does: go on if there is anything to go on with, else begin. Returns what was said."""
    notes = Notes()
    try:
        resume(plan(**changes), folder, notes)
    except HardcaseError as problem:
        if "not a run folder" not in str(problem) and "nothing to go on with" not in str(problem):
            raise
        start(plan(**changes), folder, notes)
    return notes.said


def left(folder):
    """Everything that must be the same in the end, however a run came about."""
    record = json.loads((folder / "run.json").read_text())
    paths = [folder / "images.parquet", *sorted((folder / "findings").glob("part-*.parquet"))]
    kept = (
        "complete",
        "search_results",
        "skipped",
        "findings",
        "totals",
        "kinds",
        "hashes",
        "images",
    )
    said = {key: record[key] for key in (*kept, "method")}
    return {path.name: path.read_bytes() for path in paths}, said


def goes_on(folder, whole, **changes):
    """A run that was disturbed goes on, and ends as the undisturbed one did."""
    resume(plan(**changes), folder)
    assert left(folder) == left(whole)


def child(work):
    """Run `work` in a fork; returns its process id."""
    number = os.fork()
    if number:
        return number
    code = 1
    try:
        work()
        code = 0
    except HardcaseError:
        code = PROBLEM
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def ended(number):
    """Wait for a process; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def alone(work):
    """Run `work` in a fork and wait for it."""
    return ended(child(work))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    source = plan()
    print("ready", flush=True)
    start(source, folder)
