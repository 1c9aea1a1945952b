"""Memory of a campaign: it must not grow with the images that seeds are chosen from."""

from __future__ import annotations

import os
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
CLASSES = ("amber", "blue", "crimson", "green")
COLOURS = np.array([[240, 190, 40], [30, 60, 200], [190, 20, 50], [40, 150, 60]])
MODEL = f"""
import torch
from torch import nn
COLOURS = torch.tensor({COLOURS.tolist()}) / 255
class Nearest(nn.Module):
    def forward(self, x):
        return -10 * (x.mean((2, 3))[:, None] - COLOURS).square().sum(2)
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
    counts = [max(8, round(size * count)) for count in (1_000, 5_000, 20_000)]
    peaks = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "net.py").write_text(MODEL)
        for count in counts:
            _photographs(root / "photos", count)
            peaks.append(_peak(root, f"runs/{count}", "--seeds", "100"))
            growth = f"{peaks[-1] / peaks[0]:.2f} of {counts[0]:,}; goal at most 1.10, and 4 GB"
            yield Figure(
                name=f"memory-images-{count}",
                value=round(peaks[-1] / 2**30, 3),
                unit=f"GB, 100 seeds chosen from {count:,} JPEG of {SIDE} px",
                against=growth,
                command=COMMAND,
            )
        many = max(16, round(size * 1_000))
        more = _peak(root, "runs/seeds", "--seeds", str(many))
    yield Figure(
        name="memory-per-seed",
        value=round((more - peaks[-1]) / (many - min(100, many - 1)) / 2**10),
        unit=f"kB for every seed of {SIDE} px beyond 100",
        against="153 kB of pixels",
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
        pixels = np.broadcast_to(COLOURS[number % len(CLASSES)] + shade, (SIDE, SIDE, 3)).clip(
            0, 255
        )
        image = pixels.astype(np.uint8)
        image[:64, :64] = np.kron(patch, np.ones((8, 8, 1))).astype(np.uint8)
        Image.fromarray(image).save(place, quality=90)


def _peak(root: Path, out: str, *more: str) -> float:
    """Bytes of memory that a run took at most."""
    words = ["run", "--model", "net.py:make", "--data", "folder:photos", "--method", "fgsm", "-q"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words, "--out", out, *more],
        cwd=root,
        env={**os.environ, "HARDCASE_CACHE": str(root / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return 1024.0 * float(done.stdout.rpartition("peak ")[2])
