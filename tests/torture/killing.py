"""Kills a small run at many moments and shows that going on gives what an undisturbed run gives.

``python killing.py steps ALL | full ALL | random COUNT | fresh COUNT | judging ALL | report ALL | training COUNT | default COUNT`` prints one
JSON object. Without ALL (0) the first of each kind of step is taken.
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
from functools import partial
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "played"))

import disk
import world
from played_device import VARIABLE, play_for_good

from hardcase import cache
from hardcase.report import report
from hardcase.runs.results import Run


def events(work):
    """The moments of undisturbed work at which a disk can fail, in order."""
    seen = []
    disk.fault(lambda name, path: seen.append(f"{name} {disk.kind(path)}"))
    work()
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


def at_every_step(
    home, every, disaster=die, ends=-signal.SIGKILL, work=world.go, kept=world.left, made=None
):
    """Let `disaster` happen at each step of `work` on a folder, do it again, and compare what is `kept`.

    `made` puts into the folder what the work begins with.
    """

    def new(name):
        if made is not None:
            made(home / name)
        return home / name

    listed = new("listed")
    names = _in_fork(lambda: events(lambda: work(listed)))
    expected = kept(listed)
    chosen = [i for i, name in enumerate(names) if every or names.index(name) == i]
    kills, wrong = 0, []
    for index in chosen:
        folder = new(f"step-{index}")

        def doomed(index=index, folder=folder):
            disk.fault(breaking(index, disaster))
            work(folder)

        code = world.alone(doomed)
        again = world.alone(lambda folder=folder: work(folder))
        left = [path.name for path in folder.rglob(".*-*") if cache.is_temporary(path)]
        reached = code != 0  # a faster run writes its small files less often
        kills += reached
        if code not in (ends, 0) or again != 0 or kept(folder) != expected or left:
            wrong.append(f"{index} {names[index]}: {code}, {again} {left}")
        shutil.rmtree(folder)
    return {"kills": kills, "steps": sorted(set(names)), "wrong": wrong}


def while_judging(home, every):
    """Verdicts are there whole and of one judge, or judging again makes them so."""
    from hardcase.judges.verdicts import judge_run

    world.go(home / "finished")

    def judged(folder):
        judge_run(Run(folder), world.trusting)

    def kept(folder):
        assert Run(folder).verification.state == "verified"
        files = sorted((folder / "verdicts").iterdir())
        return [(path.name, path.read_bytes()) for path in files], world.left(folder)

    made = partial(shutil.copytree, home / "finished")
    return at_every_step(home, every, work=judged, kept=kept, made=made)


def while_reporting(home, every):
    world.go(home / "finished")
    report(Run(home / "finished"), out=home / "warm report")

    def kept(folder):
        page = json.loads((folder / "report/report.json").read_text())
        return json.dumps(page).replace(folder.name, "RUN"), world.left(folder)

    made = partial(shutil.copytree, home / "finished")
    return at_every_step(home, every, work=lambda f: report(Run(f)), kept=kept, made=made)


def with_a_full_disk(home, every):
    return at_every_step(home, every, fill, world.PROBLEM)


def at_random(home, count, *, seed, begin, work, kept=world.left, moment=None, often=(1,)):
    """Kill what `begin(folder)` has started at random moments, do the `work`, and compare what is `kept`."""
    number, begun = begin(home / "undisturbed"), time.monotonic()
    assert world.ended(number) == 0
    lasts, expected = time.monotonic() - begun, kept(home / "undisturbed")
    rng, moments, wrong = random.Random(seed), Counter(), []
    for index in range(count):
        folder = home / f"killed-{index}"
        for _ in range(rng.choice(often)):
            number = begin(folder)
            time.sleep(rng.uniform(0, lasts))
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            moments[(moment or _moment)(folder)] += 1
        again = world.alone(lambda folder=folder: work(folder))
        if again != 0 or kept(folder) != expected:
            wrong.append(f"{index}: {again}")
        shutil.rmtree(folder, ignore_errors=True)
    return {"kills": sum(moments.values()), "moments": moments, "wrong": wrong}


def forked(work):
    return lambda folder: world.child(lambda: work(folder))


def in_forks(home, count):
    return at_random(home, count, seed=0, begin=forked(world.go), work=world.go, often=(1, 1, 2))


def in_new_processes(home, count):
    def begin(folder):
        command = [sys.executable, str(Path(__file__).parent / "world.py"), str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        return process.pid

    return at_random(home, count, seed=1, begin=begin, work=world.go)


def while_training(home, count):
    """A generator whose training is killed and begun again is the one that was never disturbed."""
    from hardcase.generators.build import trained_generator
    from hardcase.tensors import digest_tensors

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tiny import bars

    def train(folder):
        os.environ["HARDCASE_CACHE"] = str(folder)
        net, _ = trained_generator("vae", bars(96), bars(24, seed=1), epochs=12, batch=16)
        (folder / "digest").write_text(digest_tensors(dict(net.state_dict())))

    def kept(folder):
        return (folder / "digest").read_text()

    def moment(folder):
        return "stored" if any(folder.rglob("*.safetensors")) else "nothing stored"

    return at_random(home, count, seed=2, begin=forked(train), work=train, kept=kept, moment=moment)


def of_default_runs(home, count):
    import default_runs

    return default_runs.killed(home, count, breaking, die)


def _moment(folder):
    """How far a run had come when it was killed."""
    if not (folder / "run.json").exists():
        return "before it began"
    if json.loads((folder / "run.json").read_text()).get("complete"):
        return "closed"
    return f"{len(list((folder / 'findings').glob('part-*.parquet')))} shards"


def _in_fork(work):
    """What `work` returns, computed in a fork so that nothing stays behind in this process."""
    with tempfile.NamedTemporaryFile() as file:
        assert world.alone(lambda: Path(file.name).write_text(json.dumps(work()))) == 0
        return json.loads(Path(file.name).read_text())


if __name__ == "__main__":
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hardcase-torture-", dir=memory) as place:
        home, (what, *rest) = Path(place), sys.argv[1:]
        if os.environ.get(VARIABLE):
            play_for_good()
        world.go(home / "warm")  # everything is imported and has run once: forks are quick then
        modes = {
            "steps": at_every_step, "full": with_a_full_disk, "random": in_forks,
            "fresh": in_new_processes, "judging": while_judging, "report": while_reporting,
            "training": while_training, "default": of_default_runs,
        }  # fmt: skip
        print(json.dumps(modes[what](home, *map(int, rest))))
