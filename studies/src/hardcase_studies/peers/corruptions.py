"""Every standard corruption beside `imagecorruptions` (Hendrycks and Dietterich, ICLR 2019): pixels, and images per second.

Ours are computed for a batch at once, with a severity between the published ones, and draw their random numbers otherwise, so
pixels can be the same only where nothing is random; elsewhere the *mean change* is compared: how far the corrupted images lie
from the originals, in grey levels.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardcase.corruptions import CORRUPTIONS, corrupt
from hardcase.data.sources import load
from hardcase.errors import Problem
from hardcase.suite.tables import Outcome
from hardcase.tensors import from_bytes, to_bytes
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.peers import library, machine, versions

SEVERITIES = (1, 2, 3, 4, 5)


def run(bench: Bench) -> Outcome:
    """``--data folder:PATH --set images=4`` are photographs of one's own; otherwise smooth ones are made."""
    theirs = peer()
    names = list(sys.modules["imagecorruptions"].get_corruption_names("all"))
    x = _images(bench)
    rows = []
    for name in names:
        bench.say(name)
        rows.append(_row(name, x, theirs))
    shared = [row for row in rows if row["ours"] != "not ours"]
    notes = [
        machine(),
        f"{len(x)} images of {tuple(x.shape[1:])}; {len(shared)} of {len(names)} corruptions are ours too",
        "mean change: grey levels by which the corrupted images lie from the originals, ours over theirs, severities 1 to 5",
        "apart: mean grey levels between the two corrupted images at severity 3; what is random differs by its draws",
        "speed: images per second of ours over theirs at severity 3, one process, one after the other in one run",
        versions(
            "imagecorruptions",
            "imagecorruptions-imaug",
            "numpy",
            "scikit-image",
            "opencv-python-headless",
        ),
    ]
    return Outcome("corruptions beside imagecorruptions", [table_of("19 corruptions", rows, notes)])


def _row(name: str, x: Tensor, theirs: Callable[..., Any]) -> dict[str, Any]:
    grid = to_bytes(x).permute(0, 2, 3, 1).numpy()
    ratios = []
    apart, speed = "", ""
    mine = name in CORRUPTIONS
    for severity in SEVERITIES:
        np.random.seed(0)
        begun = perf_counter()
        try:
            other = np.stack(
                [theirs(image, corruption_name=name, severity=severity) for image in grid]
            )
        except (AttributeError, ValueError, TypeError, OSError) as error:
            return {
                "corruption": name,
                "mean change": f"theirs fails: {type(error).__name__}",
                "apart": "",
                "speed": "",
                "ours": "yes" if mine else "not ours",
            }
        spent = perf_counter() - begun
        if not mine:
            continue
        begun = perf_counter()
        ours = corrupt(x, name, torch.full((len(x),), float(severity)), torch.arange(len(x)))
        own = perf_counter() - begun
        their = torch.from_numpy(other).permute(0, 3, 1, 2).float() / 255
        change = float((to_bytes(ours).float() / 255 - x).abs().mean())
        ratios.append(change / max(float((their - x).abs().mean()), 1e-9))
        if severity == 3:
            apart = f"{float((to_bytes(ours).float() - 255 * their).abs().mean()):.1f}"
            speed = f"{spent / own:.1f}"
    return {
        "corruption": name,
        "mean change": " ".join(f"{ratio:.2f}" for ratio in ratios),
        "apart": apart,
        "speed": speed,
        "ours": "yes" if mine else "not ours",
    }


def _images(bench: Bench) -> Tensor:
    count = bench.size("images", 4, 32)
    if bench.data.startswith("folder:"):
        return from_bytes(load(bench.data, split="test").sample(count=count, seed=bench.seed).x)
    rng = torch.Generator().manual_seed(bench.seed)
    coarse = torch.rand(count, 3, 28, 28, generator=rng)
    x = torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bicubic").clamp(0, 1)
    return from_bytes(to_bytes(x))


def peer() -> Callable[..., Any]:
    """`imagecorruptions.corrupt`, given names that numpy, scipy and scikit-image have dropped since."""
    try:
        import scipy.ndimage
        import skimage.filters
    except ImportError as error:
        raise Problem(f"imagecorruptions needs scikit-image: {error}.", fix="make peers") from error
    resources: Any = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda *names: "/".join(names)
    moved: Any = types.ModuleType("scipy.ndimage.interpolation")
    moved.map_coordinates = scipy.ndimage.map_coordinates
    sys.modules["pkg_resources"] = resources
    sys.modules["scipy.ndimage.interpolation"] = moved
    numpy: Any = np
    if not hasattr(numpy, "float_"):
        numpy.float_ = np.float64
    found = library("imagecorruptions")
    plain = skimage.filters.gaussian

    def gaussian(image: Any, sigma: Any, multichannel: bool = False, **options: Any) -> Any:
        size = tuple(sigma) if isinstance(sigma, np.ndarray) else sigma
        return plain(image, sigma=size, channel_axis=-1 if multichannel else None, **options)

    inner: Any = sys.modules["imagecorruptions.corruptions"]
    inner.gaussian = gaussian
    whole: Callable[..., Any] = found.corrupt
    return whole
