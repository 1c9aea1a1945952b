"""``hardcase train vqvae`` and ``train gan``: trained as asked, kept, and drawn."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hardcase import registry
from hardcase.cli.main import main
from hardcase.generators import vqvae
from hardcase.training import monitor
from tiny import kill_at, save_bars


def _narrow(channels, size, classes, latent):
    return vqvae.VqVae(channels, size, width=16, code=latent, book=32)


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    names = ("vqvae-ema", "gan-small", "gan-conditional")
    save_bars(tmp_path, monkeypatch, {"generator": names}, epochs=40, lr=3e-3)
    row = registry.parts("generator")["vqvae-ema"]
    monkeypatch.setitem(registry._parts["generator"], "vqvae-ema", replace(row, make=_narrow))
    Path("model.py").write_text("from tiny import Columns as make\n")


def trained(capsys, *words):
    given = ["--data", "npz:bars.npz", "--model", "model.py:make", "--format", "json"]
    code = main(["train", *words, *given])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out), said.err


@pytest.mark.long
def test_a_vqvae_is_trained_with_its_options_kept_and_drawn(capsys):
    words = "vqvae --latent 8 --mix 0.2 --image-weight 0.0001 --latent-weight 0"
    card, _ = trained(capsys, *words.split())
    asked = {"kind": "ema", "latent": 8, "mix": 0.2, "latent_weight": 0.0, "image_weight": 0.0001}
    assert asked.items() <= card["configuration"].items()
    assert card["ssim"] > 0.3
    assert card["reconstruction_accuracy"] > 0.8
    picture = Path(card["folder"]) / "reconstructions.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    again, said = trained(capsys, *words.split())
    assert "training" not in said
    assert again == card


def test_a_gan_is_trained_and_its_samples_drawn(capsys):
    card, _ = trained(capsys, "gan", "--latent", "4", "--epochs", "1")
    assert card["configuration"]["latent"] == 4
    assert 0 <= card["sample_accuracy"] <= 1
    assert (Path(card["folder"]) / "samples.png").read_bytes().startswith(b"\x89PNG")


def test_a_stopped_gan_goes_on_by_the_same_command(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    words = ("gan", "--latent", "4", "--epochs", "2")
    unharmed = kill_at(monkeypatch, 3)
    assert main(["train", *words, "--data", "npz:bars.npz", "--model", "model.py:make"]) == 130
    capsys.readouterr()
    (left,) = (tmp_path / "cache" / "networks").glob("*.unfinished")
    assert sorted(path.name for path in left.iterdir()) == ["state.pt"]
    unharmed()
    card, said = trained(capsys, *words)
    assert "goes on after step 3, where it was stopped" in said
    assert not left.exists()
    again, _ = trained(capsys, *words)
    assert again == card
