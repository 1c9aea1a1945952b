"""Whole commands on a GPU, stage by stage; figures of ``python -m benchmarks gpu``.

Every network is in the cache and each trial of a tile is known before anything is measured. A stage
has the seconds on the clock that pass in it and in no stage inside it; the search has those that its
shards took.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.gpu import DEVICE, SMALL, Measure, figure, sized
from benchmarks.start_up import measured
from hardcase.cache import cache_folder

PHOTOGRAPHS = "photographs"
"""Folder of the cache that `benchmarks.pack` fills, as ``NUMBER_NAME.jpg`` by class of ImageNet."""
FEW = "40"
"""Seeds of the command that makes what the measured one finds in the cache."""
DIGITS = "--model zoo:lenet5 --data {data} --method {method} --split {split} --images {seeds}"
PHOTOS = (
    "--model zoo:efficientnet-lite0 --data folder:{folder}?labels=prefix&split=all --images {seeds}"
)


def _whole(name: str, words: str, goal: float) -> Iterator[Figure]:
    """Seconds of a command beside those of its search, and the stages of the rest."""
    command = ["run", *words.split(), "--device", DEVICE, "--offline", "-q"]
    with tempfile.TemporaryDirectory() as home:
        for few in (("--images", FEW), ()):  # the first trains, tries and keeps what is missing
            folder = Path(home) / f"run{len(few)}"
            spent = measured(folder, words=[*command, *few, "--out"], clock="perf_counter")
    whole = spent.pop("whole command")
    search = spent.pop("search")
    what = f"s of {whole:.1f}, less {search:.1f} of search"
    yield figure(name, whole - search, what, goal, "at most")
    for stage, seconds in sorted(spent.items(), key=lambda entry: -entry[1]):
        yield figure(f"{name}: {stage}", seconds, "s on the clock", goal, "all together at most")


def _digits(method: str, goal: float) -> Iterator[Figure]:
    data, split = ("mnist5k", "test") if SMALL else ("mnist", "test")
    words = DIGITS.format(data=data, method=method, split=split, seeds=sized(4000, 20))
    yield from _whole(f"gpu-whole-{method}", words, goal)


def _photographs() -> Iterator[Figure]:
    folder = cache_folder() / PHOTOGRAPHS
    if not folder.is_dir():
        print("  no photographs: python -m benchmarks.pack write --photographs FOLDER")
        return
    words = PHOTOS.format(folder=folder, seeds=sized(1000, 20))
    yield from _whole("gpu-whole-photographs", words, 8)


WHOLE: dict[str, Measure] = {
    "gpu-whole-sinvad": partial(_digits, "sinvad", 3),
    "gpu-whole-pgd": partial(_digits, "pgd", 3),
    "gpu-whole-photographs": _photographs,
}
