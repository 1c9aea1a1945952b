"""What the small form of each study puts out, as a digest, and which stored results are older than a change of it.

``python -m benchmarks.fresh`` runs the small form of every study that has one (`settle.SMALL`; ``--only STUDY,STUDY`` some) and
writes ``results/digests.toml``; ``--stored NAME,NAME`` says that these results were stored by today's code; ``--check`` runs and
compares, writes nothing and exits 1 if a study puts out something else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.settle import RESULTS, SMALL, Job
from hardcase_studies.fresh import Digests, digest_of, study_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SMALL))
    parser.add_argument("--stored", default="", help="results that today's code has stored")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    digests = Digests.of(RESULTS)
    by_study = results_by_study()
    changed = []
    for study in filter(None, asked.only.split(",")):
        began = time.monotonic()
        digest = small_digest(study)
        told = "as before" if digests.now.get(study, digest) == digest else "CHANGED"
        changed += [study] * (told == "CHANGED")
        print(f"{time.monotonic() - began:5.0f} s  {study}: {digest} {told}", flush=True)
        if not asked.check:
            digests.computed(study, digest, by_study.get(study, ()))
            digests.write()
    for name in filter(None, asked.stored.split(",")):
        study = next(study for study, names in by_study.items() if name in names)
        digests.stored(study, name)
    if not asked.check:
        print(digests.write())
    return int(asked.check and bool(changed))


def results_by_study() -> dict[str, list[str]]:
    """The stored results of each study."""
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        study = study_of(json.loads(path.read_text(encoding="utf-8"))["command"])
        found.setdefault(study, []).append(path.stem)
    return found


def small_digest(study: str) -> str:
    """Run the small form on one thread and digest what it would store."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_CBWR": "AUTO,STRICT", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = Job(name="small", study=study).command(folder, folder, small=True, device="cpu")
        done = subprocess.run(
            words, env={**os.environ, **threads}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
        return digest_of(json.loads((folder / "small.json").read_text(encoding="utf-8"))["rows"])


if __name__ == "__main__":
    sys.exit(main())
