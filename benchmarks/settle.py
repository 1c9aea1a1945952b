"""Stored results made again: several studies at once until a time limit, and what is done is not done twice.

``python -m benchmarks.settle first --minutes 8 --keep build/results`` runs a list of studies, some on the GPU and the others on
CPU cores beside it. A result is written as soon as its study ends; a study that was stopped goes on in the next call. ``--small``
runs everything at the size of a few minutes on two cores, ``--list`` says what there is. Each study is a plain
``hardcase reproduce`` command, which is printed and stored in its result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hardcase_studies.argus_curve import STOPS
from hardcase_studies.coverage import CONTROLS, GUIDES, QUEUE
from hardcase_studies.stored import commit

LARGE = ("--full", "--repeats")
"""Flags that a small run does without."""
ON_GPU = 4
"""Studies that share a GPU: each alone leaves most of it idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One `hardcase reproduce` command. `small` replaces `sets`; a job with `part` fills the folder of `name` and keeps nothing."""

    name: str
    study: str
    data: str = "mnist5k"
    gpu: bool = True
    flags: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    part: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join([self.name, *self.part])

    def command(self, work: Path, keep: Path, *, small: bool, device: str) -> list[str]:
        flags = [one for one in self.flags if not (small and one.startswith(LARGE))]
        where = device if self.gpu else "cpu"
        sets = (*(self.small if small else self.sets), *self.part)
        chosen = [word for one in sets for word in ("--set", one)]
        kept = [] if self.part else ["--keep", str(keep / f"{self.name}.json")]
        data = "mnist5k" if small else self.data
        return [
            *(sys.executable, "-m", "hardcase", "reproduce", self.study, "--data", data),
            *("--device", where, "--out", str(work / self.name), *flags, *kept, *chosen),
        ]  # fmt: skip


def _coverage(generator: str, seed: int, guides: Sequence[str] = GUIDES) -> list[Job]:
    """The matrix of one generator, guide by guide; the images of its runs were used for nothing before."""
    chosen = ('counted=""', f"generators={generator}")
    named = () if guides == GUIDES else (f"guides={json.dumps(guides)}",)
    whole = Job(
        name=f"coverage-matrix-{generator}", study="coverage-matrix", gpu=False,
        flags=(f"--seed={seed}", "--repeats=16"), sets=(*chosen, *named),
        small=(*chosen, "guides=[\"nc\"]", "seeds=6", "gradients=4", "shares=[0,0.3]", "repeats=2"),
    )  # fmt: skip
    controls = [one for one in CONTROLS[::-1] if generator == "dlfuzz" or one != QUEUE]
    parts: list[Job] = []
    for guide in (*controls, *guides):
        part = ("fill=true", f"guides={guide}")
        first = (parts[0].label,) if parts else ()  # it trains what the others load
        parts.append(_but(whole, part=part, after=first))
    return [*parts, _but(whole, after=tuple(part.label for part in parts))]


def _but(job: Job, *, part: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Job:
    return Job(
        name=job.name, study=job.study, data=job.data, gpu=job.gpu, flags=job.flags, sets=job.sets,
        small=job.small, part=part, after=after,
    )  # fmt: skip


def _mixed_labels() -> list[Job]:
    """SINVAD's RQ3, pair by pair."""
    shares = "shares=[0.01,0.02,0.05,0.1,0.2,0.3,0.5]"
    whole = Job(
        name="sinvad-rq3", study="sinvad-rq3", data="mnist", flags=("--repeats=5",),
        sets=("model=lenet5", "attempts=200", shares, "matrix=false"),
        small=("shares=[0.1,0.3]", "attempts=20", "epochs=2", "walks=5"),
    )  # fmt: skip
    parts = [
        _but(whole, part=("fill=true", f"pairs=[{pair}]")) for pair in ("[0,1]", "[2,5]", "[6,7]")
    ]
    return [*parts, _but(whole, after=tuple(part.label for part in parts))]


def _mixed_test() -> list[Job]:
    """SINVAD's RQ3 on MNIST's 10,000 test digits, training by training: 18 parts for the cores beside a GPU."""
    whole = Job(
        name="sinvad-rq3-mnist", study="sinvad-rq3", data="mnist", gpu=False, flags=("--repeats=6",),
        sets=("model=lenet5", "train_images=10000", "attempts=200",
              "shares=[0.01,0.02,0.05,0.1,0.2,0.3,0.5]"),
        small=("shares=[0.1,0.3]", "attempts=20", "epochs=2", "walks=5"),
    )  # fmt: skip
    parts = [
        _but(whole, part=("fill=true", f"pairs=[{pair}]", f"rounds=[{number}]"))
        for number in range(6)
        for pair in ("[0,1]", "[2,5]", "[6,7]")
    ]
    return [*parts, _but(whole, after=tuple(part.label for part in parts))]


