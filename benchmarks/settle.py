"""Stored results made again: several studies at once until a time limit, and what is done is not done twice.

``python -m benchmarks.settle stored --minutes 8 --keep build/results`` makes every result of ``results/`` again, by the command
that it names; ``tables`` are the papers' tables that are worth a GPU, in order of value, ``open`` those of them that are not stored.
Some run on the GPU and the others on CPU cores beside it. A result is written as soon as its study ends; a study that was stopped
goes on in the next call. ``--list`` prints the commands, ``--only NAME,NAME`` chooses.
``--small --cores 2 --minutes 60`` runs every study instead, once, in a form that ends in minutes on two cores; ``--only`` then names studies.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hardcase_studies.argus_curve import STOPS
from hardcase_studies.coverage import CONTROLS, GUIDES, QUEUE
from hardcase_studies.fresh import study_of
from hardcase_studies.stored import commit

RESULTS = Path(__file__).parent.parent / "results"
LARGE = ("--full", "--repeats")
"""Flags that a small run does without."""
ON_GPU = 12
"""Studies that share a GPU: each alone leaves most of it idle."""
MEMORY = 0.3
"""Share of a GPU's memory that one of them may take."""


SMALL: dict[str, tuple[str, ...]] = {
    "argus-curve": ("epochs=3", "batch=64", "model_epochs=3", "augment=none", "mixes=[0.3,0.5]",
                    "models=lenet5", "generators=[\"ours\"]", "originals=10", "partners=60"),
    "argus-settling": ("originals=4", "partners=18", "model_epochs=1", "normalised_epochs=1",
                       "epochs=1", "joint_epochs=1", "plain=1", "mixes=[0.3]", "reductions=mean"),
    "argus-table1": ("originals=4", "partners=18", "joint_epochs=1", "epochs=1", "judge=false",
                     "model_epochs=2", "models=[\"lenet5\"]", "mixes=[0.2]", "ablation=[]",
                     "rivals=false"),
    "argus-table2": ("originals=4", "partners=18", "joint_epochs=1", "epochs=1", "model_epochs=2",
                     "mixes=[0.1]", "added=50", "retrain_epochs=1"),
    "argus-table4": ("originals=4", "partners=18", "joint_epochs=1", "epochs=1", "judge=false",
                     "model_epochs=2", "model=lenet5", "mix=0.2"),
    "coverage-matrix": ("counted=\"\"", "guides=[\"nc\"]", "seeds=6", "gradients=4",
                        "shares=[0,0.3]", "repeats=2"),
    "decides": ("recipes=4", "epochs=2", "seeds=20"),
    "demo": ("runs=1",),
    "effects": ("repeats=20", "region=5"),
    "intervals": ("repeats=20",),
    "escape-null": ("clean=3", "tested=1", "shares=[0.2]", "seeds=20", "walks=5", "epochs=2"),
    "features-rq1": ("tests=10", "trainings=1", "faults=[\"tint\"]", "methods=[\"pgd\"]"),
    "features-rq2": ("seeds=6", "generator=vae", "epochs=4"),
    "features-rq3": ("seeds=6", "generator=vae", "robust_epochs=1", "epochs=4"),
    "map-cells": ("seeds=4", "queries=40", "only=[0]"),
    "maxplore": ("one_seeds=3", "seeds=6"),
    "maxplore-uses": ("taught=20", "retrain_epochs=1", "added=20", "seeds=6"),
    "regression-search": ("nulls=2", "seeds=10"),
    "repair": ("arms=short", "epochs=1", "seeds=40", "attacked=6", "draws=4"),
    "severity-crossings": ("seeds=4",),
    "sinvad-feasibility": ("seeds=8", "climbers=2", "passes=1", "paper_seeds=1"),
    "sinvad-matrix": ("seeds=10",),
    "sinvad-pca": ("seeds=3", "pairs=[[0,1]]"),
    "sinvad-rq2": ("seeds=30", "code_seeds=8", "paper_seeds=3", "curve_seeds=4", "vae_epochs=5"),
    "sinvad-rq3": ("shares=[0.1,0.3]", "attempts=20", "epochs=2", "walks=5", "pairs=[[0,1]]",
                   "rounds=[0]"),
    "sinvad-rq4": ("kinds=linear", "latents=[2,50]", "vae_epochs=2"),
    "slices-faults": ("trainings=1", "permutations=50", "faults=[\"tint\"]"),
    "witness-controls": ("trainings=1", "seeds=6", "draws=1", "searches=natural", "epochs=2"),
    "yardstick": ("seeds=6", "tuned_on=4", "passes=[100]", "methods=pgd", "retrained=false"),
}  # fmt: skip
"""What makes a study small; a small run is of `mnist5k`, on the CPU, without `LARGE`."""
NOT_SMALL = {
    "asking-digits": "published ratings",
    "blind-readings": "somebody's readings of findings",
    "asking-photographs": "published ratings and photographs",
    "detectors": "photographs with boxes, fetched networks",
    "diffusion-cifar10": "CIFAR-10 and a GPU",
    **dict.fromkeys(
        ("peers-accuracy", "peers-attacks", "peers-corruptions", "peers-probability"),
        "libraries of others: make peers",
    ),
    "field": "a minute for each field",
    "rated-digits": "published ratings",
    "witness-test": "a test set that is opened once",
}
"""Studies without a small form, and what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command that makes one stored result. A job with `part` fills the folder of `name` and keeps nothing; `words` are the
    command of a result that is no study's."""

    name: str
    study: str = ""
    data: str = "mnist5k"
    gpu: bool = True
    flags: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join([self.name, *self.part])

    def command(self, work: Path, keep: Path, *, small: bool, device: str) -> list[str]:
        if self.words:
            return list(self.words)
        flags = [one for one in self.flags if not (small and one.startswith(LARGE))]
        where = device if self.gpu else "cpu"
        sets = (*(SMALL[self.study] if small else self.sets), *self.part)
        chosen = [word for one in sets for word in ("--set", one)]
        kept = [] if self.part else ["--keep", str(keep / f"{self.name}.json")]
        data = "mnist5k" if small else self.data
        start = ("benchmarks.capped", str(MEMORY)) if where == "cuda" else ("hardcase",)
        return [
            *(sys.executable, "-m", *start, "reproduce", self.study, "--data", data),
            *("--device", where, "--out", str(work / self.name), *flags, *kept, *chosen),
        ]  # fmt: skip

    def in_parts(self, parts: Sequence[tuple[str, ...]], *, trained: bool = False) -> list[Job]:
        """This job after parts that fill its folder; with `trained` the first of them trains what the others load."""
        made: list[Job] = []
        for part in parts:
            first = (made[0].label,) if made and trained else ()
            made.append(replace(self, part=("fill=true", *part), after=(*self.after, *first)))
        return [*made, replace(self, after=tuple(one.label for one in made))]


