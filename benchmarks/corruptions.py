"""Corruptions: images a second beside `imagecorruptions`, the same photographs-sized batch,
severity 3.

`imagecorruptions` (with opencv-python-headless and scikit-image) is measured where it imports;
where it does not, only our own rates are written. A device is measured where there is one.
"""

from __future__ import annotations

import statistics
import sys
import types
from collections.abc import Callable, Iterator
from time import perf_counter

import torch
from torch import Tensor

from benchmarks.figures import Figure
from hardcase.corruptions import CORRUPTIONS, corrupt

COMMAND = "python -m benchmarks corruptions"
SIDE, BATCH, FEW, SEVERITY = 224, 16, 2, 3


def figures() -> Iterator[Figure]:
    x = torch.rand(BATCH, 3, SIDE // 8, SIDE // 8, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.interpolate(x, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1)
    theirs = _peer(x[:FEW])
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        ours = {name: _seconds(name, x.to(device)) / BATCH for name in CORRUPTIONS}
        total = len(ours) / sum(ours.values())
        yield _figure(f"corruptions-{device}-rate", total, "images a second over all 18", "nothing")
        if theirs:
            shared = [name for name in ours if name in theirs]
            ratio = sum(theirs[name] for name in shared) / sum(ours[name] for name in shared)
            against = f"imagecorruptions, one process, total over {len(shared)}"
            yield _figure(f"corruptions-{device}-speedup", ratio, "times the rate", against)
            middle = statistics.median(theirs[name] / ours[name] for name in shared)
            yield _figure(
                f"corruptions-{device}-median-speedup",
                middle,
                "times the rate",
                "the same, median corruption",
            )


def _seconds(name: str, x: Tensor, repeats: int = 5) -> float:
    severity, keys = torch.full((len(x),), float(SEVERITY)), torch.arange(len(x))
    return _median(
        lambda: corrupt(x, name, severity.to(x.device), keys.to(x.device)), x.device, repeats
    )


def _median(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        start = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(perf_counter() - start)
    return statistics.median(times[1:])


def _peer(x: Tensor) -> dict[str, float]:
    """Seconds an image of the peer; empty where it does not import."""
    try:
        theirs = imported()
    except ImportError as error:
        print(f"imagecorruptions is not measured: {error}")
        return {}
    images = (255 * x).byte().permute(0, 2, 3, 1).numpy()
    device = torch.device("cpu")
    return {
        name: statistics.mean(
            _median(lambda i=i, n=name: theirs(i, corruption_name=n, severity=SEVERITY), device, 1)
            for i in images
        )
        for name in CORRUPTIONS
    }


def imported() -> Callable[..., object]:
    """The peer's `corrupt`, given names that numpy, scipy and scikit-image have dropped since."""
    import numpy
    import scipy.ndimage
    import skimage.filters

    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda *names: "/".join(names)
    moved = types.ModuleType("scipy.ndimage.interpolation")
    moved.map_coordinates = scipy.ndimage.map_coordinates
    sys.modules.setdefault("pkg_resources", resources)
    sys.modules.setdefault("scipy.ndimage.interpolation", moved)
    if not hasattr(numpy, "float_"):
        numpy.float_ = numpy.float64
    import imagecorruptions

    plain = skimage.filters.gaussian

    def gaussian(
        image: object, sigma: object, multichannel: bool = False, **options: object
    ) -> object:
        size = tuple(sigma) if isinstance(sigma, numpy.ndarray) else sigma
        return plain(image, sigma=size, channel_axis=-1 if multichannel else None, **options)

    sys.modules["imagecorruptions.corruptions"].gaussian = gaussian
    found: Callable[..., object] = imagecorruptions.corrupt
    return found


def _figure(name: str, value: float, unit: str, against: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, against=against, command=COMMAND)