COLOUR = ("originals=100", "partners=3000", "joint_epochs=10", "judge=false")
"""ARGUS on CIFAR-10: 100 originals with 3,000 partners each."""
TINY = ("originals=4", "partners=18", "joint_epochs=1", "epochs=1", "judge=false", "model_epochs=2")


def _argus_colour() -> list[Job]:
    """Tables 1, 3 and 4 on CIFAR-10: two networks, every mix, the rivals and the ablation."""

    def job(name: str, model: str, *sets: str, after: tuple[str, ...] = ()) -> Job:
        small = tuple(one for one in sets if not one.startswith("rival_queries"))
        if "rivals=false" not in sets:
            small = (*small, "rival_queries=18")
        return Job(
            name=f"argus-cifar10-{name}", study="argus-table1", data="cifar10", flags=("--repeats=1",),
            sets=(*COLOUR, f"models=[\"{model}\"]", *sets),
            small=(*TINY, "models=[\"lenet5\"]", *small), after=after,
        )  # fmt: skip

    plain = ("ablation=[]", "rivals=false")
    first = job("resnet18-mix02", "resnet18", "mixes=[0.2]", *plain)
    second = job("vgg16-mix02", "vgg16", "mixes=[0.2]", *plain, after=(first.name,))
    begun = (first.name, second.name)
    return [
        first,
        second,
        job("resnet18-mixes", "resnet18", "mixes=[0.1,0.3]", *plain, after=begun[:1]),
        Job(
            name="argus-table4-cifar10", study="argus-table4", data="cifar10",
            flags=("--repeats=1",), sets=(*COLOUR, "model=resnet18", "mix=0.2"),
            small=(*TINY, "model=lenet5", "mix=0.2"), after=begun[:1],
        ),
        job("resnet18-rivals", "resnet18", "mixes=[]", "ablation=[0.1,0.2,0.3]",
            "rival_queries=1000", after=begun[:1]),
        job("vgg16-mixes", "vgg16", "mixes=[0.1,0.3]", *plain,
            after=(*begun, "argus-cifar10-resnet18-mixes")),
        job("vgg16-rivals", "vgg16", "mixes=[]", "ablation=[0.1,0.2,0.3]", "rival_queries=1000",
            after=begun),
    ]  # fmt: skip


def _argus() -> list[Job]:
    """The published rows beside our curves; generators that are trained jointly are measured apart."""
    whole = Job(
        name="argus-curve", study="argus-curve", data="mnist", flags=("--full",),
        sets=("epochs=15", "batch=256", "model_epochs=1", "augment=none"),
        small=("epochs=3", "batch=64", "model_epochs=3", "augment=none", "mixes=[0.3,0.5]",
               "stops=[1]", "originals=10", "partners=60"),
    )  # fmt: skip
    alone = '["ours", "coarse, no restarts"]'
    joint = json.dumps([f"jointly by means, {stop} epochs" for stop in STOPS])
    parts = [_but(whole, part=("fill=true", f"generators={names}")) for names in (alone, joint)]
    return [*parts, _but(whole, after=tuple(part.label for part in parts))]


def _boundary(name: str, data: str) -> Job:
    few = ("seeds=30", "code_seeds=8", "paper_seeds=3", "curve_seeds=4", "vae_epochs=5")
    return Job(name=name, study="sinvad-rq2", data=data, flags=("--full",), small=few)


