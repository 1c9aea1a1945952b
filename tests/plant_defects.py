"""Plants known defects, one at a time, in a copy of the sources, and shows that the suite catches each.

``python tests/plant_defects.py [WORD ...]`` (``make plant``); with words, only defects whose name contains one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
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


DEFECTS = (
    Defect(
        "hidden global randomness",
        "searches/gradient.py",
        "rng.uniform(rows, seeds.z.shape[1:])",
        "torch.rand(seeds.z.shape, device=seeds.z.device)",
        "tests/contracts/test_methods.py -k pgd",
    ),
    Defect(
        "hidden global randomness in the genetic search",
        "searches/genetic.py",
        "rng.uniform(rows, child.shape[1:])",
        "torch.rand(child.shape, device=child.device)",
        "tests/contracts/test_methods.py -k sinvad",
    ),
    Defect(
        "seeds edited in place",
        "spaces/pixel.py",
        "return x.clone(), {}",
        "return x.mul_(0.99), {}",
        "tests/contracts tests/spaces",
    ),
    Defect(
        "a seed edited in place by a search",
        "searches/gradient.py",
        '"z": seeds.z + self.jitter * noise',
        '"z": seeds.z.add_(self.jitter * noise)',
        "tests/contracts/test_methods.py -k pgd",
    ),
    Defect(
        "a search that is handed the campaign's own seeds",
        "types.py",
        "return Seeds(self.z.clone(), self.x.clone(), self.y.clone(), self.id.clone(), context)",
        "return self",
        "tests/campaign",
    ),
    Defect(
        "a distance that lies",
        "campaign/evaluator.py",
        "distance=distance,",
        "distance=distance / 2,",
        "tests/contracts/test_methods.py -k pgd",
    ),
    Defect(
        "a ball around the candidate instead of its seed",
        "spaces/pixel.py",
        "return self.ball.pull(z, origin.z).clamp(0, 1)",
        "return self.ball.pull(z, z).clamp(0, 1)",
        "tests/spaces/test_pixel.py",
    ),
    Defect(
        "a shard-dependent stream",
        "campaign/loop.py",
        "Rng(campaign.seed, purpose, keys_of(images.id).to(campaign.subject.device))",
        "Rng.numbered(campaign.seed, purpose, len(images), device=campaign.subject.device)",
        "tests/contracts/test_methods.py -k pgd",
    ),
    Defect(
        "a row that takes its neighbour's numbers",
        "randomness.py",
        "number = number + ordinal(rows)",
        "number = number + torch.arange(len(rows), device=rows.device)",
        "tests/test_randomness.py",
    ),
    Defect(
        "a sign that is shifted in",
        "randomness.py",
        "(x >> 30).bitwise_and_((1 << 34) - 1)",
        "(x >> 30)",
        "tests/test_randomness.py",
    ),
    Defect(
        "a budget off by one",
        "campaign/record.py",
        "return ordinal(rows) < left[rows]",
        "return ordinal(rows) <= left[rows]",
        "tests/contracts/test_methods.py tests/campaign",
    ),
    Defect(
        "a missing clamp",
        "spaces/pixel.py",
        "return self.ball.pull(z, origin.z).clamp(0, 1)",
        "return self.ball.pull(z, origin.z)",
        "tests/contracts tests/spaces",
    ),
    Defect(
        "a flipped oracle",
        "oracles.py",
        "return margin(probe.logits.softmax(1), probe.origin.y) >= self.min_margin",
        "return margin(probe.logits.softmax(1), probe.origin.y) < self.min_margin",
        "tests/contracts/test_methods.py -k pgd",
    ),
    Defect(
        "a candidate judged against the wrong seed",
        "campaign/evaluator.py",
        "(self.seeds if seeds is None else seeds).take(rows[part])",
        "(self.seeds if seeds is None else seeds).take(rows[part].sort().values)",
        "tests/campaign",
    ),
    Defect(
        "a search that keeps the worst",
        "searches/genetic.py",
        "score.argsort(dim=1, descending=True, stable=True)",
        "score.argsort(dim=1, descending=False, stable=True)",
        "tests/contracts/test_methods.py tests/searches -k 'sinvad or genetic'",
    ),
    Defect(
        "the farthest finding kept instead of the nearest",
        "campaign/record.py",
        "distance.argsort(stable=True)",
        "distance.argsort(stable=True, descending=True)",
        "tests/campaign",
    ),
    Defect(
        "rounding left out of the evaluator",
        "campaign/evaluator.py",
        "x = to_grid(space.decode(code, origin))",
        "x = space.decode(code, origin).clamp(0, 1)",
        "tests/contracts tests/campaign",
    ),
    Defect(
        "rows that see their neighbours' padding",
        "tensors.py",
        "x if missing == 0 or len(x) == 0 else torch.cat",
        "x if True else torch.cat",
        "tests/end_to_end/test_same_bytes.py",
    ),
    Defect(
        "section rounding",
        "criteria/neuron.py",
        "place.floor_().add_(1)",
        "place.round_().add_(1)",
        "tests/criteria tests/reference/test_criteria.py",
    ),
    Defect(
        "a merge that replaces",
        "criteria/memory.py",
        "table = self.table.clone()",
        "table = torch.zeros_like(self.table)",
        "tests/criteria",
    ),
    Defect(
        "a tap that keeps what a later layer writes over",
        "models/subject.py",
        "self._counted and self.value._version != self._version",
        "False",
        "tests/models/test_subject.py",
    ),
    Defect(
        "hooks left behind after an exception",
        "models/subject.py",
        "            for handle in handles:\n                handle.remove()",
        "            pass",
        "tests/models/test_subject.py",
    ),
    Defect(
        "a part that is visible before it is whole",
        "cache.py",
        "        os.replace(temporary, path)",
        "        path.write_bytes(b'half'); os.replace(temporary, path)",
        "tests/test_cache.py",
    ),
    Defect(
        "a network that is its own witness under another name",
        "campaign/record.py",
        'if own & {witness.hash, getattr(witness, "weights", "")}:',
        "if own & {witness.hash}:",
        "tests/campaign/test_evaluator_witnesses.py",
    ),
    Defect(
        "an image that changes under a run",
        "data/streams.py",
        "if self._seen.setdefault(row, check) != check:",
        "if self._seen.setdefault(row, check) is None:",
        "tests/data/test_images.py",
    ),
    Defect(
        "a seed that is shown with the image of another row group",
        "runs/folder.py",
        "(wanted[inside] - ends[number] + length)",
        "(wanted[inside] % length - (number > 0))",
        "tests/runs",
    ),
    Defect(
        "a file that is not what the ledger says",
        "runs/folder.py",
        "if file_size_and_crc(path, size) == [size, check]:",
        "if path.is_file():",
        "tests/torture/test_damage.py tests/torture/test_flips.py",
    ),
    Defect(
        "a record of another run",
        "runs/verify.py",
        'if not now or run_digest(now) != run_digest(begun["record"]):',
        "if not now:",
        "tests/torture/test_damage.py",
    ),
    Defect(
        "a generated seed that one verifier accepts",
        "generators/quality.py",
        "return 2 * torch.stack(right).sum(0) > len(right)",
        "return torch.stack(right).any(0)",
        "tests/generators/test_quality_witnesses.py",
    ),
    Defect(
        "witnesses of whom only the first counts",
        "objectives.py",
        "for logits in probe.witnesses]\n        lacking",
        "for logits in probe.witnesses[:1]]\n        lacking",
        "tests/test_objectives.py tests/campaign/test_evaluator_witnesses.py",
    ),
)


def caught(defect: Defect) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(
            ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
        path = copy / "hardcase" / defect.file
        source = path.read_text()
        assert defect.right in source, (
            f"{defect.file} no longer has the line that {defect.name!r} would spoil"
        )
        path.write_text(source.replace(defect.right, defect.wrong))
        command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {defect.tests}"
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True
        )
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
