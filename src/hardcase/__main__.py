"""``python -m hardcase`` and the ``hardcase`` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Set the arithmetic before anything computes, then hand over to the command line."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    from hardcase.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
