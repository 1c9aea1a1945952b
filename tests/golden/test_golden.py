"""Runs whose numbers are written down. A change that moves them is meant, or it is a defect.

``python tests/golden/test_golden.py`` writes them anew, after a change that is meant. Counts may move by a fiftieth:
another processor rounds differently, and a boundary image flips.
"""

import json
from pathlib import Path

import pytest
import torch

from hardcase.methods import argus, cw, fgsm, pgd, sinvad
from hardcase.methods.sinvad import sinvad_code
from hardcase.randomness import Rng
from hardcase.spaces.latent import Grid, Latent, collect
from hardcase.testing.methods import search
from hardcase.testing.toys import ToyAutoencoder, ToyQuantiser, toy_images, toy_subject

FILE = Path(__file__).with_name("runs.json")
SPACE, GRID = Latent(ToyAutoencoder()), Grid(ToyQuantiser())


def partners(space):
    def encode(x):
        return space.encode(x, torch.zeros(len(x)).long(), Rng.numbered(0, "space", len(x)))[0]

    return collect(toy_images(40, seed=1), encode, device=toy_subject().device)


RECIPES = {
    "fgsm": lambda: fgsm(),
    "pgd linf": lambda: pgd(),
    "pgd l2": lambda: pgd(norm="l2", epsilon=2.0),
    "cw": lambda: cw(steps=20, rounds=3),
    "sinvad": lambda: sinvad(space=SPACE, partners=partners(SPACE)),
    "sinvad@code": lambda: sinvad_code(space=SPACE, spread=1.5, generations=20),
    "argus": lambda: argus(space=GRID, partners=partners(GRID), mix=0.7),
}


def ran(name):
    shard = search(RECIPES[name](), images=toy_images(24))
    told = {n: int(getattr(shard.counts, n).sum()) for n in ("queries", "gradients", "failing")}
    told |= {"findings": len(shard.findings), "seeds": len(set(shard.findings.seed.tolist()))}
    for name in ("distance", "confidence"):
        told[name] = round(float(getattr(shard.findings, name).double().mean()), 4)
    return told


@pytest.mark.parametrize("name", RECIPES)
def test_the_run_is_as_written_down(name):
    assert ran(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=0.02)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: ran(name) for name in RECIPES}, indent=2) + "\n")
