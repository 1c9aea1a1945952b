"""Memory of a campaign over photographs: it must not grow with the number of its seeds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.figures import Figure

COMMAND = "python -m benchmarks memory"
SIDE = 224
COUNTS = (2_500, 20_000)
CLASSES = ("amber", "blue", "crimson", "green")
COLOURS = np.array([[120, 120, 120], [132, 120, 120], [120, 132, 120], [120, 120, 132]])
"""So near to each other that 8/255 leads from any of them to another: every seed is a finding."""
MODEL = f"""
import torch
from torch import nn
COLOURS = torch.tensor({COLOURS.tolist()}) / 255
class Nearest(nn.Module):
    def forward(self, x):
        return -1e4 * (x.mean((2, 3))[:, None] - COLOURS).square().sum(2)
def make():
    return Nearest()
"""
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
            peaks.append(_peak(root, f"runs/{count}", count))
            yield Figure(
                name=f"memory-seeds-{count}",
                value=round(peaks[-1] / 2**30, 3),
                unit=f"GB at most, {count:,} photographs of {SIDE} px, each a seed and a finding",
                against=f"{peaks[-1] / peaks[0]:.2f} of {counts[0]:,}; goal at most 1.10, and 4 GB",
                command=COMMAND,
            )


def _photographs(root: Path, count: int) -> None:
    """Images up to `count`, no two alike, in class folders; those that are there stay."""
    rng = np.random.default_rng(0)
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


def _peak(root: Path, out: str, seeds: int) -> float:
    """Bytes of memory that a run took at most, from its first check to its last verdict."""
    data = "folder:photos?split=all"
    words = ["run", "--model", "net.py:make", "--data", data, "--method", "fgsm", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--out", out, "--seeds", str(seeds)],
        cwd=root,
        env={**os.environ, "HARDCASE_CACHE": str(root / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(root / out)
    return 1024.0 * float(done.stdout.rpartition("peak ")[2])
