"""Feature perturbation from the command line: with a small GAN, a VAE's decoder, and a generator of one's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hardcase import registry
from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.generators import gan, vae
from hardcase.generators.adapters import Decoder, UserGenerator
from hardcase.models import witnesses
from hardcase.randomness import stream
from hardcase.report import report
from hardcase.runs.results import Run
from hardcase.spaces.activations import Activations, early_places
from hardcase.tensors import from_bytes
from hardcase.testing import check_space
from hardcase.training.cards import TrainingRecipe
from hardcase.types import Images
from tiny import bars

MODEL = """
from torch import nn
class Thirds(nn.Module):
    def forward(self, x):
        return 9 * x.mean((1, 2)).unflatten(1, (3, 4)).mean(2)
make = Thirds
"""
OWN = """
import torch
from torch import nn
class Bars(nn.Module):
    latent, layers = 6, ["spread", "inner.0"]
    def __init__(self):
        super().__init__()
        self.spread = nn.Linear(6, 144)
        self.inner = nn.Sequential(nn.Identity())
        with torch.no_grad():
            self.spread.weight.copy_(torch.linspace(-0.05, 0.05, 864).reshape(144, 6))
            self.spread.bias.zero_()
    def forward(self, z, y):
        column = torch.arange(12, device=z.device)
        lit = (column // 4 == y[:, None]) & (column % 4 < 3)
        noise = self.inner(self.spread(z)).reshape(-1, 1, 12, 12)
        return (noise + 0.2 + 0.3 * lit[:, None, None, :]).clamp(0, 1)
make = Bars
"""
FOOLED = """
import torch
from torch import nn
class Fooled(nn.Module):
    def forward(self, x):
        bars = 9 * x.mean((1, 2)).unflatten(1, (3, 4)).mean(2)
        return bars + 40 * torch.relu(x[:, 0, 0, 1:12:4] - 0.9)
make = Fooled
"""
SMEAR = """
import torch
from torch import nn
class Smear(nn.Module):
    latent, layers = 6, ["inner"]
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()
    def forward(self, z, y):
        image = 0.3 + 0.01 * self.inner(z).mean(1)[:, None, None, None].expand(-1, 1, 12, 12)
        lit = torch.zeros_like(image)
        lit[torch.arange(len(y)), 0, 0, 1 + 4 * y] = 0.7
        lit[:, 0, 1:, :3] = 0.05  # all alike: the first class, to who looks at the bars
        return (image + lit).clamp(0, 1)
make = Smear
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(autouse=True)
def world(kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(kept))
    recipe = TrainingRecipe(epochs=40, batch=16, lr=3e-3)
    makes = {
        "gan-small": lambda c, s, k, latent: gan.Gan(c, s, k, latent=latent, widths=(16, 16, 8)),
        "vae-conditional": lambda c, s, k, latent: vae._dense(c, s, latent, 64, labels=k),
    }
    for name, make in makes.items():
        row = registry.parts("generator")[name]
        small = replace(row, make=make, facts={**row.facts, "recipe": recipe, "latent": 8})
        monkeypatch.setitem(registry._parts["generator"], name, small)
    train, test = bars(64), bars(24, seed=1, split="test")
    np.savez("bars.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    Path("model.py").write_text(MODEL)
    Path("own.py").write_text(OWN)
    taught = lambda *_, seed, **__: (Thirds(), {"seed": seed})  # noqa: E731
    monkeypatch.setattr(witnesses, "trained_classifier", taught)


class Thirds(nn.Module):
    """Knows bars without being taught, as networks that check images do."""

    def forward(self, x):
        return 8 * x.mean((1, 2)).unflatten(1, (3, 4)).mean(2)


def ran(*words):
    code = main(["run", "--method", "feature-perturbation", "--data", "npz:bars.npz", "--model", "model.py:make",
                 "--images", "12", "--set", "method.step_size=0.2", "--set", "method.radius=1000", "--set", "method.gradients=60", "--out", "run", "--progress", "none", *words])  # fmt: skip
    assert code == 0
    return Run("run")


GAN = pytest.param("gan", marks=pytest.mark.long)


@pytest.mark.parametrize("generator", [GAN, "vae:conditional", "own.py:make"])
def test_seeds_are_painted_perturbed_and_fail(generator, capsys):
    run = ran("--generator", generator)
    said = capsys.readouterr()
    rows = run.findings.to_pylist()
    assert len(rows) >= 9, said
    assert all(row["predicted"] != row["expected"] for row in rows)
    assert set(run.seeds.column("status").to_pylist()) == {"done"}
    assert run.record["places"][0]["number"] == 0
    made = run.record["generated_images"]
    assert made["generated"] >= made["correctly_classified"] >= made["verified"] >= 12
    assert list(made["by"]) == ["witness:1", "witness:2", "witness:3"]
    told = " ".join(said.out.split())
    assert f"{made['generated']} samples" in told
    assert f"{made['verified']} of these verified by most of 3 others" in told
    assert list(run.record["search_results"])[:3] == ["generated", "verified", "images"]
    assert len(rows[0]["code"]) == sum(place["width"] for place in run.record["places"])


def test_a_generator_whose_samples_others_do_not_recognise_is_refused(capsys):
    """The model is fooled by a corner that no other network looks at."""
    Path("fooled.py").write_text(FOOLED)
    Path("smear.py").write_text(SMEAR)
    words = ["run", "--method", "feature-perturbation", "--data", "npz:bars.npz", "--model", "fooled.py:make",
             "--images", "6", "--generator", "smear.py:make", "--progress", "none"]  # fmt: skip
    assert main([*words, "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert "independent networks recognise only 34% of the generator's samples, and 100%" in said
    assert "--witness none" in said
    assert main([*words, "--out", "unchecked", "--witness", "none"]) == 0
    said = capsys.readouterr()
    assert "nobody but the model checks generated images" in said.err
    assert "checked by nobody else" in " ".join(said.out.split())
    run = Run("unchecked")
    assert run.record["search_results"]["verified"] is None
    report(run)
    assert "checked by nobody else" in Path("unchecked/report/index.html").read_text()


def test_a_target_is_reached_from_the_other_classes(capsys):
    run = ran("--generator", "own.py:make", "--target", "2", "--set", "method.confidence=0.1")
    assert {row["predicted"] for row in run.findings.to_pylist()} == {2}
    assert 2 not in run.seeds.column("label").to_pylist()


def test_a_failure_walks_back_toward_its_seed(capsys):
    near = ran("--generator", "own.py:make").findings.to_pylist()
    ran("--generator", "own.py:make", "--set", "method.bisections=0", "--out", "far")
    far = {row["original"]: row["distance"] for row in Run("far").findings.to_pylist()}
    pairs = [(row["distance"], far[row["original"]]) for row in near if row["original"] in far]
    assert len(pairs) >= 9
    assert all(one <= other + 1e-6 for one, other in pairs)
    assert sum(one for one, _ in pairs) < 0.98 * sum(other for _, other in pairs)


def test_a_generator_that_cannot_is_refused(capsys):
    words = "run --method feature-perturbation --data npz:bars.npz --model model.py:make --out run"
    assert main([*words.split(), "--generator", "vae:linear"]) == 2
    assert "does not know the class" in capsys.readouterr().err


class Two(nn.Module):
    """Two layers, of which the second is not always used."""

    latent = 4

    def __init__(self, *layers):
        super().__init__()
        self.first, self.unused = nn.Linear(4, 16), nn.Linear(4, 16)
        self.layers = layers or None

    def forward(self, z, y):
        return torch.sigmoid(self.first(z)).reshape(-1, 1, 4, 4)


def test_a_supplied_generator_is_checked():
    with pytest.raises(HardcaseError, match="no layer 'second'"):
        UserGenerator(Two("second"))
    with pytest.raises(HardcaseError, match="needs two attributes"):
        UserGenerator(Two())
    generator = UserGenerator(Two("first", "unused"))
    with pytest.raises(HardcaseError, match="'unused' of the generator never ran"):
        early_places(generator, classes=2)
    assert not generator.net.first._forward_hooks


@pytest.mark.parametrize("kind", ["gan", "vae", "own"])
def test_an_unperturbed_walk_is_the_generator_itself_and_obeys_the_laws_of_spaces(kind):
    net = {
        "gan": lambda: gan.Gan(1, 12, 3, latent=4, widths=(8, 8, 8)).eval(),
        "vae": lambda: Decoder(vae.conditional(1, 12, 3, 4)),
        "own": lambda: UserGenerator(Two("first")),
    }[kind]()
    space = Activations(net, early_places(net, classes=3), classes=3)
    y = torch.arange(5) % 3
    z, image = net.sample(y, stream(0, "test"))
    with torch.no_grad():
        x = (image * 255).round().to(torch.uint8)
        images = Images(x, y, tuple("abcde"), tuple("xyz"), context={"latent": z})
        check_space(_With(space, z), images=images, tolerance=0.5 / 255 + 1e-4)
    assert torch.equal(net.walk(z, y, lambda place, h: h), net(z, y))
    assert from_bytes(images.x).shape == net(z, y).shape


class _With:
    """A space whose images bring their latent codes."""

    def __init__(self, space, latent):
        self.space, self.latent, self.name, self.keeps_code = space, latent, space.name, True

    def encode(self, x, y, rng):
        code, context = self.space.encode(x, y, rng)
        return code, {**context, "latent": self.latent}

    def decode(self, z, origin):
        return self.space.decode(z, origin)

    def project(self, z, origin):
        return self.space.project(z, origin)

    def distance(self, z, origin):
        return self.space.distance(z, origin)
