"""How well a judge agrees with people: train it on full MNIST and print its calibration.

python benchmarks/judge_quality.py --data carry/mnist.npz --people carry/human_labels_mnist.npz [--device cuda] [--out DIR]

`--data` holds x_train, y_train, x_test, y_test; `--people` the labels of people. With `--sweep` many single members are
trained instead, and what each says of the labelled images is written to DIR/sweep.npz.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardcase.judges import synthetic
from hardcase.judges import teach as lessons
from hardcase.judges.calibration import People, calibrate, read_people
from hardcase.judges.panel import MEANINGS, PANEL, Neighbours, Panel, Seat, per_class
from hardcase.judges.rules import auroc
from hardcase.judges.synthetic import examination
from hardcase.judges.teach import GENTLE, Schooling, Shares, made_rules, parts, teach
from hardcase.randomness import stream
from hardcase.tensors import from_bytes
from hardcase.training.loop import own_randomness
from hardcase.types import Images

SWEEP: dict[str, dict[str, Any]] = {
    "plain-1": {}, "plain-2": {"seed": 20}, "plain-3": {"seed": 30}, "plain-4": {"seed": 40}, "plain-k3": {"kernel": 3},
    "wide": {"width": 36}, "wider": {"width": 60}, "narrow": {"width": 12},
    "even-1": {"view": "even"}, "even-2": {"view": "even", "seed": 20}, "even-k3": {"view": "even", "kernel": 3},
    "soft-1": {"view": "soft"}, "soft-2": {"view": "soft", "seed": 20},
    "attack-0.25": {"attack": 0.25}, "attack-0.5": {"attack": 0.5}, "attack-0.5-2": {"attack": 0.5, "seed": 20},
    "attack-1": {"attack": 1.0}, "attack-1.5": {"attack": 1.5}, "attack-2": {"attack": 2.0}, "attack-3": {"attack": 3.0},
    "even-attack-0.5": {"view": "even", "attack": 0.5}, "even-attack-1": {"view": "even", "attack": 1.0},
    "soft-attack-0.5": {"view": "soft", "attack": 0.5}, "soft-attack-1": {"view": "soft", "attack": 1.0},
    "no-blend": {"blended": 0.0}, "blend-0.3": {"blended": 0.3}, "blend-0.5": {"blended": 0.5},
    "ruin-0.1": {"ruined": 0.1}, "ruin-0.4": {"ruined": 0.4}, "no-ruin": {"ruined": 0.0},
    "bend-0": {"bend": 0.01}, "bend-0.5": {"bend": 0.5}, "bend-1.5": {"bend": 1.5}, "bend-2": {"bend": 2.0},
    "no-retouch": {"retouch": False}, "short": {"epochs": 4}, "long": {"epochs": 20}, "long-attack-1": {"epochs": 20, "attack": 1.0},
    "wide-long": {"width": 48, "epochs": 20}, "wide-attack-1": {"width": 48, "attack": 1.0},
    "small-1": {"images": 4000}, "small-2": {"images": 4000, "seed": 20}, "small-attack-0.5": {"images": 4000, "attack": 0.5},
    "small-even": {"images": 4000, "view": "even"}, "small-soft": {"images": 4000, "view": "soft"},
    "small-blend-0.3": {"images": 4000, "blended": 0.3},
}  # fmt: skip


def images(path: str, split: str) -> Images:
    arrays = np.load(path)
    x, y = torch.from_numpy(arrays[f"x_{split}"]), torch.from_numpy(arrays[f"y_{split}"])
    names = tuple(f"{split}/{i:05d}" for i in range(len(y)))
    return Images(x, y, names, tuple(map(str, range(int(y.max()) + 1))), Path(path).stem, split)


def taught(
    train: Images, schooling: Schooling, *, seed: int, device: str, progress: bool = False
) -> tuple[Panel, dict[str, Any], Images]:
    first, held_out = parts(train, schooling.held_out)
    classes = len(train.classes)
    references = int(first.y.bincount(minlength=classes).clamp_max(per_class(classes)).sum())
    with own_randomness(seed, "judges"):
        panel = Panel(
            schooling.places, channels=train.x.shape[1], size=train.x.shape[2], classes=classes,
            references=references, learned=len(train),
        ).to(device)  # fmt: skip
    card = teach(panel, first, held_out, schooling, seed=seed, device=device)
    return panel, card, held_out


@torch.no_grad()
def accuracy(panel: Panel, test: Images, device: str) -> float:
    seen = panel.ask(from_bytes(test.x.to(device)), test.y.to(device)).seen.cpu()
    return float((seen == test.y).float().mean())


def quality(
    people: People,
    train: Images,
    test: Images,
    schooling: Schooling,
    seed: int,
    device: str,
    out: Path,
) -> dict[str, Any]:
    panel, card, held_out = taught(train, schooling, seed=seed, device=device)
    rules = made_rules(panel, held_out, seed=seed, device=device)
    signals = panel.ask(from_bytes(people.x.to(device)), people.expected.to(device))
    found = calibrate(signals, people, rules, stream(seed, "calibration"))
    exam = examination(
        held_out, panel.density, stream(seed, "judge", "examination", device=device), device
    )
    told = panel.ask(exam.x, exam.expected)
    kept = {f"people/{name}": getattr(signals, name) for name in MEANINGS} | {
        f"exam/{name}": getattr(told, name) for name in MEANINGS
    }
    kept |= {"exam_valid": exam.valid, "exam_label_kept": exam.label_kept}
    np.savez(out / "signals.npz", **{name: value.cpu().numpy() for name, value in kept.items()})
    singles = {
        name: {
            truth: _auroc(getattr(signals, name).cpu(), getattr(people, truth))
            for truth in ("label_kept", "valid")
        }
        for name in MEANINGS
    }
    rules_used = {name: rule.to_card() for name, rule in found.rules.items()}
    return {
        "seconds": card["seconds"], "accuracy": accuracy(panel, test, device), "signals": singles,
        "rules": rules_used, **found.measured,
    }  # fmt: skip


def _auroc(score: Tensor, truth: Tensor) -> float:
    known = truth >= 0
    return float(auroc(score[known].double(), truth[known] == 1))


def sweep(
    people: People,
    train: Images,
    test: Images,
    base: Schooling,
    device: str,
    names: list[str],
    out: Path,
) -> None:
    """Every variant as a panel of one; what it says of the rated images, plainly and as a mean over gently bent ones."""
    kept: dict[str, Any] = {}
    x = from_bytes(people.x.to(device))
    for name in names or list(SWEEP):
        how = dict(SWEEP[name])
        seed, epochs, count = (
            how.pop("seed", 10),
            how.pop("epochs", base.members.epochs),
            how.pop("images", None),
        )
        shares = Shares(**{key: how.pop(key) for key in ("blended", "ruined") if key in how})
        factor, touched = how.pop("bend", 1.0), how.pop("retouch", True)
        usual = synthetic.Bend(
            **{
                key: value * factor
                for key, value in asdict(synthetic.USUAL).items()
                if key != "cells"
            }
        )
        lessons.bend = partial(synthetic.bend, how=usual)
        lessons.retouch = synthetic.retouch if touched else lambda images, rng: images.clamp(0, 1)
        schooling = replace(
            base,
            places=(Seat(**{"view": "plain", **how}),),
            shares=shares,
            members=replace(base.members, epochs=epochs),
        )
        started = time.monotonic()
        panel, _, _ = taught(
            train.sample(count=count, seed=0) if count else train,
            schooling,
            seed=seed,
            device=device,
        )
        spoken, distances, bent = _said(panel, x, device)
        own = spoken.gather(1, people.expected[:, None]).squeeze(1)
        something = spoken[:, :-1].logsumexp(1) - spoken[:, -1]
        print(
            f"{name:16s} {time.monotonic() - started:6.1f} s  accuracy {accuracy(panel, test, device):.4f}  "
            f"label kept {_auroc(own, people.label_kept):.3f}  valid {_auroc(something, people.valid):.3f}",
            flush=True,
        )
        kept |= {
            f"{name}/spoken": spoken.numpy(),
            f"{name}/distances": distances.numpy(),
            f"{name}/bent": bent.numpy(),
        }
        kept[f"{name}/likeness"] = panel.density.likeness(x).detach().cpu().numpy()
        np.savez(out / "sweep.npz", **kept)


@torch.no_grad()
def _said(panel: Panel, x: Tensor, device: str) -> tuple[Tensor, Tensor, Tensor]:
    spoken, features = panel.opinions(x)
    distances = Neighbours(panel.references, panel.counts).distances(features)
    rng = stream(0, "bent", device=device)
    bent = torch.stack(
        [panel.opinions(synthetic.bend(x, rng, GENTLE))[0][0] for _ in range(8)]
    ).mean(0)
    return spoken[0].cpu(), distances.cpu(), bent.cpu()


def share(names: list[str], given: argparse.Namespace) -> None:
    """The same sweep in several processes, each with every so-manieth variant and a folder of its own."""
    same = ["--data", given.data, "--people", given.people, "--device", given.device]
    same += [] if given.epochs is None else ["--epochs", str(given.epochs)]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                *same,
                "--out",
                f"{given.out}/{i}",
                "--sweep",
                *names[i :: given.workers],
            ]
        )
        for i in range(min(given.workers, len(names)))
    ]
    for process in started:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="carry/data/mnist-*.npz")
    parser.add_argument("--people", default="carry/human_labels_mnist.npz")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="of the members; by default the recipe's")
    parser.add_argument("--steps", type=int, help="at least so many, of density and members")
    parser.add_argument("--images", type=int, help="learn from so many images only")
    parser.add_argument("--out", default=".")
    parser.add_argument("--sweep", nargs="*", help="names of variants; none for all")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that share the variants of a sweep"
    )
    given = parser.parse_args()
    if given.sweep is not None and given.workers > 1:
        share(given.sweep or list(SWEEP), given)
        return
    path = sorted(glob(given.data))[0]
    train, test = images(path, "train"), images(path, "test")
    train = train.sample(count=given.images, seed=0) if given.images else train
    people = read_people(
        np.load(given.people),
        where=given.people,
        shape=tuple(train.x.shape[1:]),
        classes=len(train.classes),
    )
    base = Schooling(places=PANEL)
    if given.epochs or given.steps is not None:
        change = {
            "epochs": given.epochs or base.members.epochs,
            "steps": base.members.steps if given.steps is None else given.steps,
        }
        base = replace(
            base,
            members=replace(base.members, **change),
            density=replace(base.density, steps=change["steps"], epochs=min(3, change["epochs"])),
        )
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    if given.sweep is not None:
        sweep(people, train, test, base, given.device, given.sweep, out)
        return
    table = quality(people, train, test, base, given.seed, given.device, out)
    (out / "judge_quality.json").write_text(json.dumps(table, indent=1))
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
