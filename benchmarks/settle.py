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
from dataclasses import dataclass
from pathlib import Path

from hardcase_studies.argus_curve import STOPS
from hardcase_studies.coverage import CONTROLS, GUIDES
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


def _coverage() -> list[Job]:
    """The matrix, guide by guide; the seeds of its runs were used for nothing before."""
    whole = Job(
        name="coverage-matrix", study="coverage-matrix", gpu=False,
        flags=("--seed=1600", "--repeats=16"), sets=("counted=\"\"",),
        small=("counted=\"\"", "seeds=6", "gradients=4", "shares=[0,0.3]", "repeats=2"),
    )  # fmt: skip
    parts: list[Job] = []
    for generator in ("deepxplore", "dlfuzz"):
        for guide in (*CONTROLS[::-1], *GUIDES):
            part = ("fill=true", f"generators={generator}", f"guides={guide}")
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
    "first": [
        _boundary("sinvad-rq2", "mnist"),
        *_argus(),
        Job(name="features-rq2", study="features-rq2", sets=("seeds=100",),
            small=("seeds=10", "gan_epochs=4", "epochs=4")),
        *_coverage(),
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
