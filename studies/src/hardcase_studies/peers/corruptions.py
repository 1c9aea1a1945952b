"""Every standard corruption beside `imagecorruptions` (Hendrycks and Dietterich, ICLR 2019): pixels, and images per second.

Ours are computed for a batch at once, with a severity between the published ones, and draw their random numbers otherwise, so
pixels can be the same only where nothing is random; elsewhere the *mean change* is compared: how far the corrupted images lie
from the originals, in grey levels.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardcase.corruptions import CORRUPTIONS, corrupt
from hardcase.data.sources import load
from hardcase.errors import HardcaseError
from hardcase.suite.tables import Outcome
from hardcase.tensors import from_bytes, to_bytes
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.peers import library, machine, versions

SEVERITIES = (1, 2, 3, 4, 5)


def run(bench: Bench) -> Outcome:
    """``--data folder:PATH --set images=8`` are photographs of one's own; otherwise smooth ones are made."""
    theirs = peer()
    names = list(sys.modules["imagecorruptions"].get_corruption_names("all"))
    x = _images(bench)
    rows = []
    for name in names:
        bench.say(name)
        numbers = bench.cell(name, partial(_compared, name, x, theirs))
        rows.append(_row(name, numbers))
    shared = [row for row in rows if row["ours"] != "not ours"]
    notes = [
        machine(),
        f"{len(x)} images of {tuple(x.shape[1:])}; {len(shared)} of {len(names)} corruptions are ours too",
        "mean change: grey levels by which the corrupted images lie from the originals, ours over theirs, severities 1 to 5",
        "apart: mean grey levels between the two corrupted images at severity 3; what is random differs",
        "images a second at severity 3 in one process, fastest of three in turns; speed: ours over theirs; ours are given all images at once",
        "frost is not ours: it lays photographs of frost over the image",
        versions(
            "imagecorruptions",
            "imagecorruptions-imaug",
            "numpy",
            "scikit-image",
            "opencv-python-headless",
        ),
    ]
    return Outcome("corruptions beside imagecorruptions", [table_of("19 corruptions", rows, notes)])


COLUMNS = (
    "corruption",
    "mean change",
    "apart",
    "ours a second",
    "theirs a second",
    "speed",
    "ours",
)
"""Of the table."""
TIMED = 3
"""The severity at which both are timed, in turns, this many times; the fastest counts."""


def _row(name: str, numbers: list[float]) -> dict[str, Any]:
    """A row of the table from what `_compared` has measured."""
    *ratios, apart, own, other = numbers or [math.nan] * 8
    if name not in CORRUPTIONS:
        return dict.fromkeys(COLUMNS, "") | {"corruption": name, "ours": "not ours"}
    if math.isnan(other):
        cells = dict.fromkeys(COLUMNS, "") | {"mean change": "theirs fails"}
        return cells | {"corruption": name, "ours": "yes"}
    found = (
        name,
        " ".join(f"{ratio:.2f}" for ratio in ratios),
        f"{apart:.1f}",
        f"{own:,.1f}",
        f"{other:,.1f}",
        f"{own / other:.2f}",
        "yes",
    )
    return dict(zip(COLUMNS, found, strict=True))


def _compared(name: str, x: Tensor, theirs: Callable[..., Any]) -> list[float]:
    """Ratios of mean changes by severity, mean grey levels apart, images per second of ours and of
    theirs; nothing where one of the two does not have it.
    """
    if name not in CORRUPTIONS:
        return []
    try:
        changes = [_changes(name, severity, x, theirs) for severity in SEVERITIES]
    except (AttributeError, ValueError, TypeError, OSError):
        return []
    ratios = [own / max(other, 1e-9) for own, other, _ in changes]
    apart = changes[SEVERITIES.index(TIMED)][2]
    spent = [
        (_seconds(_ours, name, TIMED, x), _seconds(_theirs, name, TIMED, x, theirs))
        for _ in range(TIMED)
    ]
    own, other = (len(x) / min(times) for times in zip(*spent))
    return [*ratios, apart, own, other]


def _changes(
    name: str, severity: int, x: Tensor, theirs: Callable[..., Any]
) -> tuple[float, float, float]:
    """Mean change by ours and by theirs, and how far these lie apart, in grey levels."""
    other = _theirs(name, severity, x, theirs)
    own = _ours(name, severity, x)
    levels = (own - 255 * x, other - 255 * x, own - other)
    change, change_of_theirs, apart = (float(one.abs().mean()) for one in levels)
    return change, change_of_theirs, apart


def _ours(name: str, severity: int, x: Tensor) -> Tensor:
    changed = corrupt(x, name, torch.full((len(x),), float(severity)), torch.arange(len(x)))
    return to_bytes(changed).float()


def _theirs(name: str, severity: int, x: Tensor, theirs: Callable[..., Any]) -> Tensor:
    np.random.seed(0)
    grid = to_bytes(x).permute(0, 2, 3, 1).numpy()
    found = [theirs(image, corruption_name=name, severity=severity) for image in grid]
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).float()


def _seconds(work: Callable[..., Any], *given: Any) -> float:
    begun = perf_counter()
    work(*given)
    return perf_counter() - begun


def _images(bench: Bench) -> Tensor:
    count = bench.size("images", 8, 32)
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
        raise HardcaseError(
            f"imagecorruptions needs scikit-image: {error}.", fix="make peers"
        ) from error
    resources: Any = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda module, name: str(
        Path(str(sys.modules[module].__file__)).parent / name
    )
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