JOBS: dict[str, list[Job]] = {
    "tables": [
        _boundary("sinvad-rq2-fashion", "fashion"),
        *_argus_colour(),
        *_mixed_test(),
        Job(name="sinvad-matrix", study="sinvad-matrix", data="mnist",
            sets=("model=lenet5", "seeds=2000"), small=("seeds=10",)),
        Job(name="sinvad-rq2-cifar10", study="sinvad-rq2", data="cifar10",
            sets=("seeds=200", "code_seeds=200", "paper_seeds=50", "curve_seeds=50",
                  "vae_epochs=20"),
            small=("seeds=10", "code_seeds=4", "paper_seeds=2", "curve_seeds=2", "vae_epochs=2")),
        Job(name="argus-table1-lenet4", study="argus-table1", data="mnist", flags=("--repeats=1",),
            sets=("models=[\"lenet4\"]", "originals=100", "partners=9000", "joint_epochs=5",
                  "rivals=false", "judge=false", "ablation=[]", "augment=none", "model_epochs=1",
                  "batch=256", "epochs=15"),
            small=(*TINY, "models=[\"lenet4\"]", "mixes=[0.2]", "ablation=[]", "rivals=false")),
        *_coverage("dlfuzz", 1700, [guide for guide in GUIDES if not guide.startswith("vvc")]),
        Job(name="argus-table2-mnist", study="argus-table2", data="mnist",
            flags=("--full", "--repeats=6"),
            sets=("augment=none", "model_epochs=1", "batch=256", "epochs=15", "joint_epochs=5",
                  "mixes=[0.1,0.2,0.3]", "retrain_batch=512"),
            small=(*TINY, "mixes=[0.1]", "added=50", "retrain_epochs=1")),
    ],
    "first": [
        _boundary("sinvad-rq2", "mnist"),
        *_argus(),
        Job(name="features-rq2", study="features-rq2", sets=("seeds=100",),
            small=("seeds=10", "gan_epochs=4", "epochs=4")),
        *_coverage("deepxplore", 1600),
    ],
    "second": [
        *_mixed_labels(),
        Job(
            name="sinvad-rq4", study="sinvad-rq4", data="mnist", flags=("--full",),
            sets=("latents=[2,10,50,200,400,800]",), small=("latents=[2,50]", "epochs=2"),
        ),
        _boundary("sinvad-rq2-fashion", "fashion"),
        Job(
            name="witness-controls", study="witness-controls", data="mnist", flags=("--full",),
            sets=("trainings=3", "epochs=4", "seeds=1000", "draws=5", "minutes=5",
                  'searches=["natural", "sinvad-gradient"]'),
            small=("trainings=1", "seeds=20", "draws=1", "searches=natural"),
        ),
        Job(name="map-cells", study="map-cells", flags=("--repeats=8",)),
        Job(name="features-rq3", study="features-rq3", sets=("seeds=300", "robust_epochs=6"),
            small=("seeds=10", "robust_epochs=1", "gan_epochs=4", "epochs=4")),
        Job(name="yardstick-trainings", study="yardstick", gpu=False,
            sets=("seeds=60", "tuned_on=20", "passes=[100]", "trainings=8"),
            small=("seeds=10", "tuned_on=4", "passes=[100]", "methods=pgd")),
        Job(name="yardstick-cifar10", study="yardstick", data="cifar10", flags=("--full",),
            sets=("model=resnet18",), small=("seeds=10", "tuned_on=4", "methods=pgd")),
        Job(name="maxplore", study="maxplore", gpu=False, sets=("one_seeds=50", "seeds=100"),
            small=("one_seeds=3", "seeds=6")),
        Job(name="severity-crossings", study="severity-crossings", gpu=False),
        Job(name="regression-search", study="regression-search", gpu=False),
        Job(name="slices-faults", study="slices-faults", gpu=False,
            sets=("trainings=3", "permutations=200")),
        Job(name="escape-null", study="escape-null", gpu=False, sets=("epochs=8",)),
        Job(name="sinvad-feasibility", study="sinvad-feasibility", gpu=False,
            sets=("paper_seeds=20",)),
        Job(name="maxplore-uses", study="maxplore-uses", gpu=False, flags=("--repeats=6",)),
        Job(name="argus-table2", study="argus-table2", gpu=False, flags=("--repeats=6",),
            sets=("augment=none", "model_epochs=12")),
        Job(name="argus-table1", study="argus-table1", gpu=False,
            sets=('models=["lenet5"]', "rival_queries=300", "judge=false", "augment=none",
                  "model_epochs=12")),
    ],
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", nargs="+", choices=list(JOBS))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--keep", type=Path, default=Path("build/results"))
    parser.add_argument("--work", type=Path, default=Path("build/settle"))
    parser.add_argument("--only", help="results by name, with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cores", type=int, default=max(1, (os.cpu_count() or 2) - 4))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    jobs = [job for name in asked.lists for job in JOBS[name]]
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
            room = ON_GPU if job.gpu and asked.device != "cpu" else asked.cores
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