def stored_jobs(results: Path = RESULTS) -> list[Job]:
    """A job for every stored result, from the command that it names."""
    jobs: list[Job] = []
    for path in sorted(results.glob("*.json")):
        jobs += split(job_of(path.stem, json.loads(path.read_text(encoding="utf-8"))["command"]))
    return jobs


def job_of(name: str, command: str) -> Job:
    """The job that repeats a stored command line."""
    words = shlex.split(command)
    if words[:2] != ["hardcase", "reproduce"]:
        run = [sys.executable if word == "python" else word for word in words]
        return Job(name=name, gpu="gpu" in name, words=tuple(run))
    given: dict[str, str] = {}
    flags: list[str] = []
    sets: list[str] = []
    rest = iter(words[3:])
    for word in rest:
        if word in ("--full", "--open"):
            flags.append(word)
        elif word == "--set":
            sets.append(next(rest))
        else:
            given[word] = next(rest)
    flags += [f"{key}={given[key]}" for key in ("--seed", "--repeats") if key in given]
    return Job(
        name=name, study=study_of(command), data=given["--data"], gpu=given.get("--device") != "cpu",
        flags=tuple(flags), sets=tuple(sets),
    )  # fmt: skip


def split(job: Job) -> list[Job]:
    """The job, or the parts in which several processes can do it, and the job that reads them all."""
    if job.study == "coverage-matrix":
        generator = "dlfuzz" if "dlfuzz" in job.name else "deepxplore"
        controls = [one for one in CONTROLS[::-1] if generator == "dlfuzz" or one != QUEUE]
        guides = [guide for guide in GUIDES if generator != "dlfuzz" or not guide.startswith("vvc")]
        return job.in_parts([(f"guides={one}",) for one in (*controls, *guides)], trained=True)
    if job.study == "sinvad-rq3":
        pairs = ("[0,1]", "[2,5]", "[6,7]")
        return job.in_parts([(f"pairs=[{p}]", f"rounds=[{n}]") for n in range(6) for p in pairs])
    if job.study == "argus-curve":
        joint = json.dumps([f"jointly by means, {stop} epochs" for stop in STOPS])
        alone = '["ours", "coarse, no restarts"]'
        return job.in_parts([(f"generators={alone}",), (f"generators={joint}",)])
    return [job]


