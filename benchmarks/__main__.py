"""Run benchmarks: ``python -m benchmarks [NAME...] [--only FIGURE,...] [--minutes N]``.

Without a name all that belong to one sitting on two quiet cores are run, each in a process of its
own so that a figure is stored with the code which it exercises; those in `LONG` run by name alone.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import subprocess
import sys
from time import monotonic

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

import benchmarks
from benchmarks.figures import collect
from hardcase.environment import keep_freed

ASIDE = (
    "__main__",
    "figures",
    "gpu_parts",
    "gpu_walk",
    "gpu_whole",
    "mosaics",
    "fresh",
    "pack",
    "settle",
)
"""What is no benchmark."""
LONG = (
    "detectors",
    "gpu",
    "gpu_photographs",
    "memory",
    "million",
    "noticeable",
    "peers",
    "study",
    "study_crowd",
    "tiles",
)
"""Run by name alone: longer than a sitting allows, on another machine, or no figure of speed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", help="figures by name, where a benchmark has a choice")
    parser.add_argument("--minutes", type=float, default=40, help="no other is begun after these")
    asked = parser.parse_args()
    if len(asked.names) == 1:
        return measure(asked.names[0], asked.only)
    found = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    end = monotonic() + 60 * asked.minutes
    failed = []
    for name in asked.names or [name for name in found if name not in (*ASIDE, *LONG)]:
        if monotonic() > end:
            failed.append(f"{name} (no time left)")
            continue
        begun = monotonic()
        if subprocess.run([sys.executable, "-m", "benchmarks", name]).returncode:
            failed.append(name)
        print(f"-- {name}: {monotonic() - begun:.0f} s", flush=True)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def measure(name: str, only: str | None) -> None:
    """Run one benchmark here and store its figures; one that shows what is stored measures nothing."""
    keep_freed()  # as the command line does
    module = importlib.import_module(f"benchmarks.{name}")
    if hasattr(module, "show"):
        return module.show()
    if not hasattr(module, "figures"):
        return
    figures = module.figures(only.split(",")) if only else module.figures()
    about = module.hardware() if str(getattr(module, "RESULT", "")).startswith("bench-gpu") else {}
    collect(figures, getattr(module, "RESULT", "bench-cpu"), about)


main()
