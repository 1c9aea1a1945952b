"""A training of the GAN that was stopped ends as one that was not."""

import pytest
import torch

from hardcase.generators import gan
from hardcase.training import monitor
from hardcase.training.cards import TrainingRecipe
from tiny import StopError, bars, stop_at, weights

SHORT = TrainingRecipe(epochs=3, batch=16, lr=1e-3)


def plain(seed=0, latent=4):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return gan.Gan(1, 12, 3, latent=latent, widths=(8, 8, 8))


@pytest.mark.parametrize("after", [1, 3, 7])
def test_a_stopped_training_goes_on_and_ends_with_the_same_bytes(after, tmp_path, monkeypatch):
    images = bars(64)
    whole, told = plain(), []
    expected = gan.train_gan(whole, images, SHORT, seed=3)
    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    monkeypatch.setattr(monitor, "EVERY", 2)
    how = {"seed": 3, "kept": tmp_path / "kept"}
    with pytest.raises(StopError):
        gan.train_gan(plain(), images, SHORT, **how, progress=stop_at(after))
    if after > 1:
        assert (tmp_path / "kept" / monitor.STATE).exists()
    again = plain(seed=9 if after > 1 else 0)
    history = gan.train_gan(again, images, SHORT, **how, progress=told.append)
    assert history.loss == expected.loss
    assert weights(again) == weights(whole)
    goes_on = f"goes on after step {told[0].step}, where it was stopped"
    warnings = [report.warning for report in told if report.warning]
    assert warnings == ([goes_on] if after > 1 else [])


@pytest.mark.parametrize("damage", ["truncated", "another network", "another device"])
def test_what_cannot_be_gone_on_from_is_begun_anew(damage, tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    images, kept, told = bars(64), tmp_path / "kept", []
    first = plain(latent=5 if damage == "another network" else 4)
    gan.train_gan(first, images, SHORT, kept=kept)
    state = kept / monitor.STATE
    if damage == "truncated":
        state.write_bytes(state.read_bytes()[:-100])
    if damage == "another device":
        torch.save({**torch.load(state), "place": "cuda"}, state)
    net, fresh = plain(), plain()
    gan.train_gan(net, images, SHORT, kept=kept, progress=told.append)
    gan.train_gan(fresh, images, SHORT)
    assert "begins anew" in told[0].warning
    assert weights(net) == weights(fresh)
