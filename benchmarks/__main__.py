"""Run the benchmarks that were named, or all of them."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

import benchmarks
from benchmarks.figures import collect
from hardcase.environment import keep_freed


def main() -> None:
    keep_freed()  # as the command line does
    found = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    names = sys.argv[1:] or [name for name in found if name not in ("__main__", "figures", "gpu")]
    for name in names:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "figures"):
            collect(module.figures(), getattr(module, "RESULT", "bench-cpu"))


main()
