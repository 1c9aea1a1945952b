"""``python -m hardcase`` with a share of the GPU's memory, so that studies beside it keep theirs: ``benchmarks.capped 0.3 reproduce …``."""

from __future__ import annotations

import runpy
import sys

import torch


def main() -> None:
    share = float(sys.argv.pop(1))
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)
    runpy.run_module("hardcase", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
