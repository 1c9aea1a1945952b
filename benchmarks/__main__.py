"""Run the benchmarks that were named, or all of them: ``python -m benchmarks [NAME...] [--only FIGURE,...]``."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

import benchmarks
from benchmarks.figures import collect
from hardcase.environment import keep_freed

ASIDE = ("__main__", "figures", "gpu", "gpu_parts", "gpu_walk", "pack", "settle")
"""What is no benchmark, or is run by its name alone."""


def main() -> None:
    keep_freed()  # as the command line does
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", help="figures by name, where a benchmark has a choice")
    asked = parser.parse_args()
    found = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    for name in asked.names or [name for name in found if name not in ASIDE]:
        module = importlib.import_module(f"benchmarks.{name}")
        if hasattr(module, "figures"):
            chosen = module.figures(asked.only.split(",")) if asked.only else module.figures()
            about = module.hardware() if getattr(module, "RESULT", "") == "bench-gpu" else {}
            collect(chosen, getattr(module, "RESULT", "bench-cpu"), about)


main()
