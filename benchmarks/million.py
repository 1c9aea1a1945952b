"""A million seeds through the real scheduler, with a model that answers at once and never fails.

What is left is the engine: seconds per shard, memory of the process that owns the folder, the time
of ``hardcase status``, and what a lost worker costs. ``python -m benchmarks million``, ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, process_time, sleep
from typing import NamedTuple

import numpy as np

from benchmarks.figures import Figure

COMMAND = "python -m benchmarks million"
RESULT = "bench-million"
SHARD = 256
MODEL = """
import torch
class Sure(torch.nn.Module):
    def forward(self, x):
        light = (x.mean((1, 2, 3)) - 0.5).sign().detach() + 0 * x.sum((1, 2, 3))
        return torch.stack([-light, light], 1)
def make():
    return Sure()
"""


class Cost(NamedTuple):
    """What a command took: seconds on the clock, processor time, and its greatest memory in MB."""

    seconds: float
    processor: float
    memory: float


def figures(size: float = 1.0) -> Iterator[Figure]:
    """`size` below 1 only shows that everything runs."""
    many = int(1_000_000 * size)
    few = many // 10
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "sure.py").write_text(MODEL)
        _images(folder, many)
        small = _measured(_start(folder, few, "small"))
        large = _measured(_start(folder, many, "large"))
        spent = 1000 * (large.processor - small.processor) * SHARD / (many - few)
        passes = _passes(folder, "large")
        yield _figure(
            "million-shard-overhead", spent - passes, "ms of processor time per shard",
            f"{many:,} seeds less {few:,}, shards of {SHARD}: {spent:.1f} ms, of which the stub's "
            f"passes over the same rows take {passes:.2f} ms alone; a goal of 5",
        )  # fmt: skip
        yield _figure(
            "million-driver-memory", 2**20 * (large.memory - small.memory) / (many - few),
            "bytes per seed",
            f"{many:,} seeds ({large.memory:.0f} MB) less {few:,} ({small.memory:.0f} MB); "
            "an image has 16",
        )  # fmt: skip
        yield _figure(
            "million-seeds-a-second", many / large.seconds, "seeds/s", "one process, all included"
        )
        begun = _measured(subprocess.Popen(_words("list", "methods"), stdout=subprocess.DEVNULL))
        asked = [*_words("status", "large"), "--format", "json"]
        status = _measured(subprocess.Popen(asked, cwd=folder, stdout=subprocess.DEVNULL))
        yield _figure(
            "million-status", status.processor - begun.processor, "s",
            "hardcase status less a command that reads nothing; a goal of 0.1",
        )  # fmt: skip
        yield _lost_worker(folder, few)


def _passes(folder: Path, out: str) -> float:
    """Milliseconds of processor time of all passes of the stub over one shard, with nothing else."""
    import torch

    from hardcase.models.load import from_file
    from hardcase.models.subject import Subject

    torch.set_num_threads(1)
    subject = Subject(from_file(folder / "sure.py", "make"), name="sure")
    with np.load(folder / "set.npz") as arrays:
        rows = torch.from_numpy(arrays["images"][:SHARD]).float() / 255

    def forward() -> None:
        with torch.no_grad():
            subject(rows)

    def gradient() -> None:
        x = rows.clone().requires_grad_()
        torch.autograd.grad(subject(x).logits.sum(), x)

    record = json.loads((folder / out / "run.json").read_text())
    attempted = record["search_results"]["searched"]
    graded = record["totals"]["gradients"] / attempted
    plain = 1 + record["totals"]["queries"] / attempted - graded  # one asks which are usable
    return graded * _milliseconds(gradient) + plain * _milliseconds(forward)


def _milliseconds(work: Callable[[], None], repeats: int = 500) -> float:
    work()
    begun = process_time()
    for _ in range(repeats):
        work()
    return 1000 * (process_time() - begun) / repeats


def _lost_worker(folder: Path, seeds: int) -> Figure:
    """Kill one of two workers in the middle of a run; everything must still be done once."""
    whole = _measured(_start(folder, seeds, "two", "--workers", "2")).seconds
    run = _start(folder, seeds, "lost", "--workers", "2")
    begun = monotonic()
    while not (workers := _children(run.pid)):
        sleep(0.05)
    sleep(max(0.0, whole / 2 - (monotonic() - begun)))
    os.kill(workers[0], signal.SIGKILL)
    hurt = _measured(run, begun).seconds
    record = json.loads((folder / "lost/run.json").read_text())
    attempted = record["search_results"]["searched"]
    if attempted != record["search_results"]["correctly_classified"]:
        raise SystemExit(
            f"only {attempted} of {record['search_results']['correctly_classified']} seeds were attempted"
        )
    return _figure(
        "million-lost-worker", hurt - whole, "s more",
        f"one of two workers killed half-way through {seeds:,} seeds ({whole:.0f} s undisturbed)",
    )  # fmt: skip


def _children(process: int) -> list[int]:
    """Python processes below another one, the youngest first (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, _, parent = path.read_text().split()[:4]
            words = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == process and b"spawn_main" in words:
            found.append(int(number))
    return sorted(found, reverse=True)


def _images(folder: Path, count: int) -> None:
    draws = np.random.default_rng(0)
    x = draws.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8)
    y = x.reshape(count, -1).mean(1) > 127.5
    classes = np.array(["dark", "light"])
    np.savez(folder / "set.npz", images=x, labels=y.astype(np.int64), classes=classes)


def _words(*words: str) -> list[str]:
    return [sys.executable, "-m", "hardcase", *words]


def _start(folder: Path, seeds: int, out: str, *more: str) -> subprocess.Popen[bytes]:
    words = _words("run", "--model", "sure.py:make", "--data", "npz:set.npz?split=all")
    words += ["--method", "fgsm", "--images", str(seeds), "--witness", "none", "--quiet"]
    words += ["--conditions", "none", "--set", f"campaign.shard={SHARD}", "--out", out, *more]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # rows of 16 pixels need no second one
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, env=one_thread)


def _measured(process: subprocess.Popen[bytes], begun: float | None = None) -> Cost:
    """Wait for a command and say what it took."""
    start = monotonic() if begun is None else begun
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    spent = usage.ru_utime + usage.ru_stime
    return Cost(monotonic() - start, spent, usage.ru_maxrss / 1024)


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)
