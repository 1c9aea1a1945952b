"""Kills a small campaign at many moments and shows that going on gives what an undisturbed run gives.

``python killing.py steps ALL | full ALL | random COUNT | fresh COUNT`` prints one JSON object. Without ALL (0) the first
of each kind of step is taken.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import world

from hardcase import cache


def events(folder):
    """The named steps of an undisturbed run, in order."""
    seen = []
    cache.step = lambda name, path: seen.append(f"{name} {path.name.split('-')[0].lstrip('.')}")
    world.go(folder)
    return seen


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fill():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def breaking(index, disaster):
    """A step function that lets `disaster` happen at its `index`-th call and at every one after it."""
    calls = count()

    def step(name, path):
        if next(calls) >= index:
            disaster()

    return step


def at_every_step(home, every, disaster=die, ends=-signal.SIGKILL):
    names = _in_fork(lambda: events(home / "listed"))
    expected = world.left(home / "listed")
    chosen = [i for i, name in enumerate(names) if every or names.index(name) == i]
    wrong = []
    for index in chosen:
        folder = home / f"step-{index}"

        def doomed(index=index, folder=folder):
            cache.step = breaking(index, disaster)
            world.go(folder)

        code = world.alone(doomed)
        again = world.alone(lambda folder=folder: world.go(folder))
        if code != ends or again != 0 or world.left(folder) != expected:
            wrong.append(f"{index} {names[index]}: {code}, {again}")
        shutil.rmtree(folder)
    return {"kills": len(chosen), "steps": sorted(set(names)), "wrong": wrong}


def with_a_full_disk(home, every):
    return at_every_step(home, every, fill, world.PROBLEM)


def at_random(home, count, seed=0):
    rng, moments, wrong = random.Random(seed), Counter(), []
    begun = time.monotonic()
    assert world.alone(lambda: world.go(home / "undisturbed")) == 0
    lasts, expected = time.monotonic() - begun, world.left(home / "undisturbed")
    for index in range(count):
        folder = home / f"random-{index}"
        for _ in range(rng.choice((1, 1, 2))):
            number = world.child(lambda folder=folder: world.go(folder))
            time.sleep(rng.uniform(0, lasts))
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            moments[_moment(folder)] += 1
        again = world.alone(lambda folder=folder: world.go(folder))
        if again != 0 or world.left(folder) != expected:
            wrong.append(f"{index}: {again}")
        shutil.rmtree(folder, ignore_errors=True)
    return {"kills": sum(moments.values()), "moments": moments, "wrong": wrong}


def in_new_processes(home, count, seed=1):
    rng, moments, wrong = random.Random(seed), Counter(), []
    begun = _new_process(home / "undisturbed")
    assert begun[0].wait() == 0
    lasts, expected = time.monotonic() - begun[1], world.left(home / "undisturbed")
    for index in range(count):
        folder = home / f"fresh-{index}"
        process, _ = _new_process(folder)
        time.sleep(rng.uniform(0, lasts))
        process.kill()
        process.wait()
        moments[_moment(folder)] += 1
        if (
            world.alone(lambda folder=folder: world.go(folder)) != 0
            or world.left(folder) != expected
        ):
            wrong.append(folder.name)
    return {"kills": count, "moments": moments, "wrong": wrong}


def _new_process(folder):
    """A process that has just begun a run, and the time."""
    command = [sys.executable, str(Path(__file__).parent / "world.py"), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process, time.monotonic()


def _moment(folder):
    """How far a run had come when it was killed."""
    if not (folder / "run.json").exists():
        return "before it began"
    done = len(list((folder / "findings").glob("part-*.parquet")))
    return (
        "closed"
        if json.loads((folder / "run.json").read_text()).get("complete")
        else f"{done} shards"
    )


def _in_fork(work):
    """What `work` returns, computed in a fork so that nothing stays behind in this process."""
    with tempfile.NamedTemporaryFile() as file:
        assert world.alone(lambda: Path(file.name).write_text(json.dumps(work()))) == 0
        return json.loads(Path(file.name).read_text())


if __name__ == "__main__":
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hardcase-torture-", dir=memory) as place:
        home, (what, *rest) = Path(place), sys.argv[1:]
        world.go(home / "warm")  # everything is imported and has run once: forks are quick then
        modes = {
            "steps": at_every_step,
            "full": with_a_full_disk,
            "random": at_random,
            "fresh": in_new_processes,
        }
        print(json.dumps(modes[what](home, *map(int, rest))))
