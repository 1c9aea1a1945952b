"""``python -m hardcase`` and the ``hardcase`` command."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Set the arithmetic before anything computes, then hand over to the command line."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    gc.set_threshold(50_000, 20, 20)  # imports make objects that stay: a tenth of a start went by
    from hardcase.cli.main import main as run

    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late Ctrl-C must not change the code any more
    sys.exit(code)


if __name__ == "__main__":
    main()
