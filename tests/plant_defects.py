"""Plants known defects, one at a time, in a copy of the sources, and shows that the suite catches each.

``python tests/plant_defects.py [WORD ...]`` (``make plant``); with words, only defects whose name contains one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Defect:
    """Replace `right` by `wrong` in `file`; `tests` must then fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


PATCHES = """
# hidden global randomness: tests/contracts/test_methods.py -k pgd
searches/gradient.py
- rng.uniform(rows, z.shape[1:])
+ torch.rand(z.shape, device=z.device)
# hidden global randomness in the genetic search: tests/contracts/test_methods.py -k sinvad
searches/genetic.py
- rng.uniform(rows, child.shape[1:])
+ torch.rand(child.shape, device=child.device)
# seeds edited in place: tests/contracts tests/spaces
spaces/pixel.py
- return x.clone(), {}
+ return x.mul_(0.99), {}
# a seed edited in place by a search: tests/contracts/test_methods.py -k pgd
searches/gradient.py
- z = z + self.jitter * (
+ z += self.jitter * (
# a search that is handed the campaign's own seeds: tests/campaign
types.py
- return Seeds(self.z.clone(), self.x.clone(), self.y.clone(), self.id.clone(), context)
+ return self
# a distance that lies: tests/contracts/test_methods.py -k pgd
campaign/evaluator.py
- distance=shown.distance,
+ distance=shown.distance / 2,
# a ball around the candidate instead of its seed: tests/spaces/test_pixel.py
spaces/pixel.py
- return self.ball.pull(z, origin.z).clamp(0, 1)
+ return self.ball.pull(z, z).clamp(0, 1)
# a shard-dependent stream: tests/contracts/test_methods.py -k pgd
campaign/loop.py
- Rng(campaign.seed, purpose, keys_of(images.id).to(campaign.subject.device))
+ Rng.numbered(campaign.seed, purpose, len(images), device=campaign.subject.device)
# a row that takes its neighbour's numbers: tests/test_randomness.py
randomness.py
- number = number + ordinal(rows)
+ number = number + torch.arange(len(rows), device=rows.device)
# a sign that is shifted in: tests/test_randomness.py
randomness.py
- (x >> 30).bitwise_and_((1 << 34) - 1)
+ (x >> 30)
# a budget off by one: tests/contracts/test_methods.py tests/campaign
campaign/record.py
- return ordinal(rows) < left[rows]
+ return ordinal(rows) <= left[rows]
# a missing clamp: tests/contracts tests/spaces
spaces/pixel.py
- return self.ball.pull(z, origin.z).clamp(0, 1)
+ return self.ball.pull(z, origin.z)
# a flipped oracle: tests/contracts/test_methods.py -k pgd
oracles.py
- return margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin
+ return margin(probe.logits.softmax(1), probe.origin.y) < self.min_margin
# a candidate judged against the wrong seed: tests/campaign
campaign/evaluator.py
- _origin(rows[part], self.seeds if seeds is None else seeds)
+ _origin(rows[part].sort().values, self.seeds if seeds is None else seeds)
# a search that keeps the worst: tests/contracts/test_methods.py tests/searches -k 'sinvad or genetic'
searches/genetic.py
- score.argsort(dim=1, descending=True, stable=True)
+ score.argsort(dim=1, descending=False, stable=True)
# the farthest finding kept instead of the nearest: tests/campaign
campaign/record.py
- distance.argsort(stable=True)
+ distance.argsort(stable=True, descending=True)
# rounding left out of the evaluator: tests/contracts tests/campaign
campaign/evaluator.py
- x = to_grid(space.decode(code, origin))
+ x = space.decode(code, origin).clamp(0, 1)
# rows that see their neighbours' padding: tests/end_to_end/test_same_bytes.py
tensors.py
- x if missing == 0 or len(x) == 0 else torch.cat
+ x if True else torch.cat
# section rounding: tests/criteria tests/reference/test_criteria.py
criteria/neuron.py
- place.floor_().add_(1)
+ place.round_().add_(1)
# a merge that replaces: tests/criteria
criteria/memory.py
- table = self.table.clone()
+ table = torch.zeros_like(self.table)
# a tap that keeps what a later layer writes over: tests/models/test_subject.py
models/subject.py
- self._counted and self.value._version != self._version
+ False
# hooks left behind after an exception: tests/models/test_subject.py
models/subject.py
-             for handle in handles:
-                 handle.remove()
+             pass
# a part that is visible before it is whole: tests/test_cache.py
cache.py
-         os.replace(temporary, path)
+         path.write_bytes(b'half'); os.replace(temporary, path)
# a network that is its own witness under another name: tests/campaign/test_evaluator_witnesses.py
campaign/record.py
- if subject_hashes & {witness.hash, getattr(witness, "weights", "")}:
+ if subject_hashes & {witness.hash}:
# an image that changes under a run: tests/data/test_sources_images.py
data/files.py
- if self._seen.setdefault(row, check) != check:
+ if self._seen.setdefault(row, check) is None:
# a seed that is shown with the image of another row group: tests/runs
runs/folder.py
- (wanted[inside] - ends[number] + length)
+ (wanted[inside] % length - (number > 0))
# a file that is not what the ledger says: tests/torture/test_damage.py tests/torture/test_flips.py
runs/folder.py
- if file_size_and_crc(path, size) == [size, check]:
+ if path.is_file():
# a record of another run: tests/torture/test_damage.py
runs/verify.py
- if not now or run_digest(now) != run_digest(begun["record"]):
+ if not now:
# a killed run that forgets that its search began: tests/runs/test_folder.py
runs/folder.py
- record |= (self._begun(SEARCH_BEGUN) or {"record": {}})["record"]
+ pass
# a phase whose end is never written: tests/runs/test_folder.py
runs/folder.py
- if self._unwritten:
+ if False:
# a run on a CPU that loads what only a device needs: tests/campaign/test_executor.py
campaign/executor.py
- from hardcase.tensors import steady
+ from hardcase.tensors import steady; from hardcase.campaign.device import search_together
# a section by its old name: tests/test_request.py
config.py
- if "subject" in values:
+ if False:
# a shard that is searched with the codes of another: tests/played/test_played_device.py
campaign/device.py
- start = part.stop
+ start = part.start
# a generated seed that one verifier accepts: tests/generators/test_quality_witnesses.py
generators/quality.py
- return 2 * torch.stack(right).sum(0) > len(right)
+ return torch.stack(right).any(0)
# witnesses of whom only the first counts: tests/test_objectives.py tests/campaign/test_evaluator_witnesses.py
objectives.py
- for logits in probe.witnesses]
-         lacking
+ for logits in probe.witnesses[:1]]
+         lacking
"""
"""Each with a name, the tests that must notice, the file in ``src/hardcase``, and what stands there instead of what."""


