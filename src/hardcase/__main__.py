"""``python -m hardcase`` and the ``hardcase`` command."""

from __future__ import annotations

import gc
import os
import signal
import sys

BUSY = 0.75
"""Load for each core from which on other programs are using them."""


def share_cores() -> None:
    """Compute with a single thread where other programs use the cores: there, threads that wait for
    each other take many times as long. No result depends on it.
    """
    cores = os.cpu_count() or 1
    if "OMP_NUM_THREADS" in os.environ or not hasattr(os, "getloadavg"):
        return
    if os.getloadavg()[0] > BUSY * cores:
        os.environ["OMP_NUM_THREADS"] = "1"


def main() -> None:
    """Set the arithmetic before anything computes, then hand over to the command line."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    share_cores()
    gc.set_threshold(50_000, 20, 20)  # imports make objects that stay: a tenth of a start went by
    from hardcase.cli.main import main as run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late Ctrl-C must not change the code any more
    sys.exit(code)


if __name__ == "__main__":
    main()