COLOUR = (
    *("originals=100", "partners=3000", "epochs=20", "joint_epochs=10", "batch=256"),
    *("judge=false", "adaptive=false"),
)
"""ARGUS on CIFAR-10: 100 originals with 3,000 partners each."""
DIGITS = (
    *("originals=100", "partners=9000", "epochs=15", "joint_epochs=5", "batch=256"),
    *("judge=false", "adaptive=false", "augment=none", "model_epochs=1"),
)
"""ARGUS on MNIST, with networks as weak as its own."""
MIXES = (0.1, 0.2, 0.3)
ANEW = "--seed=7"
"""Originals that no result was known of when its rule was written."""
RIVALS = 'rivals=["diffchaser","adapt@paper","dlfuzz@adapt","deepxplore@adapt"]'


BRIEF = ('models=["lenet5"]', "model_epochs=1")
"""The network by which a card says how good a generator is, where only the generator is wanted."""


def _table1(name: str, data: str, *sets: str, after: Sequence[Job] = (), fill: bool = False) -> Job:
    """A job of ARGUS's Tables 1 and 3; with `fill` it trains the networks that its options name, and no more."""
    whole = Job(
        name=name, study="argus-table1", data=data, flags=("--repeats=1", ANEW), sets=sets,
        after=tuple(one.label for one in after),
    )  # fmt: skip
    return replace(whole, sets=(), part=("fill=true", *sets)) if fill else whole


def _generators(data: str, sets: tuple[str, ...]) -> dict[float, Job]:
    """What trains the generators: first the one that all go on from (0), then those of the mixes side by side."""
    name = f"argus-{data}-networks"
    brief = (*sets, *BRIEF, "ablation=[]")
    first = _table1(name, data, *brief, "mixes=[0]", fill=True)
    rest = {
        mix: _table1(name, data, *brief, f"mixes=[{mix}]", after=[first], fill=True)
        for mix in MIXES
    }
    return {0.0: first, **rest}


def _argus_colour() -> list[Job]:
    """Tables 1 to 4 on CIFAR-10: two networks, every mix, the rivals, the ablation, retraining."""
    data = "cifar10"
    made = _generators(data, COLOUR)
    # the ablation needs the generator without discriminators too
    networks = {
        name: _table1(f"argus-{data}-networks", data, *COLOUR, f'models=["{name}"]', "mixes=[]",
                      f"ablation={ablated}", fill=True)
        for name, ablated in (("resnet18", "[0.1]"), ("vgg16", "[]"), ("resnet18-small", "[]"))
    }  # fmt: skip
    mixed: list[Job] = []
    rivals: list[Job] = []
    for name in ("resnet18", "vgg16"):
        head = (*COLOUR, f'models=["{name}"]', "ablation=[]")
        for mix in MIXES:
            here = f"argus-{data}-{name}-mix0{10 * mix:.0f}"
            mixed.append(_table1(here, data, *head, f"mixes=[{mix}]", "rivals=false",
                                 after=[networks[name], made[mix]]))  # fmt: skip
        rivals.append(_table1(f"argus-{data}-{name}-rivals", data, *head, "mixes=[]", RIVALS,
                              "rival_queries=1000", after=[networks[name]]))  # fmt: skip
    ablation = Job(
        name="argus-table4-cifar10", study="argus-table4", data=data, flags=("--repeats=1", ANEW),
        sets=(*COLOUR, "model=resnet18", "mix=0.2"),
        after=(networks["resnet18"].label, made[0.2].label),
    )  # fmt: skip
    taught = _retrained("argus-table2-cifar10", data, "resnet18-small", COLOUR[2:5])
    taught = replace(
        taught, after=tuple(one.label for one in (networks["resnet18-small"], *made.values()))
    )
    return [
        *made.values(), *networks.values(), *mixed, ablation, *rivals,
        *taught.in_parts([(f"only=[{repeat}]",) for repeat in range(6)]),
    ]  # fmt: skip


