"""A run's numbers as a text file that Prometheus' node exporter (and its like) picks up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardcase.cache import write_atomically

NUMBERS = {
    "elapsed": ("counter", "seconds_total", "time spent"),
    "queries": ("counter", "queries_total", "images the subject was asked about"),
    "gradients": ("counter", "gradients_total", "images whose gradient was asked for"),
    "shards_done": ("counter", "shards_done_total", "finished shards"),
    "shards": ("gauge", "shards", "shards in all"),
    "failing": ("gauge", "failing_seeds", "seeds with a finding that leaves their label"),
    "findings": ("gauge", "findings", "findings that are kept"),
    "speed": ("gauge", "queries_per_second", "speed since the process began"),
}


def write(path: Path, run: str, status: Mapping[str, Any]) -> None:
    """Rewrite `path` as a whole with what `status` says of the run called `run`."""
    label = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for key, (kind, name, words) in NUMBERS.items():
        lines += [f"# HELP hardcase_{name} {words}", f"# TYPE hardcase_{name} {kind}"]
        lines.append(f'hardcase_{name}{{run="{label}"}} {status[key]}')
    searching = int(status["phase"] == "searching")
    lines += ["# HELP hardcase_searching 1 while the search goes on", "# TYPE hardcase_searching gauge"]
    lines.append(f'hardcase_searching{{run="{label}"}} {searching}')
    write_atomically(path, ("\n".join(lines) + "\n").encode(), flush=False)
