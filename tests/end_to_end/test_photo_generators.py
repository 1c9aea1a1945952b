"""Methods with a generator on photographs, as a user types them: by the default one and by one of
their own.
"""

from pathlib import Path

import pytest
import torch
from PIL import Image

from hardcase.training.cards import TrainingRecipe

FAR = ("--set", "method.step_size=0.5", "--set", "method.radius=2000")
FILES = '''
import torch
from torch import nn
from torch.nn import functional

class Colours(nn.Module):
    """Which colour is strongest in the middle."""
    def forward(self, x):
        return 20 * x[:, :, 8:24, 8:24].mean((2, 3))

class Coarse(nn.Module):
    """Codes: the image at half its side."""
    def encode(self, x):
        return functional.avg_pool2d(x, 2)
    def decode(self, z):
        return functional.interpolate(z, scale_factor=2.0).clamp(0, 1)

class Painter(nn.Module):
    """Images of a class: its colour, and a little of the others."""
    latent, layers = 6, ("early",)
    def __init__(self):
        super().__init__()
        self.early = nn.Linear(9, 3)
        with torch.no_grad():
            self.early.weight.copy_(torch.cat([0.05 * torch.ones(3, 6), torch.eye(3)], 1))
            self.early.bias.fill_(-0.5)
    def forward(self, z, y):
        told = functional.one_hot(y, 3).float()
        return self.early(torch.cat([z, told], 1)).sigmoid()[:, :, None, None].expand(-1, -1, 32, 32)

def model(): return Colours()
def codes(): return Coarse()
def painter(): return Painter()
'''


@pytest.fixture
def photographs(world):
    """Class folders of JPEG files of several sizes."""
    Path("own.py").write_text(FILES)
    rng = torch.Generator().manual_seed(0)
    for split, count in (("train", 12), ("test", 4)):
        for label, name in enumerate(("a red", "b green", "c blue")):
            folder = Path("photos", split, name)
            folder.mkdir(parents=True)
            for i in range(count):
                x = 0.3 + 0.2 * torch.rand(3, 3, 3, generator=rng)
                x[:, :, label] += 0.25
                image = Image.fromarray((255 * x).byte().numpy())
                image.resize((70 + 9 * i, 80), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")
    return world


RUN = "run --model own.py:model --data folder:photos?resize=32&crop=center"
RUN += " --set model.outputs=logits"


def searched(world, method, *more):
    done = world(RUN, "--method", method, "--images", 3, "--out", f"out-{method}", *more)
    assert done.code == 0, done.err
    record = world.record(f"out-{method}")
    assert record["search_results"]["searched"] > 0
    assert record["search_results"]["failing"] > 0
    return record


@pytest.mark.long
def test_the_default_generator_is_trained_once_and_said(photographs, monkeypatch):
    def few(recipe, count):
        return 1, min(4, max(count // recipe.batch, 1))

    monkeypatch.setattr(TrainingRecipe, "rounds", few)
    asked = {"sinvad": ("--queries", 20), "argus-adaptive": ("--queries", 20)}
    asked["feature-perturbation"] = ("--gradients", 30, *FAR)
    records = [searched(photographs, method, *words) for method, words in asked.items()]
    made = records[0]["generator"]
    assert made["configuration"]["family"] == "vqvae"
    assert made["configuration"]["kind"] == "hierarchical"
    assert made["reconstruction_agreement"] >= 0.8
    assert [record["generator"] for record in records] == [made] * 3


@pytest.mark.parametrize(
    ("method", "factory", "budget"),
    [
        ("sinvad", "codes", ("--queries", 60)),
        ("argus-adaptive", "codes", ("--queries", 60)),
        ("feature-perturbation", "painter", ("--gradients", 30, "--witness", "none", *FAR)),
    ],
)
def test_a_generator_of_ones_own_is_a_file(photographs, method, factory, budget):
    record = searched(photographs, method, "--generator", f"own.py:{factory}", *budget)
    assert record["generator"]["name"] == f"own.py:{factory}"


def test_a_training_nobody_has_time_for_says_what_to_do(photographs, monkeypatch):
    monkeypatch.setattr("hardcase.generators.build.PATIENCE", 1e-3)
    done = photographs(RUN, "--method", "sinvad", "--out", "out")
    assert done.code == 2
    assert "training vqvae-hierarchical" in done.err
    assert "--method natural" in done.err
