"""A walk through the commands of the README on a device: ``python -m benchmarks.gpu_walk --device cuda``.

Every method runs as it is and with other shards and batches, some are killed and resumed as well
(with guides, shards are part of the recipe and stay as they are). The findings must be the same.
Each ends in a report; coverage and judge are run on what was found. The table is printed and written to
``OUT/walk.json`` after every line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from hardcase.cache import cache_folder
from hardcase.cli.main import main as hardcase
from hardcase.runs.results import Run

COMMON = ("--model", "zoo:lenet5", "--data", "mnist5k", "--progress", "none", "-q", "--offline")
METHODS: dict[str, str] = {
    "sinvad": "--method sinvad",
    "pgd": "--method pgd --set method.epsilon=0.2",
    "argus-adaptive": "--method argus-adaptive --generator vqvae:{vqvae}",
    "feature-perturbation": "--method feature-perturbation --generator vae:conditional --gradients 40",
    "deepxplore": "--method deepxplore --peer zoo:lenet4",
    "adapt": "--method adapt --gradients 40",
    "deephunter": "--method deephunter --queries 200",
    "natural": "--method natural",
    "natural-blackbox": "--method natural-blackbox --queries 60",
}
GUIDED = ("deepxplore", "adapt", "deephunter")
KILLED = ("sinvad", "pgd", "deepxplore", "natural-blackbox")
"""Methods that are killed too: each needs a process of its own."""
PATIENCE = 60.0
"""Seconds to wait for the first shard of a run that is to be killed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table."""

    what: str
    outcome: str
    findings: int | None
    seconds: float
    command: str


class Walk:
    """The commands one after the other, and what became of them."""

    def __init__(self, out: Path, device: str, seeds: int) -> None:
        self.out = out
        self.device = device
        self.seeds = seeds
        self.lines: list[Line] = []
        out.mkdir(parents=True, exist_ok=True)

    def here(self, what: str, words: Sequence[str], run: Path | None = None) -> str:
        """``hardcase WORDS`` in this process; returns the digest of the run's findings."""
        begun = monotonic()
        code = hardcase(list(words))
        return self.told(what, "ok" if code == 0 else f"exit {code}", begun, words, run)

    def told(
        self, what: str, outcome: str, begun: float, words: Sequence[str], run: Path | None
    ) -> str:
        stored = None if run is None or not (run / "run.json").exists() else Run(run)
        found = None if stored is None else len(stored)
        spent = round(monotonic() - begun, 1)
        self.lines.append(Line(what, outcome, found, spent, shlex.join(["hardcase", *words])))
        print(
            f"{what:42} {outcome:18} {found if found is not None else '':>6} {spent:6.1f} s",
            flush=True,
        )
        table = [asdict(line) for line in self.lines]
        (self.out / "walk.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        return "" if stored is None else digest(stored)

    def words(self, name: str, folder: str, *more: str) -> tuple[list[str], Path]:
        out = self.out / f"{name}-{folder}"
        method = shlex.split(METHODS[name].format(vqvae=_vqvae()))
        asked = ("--device", self.device, "--images", str(self.seeds), "--out", str(out))
        return ["run", *COMMON, *method, *asked, *more], out

    def method(self, name: str) -> None:
        """Three runs of a method with the same findings, and a report."""
        words, first = self.words(name, "plain")
        usual = self.here(name, words, first)
        cut = () if name in GUIDED else ("--set", "campaign.shard=7")
        words, other = self.words(name, "cut", "--batch-size", "64", *cut)
        same = {"other shards and batches": self.here(f"{name}, cut otherwise", words, other)}
        if name in KILLED:
            same["killed and resumed"] = self.killed(name)
        for what, findings in same.items():
            equal = bool(usual) and findings == usual
            self.told(
                f"{name}, {what}", "same findings" if equal else "DIFFERENT", monotonic(), (), None
            )
        self.here(f"{name}, report", ["report", str(first), "-q"])

    def killed(self, name: str) -> str:
        """A run of its own process, killed after its first shard, then resumed."""
        cut = () if name in GUIDED else ("--set", f"campaign.shard={max(2, self.seeds // 6)}")
        words, out = self.words(name, "killed", *cut)
        begun = monotonic()
        process = subprocess.Popen([sys.executable, "-m", "hardcase", *words])
        while process.poll() is None and monotonic() - begun < PATIENCE:
            if any(out.glob("findings/part-*.parquet")):
                break
            sleep(0.005)
        process.send_signal(signal.SIGKILL)
        code = process.wait()
        self.told(f"{name}, killed", f"exit {code}", begun, words, None)
        if code == 0:  # it was quicker than the kill
            return digest(Run(out))
        again = ["resume", str(out), "-q", "--progress", "none"]
        if not (out / "run.json").exists():
            again = words
        return self.here(f"{name}, resumed", again, out)


def digest(run: Run) -> str:
    """A hash of all that is stored of the findings, in the order of their seeds; not their ids."""
    rows = run.findings.drop_columns(["id"]).to_pylist()
    ordered = sorted(rows, key=lambda row: (row["original"], row["queries"], row["predicted"]))
    return hashlib.sha256(repr(ordered).encode()).hexdigest()[:16]


def _vqvae() -> str:
    """The VQ-VAE that was trained last."""
    found = sorted((cache_folder() / "networks").glob("vqvae-*/card.json"), key=os.path.getmtime)
    return str(found[-1].parent) if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=120)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-walk"))
    parser.add_argument("--only", default=",".join(METHODS), help="methods by name")
    asked = parser.parse_args()
    walk = Walk(asked.out, asked.device, asked.seeds)
    names = asked.only.split(",")
    place = ("--device", asked.device, "-q")
    if "argus-adaptive" in names and not _vqvae():
        train = ["train", "vqvae", "--epochs", "2", "--progress", "none", "--offline", *place]
        walk.here("a VQ-VAE, trained for a moment", train)
    for name in names:
        walk.method(name)
    first = walk.out / f"{names[0]}-plain"
    walk.here("judge", ["judge", str(first), "--offline", "--progress", "none", *place], first)
    measured = ["coverage", "--model", "zoo:lenet5", "--data", f"run:{first}", "--offline", *place]
    walk.here("coverage", measured)
    walk.here("report of all", ["report", *(str(walk.out / f"{n}-plain") for n in names), "-q"])
    bad = [
        line.what for line in walk.lines if line.outcome not in ("ok", "same findings", "exit -9")
    ]
    print(f"{len(walk.lines)} steps; not as they should be: {', '.join(bad) or 'none'}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