def defects(patches: str) -> Iterator[Defect]:
    for block in patches.strip().removeprefix("# ").split("\n# "):
        head, file, *lines = block.split("\n")
        name, tests = head.split(": ")
        right, wrong = ([line[2:] for line in lines if line[0] == sign] for sign in "-+")
        yield Defect(name, file, "\n".join(right), "\n".join(wrong), tests)


DEFECTS = tuple(defects(PATCHES))


def caught(defect: Defect) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", copy, ignore=left_out)
        path = copy / "hardcase" / defect.file
        source = path.read_text()
        assert defect.right in source, f"{defect.file} lacks what {defect.name!r} would spoil"
        path.write_text(source.replace(defect.right, defect.wrong))
        command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {defect.tests}"
        how = {"shell": True, "cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(copy)}}
        done = subprocess.run(command, **how, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        print(done.stdout[-2000:], done.stderr[-2000:])
        raise SystemExit(f"the tests for {defect.name!r} could not run")
    return done.returncode == 1


def main() -> None:
    words = sys.argv[1:]
    chosen = [d for d in DEFECTS if not words or any(word in d.name for word in words)]
    missed = []
    for defect in chosen:
        good = caught(defect)
        print(f"{'caught' if good else 'MISSED'}: {defect.name}", flush=True)
        missed += [] if good else [defect.name]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} planted defects caught")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
