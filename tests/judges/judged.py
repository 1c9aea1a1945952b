"""A tiny data set with a judge of its own, trained in seconds, and runs on it."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from hardcase.judges import panel
from hardcase.judges.panel import trained
from hardcase.tensors import from_bytes, to_bytes
from tiny import bars, stored_run

SIZE = 12
QUICK = replace(
    panel.USUAL,
    ensemble=panel.USUAL.ensemble[:2],
    members=replace(panel.USUAL.members, epochs=1, steps=60, batch=32),
    density=replace(panel.USUAL.density, epochs=1, steps=30, batch=32),
)


def splits():
    return bars(160, size=SIZE), bars(60, size=SIZE, seed=9, split="test")


def quick_judge(seed=0):
    train, test = splits()
    return trained(train, test, seed=seed, config=QUICK)


def network(classes=3):
    """A small encoder with random weights: three resolutions and a head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, classes),
    ).eval()  # fmt: skip


def photographs(count=240, seed=0, split="train"):
    """Rows of light, so that a mirror changes no label."""
    images = bars(count, size=32, channels=3, classes=3, seed=seed, split=split)
    return replace(images, x=images.x.transpose(2, 3).contiguous())


@contextmanager
def cache_of(tmp_path_factory):
    """A cache for the tests of a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDCASE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def made_run(folder, x, y, found, *, record=None):
    """A finished run of these images; `found` are the tests, one a seed."""
    n, rows = len(y), torch.arange(len(found))
    seeds = {
        "id": [f"test-{i}" for i in range(n)],
        "confidence": torch.linspace(0.8, 1, n).tolist(),
        **dict.fromkeys(("evaluated", "failing", "queries"), [5] * n),
    }
    findings = {"predicted": (y[rows] + 1) % 3, "confidence": torch.full((len(found),), 0.9)}
    about = {
        "method": "made", "model": "nobody", "data": "bars", "split": "test", "classes": ["0", "1", "2"], "complete": True,
        "shape": list(x.shape[1:]), "seed": 0, "budget": {}, "hashes": {"model": "s", "peers": [], "generator": None, "guides": {}, "data": "d"},
        "totals": {"queries": 5 * n}, "elapsed": 1.0, **(record or {}),
    }  # fmt: skip
    given = {"seeds": seeds, "findings": findings, "record": about}
    return stored_run(folder, x, y, rows, to_bytes(found), **given)


def test_run(folder, **given):
    """Twelve images: four tests a little dimmed, four blank, four that are another class."""
    _, test = splits()
    x, y = test.x[:12], test.y[:12]
    seed = from_bytes(x)
    other = seed[[(i + 1) if (i + 1) < 12 else 0 for i in range(12)]]
    found = torch.cat([0.8 * seed[:4], 0.02 * seed[4:8], other[8:]])
    return made_run(folder, x, y, found, **given)


test_run.__test__ = False