def _argus_digits() -> list[Job]:
    """Tables 1 and 3 for LeNet-4, and Table 2, on MNIST."""
    made = _generators("mnist", DIGITS)
    taught = _retrained("argus-table2-mnist", "mnist", "lenet5", (*DIGITS[2:5], *DIGITS[7:]))
    taught = replace(taught, after=tuple(one.label for one in made.values()))
    lenet4 = _table1(
        "argus-table1-lenet4", "mnist", *DIGITS, 'models=["lenet4"]', "ablation=[]", "rivals=false",
        after=list(made.values()),
    )  # fmt: skip
    parts = [(f"only=[{repeat}]",) for repeat in range(6)]
    return [*made.values(), lenet4, *taught.in_parts(parts)]


def _retrained(name: str, data: str, model: str, sets: tuple[str, ...]) -> Job:
    """Table 2: six repeats of all arms but those of failing images."""
    how = ("originals=100", "failing=false", "retrain_epochs=10", "retrain_batch=512")
    return Job(
        name=name, study="argus-table2", data=data, flags=("--repeats=6", ANEW),
        sets=(f"model={model}", *sets, *how),
    )  # fmt: skip


def _sinvad_colour() -> list[Job]:
    """Table 3 and Figure 18 on CIFAR-10."""
    network = _table1(
        "sinvad-cifar10-network", "cifar10", 'models=["alexnet"]', "mixes=[]", "ablation=[]",
        fill=True,
    )  # fmt: skip
    boundary = Job(
        name="sinvad-rq2-cifar10", study="sinvad-rq2", data="cifar10",
        sets=("seeds=100", "code_seeds=100", "paper_seeds=30", "curve_seeds=20", "vae_epochs=12"),
        after=(network.label,),
    )  # fmt: skip
    kinds = Job(
        name="sinvad-rq4-cifar10", study="sinvad-rq4", data="cifar10", flags=("--repeats=6",),
        sets=('kinds=["linear","hierarchical"]', "latents=[400]", "vae_epochs=5"),
        after=(network.label,),
    )  # fmt: skip
    parts = [('kinds="hierarchical"', f"only=[{n},{n + 3}]") for n in range(3)]
    return [network, boundary, *kinds.in_parts([*parts, ('kinds="linear"',)])]


def table_jobs() -> list[Job]:
    """The papers' tables that are worth a GPU, in order of value."""
    coverage = Job(
        name="coverage-matrix-dlfuzz", study="coverage-matrix", gpu=False,
        flags=("--seed=1700", "--repeats=16"),
        sets=('counted=""', "generators=dlfuzz",
              f"guides={json.dumps([one for one in GUIDES if not one.startswith('vvc')])}"),
    )  # fmt: skip
    shares = "shares=[0.01,0.02,0.05,0.1,0.2,0.3,0.5]"
    mixed = Job(
        name="sinvad-rq3-mnist", study="sinvad-rq3", data="mnist", gpu=False, flags=("--repeats=6",),
        sets=("model=lenet5", "train_images=10000", "attempts=200", shares),
    )  # fmt: skip
    sizes = Job(
        name="sinvad-rq4-trainings", study="sinvad-rq4", flags=("--repeats=6",),
        sets=("latents=[2,10,50,400,1600]", "vae_epochs=8"),
    )  # fmt: skip
    return [
        *_sinvad_colour(),
        *_argus_colour(),
        *_argus_digits(),
        *sizes.in_parts([('kinds="linear"',), ('kinds="conv"',)]),
        Job(name="sinvad-rq2-fashion", study="sinvad-rq2", data="fashion", flags=("--full",)),
        Job(name="sinvad-matrix", study="sinvad-matrix", data="mnist",
            sets=("model=lenet5", "seeds=2000")),
        Job(name="maxplore", study="maxplore", gpu=False, sets=("one_seeds=50", "seeds=100")),
        Job(name="sinvad-pca", study="sinvad-pca", gpu=False,
            sets=("pairs=[[4,9],[3,5],[2,7],[3,8]]", "seeds=60")),
        Job(name="maxplore-uses", study="maxplore-uses", gpu=False, flags=("--repeats=6",)),
        *split(mixed),
        *split(coverage),
    ]  # fmt: skip


