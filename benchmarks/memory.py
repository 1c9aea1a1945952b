"""Memory of commands over photographs: it must not grow with the number of images."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.figures import Figure

RESULT = "bench-memory"
COMMAND = "python -m benchmarks memory"
SIDE = 224
COUNTS = (2_500, 10_000)
AFTER = (2_100, 4_200)
"""Findings that are reported and moved back, and images that a repair learns from."""
CLASSES = ("amber", "blue", "crimson", "green")
COLOURS = np.array([[120, 120, 120], [132, 120, 120], [120, 132, 120], [120, 120, 132]])
"""So near to each other that 8/255 leads from any of them to another: every seed is a finding."""
MODEL = f"""
import torch
from torch import nn
COLOURS = torch.tensor({COLOURS.tolist()}) / 255
class Nearest(nn.Module):
    def __init__(self):
        super().__init__()
        self.colours = nn.Parameter(COLOURS)
    def forward(self, x):
        return -1e4 * (x.mean((2, 3))[:, None] - self.colours).square().sum(2)
def make():
    return Nearest()
"""
NET = ("--model", "net.py:make", "-q")
SEARCH = (
    "run",
    *NET,
    "--data",
    "folder:photos?split=all",
    "--method",
    "fgsm",
    "--conditions",
    "none",
)
REPAIR = ("repair", *NET, "--data", "folder:split", "--out", "fixed", "--epochs", "1", "--rate", "1e-5",
          "--draws", "1", "--proof", "quick:images=20,attack.images=4")  # fmt: skip
PROOF = 400
"""Test images of a repair."""
RUN = """
import resource, sys
from hardcase.cli.main import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def figures(size: float = 1.0) -> Iterator[Figure]:
    """`size` below 1 only shows that everything runs."""
    counts = [max(8, round(size * count)) for count in COUNTS]
    peaks = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "net.py").write_text(MODEL)
        for count in counts:
            _photographs(root / "photos", count)
            peaks.append(_peak(root, [*SEARCH, "--images", str(count), "--out", f"runs/{count}"]))
            shutil.rmtree(root / f"runs/{count}")
            yield _figure("seeds", count, peaks, "photographs of 224 px, each a seed and a finding")
    yield from _afterwards([max(60, round(size * count)) for count in AFTER])


def _afterwards(counts: Sequence[int]) -> Iterator[Figure]:
    """What is done with a run, and with its data, when it is over."""
    peaks = dict[str, list[float]](report=[], shrink=[], repair=[])
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "net.py").write_text(MODEL)
            _photographs(root / "photos", count)
            _peak(root, [*SEARCH, "--images", str(count), "--out", "run"])
            peaks["report"].append(_peak(root, ["report", "run", "-q"]))
            peaks["shrink"].append(_peak(root, ["shrink", "run", "--out", "small", "-q"]))
            _photographs(root / "split" / "test", PROOF, seed=1)
            (root / "photos").rename(root / "split" / "train")
            peaks["repair"].append(_peak(root, REPAIR, codes=(0, 1, 4)))
        for verb, own in peaks.items():
            of = "photographs to learn from" if verb == "repair" else "findings of 224 px"
            yield _figure(verb, count, own, of)


def _figure(what: str, count: int, peaks: Sequence[float], of: str) -> Figure:
    return Figure(
        name=f"memory-{what}-{count}",
        value=round(peaks[-1] / 2**30, 3),
        unit=f"GB at most, {count:,} {of}",
        against=f"{peaks[-1] / peaks[0]:.2f} of the smaller number; goal at most 1.10, and 4 GB",
        command=COMMAND,
    )


def _photographs(root: Path, count: int, seed: int = 0) -> None:
    """Images up to `count`, no two alike, in class folders; those that are there stay."""
    rng = np.random.default_rng(seed)
    shade = np.linspace(-20, 20, SIDE)[:, None, None]
    for number in range(count):
        place = root / CLASSES[number % len(CLASSES)] / f"{number:06d}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        patch = rng.integers(0, 255, (8, 8, 3))
        if place.exists():
            continue
        grain = rng.normal(0, 12, (SIDE, SIDE, 3))  # which no file format shrinks
        image = (COLOURS[number % len(CLASSES)] + shade + grain).clip(0, 255).astype(np.uint8)
        image[:64, :64] = np.kron(patch, np.ones((8, 8, 1))).astype(np.uint8)
        Image.fromarray(image).save(place, quality=90)


def _peak(root: Path, words: Sequence[str], codes: Sequence[int] = (0,)) -> float:
    """Bytes of memory that a command took at most."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=root,
        env={**os.environ, "HARDCASE_CACHE": str(root / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode not in codes:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return 1024.0 * float(done.stdout.rpartition("peak ")[2])
