"""What others wrote, run against hardcase: each module is a study (``hardcase reproduce peers-...``), none is
needed by a test of the core. ``make peers`` installs the libraries into an environment of their own.

| library | version | licence |
|---|---|---|
| AttackBenchLib | 2.0.2 | MIT |
| foolbox | 3.3.4 | MIT |
| torchattacks | 3.5.1 | MIT |
| adv-lib | 0.2.8 | BSD-3-Clause |
| adversarial-robustness-toolbox | 1.20.1 | MIT |
| imagecorruptions | 1.1.2 | Apache-2.0 |
| maite | 0.10.3 | MIT |
"""

from __future__ import annotations

import os
import platform
import sys
import types
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from hardcase.errors import HardcaseError

__all__ = ["library", "machine", "versions"]

ASIDE = (
    "git",
    "requests",
    "visdom",
    "wandb",
    "torchvision",
    "torchvision.transforms",
    "torchvision.datasets",
)
"""Libraries that peers import for pictures, records and downloads; none of them takes part in what is measured."""


class _Aside(types.ModuleType):
    """A library that is only imported: whatever is asked of it is a class without a use."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def library(name: str) -> Any:
    """A library of others; what it imports without needing it is stood in for where it is not installed.

    Raises:
        HardcaseError: If the library itself cannot be had.
    """
    for other in ASIDE:
        try:
            import_module(other)
        except (
            ImportError,
            RuntimeError,
            AttributeError,
        ):  # torchvision refuses another torch by RuntimeError
            sys.modules[other] = _Aside(other)
    try:
        return import_module(name)
    except ImportError as error:
        raise HardcaseError(f"{name} cannot be imported: {error}.", fix="make peers") from error


def machine() -> str:
    """The processor on which something was timed, and how many of its threads took part."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(
            (line.partition(": ")[2] for line in lines if line.startswith("model name")), name
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, threads: {torch.get_num_threads()}, cores: {cores}"


def versions(*names: str) -> str:
    """Which versions of these libraries took part."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name}: not installed")
    return ", ".join(found)