def open_jobs() -> list[Job]:
    """The tables whose result is not stored, or is smaller than the table asks for."""
    made = ("sinvad-rq2-fashion", "sinvad-matrix", "sinvad-pca", "maxplore", "maxplore-uses")
    done = (*made, "sinvad-rq3-mnist", "coverage-matrix-dlfuzz")
    return [job for job in table_jobs() if job.name not in done]


def small_jobs() -> list[Job]:
    """The small form of every study that has one."""
    return [Job(name=study, study=study, gpu=False) for study in SMALL]


LISTS = {"tables": table_jobs, "stored": stored_jobs, "open": open_jobs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", nargs="*", choices=list(LISTS), default="stored")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--keep", type=Path, default=Path("build/results"))
    parser.add_argument("--work", type=Path, default=Path("build/settle"))
    parser.add_argument("--only", help="results by name, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    parser.add_argument("--on-gpu", type=int, default=ON_GPU, help="studies at once on the GPU")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    lists = [asked.lists] if isinstance(asked.lists, str) else asked.lists
    jobs = small_jobs() if asked.small else [job for name in lists for job in LISTS[name]()]
    if asked.only:
        jobs = [job for job in jobs if job.name in asked.only.split(",")]
    wanted = [job for job in jobs if not _is_kept(asked.keep / f"{job.name}.json")]
    if asked.list:
        for job in wanted:
            words = job.command(asked.work, asked.keep, small=asked.small, device=asked.device)
            print(" ".join(words[2:]))
        return 0
    return _run(wanted, asked)


def _is_kept(path: Path) -> bool:
    """Whether a result of this very code is there."""
    if not path.is_file():
        return False
    made = json.loads(path.read_text(encoding="utf-8")).get("commit")
    return made is not None and made == commit()


def _run(jobs: list[Job], asked: argparse.Namespace) -> int:
    """Start what may start, wait, and stop what is left at the limit."""
    begun = time.time()
    waiting = list(jobs)
    running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
    ended: dict[str, int] = {}
    (asked.work / "logs").mkdir(parents=True, exist_ok=True)
    while (waiting or running) and time.time() - begun < 60 * asked.minutes:
        for label, (_, process, start) in list(running.items()):
            if process.poll() is not None:
                ended[label] = process.returncode
                print(f"{time.time() - start:6.0f} s  {process.returncode}  {label}", flush=True)
                del running[label]
        for job in list(waiting):
            busy = sum(other.gpu == job.gpu for other, _, _ in running.values())
            room = asked.on_gpu if job.gpu and asked.device != "cpu" else asked.cores
            if busy < room and all(ended.get(label) == 0 for label in job.after):
                running[job.label] = (job, _start(job, asked), time.time())
                waiting.remove(job)
        if not running and waiting:
            break  # what is left waits for something that failed
        time.sleep(0.5)
    for label, (_, process, _) in running.items():
        process.terminate()
        print(f"stopped at the limit: {label}", flush=True)
    for job in waiting:
        print(f"not begun: {job.label}", flush=True)
    return int(bool(running or waiting or any(ended.values())))


def _start(job: Job, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = job.command(asked.work, asked.keep, small=asked.small, device=asked.device)
    plain = re.sub(r"[^A-Za-z0-9]+", "-", job.label)[:100]
    log = asked.work / "logs" / f"{plain}.log"
    threads = {"OMP_NUM_THREADS": "1", "MKL_CBWR": "AUTO,STRICT", "MKL_NUM_THREADS": "1"}
    with log.open("ab") as out:
        return subprocess.Popen(words, stdout=out, stderr=out, env={**os.environ, **threads})


if __name__ == "__main__":
    sys.exit(main())
